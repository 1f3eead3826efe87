//! The transfer codings of a request: `chunked` alone, or none (RFC 9112 §6.1). The module is pure.
//!
//! hyper undoes the last coding, `chunked`, and leaves what is before it in place, so that the body
//! would be read, and framed for an engine, as something that it is not. Over HTTP/2 the header is
//! an error of the protocol, which h2 refuses.

use http::{HeaderMap, header};

use crate::error::{Error, Kind};
use crate::server::printable;

/// Refuses a request whose body has a coding beside `chunked`.
///
/// # Errors
/// `TransferCoded`.
pub(super) fn check(headers: &HeaderMap) -> Result<(), Error> {
    if !headers.contains_key(header::TRANSFER_ENCODING) {
        return Ok(());
    }
    let lines = || headers.get_all(header::TRANSFER_ENCODING).iter();
    let codings = lines().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let mut named = codings.map(<[u8]>::trim_ascii).filter(|coding| !coding.is_empty());
    let is_chunked_alone =
        named.next().is_some_and(|first| first.eq_ignore_ascii_case(b"chunked")) && named.next().is_none();
    if is_chunked_alone {
        return Ok(());
    }
    let all: Vec<_> = lines().map(|line| String::from_utf8_lossy(line.as_bytes())).collect();
    let message = format!(
        "the body is sent with `Transfer-Encoding: {}`, of which only `chunked` is understood here: send it with \
         `Transfer-Encoding: chunked` or `Content-Length`, uncompressed",
        printable(&all.join(", "))
    );
    Err(Error::new(Kind::TransferCoded, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chunked_alone_is_understood() {
        let check = |lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::TRANSFER_ENCODING, line.parse().unwrap());
            }
            check(&headers).map_err(|e| e.kind())
        };
        for good in [&[][..], &["chunked"], &["Chunked"], &[" chunked"], &[", chunked,"]] {
            assert_eq!(check(good), Ok(()), "{good:?}");
        }
        for bad in [
            &["gzip, chunked"][..],
            &["gzip", "chunked"],
            &["chunked, chunked"],
            &["chunked", "chunked"],
            &["identity, chunked"],
            &["deflate"],
            &[""],
            &["chunked;q=1"],
        ] {
            assert_eq!(check(bad), Err(Kind::TransferCoded), "{bad:?}");
        }
    }
}
