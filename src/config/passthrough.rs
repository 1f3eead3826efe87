//! `server.passthrough`: paths of engines that the gateway does not know.

use super::{Invalid, Problem};

const KEY: &str = "server.passthrough";

pub(super) fn validate(paths: &[String], invalid: &mut Vec<Invalid>) {
    let wrong = paths.iter().filter(|text| !is_path(text));
    invalid.extend(wrong.map(|text| (KEY, Problem::NotAPassedPath { text: text.clone() })));
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
    fn what_is_no_path_is_named_with_what_it_should_be() {
        let mut invalid = Vec::new();
        validate(&["/v1/new".to_owned(), "new".to_owned()], &mut invalid);
        let found: Vec<String> = invalid.iter().map(|(key, what)| format!("{key}: {what}")).collect();
        assert_eq!(
            found,
            [
                "server.passthrough: server.passthrough: `new` is no path: begin it with a slash and leave out host and query, as in \
              /v1/new; /v1/new/* = all below it"
            ]
        );
    }
}
