//! Reader of the chunked transfer coding (RFC 9112 §7.1). The module is pure.
//!
//! As strict as the grammar: a line that ends in anything but CR LF is a fault of the engine, and
//! is not guessed about.

/// Bytes of one size line with its extensions, which nobody uses.
const LINE_BYTES: u32 = 4 << 10;
/// Digits of a size that is read at once; larger ones, of 256 MB, are read digit by digit.
const PLAIN_DIGITS: usize = 7;
/// Bytes of all trailers, which nobody reads.
const TRAILER_BYTES: u32 = 16 << 10;

/// Takes the coding off a body that comes in any pieces.
#[derive(Debug, Default)]
pub struct Chunked {
    at: DecodePosition,
    /// Of the chunk that is being read: its size as far as known, then what is left of it.
    left_bytes: u64,
    /// Of the size line or of the trailers.
    line_bytes: u32,
}

/// Place of the next byte in the coding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DecodePosition {
    /// The first digit of a size.
    #[default]
    Size,
    /// Its other digits.
    Digits,
    /// Extension that may follow a size.
    Extension,
    /// The end of a size line.
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// The beginning of a trailer, or the end.
    Trailer,
    InTrailer,
    TrailerLf,
    LastLf,
    End,
}

/// Bytes that are not in this coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChunk {
    /// No size where one must be, or one of more than 64 bits.
    #[error("a chunk's size is no hexadecimal number")]
    Size,
    /// A chunk or a line does not end where it must.
    #[error("a chunk does not end in CR LF")]
    End,
    /// More than anybody sends.
    #[error("a chunk's extensions or the trailers are too long")]
    Long,
}

impl Chunked {
    /// True if the whole body has been read.
    pub fn ended(&self) -> bool {
        self.at == DecodePosition::End
    }

    /// Reads from `input` to its end or the body's, whichever comes first; returns how much was
    /// read, and calls `data` with each piece of the body.
    ///
    /// # Errors
    /// [`BadChunk`]; nothing that follows can be understood.
    pub fn read(&mut self, input: &[u8], mut data: impl FnMut(&[u8])) -> Result<usize, BadChunk> {
        let mut read = 0;
        while let Some(rest) = input.get(read..).filter(|rest| !rest.is_empty()) {
            match self.at {
                DecodePosition::End => break,
                DecodePosition::Data => {
                    let here = usize::try_from(self.left_bytes).unwrap_or(usize::MAX).min(rest.len());
                    data(&rest[..here]);
                    self.left_bytes -= here as u64;
                    if self.left_bytes == 0 {
                        self.at = DecodePosition::DataCr;
                    }
                    read += here;
                }
                // As every engine writes it, and as it mostly comes: in one piece.
                DecodePosition::DataCr if rest.starts_with(b"\r\n") => {
                    self.at = DecodePosition::Size;
                    read += 2;
                }
                at => match if at == DecodePosition::Size { plain_size(rest) } else { None } {
                    Some((size_bytes, line)) => {
                        (self.at, self.left_bytes) = (DecodePosition::Data, size_bytes);
                        read += line;
                    }
                    None => {
                        self.step(rest[0])?;
                        read += 1;
                    }
                },
            }
        }
        Ok(read)
    }

    /// One byte that is not data.
    fn step(&mut self, byte: u8) -> Result<(), BadChunk> {
        self.at = match (self.at, byte) {
            (DecodePosition::Size | DecodePosition::Digits, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                self.digit(byte)?
            }
            (DecodePosition::Digits | DecodePosition::Extension, b'\r') => DecodePosition::SizeLf,
            (DecodePosition::Digits, b';' | b' ' | b'\t') => DecodePosition::Extension,
            (DecodePosition::Size | DecodePosition::Digits, _) => return Err(BadChunk::Size),
            (DecodePosition::Extension, b'\n') => return Err(BadChunk::End),
            (DecodePosition::Extension, _) => self.more(LINE_BYTES, DecodePosition::Extension)?,
            (DecodePosition::SizeLf, b'\n') => {
                self.line_bytes = 0;
                if self.left_bytes == 0 { DecodePosition::Trailer } else { DecodePosition::Data }
            }
            (DecodePosition::DataCr, b'\r') => DecodePosition::DataLf,
            (DecodePosition::DataLf, b'\n') => DecodePosition::Size,
            (DecodePosition::Trailer, b'\r') => DecodePosition::LastLf,
            (DecodePosition::InTrailer, b'\r') => DecodePosition::TrailerLf,
            (DecodePosition::Trailer | DecodePosition::InTrailer, b'\n') => return Err(BadChunk::End),
            (DecodePosition::Trailer | DecodePosition::InTrailer, _) => {
                self.more(TRAILER_BYTES, DecodePosition::InTrailer)?
            }
            (DecodePosition::TrailerLf, b'\n') => DecodePosition::Trailer,
            (DecodePosition::LastLf, b'\n') => DecodePosition::End,
            _ => return Err(BadChunk::End),
        };
        Ok(())
    }

    fn digit(&mut self, byte: u8) -> Result<DecodePosition, BadChunk> {
        let value = char::from(byte).to_digit(16).ok_or(BadChunk::Size)?;
        // Zeros in front make a number no larger, but a line longer.
        self.more(LINE_BYTES, DecodePosition::Digits)?;
        if self.left_bytes >> 60 != 0 {
            return Err(BadChunk::Size);
        }
        self.left_bytes = self.left_bytes << 4 | u64::from(value);
        Ok(DecodePosition::Digits)
    }

