//! W3C Trace Context: the span that a request belongs to, as its headers name it
//! (<https://www.w3.org/TR/trace-context/>). The module is pure.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Trace, parent and flags.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Header of other tracing systems about the trace; passed on as it came.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The length of a `traceparent` of version 00; of later ones it is the part that is understood.
const PARENT_BYTES: usize = 55;

/// The flag of a trace that is kept.
const SAMPLED: u8 = 1;

/// Most entries of a `tracestate`, by the specification.
const STATE_MEMBERS: usize = 32;

/// A longer `tracestate` is not passed on; the specification asks for 512 at least.
const STATE_BYTES: usize = 4_096;

/// Longest key, and longest value, of an entry, by the specification.
const MEMBER_BYTES: usize = 256;

/// A trace; never all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// A span in its trace; never all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

/// A span as others refer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Id of its trace.
    pub trace: TraceId,
    /// Id of the span.
    pub span: SpanId,
    /// True if it is kept: who comes after it is to do the same.
    pub sampled: bool,
}

impl TraceId {
    /// Of random bytes. Zeros, which no source of randomness gives, become one.
    pub fn of(bytes: [u8; 16]) -> TraceId {
        TraceId(if bytes == [0; 16] { 1u128.to_be_bytes() } else { bytes })
    }

    /// As sent in binary.
    pub fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The part that is random by the specification, 56 bits: gateways with the same ratio sample
    /// the same traces by it.
    pub fn random(&self) -> u64 {
        let [.., a, b, c, d, e, f, g] = self.0;
        u64::from_be_bytes([0, a, b, c, d, e, f, g])
    }
}

impl SpanId {
    /// Of a random number. Zero becomes one.
    pub fn of(number: u64) -> SpanId {
        SpanId(number.max(1).to_be_bytes())
    }

    /// As sent in binary.
    pub fn bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

impl Context {
    /// The one that a request came with. Several, or one that is not understood, are none, and its
    /// trace begins here.
    pub fn of(headers: &HeaderMap) -> Option<Context> {
        let mut all = headers.get_all(TRACEPARENT).iter();
        let one = all.next().filter(|_| all.next().is_none())?;
        Context::parse(one.as_bytes())
    }

    /// Reads a `traceparent`: `00-<32 hex>-<16 hex>-<2 hex>`, in lower case. Of later versions,
    /// which may only add to it after a further `-`, that much is read.
    pub fn parse(text: &[u8]) -> Option<Context> {
        let (known, more) = text.split_at_checked(PARENT_BYTES)?;
        let [version] = hex(known.get(..2)?)?;
        let fits = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.first().is_none_or(|byte| *byte == b'-'),
        };
        let dashes = [2, 35, 52].iter().all(|at| known.get(*at) == Some(&b'-'));
        if !fits || !dashes {
            return None;
        }
        let (trace, span) = (hex::<16>(known.get(3..35)?)?, hex::<8>(known.get(36..52)?)?);
        let [flags] = hex(known.get(53..)?)?;
        let real = trace != [0; 16] && span != [0; 8];
        real.then_some(Context { trace: TraceId(trace), span: SpanId(span), sampled: flags & SAMPLED != 0 })
    }

    /// The value of `traceparent` that names this span as the parent.
    pub fn header(&self) -> Option<HeaderValue> {
        let flags = if self.sampled { SAMPLED } else { 0 };
        HeaderValue::from_str(&format!("00-{}-{}-{flags:02x}", self.trace, self.span)).ok()
    }
}

/// The `tracestate` of a request, with its lines joined. `None` if there is none, or it breaks the
/// rules: every later reader would have to discard it as well.
pub fn state_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let lines = headers.get_all(TRACESTATE).iter();
    let lines: Vec<&str> = lines.map(HeaderValue::to_str).collect::<Result<_, _>>().ok()?;
    let state = lines.join(",");
    let members = state.split(',').map(|member| member.trim_matches([' ', '\t'])).filter(|m| !m.is_empty());
    let mut keys: Vec<&str> = Vec::new();
    for member in members {
        let (key, value) = member.split_once('=')?;
        if !is_key(key) || !is_value(value) || keys.contains(&key) || keys.len() == STATE_MEMBERS {
            return None;
        }
        keys.push(key);
    }
    let fits = !keys.is_empty() && state.len() <= STATE_BYTES;
    fits.then(|| HeaderValue::from_str(&state).ok()).flatten()
}

fn is_key(key: &str) -> bool {
    let first = key.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let rest = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-*/@".contains(&b);
    first && key.len() <= MEMBER_BYTES && key.bytes().all(rest)
}

fn is_value(value: &str) -> bool {
    let fine = |b: u8| (b' '..=b'~').contains(&b) && b != b'=' && b != b',';
    !value.is_empty() && value.len() <= MEMBER_BYTES && value.bytes().all(fine)
}

/// Bytes from twice as many lower-case digits.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

fn write_hex(bytes: &[u8], f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl std::fmt::Display for TraceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_hex(&self.0, f)
    }
}

