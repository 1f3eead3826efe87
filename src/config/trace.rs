//! `[trace]`: which requests are traced, and where their spans go.

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::bounds::share;
use super::table::{Rule, section};
use super::{Config, Invalid, Problem, Secret};

/// Path that spans are posted to, below `trace.endpoint` (OTLP over HTTP).
const PATH: &str = "/v1/traces";

/// Longest name of a service, bytes.
const NAME_BYTES: usize = 255;

section! {
    /// `[trace]`: OpenTelemetry spans.
    Trace = "trace" {
        /// The collector's address for OTLP over HTTP, as in `http://collector:4318`; empty =
        /// nothing is traced.
        endpoint: String = String::new(), AfterRestart;
        /// Of requests whose client does not say whether they are traced, this share is; 0 to 1.
        sample_ratio: f64 = 1.0, AfterRestart, share();
        /// Headers for the collector, `name=value` with commas between: what it wants to know us
        /// by.
        headers: Option<Secret> = None, AfterRestart,
            Rule::Secret { variable: "PD_PROXY__TRACE__HEADERS" };
        /// Name of the gateway in its spans.
        service_name: String = "pd-proxy".to_owned(), AfterRestart,
            Rule::Judged(service_name_fault);
    }
}

impl Trace {
    /// The URL that spans are posted to; `None` where nothing is traced.
    pub fn url(&self) -> Option<String> {
        let endpoint = self.endpoint.trim_end_matches('/');
        (!endpoint.is_empty()).then(|| format!("{endpoint}{PATH}"))
    }

    /// The headers, without those that can't be sent, which a loaded configuration does not have.
    pub fn header_map(&self) -> HeaderMap {
        self.header_lines().filter_map(Result::ok).collect()
    }

    /// Each header, or what is wrong with it.
    fn header_lines(&self) -> impl Iterator<Item = Result<(HeaderName, HeaderValue), &'static str>> {
        let lines = self.headers.as_ref().map(Secret::expose).unwrap_or_default();
        lines.split(',').map(str::trim).filter(|line| !line.is_empty()).map(|line| {
            let (name, value) = line.split_once('=').ok_or("has no `=`")?;
            let name = name.trim().parse().map_err(|_| "has a name that no header has")?;
            let value = HeaderValue::from_str(value.trim()).ok().filter(|value| !value.is_empty());
            let mut value = value.ok_or("has no value that a header can have")?;
            value.set_sensitive(true);
            Ok((name, value))
        })
    }
}

/// Checks the collector's address and headers.
pub(super) fn validate(config: &Config, invalid: &mut Vec<Invalid>) {
    let trace = &config.trace;
    if let Err(why) = collector(&trace.endpoint) {
        // It may hold a password.
        let text = if trace.endpoint.contains('@') { "http://…@…" } else { &trace.endpoint };
        invalid.push(("trace.endpoint", Problem::Collector { text: text.to_owned(), why }));
    }
    if trace.endpoint.starts_with("https:") && !cfg!(feature = "tls") {
        invalid.push(("trace.endpoint", Problem::NoTls { key: "trace.endpoint" }));
    }
    if trace.headers.as_ref().is_some_and(|headers| headers.expose().is_empty()) {
        invalid.push(("trace.headers", Problem::EmptyText { key: "trace.headers" }));
    }
    for (at, why) in trace.header_lines().enumerate().filter_map(|(at, line)| Some((at, line.err()?))) {
        invalid.push(("trace.headers", Problem::CollectorHeader { number: at + 1, why }));
    }
}

fn service_name_fault(key: &'static str, text: &str) -> Option<Problem> {
    let too_long = || {
        let expected = format!("a name of at most {NAME_BYTES} bytes");
        Problem::WrongType { key: key.to_owned(), value: text.to_owned(), expected }
    };
    match text.len() {
        0 => Some(Problem::EmptyText { key }),
        bytes => (bytes > NAME_BYTES).then(too_long),
    }
}

/// Checks that spans can be posted to this address; an empty text means none.
fn collector(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Ok(());
    }
    if text.contains('@') {
        return Err("holds credentials, which belong in trace.headers");
    }
    if text.contains(['?', '#']) {
        return Err("has a query or a fragment");
    }
    let url: Uri = text.parse().map_err(|_| "is no URL")?;
    match (url.scheme_str(), url.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => {}
        _ => return Err("does not begin with http:// or https:// and a host"),
    }
    if url.path().trim_end_matches('/').ends_with(PATH) {
        return Err("ends with /v1/traces, which the gateway adds by itself");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(change: impl FnOnce(&mut Trace)) -> Vec<String> {
        let mut config = Config::default();
        change(&mut config.trace);
        config.validate().into_iter().map(|(_, what)| what.to_string()).collect()
    }

    #[test]
    fn good_ones_lead_to_a_url_and_headers() {
        for (endpoint, url) in [
            ("", None),
            ("http://collector:4318", Some("http://collector:4318/v1/traces")),
            ("http://[::1]:4318/", Some("http://[::1]:4318/v1/traces")),
            ("http://c/otlp", Some("http://c/otlp/v1/traces")),
        ] {
            assert_eq!(messages(|trace| trace.endpoint = endpoint.to_owned()), [""; 0], "{endpoint}");
            let trace = Trace { endpoint: endpoint.to_owned(), ..Trace::default() };
            assert_eq!(trace.url().as_deref(), url);
        }
        let headers = Some(Secret::new("authorization=Bearer a=b, x-team = kv,"));
        assert_eq!(messages(|trace| trace.headers = headers.clone()), [""; 0]);
        let map = Trace { headers, ..Trace::default() }.header_map();
        assert_eq!((map.len(), map["authorization"].to_str().unwrap()), (2, "Bearer a=b"));
        assert_eq!(map["x-team"], "kv");
    }

    #[test]
    fn bad_ones_are_named_and_say_what_to_do() {
        let endpoint = |text: &str| messages(|trace| trace.endpoint = text.to_owned());
        let fix = "write where the collector takes OTLP over HTTP, as in http://collector:4318";
        for (text, why) in [
            ("collector:4318", "does not begin with http:// or https:// and a host"),
            ("grpc://collector:4317", "does not begin with http:// or https:// and a host"),
            ("http://c/v1/traces", "ends with /v1/traces, which the gateway adds by itself"),
            ("http://c?x=1", "has a query or a fragment"),
            ("http://", "is no URL"),
            ("http://a b", "is no URL"),
        ] {
            assert_eq!(endpoint(text), [format!("trace.endpoint: `{text}` {why}: {fix}")]);
        }
        let password = endpoint("http://me:hunter2@c");
        assert!(password.len() == 1 && !password[0].contains("hunter2"), "{password:?}");
        for ratio in [-0.1, 1.5, f64::NAN] {
            let said = messages(|trace| trace.sample_ratio = ratio);
            assert_eq!(said, [format!("trace.sample_ratio = {ratio}: expected 0 to 1")]);
        }
        let headers = messages(|trace| trace.headers = Some(Secret::new("a=b,secret,ü=1,c=")));
        assert_eq!(headers.len(), 3);
        assert_eq!(
            headers[0],
            "trace.headers: entry 2 has no `=`: write name=value, with commas between several"
        );
        assert!(headers.iter().all(|said| !said.contains("secret")), "{headers:?}");
        assert_eq!(
            messages(|trace| trace.service_name = String::new()),
            ["trace.service_name is empty: leave it out instead"]
        );
    }
}