    fn more(&mut self, limit_bytes: u32, at: DecodePosition) -> Result<DecodePosition, BadChunk> {
        self.line_bytes += 1;
        if self.line_bytes > limit_bytes { Err(BadChunk::Long) } else { Ok(at) }
    }
}

/// The size of a chunk that has data, and the length of its line, if that is all there and has
/// nothing else.
fn plain_size(input: &[u8]) -> Option<(u64, usize)> {
    let digits = input.iter().map_while(|&byte| char::from(byte).to_digit(16)).take(PLAIN_DIGITS);
    let (len, size_bytes) = digits.fold((0, 0), |(len, size), digit| (len + 1, size << 4 | u64::from(digit)));
    (size_bytes > 0 && input[len..].starts_with(b"\r\n")).then_some((size_bytes, len + 2))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The body and what follows it, read in pieces of these sizes.
    fn read(wire: &[u8], mut sizes: impl Iterator<Item = usize>) -> Result<(Vec<u8>, bool, usize), BadChunk> {
        let (mut chunked, mut body, mut at) = (Chunked::default(), Vec::new(), 0);
        while at < wire.len() && !chunked.ended() {
            let end = (at + sizes.next().unwrap_or(usize::MAX).max(1)).min(wire.len());
            let piece = &wire[at..end];
            let read = chunked.read(piece, |data| body.extend_from_slice(data))?;
            assert!(read == piece.len() || chunked.ended());
            at += read;
        }
        Ok((body, chunked.ended(), wire.len() - at))
    }

    fn whole(wire: &str) -> Result<(String, bool, usize), BadChunk> {
        let (body, ended, left) = read(wire.as_bytes(), std::iter::repeat(usize::MAX))?;
        Ok((String::from_utf8(body).unwrap(), ended, left))
    }

    #[test]
    fn the_example_of_the_standard() {
        let wire = "4\r\nWiki\r\n5\r\npedia\r\nE\r\n in\r\n\r\nchunks.\r\n0\r\n\r\nHTTP/1.1";
        assert_eq!(whole(wire), Ok(("Wikipedia in\r\n\r\nchunks.".into(), true, 8)));
    }

    #[test]
    fn extensions_and_trailers_are_passed_over() {
        let wire = "003;name=\"a;b\"\r\nabc\r\n1 ; x\r\nd\r\n0;last\r\nExpires: never\r\nX: y\r\n\r\n";
        assert_eq!(whole(wire), Ok(("abcd".into(), true, 0)));
        assert_eq!(whole("3\r\nab"), Ok(("ab".into(), false, 0)));
    }

    #[test]
    fn malformed_chunk_is_refused() {
        for (wire, why) in [
            ("\r\n", BadChunk::Size),
            ("x\r\n", BadChunk::Size),
            ("-1\r\n", BadChunk::Size),
            ("0x1\r\n", BadChunk::Size),
            ("1\nab", BadChunk::Size),
            ("1;a\nb", BadChunk::End),
            ("1\rX", BadChunk::End),
            ("1\r\nab", BadChunk::End),
            ("1\r\na\n", BadChunk::End),
            ("0\r\nA: b\n\r\n", BadChunk::End),
            ("0\r\n\n", BadChunk::End),
            ("10000000000000000\r\n", BadChunk::Size),
        ] {
            assert_eq!(whole(wire), Err(why), "{wire:?}");
        }
        assert_eq!(whole(&format!("1;{}\r\n", "x".repeat(5000))), Err(BadChunk::Long));
        assert_eq!(whole(&"0".repeat(5000)), Err(BadChunk::Long));
        assert_eq!(whole(&format!("0\r\n{}", "A: b\r\n".repeat(5000))), Err(BadChunk::Long));
        assert_eq!(whole("ffffffffffffffff\r\nab"), Ok(("ab".into(), false, 0)));
    }

    proptest! {
        #[test]
        fn any_body_in_any_pieces_comes_out_as_it_was(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..8),
            sizes in prop::collection::vec(1usize..50, 1..20),
            upper in any::<bool>(),
        ) {
            let mut wire = Vec::new();
            for chunk in &chunks {
                let size = if upper { format!("{:X}\r\n", chunk.len()) } else { format!("{:x}\r\n", chunk.len()) };
                wire.extend_from_slice(size.as_bytes());
                wire.extend_from_slice(chunk);
                wire.extend_from_slice(b"\r\n");
            }
            wire.extend_from_slice(b"0\r\n\r\nrest");
            let got = read(&wire, sizes.into_iter().cycle()).unwrap();
            prop_assert_eq!((got.0, got.1), (chunks.concat(), true));
        }

        #[test]
        fn pieces_never_change_what_is_understood(
            wire in "[0-9a-f;\r\n x]{0,40}", sizes in prop::collection::vec(1usize..4, 1..20),
        ) {
            let pieces = read(wire.as_bytes(), sizes.into_iter().cycle());
            prop_assert_eq!(pieces, read(wire.as_bytes(), std::iter::repeat(usize::MAX)));
        }
    }
}
