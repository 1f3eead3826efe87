//! Causes of failed connections, and advice for each.

use crate::endpoint::Endpoint;

/// Advice about an engine that can't be asked for the reason `why`.
pub(super) fn advice(engine: &Endpoint, why: &str) -> &'static str {
    let why = why.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if engine.tls {
        if says(&["unknownissuer", "unknown issuer", "unknownca", "cabusedasendentity"]) {
            return "no authority that is believed here signed its certificate: set engine.tls_ca to the one that did";
        }
        if says(&["not valid for", "notvalidforname"]) {
            return "its certificate is for another name: name the engine so, or set engine.tls_name";
        }
        if says(&["certificate expired", "certificate not valid yet", "expired", "notvalidyet"]) {
            return "its certificate is not valid now: renew it, and compare the clocks of both machines";
        }
        if says(&["certificate required", "certificaterequired", "handshakefailure", "badcertificate"]) {
            return "it wants a certificate of ours that it believes: set engine.tls_cert and engine.tls_key";
        }
        if says(&["corrupt message", "invalidcontenttype", "invalidmessage"]) {
            return "it does not speak TLS: write http:// before it";
        }
    } else if says(&["invalid http version", "connection closed before message completed"]) {
        return "it does not speak plain HTTP: if it has a certificate, write https:// before it";
    }
    if says(&["connection refused"]) {
        return "is it up, and is this its port?";
    }
    if says(&["lookup address", "name or service", "dns error"]) {
        return "this name is not known here: correct it, or the name server of this machine";
    }
    if says(&["no answer within", "no whole answer", "timed out", "deadline", "unreachable", "no route"]) {
        return "is it up, and does a firewall or network policy let this machine through? timeout.models_ms is the wait";
    }
    "is it up, and is an engine's API behind this port?"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_its_advice() {
        let plain = Endpoint::new("p", 1);
        let secure = Endpoint { tls: true, ..plain.clone() };
        for (engine, why, words) in [
            (&plain, "Connection refused (os error 111)", "is this its port"),
            (&secure, "Connection refused (os error 111)", "is this its port"),
            (&secure, "invalid peer certificate: UnknownIssuer", "engine.tls_ca"),
            (&secure, "invalid peer certificate: certificate not valid for name \"p\"", "engine.tls_name"),
            (&secure, "invalid peer certificate: certificate expired: …", "renew it"),
            (&secure, "received corrupt message of type InvalidContentType", "http://"),
            (&plain, "invalid HTTP version parsed", "https://"),
            (&plain, "failed to lookup address information: Name or service not known", "not known here"),
            (&plain, "no answer within 3000 ms", "firewall"),
            (&plain, "something else", "engine's API"),
        ] {
            assert!(advice(engine, why).contains(words), "{why}: {}", advice(engine, why));
        }
    }
}
