//! `[server]`: where the gateway listens and how it runs.

use super::bounds::{ms, port, within};
use super::cors::origin_fault;
use super::names::name_fault;
use super::passthrough::passed_path_fault;
use super::table::{Rule, section};
use super::{Problem, Secret};
use crate::endpoint::bind_host;

/// Most runtime threads.
const MAX_WORKERS: u64 = 1_024;

section! {
    /// `[server]`: where the gateway listens and how it runs.
    Server = "server" {
        /// Address to bind: an IP (IPv6 with or without brackets) or a name; `localhost` binds
        /// loopback v4 and v6.
        host: String = "localhost".to_owned(), AfterRestart, Rule::Judged(host_fault);
        /// TCP port to bind; 0 takes any free one.
        port: u16 = 8000, AfterRestart, port(0);
        /// Runtime threads; 0 = one per core.
        workers: usize = 0, AfterRestart, within(0, MAX_WORKERS);
        /// Time for which new requests are still taken after a stop signal, while `/readyz` says
        /// no, ms.
        lame_duck_ms: u64 = 0, AfterRestart, ms(0);
        /// Longest time that running requests may finish after that, ms.
        drain_ms: u64 = 30_000, AfterRestart, ms(0);
        /// Guards `/instances/*` by the header `X-API-Key`; also `ADMIN_API_KEY`. None = open.
        admin_key: Option<Secret> = None, AtOnce, Rule::Secret { variable: "ADMIN_API_KEY" };
        /// Address to bind for the routes of operators, which are then served there alone; None =
        /// beside all others.
        admin_host: Option<String> = None, AfterRestart, Rule::Judged(admin_host_fault);
        /// TCP port of that; 0 takes any free one.
        admin_port: u16 = 8009, AfterRestart, port(0);
        /// True if everybody may use the operators' routes without a key on an address that other
        /// machines reach.
        open_admin: bool = false, AtOnce;
        /// Names with a dot, besides that of `host`, by which the operators' routes are served
        /// without a key.
        names: Vec<String> = Vec::new(), AtOnce, Rule::Judged(name_fault);
        /// Origins whose pages may ask what clients ask, each `scheme://host` or
        /// `scheme://host:port`; `*` = all, none = no page.
        cors_origins: Vec<String> = Vec::new(), AfterRestart, Rule::Judged(origin_fault);
        /// Paths of engines that are passed on to one of them, beside those that are known;
        /// `/folder/*` = all below it.
        passthrough: Vec<String> = Vec::new(), AtOnce, Rule::Judged(passed_path_fault);
        /// True if another gateway of the same user may listen on the same address (SO_REUSEPORT),
        /// as one that replaces this one; connections are shared out between them.
        reuse_port: bool = false, AfterRestart;
    }
}

impl Server {
    /// The host to bind or resolve, without the brackets that an IPv6 address may be written with.
    pub fn bind_host(&self) -> &str {
        without_brackets(&self.host)
    }

    /// The same for the routes of operators, if they have a listener of their own.
    pub fn admin_bind_host(&self) -> Option<&str> {
        self.admin_host.as_deref().map(without_brackets)
    }
}

pub(super) fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

fn host_fault(key: &'static str, text: &str) -> Option<Problem> {
    bind_host(text, "--port (server.port)").err().map(|why| Problem::Host { key, text: text.to_owned(), why })
}

fn admin_host_fault(key: &'static str, text: &str) -> Option<Problem> {
    bind_host(text, "server.admin_port").err().map(|why| Problem::Host { key, text: text.to_owned(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bind_host_drops_brackets() {
        for (written, bound) in
            [("[::]", "::"), ("::1", "::1"), ("0.0.0.0", "0.0.0.0"), ("localhost", "localhost")]
        {
            let server = Server { host: written.to_owned(), ..Server::default() };
            assert_eq!(server.bind_host(), bound);
        }
    }
}