impl std::fmt::Debug for TraceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_hex(&self.0, f)
    }
}

impl std::fmt::Display for SpanId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_hex(&self.0, f)
    }
}

impl std::fmt::Debug for SpanId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_hex(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn parse(text: &str) -> Option<Context> {
        Context::parse(text.as_bytes())
    }

    #[test]
    fn the_specifications_examples_are_read() {
        for (text, sampled) in [
            (format!("00-{TRACE}-{SPAN}-01"), true),
            (format!("00-{TRACE}-{SPAN}-00"), false),
            (format!("00-{TRACE}-{SPAN}-03"), true),
            (format!("00-{TRACE}-{SPAN}-fe"), false),
            // A later version, with and without further members.
            (format!("cc-{TRACE}-{SPAN}-01"), true),
            (format!("cc-{TRACE}-{SPAN}-01-what-the-future-brings"), true),
        ] {
            let context = parse(&text).unwrap();
            assert_eq!(
                (context.trace.to_string().as_str(), context.span.to_string().as_str()),
                (TRACE, SPAN)
            );
            assert_eq!(context.sampled, sampled, "{text}");
        }
    }

    #[test]
    fn malformed_context_is_none() {
        let zeros = "0".repeat(32);
        for text in [
            String::new(),
            "00-1-2-01".to_owned(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("cc-{TRACE}-{SPAN}-01.more"),
            format!("00_{TRACE}-{SPAN}-01"),
            format!("0-0{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}é{}-01", &SPAN[1..]),
        ] {
            assert_eq!(parse(&text), None, "{text}");
        }
    }

    #[test]
    fn a_request_has_one_parent_or_none() {
        let value = HeaderValue::from_str(&format!("00-{TRACE}-{SPAN}-01")).unwrap();
        let mut headers = HeaderMap::from_iter([(TRACEPARENT, value.clone())]);
        assert_eq!(Context::of(&headers).unwrap().header().unwrap(), value);
        headers.append(TRACEPARENT, value);
        assert_eq!(Context::of(&headers), None);
    }

    #[test]
    fn states_are_put_together_and_bad_ones_dropped() {
        let state = |lines: &[&str]| {
            let lines = lines.iter().map(|line| (TRACESTATE, HeaderValue::from_str(line).unwrap()));
            state_of(&HeaderMap::from_iter(lines)).map(|v| v.to_str().unwrap().to_owned())
        };
        // From an iterator, a map keeps the last of equal names; lines are appended as a connection
        // does.
        let mut two = HeaderMap::new();
        two.append(TRACESTATE, HeaderValue::from_static("a=1, b@c=x y"));
        two.append(TRACESTATE, HeaderValue::from_static("0d=z"));
        assert_eq!(state_of(&two).unwrap(), "a=1, b@c=x y,0d=z");
        assert_eq!(state(&["a=1,,b=2"]).as_deref(), Some("a=1,,b=2"), "empty entries are allowed");
        for bad in ["", "a", "=1", "A=1", "a=", "a=1,a=2", "a=b=c", "a b=1"] {
            assert_eq!(state(&[bad]), None, "{bad}");
        }
        let many = |count: usize| (0..count).map(|at| format!("k{at}=v")).collect::<Vec<_>>().join(",");
        assert!(state(&[&many(32)]).is_some() && state(&[&many(33)]).is_none());
        let long =
            |count: usize| (0..count).map(|at| format!("k{at}={}", "v".repeat(250))).collect::<Vec<_>>();
        assert!(state(&[&long(16).join(",")]).is_some() && state(&[&long(17).join(",")]).is_none());
    }

    #[test]
    fn ids_are_never_zero() {
        assert_ne!(TraceId::of([0; 16]).bytes(), &[0; 16]);
        assert_ne!(SpanId::of(0).bytes(), &[0; 8]);
        assert_eq!(TraceId::of([0xff; 16]).random(), (1 << 56) - 1);
    }

    proptest! {
        #[test]
        fn written_context_is_read_back(trace: [u8; 16], span: u64, sampled: bool) {
            let context = Context { trace: TraceId::of(trace), span: SpanId::of(span), sampled };
            prop_assert_eq!(Context::parse(context.header().unwrap().as_bytes()), Some(context));
        }

        #[test]
        fn any_header_is_read_without_panic(text: Vec<u8>) {
            if let Some(context) = Context::parse(&text) {
                prop_assert!(text.len() >= PARENT_BYTES && context.header().is_some());
            }
        }

        #[test]
        fn one_wrong_byte_is_noticed_or_is_another_parent(at in 0..PARENT_BYTES, byte: u8) {
            let good = format!("00-{TRACE}-{SPAN}-01").into_bytes();
            let mut text = good.clone();
            text[at] = byte;
            let (found, meant) = (Context::parse(&text), Context::parse(&good));
            prop_assert!(text == good || !(2..=52).contains(&at) || found != meant);
        }
    }
}
