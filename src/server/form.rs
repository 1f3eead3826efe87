//! The fields of a form with a file (`multipart/form-data`, RFC 7578): the model that it asks for,
//! and none that only the gateway may set. The module is pure.
//!
//! Read strictly: a form that an engine's reader could take otherwise than is done here is refused.
//! So a field that is not seen here is seen by no engine. The files themselves are not looked at,
//! and the form goes to the engine as it came.

use std::borrow::Cow;

use http::HeaderValue;
use memchr::memmem::Finder;

use crate::dialect::guard;
use crate::error::{Error, Kind};

/// Media type of forms.
const FORM: &str = "multipart/form-data";

/// The longest boundary (RFC 2046 §5.1.1), bytes.
const BOUNDARY_BYTES: usize = 70;
/// The parts of one form: vLLM's transcriptions have some thirty fields.
const PARTS: usize = 256;
/// The head of a part: a name, a file's name and a type.
const HEAD_BYTES: usize = 4 << 10;
/// The name of a model.
const MODEL_BYTES: usize = 4 << 10;

/// Facts of a form that are needed to let it pass.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Form {
    /// The model that is asked for.
    pub(super) model: Option<String>,
}

/// True if this `Content-Type` says that the body is a form.
pub(super) fn is_form(kind: Option<&HeaderValue>) -> bool {
    let essence = kind.map(HeaderValue::as_bytes).unwrap_or_default().split(|byte| *byte == b';').next();
    essence.is_some_and(|essence| essence.trim_ascii().eq_ignore_ascii_case(FORM.as_bytes()))
}

/// Reads the fields of `body`, a form of this type.
///
/// # Errors
/// `InvalidField` for what is no form, one that could be read in two ways, or a field that only the
/// gateway may set.
pub(super) fn read(kind: &HeaderValue, body: &[u8]) -> Result<Form, Error> {
    let boundary =
        boundary(kind).ok_or_else(|| bad("its Content-Type has no `boundary` of 1 to 70 characters"))?;
    let delimiter = [b"--", boundary.as_bytes()].concat();
    let rest = body.strip_prefix(delimiter.as_slice());
    let mut rest = rest.ok_or_else(|| bad("it does not begin with its boundary"))?;
    let between = [b"\r\n", delimiter.as_slice()].concat();
    let finder = Finder::new(&between);
    let mut form = Form::default();
    for _ in 0..PARTS {
        if let Some(end) = rest.strip_prefix(b"--") {
            let closed = end.is_empty() || end == b"\r\n";
            return if closed { Ok(form) } else { Err(bad("something follows its last boundary")) };
        }
        let part = rest.strip_prefix(b"\r\n").ok_or_else(|| bad("a boundary is not followed by CR LF"))?;
        let length = finder.find(part).ok_or_else(|| bad("its last boundary is missing"))?;
        form.take(&part[..length])?;
        rest = &part[length + between.len()..];
    }
    Err(bad("it has more than 256 parts"))
}

