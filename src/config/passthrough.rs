//! `server.passthrough`: paths of engines that the gateway does not know.

use super::Problem;

/// Finds fault with an entry that is no path.
pub(super) fn passed_path_fault(_: &'static str, text: &str) -> Option<Problem> {
    (!is_path(text)).then(|| Problem::NotAPassedPath { text: text.to_owned() })
}

/// A path from its first slash on, as it stands in a request, without a query; `*` only as the last
/// segment of more than one.
fn is_path(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_graphic() && !"?#*{}<>\"\\".contains(c);
    let path = text.strip_suffix("/*").unwrap_or(text);
    path.len() > 1 && path.starts_with('/') && !path.contains("//") && path.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_as_in_requests() {
        for good in ["/v1/new", "/v1/new/*", "/a", "/v1/x-y_z.w~", "/a%20b"] {
            assert!(is_path(good), "{good}");
        }
        for bad in [
            "",
            "/",
            "/*",
            "v1/new",
            "/a?b",
            "/a#b",
            "/a/*/b",
            "/*x",
            "/a b",
            "/{id}",
            "//a",
            "http://a/b",
            "/a*",
        ] {
            assert!(!is_path(bad), "{bad}");
        }
    }

    #[test]
    fn invalid_path_is_named_with_its_correction() {
        assert!(passed_path_fault("", "/v1/new").is_none());
        assert_eq!(
            passed_path_fault("", "new").unwrap().to_string(),
            "server.passthrough: `new` is no path: begin it with a slash and leave out host and query, as in \
             /v1/new; /v1/new/* = all below it"
        );
    }
}
