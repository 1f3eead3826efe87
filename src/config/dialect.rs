//! `[dialect]`: how the engines move KV from a prefiller to a decoder.

use super::Problem;
use super::bounds::{ms, port};
use super::error::Invalid;
use super::table::{Rule, section};
use super::values::DialectName;
use crate::config::{Config, Server};
use crate::endpoint::{Endpoint, parse_host};

section! {
    /// `[dialect]`: what both legs are told about each other.
    Dialect = "dialect" {
        /// Protocol of the engines: their `kv_connector`.
        name: DialectName = DialectName::Auto, AfterRestart;
        /// Port of the bootstrap server on each prefiller's host (`VLLM_MOONCAKE_BOOTSTRAP_PORT`).
        bootstrap_port: u16 = 8998, AfterRestart, port(1);
        /// Prefillers whose bootstrap server is elsewhere, each `prefiller=host:port`.
        bootstraps: Vec<String> = Vec::new(), AfterRestart, Rule::Judged(pair_fault);
        /// The gateway as decoders reach it, for a dialect in which they call back; unset =
        /// `server.host` and `server.port`.
        callback_url: Option<String> = None, AfterRestart;
        /// True if prefillers read the parameters of lists of prompts (`batch_kv_transfer_params`).
        batch: bool = false, AfterRestart;
        /// Longest time that a decoder is not asked because the pool that alone carries the KV
        /// lacks a part of the prompt, ms; 0 = the pool is not asked.
        pool_wait_ms: u64 = 0, AtOnce, ms(0);
        /// True if decoders offer a conversation's KV back for its next turn
        /// (`bidirectional_kv_xfer`).
        bidirectional: bool = false, AtOnce;
        /// Time for which such an offer is good, ms; less than the engines'
        /// `decoder_kv_blocks_ttl`.
        bidirectional_ttl_ms: u64 = 450_000, AtOnce, ms(1);
    }
}

const MORIIO_EXPERIMENTAL: &str = "dialect.name = \"moriio\" is experimental: it was not run on real engines yet, and may change or \
                                   go in any release (docs/stability.md)";

const OFFERS_EXPERIMENTAL: &str = "dialect.bidirectional is experimental: vLLM reads what it is told to without a check, its form is not \
                                   settled there, and it may change or go in any release (docs/stability.md)";

/// Place where decoders call back.
const CALLBACK_PATH: &str = "/v1/metaserver";

impl Dialect {
    /// Prefillers with the place of their bootstrap server, where that is given; entries that can't
    /// be read are left out.
    pub fn bootstraps(&self) -> Vec<(Endpoint, Endpoint)> {
        self.bootstraps.iter().filter_map(|text| pair(text)).collect()
    }

    /// Checks that decoders can call back where they have to.
    pub(super) fn validate(&self, config: &Config, invalid: &mut Vec<Invalid>) {
        if self.name == DialectName::Layerwise || self.callback_url.is_some() {
            invalid.extend(config.callback().err().map(|problem| ("dialect.callback_url", problem)));
        }
    }
}

impl Config {
    /// Settings in use that the documents call experimental, each with the reason, for the log and
    /// for `pd-proxy check`.
    pub fn experimental(&self) -> Vec<&'static str> {
        let dialect = &self.dialect;
        let moriio = (dialect.name == DialectName::Moriio).then_some(MORIIO_EXPERIMENTAL);
        let offers = dialect.bidirectional.then_some(OFFERS_EXPERIMENTAL);
        moriio.into_iter().chain(offers).collect()
    }

    /// The whole URL at which decoders call back.
    ///
    /// # Errors
    /// Faults of its address: above all a host that is every address of this machine, and none of
    /// another one.
    pub fn callback(&self) -> Result<String, Problem> {
        match &self.dialect.callback_url {
            Some(given) => given_callback(given),
            None => own_callback(&self.server, self.tls.cert.is_some()),
        }
    }
}

/// The callback address made of the server's own, if other machines can use it.
fn own_callback(server: &Server, tls: bool) -> Result<String, Problem> {
    let host = parse_host(&server.host).unwrap_or_default();
    if let Some(why) = unreachable(&host).or((server.port == 0).then_some("the port is not known yet")) {
        return Err(Problem::Callback { text: format!("{}:{}", server.host, server.port), why });
    }
    let scheme = if tls { "https" } else { "http" };
    Ok(format!("{scheme}://{}{CALLBACK_PATH}", Endpoint::new(host, server.port).authority()))
}