impl Form {
    /// One part, with its head.
    fn take(&mut self, part: &[u8]) -> Result<(), Error> {
        let window = &part[..part.len().min(HEAD_BYTES)];
        let end =
            memchr::memmem::find(window, b"\r\n\r\n").ok_or_else(|| bad("a part's head does not end"))?;
        let head = std::str::from_utf8(&part[..end]).map_err(|_| bad("a part's head is not UTF-8"))?;
        let (name, is_file) = disposition(head)?;
        let value = &part[end + 4..];
        refuse_addresses(&name, value)?;
        match &*name {
            "model" if self.model.is_some() || is_file => {
                Err(bad("it has more than one `model`, or one that is a file"))
            }
            "model" if value.len() > MODEL_BYTES => Err(bad("its `model` is longer than 4096 bytes")),
            "model" => {
                let model = std::str::from_utf8(value).map_err(|_| bad("its `model` is not UTF-8"))?;
                self.model = Some(model.to_owned());
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The name of a part, and whether it is a file.
fn disposition(head: &str) -> Result<(Cow<'_, str>, bool), Error> {
    let mut found = None;
    for line in head.split("\r\n") {
        if line.contains(['\r', '\n', '\0']) || line.starts_with([' ', '\t']) {
            return Err(bad("a part's head has a line that goes on, or ends otherwise than in CR LF"));
        }
        let (name, value) =
            line.split_once(':').ok_or_else(|| bad("a part's head has a line without a colon"))?;
        if name.eq_ignore_ascii_case("content-disposition") && found.replace(value).is_some() {
            return Err(bad("a part has two lines of Content-Disposition"));
        }
        if name.eq_ignore_ascii_case("content-transfer-encoding") {
            return Err(bad("a part is sent in another coding (Content-Transfer-Encoding)"));
        }
    }
    let value = found.ok_or_else(|| bad("a part has no Content-Disposition"))?;
    parameters(value).ok_or_else(|| bad("a part's Content-Disposition is not `form-data; name=\"…\"`"))
}

/// The parameters of a `Content-Disposition`: exactly one `name`, and at most one name of a file,
/// in any of its forms.
fn parameters(value: &str) -> Option<(Cow<'_, str>, bool)> {
    let mut rest = value.trim();
    let kind = rest.get(.."form-data".len()).filter(|kind| kind.eq_ignore_ascii_case("form-data"))?;
    rest = rest[kind.len()..].trim_start();
    let (mut name, mut is_file) = (None, false);
    while !rest.is_empty() {
        let (key, after) = rest.strip_prefix(';')?.trim_start().split_once('=')?;
        let (value, left) = match after.strip_prefix('"') {
            // A backslash before a quote is read in two ways (RFC 7578 §4.2).
            Some(quoted) => quoted.split_once('"').filter(|(value, _)| !value.contains('\\'))?,
            None => {
                let (value, left) = after.split_at(after.find([';', ' ', '\t']).unwrap_or(after.len()));
                (!value.contains(['"', '\\'])).then_some((value, left))?
            }
        };
        match key {
            _ if key.eq_ignore_ascii_case("name") => {
                if name.replace(Cow::Borrowed(value)).is_some() {
                    return None;
                }
            }
            _ if is_file_name(key) => is_file = true,
            _ => return None,
        }
        rest = left.trim_start();
    }
    name.map(|name| (name, is_file))
}

fn is_file_name(key: &str) -> bool {
    key.eq_ignore_ascii_case("filename") || key.eq_ignore_ascii_case("filename*")
}

/// Refuses a field by which engines are told about each other, alone or within free-form arguments.
fn refuse_addresses(name: &str, value: &[u8]) -> Result<(), Error> {
    let plain = name.split('[').next().unwrap_or_default();
    let forbidden =
        guard::drops(plain) || (guard::is_free_form(plain) && guard::names_addresses(name.as_bytes(), value));
    if !forbidden {
        return Ok(());
    }
    let shown = crate::server::printable(name);
    let message = format!("`{shown}` names engines to each other and can't be set by a client; leave it out");
    Err(Error::new(Kind::InvalidField, message))
}

/// The boundary that a `Content-Type` names.
fn boundary(kind: &HeaderValue) -> Option<&str> {
    let mut parameters =
        kind.to_str().ok()?.split(';').skip(1).filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = parameters.find(|(key, _)| key.eq_ignore_ascii_case("boundary"))?;
    let value = value.strip_prefix('"').map_or(Some(value), |quoted| quoted.strip_suffix('"'))?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&byte);
    ((1..=BOUNDARY_BYTES).contains(&value.len()) && value.bytes().all(plain)).then_some(value)
}

fn bad(what: &'static str) -> Error {
    Error::new(Kind::InvalidField, format!("the form (multipart/form-data) can't be used: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "multipart/form-data; boundary=xyz";

    fn part(head: &str, value: &str) -> String {
        format!("--xyz\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n")
    }

    fn read_as(kind: &'static str, body: &str) -> Result<Option<String>, String> {
        let form = read(&HeaderValue::from_static(kind), body.as_bytes());
        form.map(|form| form.model).map_err(|error| error.to_string())
    }

    fn model(parts: &[String]) -> Result<Option<String>, String> {
        read_as(KIND, &format!("{}--xyz--\r\n", parts.concat()))
    }

    #[test]
    fn the_model_is_found_among_files_and_fields() {
        let file = || {
            part("name=\"file\"; filename=\"a b.wav\"\r\nContent-Type: audio/wav", "RIFF\r\n--xy\0\r\n\r\n")
        };
        assert_eq!(model(&[file(), part("name=\"model\"", "whisper")]), Ok(Some("whisper".into())));
        assert_eq!(model(&[part("name=model", "m"), file()]), Ok(Some("m".into())));
        assert_eq!(model(&[file()]), Ok(None));
        let quoted = read_as(
            "Multipart/Form-Data; charset=utf-8; Boundary=\"xyz\"",
            &format!("{}--xyz--", part("name=\"model\"", "m")),
        );
        assert_eq!(quoted, Ok(Some("m".into())));
        assert_eq!(model(&[]), Ok(None), "an empty form is for the engine to refuse");
    }

    #[test]
    fn ambiguous_form_is_refused() {
        let whole = |body: &str| read_as(KIND, body);
        for (name, read) in [
            ("two models", model(&[part("name=\"model\"", "a"), part("name=\"model\"", "b")])),
            ("a model that is a file", model(&[part("name=\"model\"; filename=\"x\"", "a")])),
            ("two names", model(&[part("name=\"x\"; name=\"model\"", "a")])),
            ("a quote within", model(&[part("name=\"a\\\"; name=\"model\"", "a")])),
            ("another parameter", model(&[part("name=\"x\"; creation-date=\"y\"", "a")])),
            ("no name", model(&[part("filename=\"x\"", "a")])),
            ("a line that goes on", model(&[part("name=\"x\"\r\n ; name=\"model\"", "a")])),
            ("a bare LF", model(&[part("name=\"x\"\nContent-Disposition: form-data; name=\"model\"", "a")])),
            ("a coding", model(&[part("name=\"model\"\r\nContent-Transfer-Encoding: base64", "bQ==")])),
            ("text before", whole(&format!("x\r\n{}--xyz--", part("name=\"model\"", "a")))),
            ("text behind", whole(&format!("{}--xyz--\r\nx", part("name=\"model\"", "a")))),
            ("no end", whole(&part("name=\"model\"", "a"))),
            ("a boundary with more", whole("--xyzz\r\n\r\n--xyz--")),
            ("nothing", whole("")),
            ("no boundary", read_as("multipart/form-data", "--xyz--")),
            ("an empty boundary", read_as("multipart/form-data; boundary=", "----")),
            ("many parts", model(&vec![part("name=\"x\"", ""); PARTS + 1])),
        ] {
            assert!(read.is_err(), "{name}: {read:?}");
        }
    }

    #[test]
    fn engines_are_named_by_nobody_but_the_gateway() {
        for (name, value) in [
            ("kv_transfer_params", "{}"),
            ("bootstrap_host", "evil"),
            ("data_parallel_rank", "1"),
            ("kv_transfer_params[remote_host]", "evil"),
            ("vllm_xargs", r#"{"kv_transfer_params":{}}"#),
            ("vllm_xargs", r#"{"kv\u005ftransfer_params":{}}"#),
            ("vllm_xargs[ec_transfer_params]", "x"),
        ] {
            let refused = model(&[part(&format!("name=\"{name}\""), value)]);
            assert!(refused.is_err_and(|why| why.contains("can't be set by a client")), "{name}={value}");
        }
        assert_eq!(model(&[part("name=\"vllm_xargs\"", r#"{"x":1}"#)]), Ok(None));
    }
}
