//! `priority` of vLLM's scheduler (`--scheduling-policy priority`): an integer, 0 by default; the
//! smaller, the sooner. It is a member of the body. From 0.32 on the header `X-Vllm-Priority` of
//! chats, completions and responses outranks that.

use bytes::Bytes;

use crate::codec::json::{Edit, Object, Value};

/// The member of a body.
pub const MEMBER: &str = "priority";

/// The header's name.
pub const HEADER: &str = "x-vllm-priority";

/// Priority that a client claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It claims none.
    None,
    /// It claims this number.
    Of(i64),
    /// One that is no integer: vLLM refuses it.
    Unreadable,
}

impl Claim {
    /// The claim of a body, of which engines read the last of several members.
    pub fn of_body(body: &Object) -> Claim {
        match body.get(MEMBER) {
            None => Claim::None,
            Some(value) if value.raw() == b"null".as_slice() => Claim::None,
            Some(value) => integer(&value).map_or(Claim::Unreadable, Claim::Of),
        }
    }

    /// The claim of a header's value.
    pub fn of_header(value: &[u8]) -> Claim {
        let text = std::str::from_utf8(value).ok();
        text.and_then(|text| text.trim().parse().ok()).map_or(Claim::Unreadable, Claim::Of)
    }

    /// The priority that engines are told: the claimed one, but none that is sooner than the key's;
    /// `None` of a claim that can't be read.
    pub fn granted(self, of_key: i64) -> Option<i64> {
        match self {
            Claim::Of(claimed) => Some(claimed.max(of_key)),
            Claim::None => Some(of_key),
            Claim::Unreadable => None,
        }
    }
}

/// The integer that vLLM reads from a value (pydantic's lax mode): a number without a fraction, or
/// a text that is one.
fn integer(value: &Value<'_>) -> Option<i64> {
    /// Integers up to here are exact as floating point numbers.
    const EXACT: f64 = (1_u64 << 53) as f64;
    let whole = |number: f64| number.fract() == 0.0 && number.abs() <= EXACT;
    let number = serde_json::from_slice(value.raw()).ok();
    number
        .or_else(|| value.as_str()?.trim().parse().ok())
        .or_else(|| serde_json::from_slice(value.raw()).ok().filter(|it| whole(*it)).map(|it| it as i64))
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
            (r#"{"priority":" 7 "}"#, 7),
            (r#"{"priority":-7.0}"#, 0),
            (r#"{"priority":7.0}"#, 7),
            (r#"{"priority":9,"priority":-7}"#, 0),
            (r#"{"pri\u006frity":-7}"#, 0),
        ] {
            let body = Object::scan(claim.into(), ScanLimits::default()).unwrap();
            assert_eq!(Claim::of_body(&body).granted(0), Some(granted), "{claim}");
            let told: serde_json::Value = serde_json::from_slice(&with_priority(&body, granted)).unwrap();
            assert_eq!(told, serde_json::json!({"priority": granted}), "{claim}: and it is there once");
        }
        for unreadable in ["-99999999999999999999", "7.5", "\"7.5\"", "\"high\"", "[7]", "{}", "1e300"] {
            let body = Object::scan(format!("{{\"priority\":{unreadable}}}").into(), ScanLimits::default());
            assert_eq!(Claim::of_body(&body.unwrap()).granted(0), None, "{unreadable}");
        }
        for (claim, granted) in [(" 12 ", 12), ("-12", -10), ("+12", 12)] {
            assert_eq!(Claim::of_header(claim.as_bytes()).granted(-10), Some(granted), "{claim}");
        }
        for unreadable in ["x", "\u{663}", "7.5", ""] {
            assert_eq!(Claim::of_header(unreadable.as_bytes()).granted(-10), None, "{unreadable}");
        }
    }
}