fn given_callback(text: &str) -> Result<String, Problem> {
    let wrong = |why| Problem::Callback { text: text.to_owned(), why };
    let not_a_url = "it is not http://host:port or https://host:port";
    let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong(not_a_url))?;
    if !matches!(scheme, "http" | "https") {
        return Err(wrong(not_a_url));
    }
    let authority = rest.strip_suffix(CALLBACK_PATH).unwrap_or(rest).trim_end_matches('/');
    if authority.contains(['/', '?', '#', '@']) {
        return Err(wrong("it has a path other than /v1/metaserver, which is where decoders call back"));
    }
    let host =
        authority.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map_or(authority, |(h, _)| h);
    if host.is_empty() || unreachable(host) == Some(EVERY_ADDRESS) {
        return Err(wrong(EVERY_ADDRESS));
    }
    let at = Endpoint::parse(&format!("{scheme}://{authority}")).map_err(|_| wrong(not_a_url))?;
    Ok(format!("{scheme}://{}{CALLBACK_PATH}", at.authority()))
}

const EVERY_ADDRESS: &str =
    "it stands for every address of this machine, which is none that a decoder could call";

/// Reason why decoders on other machines can't call a host, if so.
fn unreachable(host: &str) -> Option<&'static str> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let ip = bare.parse::<std::net::IpAddr>().ok();
    if bare.is_empty() || bare == "0" || ip.is_some_and(|ip| ip.to_canonical().is_unspecified()) {
        return Some(EVERY_ADDRESS);
    }
    let loopback =
        bare.eq_ignore_ascii_case("localhost") || ip.is_some_and(|ip| ip.to_canonical().is_loopback());
    loopback.then_some("decoders on other machines would call themselves")
}

fn pair_fault(key: &'static str, text: &str) -> Option<Problem> {
    pair(text).is_none().then(|| Problem::NotAPair { key, text: text.to_owned() })
}

fn pair(text: &str) -> Option<(Endpoint, Endpoint)> {
    let (prefiller, bootstrap) = text.split_once('=')?;
    Some((Endpoint::parse(prefiller).ok()?, Endpoint::parse(bootstrap).ok()?.plain().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bootstrap_server_is_given_with_its_prefiller() {
        assert_eq!(
            pair("10.0.0.1:8100=10.0.0.9:9001"),
            Some((Endpoint::new("10.0.0.1", 8100), Endpoint::new("10.0.0.9", 9001)))
        );
        for bad in ["", "a:1", "a:1=", "=b:2", "a=b:2", "a:1=https://b:2"] {
            assert_eq!(pair(bad), None, "{bad}");
        }
    }

    #[test]
    fn experimental_dialects_are_named_where_used() {
        let named = |name, bidirectional| {
            let dialect = Dialect { name, bidirectional, ..Dialect::default() };
            Config { dialect, ..Config::default() }.experimental()
        };
        assert!(named(DialectName::Auto, false).is_empty() && named(DialectName::Sglang, false).is_empty());
        assert_eq!(named(DialectName::Moriio, false), [MORIIO_EXPERIMENTAL]);
        assert_eq!(named(DialectName::KvTransfer, true), [OFFERS_EXPERIMENTAL]);
    }

    fn given(text: &str) -> Result<String, String> {
        let config = Config {
            dialect: Dialect { callback_url: Some(text.to_owned()), ..Dialect::default() },
            ..Config::default()
        };
        config.callback().map_err(|problem| problem.to_string())
    }

    #[test]
    fn decoders_call_back_where_they_are_told_to() {
        let whole = |text: &str| given(text).unwrap();
        assert_eq!(whole("http://10.0.0.9:8000"), "http://10.0.0.9:8000/v1/metaserver");
        assert_eq!(whole("http://gateway:8000/"), "http://gateway:8000/v1/metaserver");
        assert_eq!(whole("https://[fd00::1]:8000/v1/metaserver"), "https://[fd00::1]:8000/v1/metaserver");
        assert_eq!(
            whole("http://127.0.0.1:8000"),
            "http://127.0.0.1:8000/v1/metaserver",
            "said so, meant so"
        );
        for every in
            ["http://0.0.0.0:8000", "http://[::]:8000", "http://:8000", "http://[0:0:0:0:0:0:0:0]:8000"]
        {
            let why = given(every).unwrap_err();
            assert!(why.contains(every) && why.contains("every address"), "{why}");
        }
        for bad in ["10.0.0.9:8000", "ftp://a:1", "http://a:1/other", "http://a:1/?x", "http://a:port", ""] {
            assert!(given(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_servers_own_address_is_enough_where_decoders_can_reach_it() {
        let own = |host: &str, port| {
            let mut config = Config::default();
            (config.server.host, config.server.port) = (host.to_owned(), port);
            config.callback().map_err(|problem| problem.to_string())
        };
        assert_eq!(own("10.0.0.9", 8000).unwrap(), "http://10.0.0.9:8000/v1/metaserver");
        for (host, port) in
            [("0.0.0.0", 8000), ("::", 8000), ("localhost", 8000), ("127.0.0.1", 8000), ("a", 0)]
        {
            let why = own(host, port).unwrap_err();
            assert!(why.contains("--callback-url"), "{why}");
        }
    }
}
