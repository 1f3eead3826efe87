//! `priority` of vLLM's scheduler (`--scheduling-policy priority`): an integer, 0 by default; the
//! smaller, the sooner. It is a member of the body. From 0.32 on the header `X-Vllm-Priority` of
//! chats, completions and responses outranks that.

use bytes::Bytes;

use crate::codec::json::{Edit, Object};

/// The member of a body.
const MEMBER: &str = "priority";

/// The header's name.
pub const HEADER: &str = "x-vllm-priority";

/// Priority that a client claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It claims none.
    None,
    /// It claims this number.
    Of(i64),
    /// One that is no integer; an engine might still read one from it.
    Unreadable,
}

impl Claim {
    /// The claim of a body, of which engines read the last of several members.
    pub fn of_body(body: &Object) -> Claim {
        match body.get(MEMBER) {
            None => Claim::None,
            Some(value) if value.raw() == b"null".as_slice() => Claim::None,
            Some(value) => serde_json::from_slice(value.raw()).map_or(Claim::Unreadable, Claim::Of),
        }
    }

    /// The claim of a header's value.
    pub fn of_header(value: &[u8]) -> Claim {
        let text = std::str::from_utf8(value).ok();
        text.and_then(|text| text.trim().parse().ok()).map_or(Claim::Unreadable, Claim::Of)
    }

    /// The priority that engines are told: the claimed one, but none that is sooner than the key's.
    pub fn granted(self, of_key: i64) -> i64 {
        match self {
            Claim::Of(claimed) => claimed.max(of_key),
            Claim::None | Claim::Unreadable => of_key,
        }
    }
}

/// The text of a body with this priority.
pub fn with_priority(body: &Object, priority: i64) -> Bytes {
    body.splice(&Edit::new().set(MEMBER, priority.to_string().into())).to_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::json::ScanLimits;

    #[test]
    fn client_may_wait_longer_than_its_key_and_never_less() {
        for (claim, granted) in [
            ("{}", 0),
            (r#"{"priority":null}"#, 0),
            (r#"{"priority":7}"#, 7),
            (r#"{"priority":-7}"#, 0),
            (r#"{"priority":"-7"}"#, 0),
            (r#"{"priority":-7.0}"#, 0),
            (r#"{"priority":9,"priority":-7}"#, 0),
            (r#"{"pri\u006frity":-7}"#, 0),
            (r#"{"priority":-99999999999999999999}"#, 0),
        ] {
            let body = Object::scan(claim.into(), ScanLimits::default()).unwrap();
            assert_eq!(Claim::of_body(&body).granted(0), granted, "{claim}");
            let told: serde_json::Value = serde_json::from_slice(&with_priority(&body, granted)).unwrap();
            assert_eq!(told, serde_json::json!({"priority": granted}), "{claim}: and it is there once");
        }
        for (claim, granted) in [(" 12 ", 12), ("-12", -10), ("+12", 12), ("x", -10), ("\u{663}", -10)] {
            assert_eq!(Claim::of_header(claim.as_bytes()).granted(-10), granted, "{claim}");
        }
    }
}
