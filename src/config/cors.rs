//! `server.cors_origins`: whose pages may ask, as browsers write an origin.

use super::Problem;

/// Stands for every origin.
const ANY: &str = "*";

/// Finds fault with an entry that is neither an origin nor `*`.
pub(super) fn origin_fault(_: &'static str, text: &str) -> Option<Problem> {
    (text != ANY && !is_origin(text)).then(|| Problem::NotAnOrigin { text: text.to_owned() })
}

/// `scheme://host` or `scheme://host:port`, as in the header `Origin` (RFC 6454 §6.2): compared
/// byte by byte, so that a slash at the end or a capital letter would never match.
fn is_origin(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else { return false };
    let plain = |c: char| c.is_ascii_graphic() && !c.is_ascii_uppercase() && !"/?#@,*\"".contains(c);
    !scheme.is_empty() && !rest.is_empty() && rest.chars().all(plain) && scheme.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_as_browsers_write_them() {
        for good in [
            "https://chat.example",
            "http://localhost:3000",
            "http://[::1]:8080",
            "app://obsidian.md",
            "tauri://localhost",
        ] {
            assert!(is_origin(good), "{good}");
        }
        for bad in [
            "",
            "chat.example",
            "https://",
            "://x",
            "https://chat.example/",
            "https://chat.example/a",
            "https://Chat.example",
            "https://*.example",
            "https://a b",
            "https://a, https://b",
            "https://user@a",
            "null",
        ] {
            assert!(!is_origin(bad), "{bad}");
        }
    }

    #[test]
    fn invalid_origin_is_named_with_its_correction() {
        for good in [ANY, "https://chat.example"] {
            assert!(origin_fault("", good).is_none(), "{good}");
        }
        assert_eq!(
            origin_fault("", "https://chat.example/").unwrap().to_string(),
            "server.cors_origins: `https://chat.example/` is no origin: scheme://host or scheme://host:port \
             in small letters, with nothing behind, as in https://chat.example; or * for all"
        );
    }
}
