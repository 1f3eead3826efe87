//! Paths that mean the same to the gateway, to an engine, and to a proxy between them.

use percent_encoding::percent_decode_str;

/// True if no segment of `path` is `.` or `..`, or hides a slash, however it is spelled (RFC 3986
/// §6.2.2.3). A proxy that resolves such segments would find another route of the engine than the
/// one that was allowed here.
pub(super) fn is_plain(path: &str) -> bool {
    path.split('/').all(|segment| {
        let decoded: Vec<u8> = percent_decode_str(segment).collect();
        !matches!(decoded.as_slice(), b"." | b"..")
            && !decoded.iter().any(|byte| matches!(byte, b'/' | b'\\'))
    })
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn hidden_segments_are_found_in_every_spelling() {
        for path in ["/v1/embeddings", "/v1/responses/resp_1/cancel", "/x/a.b", "/x/...", "/x/%20", "/"] {
            assert!(is_plain(path), "{path}");
        }
        for path in [
            "/x/../metrics",
            "/x/..",
            "/x/./y",
            "/x/%2e%2e/sleep",
            "/x/.%2E/sleep",
            "/v1/responses/..%2f..%2fmetrics",
            "/x/a%2Fb",
            "/x/..%5cmetrics",
            "/x/a\\b",
        ] {
            assert!(!is_plain(path), "{path}");
        }
    }
}
