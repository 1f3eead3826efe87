//! ZeroMQ's wire protocol (ZMTP 3, mechanism NULL), as far as both its users need it: greetings,
//! READY and frames. The module is pure. <https://rfc.zeromq.org/spec/23/>
//!
//! After a greeting of 64 bytes and a READY command from each side, messages are one or more
//! frames; commands may stand between messages.

use std::ops::Range;

/// Length of a greeting.
pub const GREETING_BYTES: usize = 64;
/// Of a frame: another one of the same message follows.
pub const MORE: u8 = 1;
/// Of a frame: its length takes eight bytes.
pub const LONG: u8 = 2;
/// Of a frame: a command of the protocol, no part of a message.
pub const COMMAND: u8 = 4;

/// The mechanism's name in a greeting.
const MECHANISM: Range<usize> = 12..32;
const READY: &[u8] = b"\x05READY";

/// Version 3.0: no heartbeats that would have to be answered, and subscriptions are messages, which
/// all versions understand.
pub const GREETING: [u8; GREETING_BYTES] = {
    let mut bytes = [0; GREETING_BYTES];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    (bytes[12], bytes[13], bytes[14], bytes[15]) = (b'N', b'U', b'L', b'L');
    bytes
};

/// Reasons why a peer is not one to talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// No greeting of ZMTP 3.
    #[error("no ZeroMQ greeting of version 3")]
    Greeting,
    /// It wants a password or a key.
    #[error("it demands another security mechanism than NULL")]
    Mechanism,
}

/// Reasons why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Flags that no frame has.
    #[error("flags of a frame that are none")]
    Flags,
    /// Longer than is taken.
    #[error("a frame is too large")]
    TooLarge,
}

/// One frame at the beginning of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Another frame of the same message follows.
    pub more: bool,
    /// A command of the protocol, no part of a message.
    pub command: bool,
    /// Place where its body is.
    pub body: Range<usize>,
}

/// Checks that a greeting is that of a supported peer.
///
/// # Errors
/// [`PeerError`] says what it is instead.
pub fn check_greeting(greeting: &[u8; GREETING_BYTES]) -> Result<(), PeerError> {
    if greeting[0] != 0xff || greeting[9] & 1 == 0 || greeting[10] < 3 {
        return Err(PeerError::Greeting);
    }
    if greeting[MECHANISM] != GREETING[MECHANISM] {
        return Err(PeerError::Mechanism);
    }
    Ok(())
}

/// The first frame of `bytes`, whose body has at most `most_bytes`; `None`: not all of it is there.
///
/// # Errors
/// [`FrameError::TooLarge`] as soon as its length is there; [`FrameError::Flags`].
pub fn frame(bytes: &[u8], most_bytes: usize) -> Result<Option<Frame>, FrameError> {
    let Some((&flags, rest)) = bytes.split_first() else { return Ok(None) };
    if flags > (MORE | LONG | COMMAND) || flags & (MORE | COMMAND) == MORE | COMMAND {
        return Err(FrameError::Flags);
    }
    let (start, len) = if flags & LONG == 0 {
        let Some(&len) = rest.first() else { return Ok(None) };
        (2, u64::from(len))
    } else {
        let Some(&len) = rest.first_chunk() else { return Ok(None) };
        (9, u64::from_be_bytes(len))
    };
    let len = usize::try_from(len).ok().filter(|&len| len <= most_bytes).ok_or(FrameError::TooLarge)?;
    let body = start..start + len;
    let frame = Frame { more: flags & MORE != 0, command: flags & COMMAND != 0, body };
    Ok((frame.body.end <= bytes.len()).then_some(frame))
}

/// Appends a frame with these flags; [`LONG`] is added where it is needed.
pub fn push_frame(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    out.reserve(body.len() + 9);
    match u8::try_from(body.len()) {
        Ok(len) => out.extend_from_slice(&[flags, len]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
}

/// The body of the READY command of a socket of this type, with these further properties as they
/// are on the wire.
pub fn ready(socket_type: &[u8], further: &[u8]) -> Vec<u8> {
    let len = u32::try_from(socket_type.len()).unwrap_or(u32::MAX).to_be_bytes();
    [READY, b"\x0bSocket-Type", &len, socket_type, further].concat()
}

/// The `Socket-Type` of a READY command's body: a length and a name, a length (u32) and a value,
/// for each property.
pub fn socket_type(ready: &[u8]) -> Option<&[u8]> {
    let mut rest = ready.strip_prefix(READY)?;
    while let Some((&length, after)) = rest.split_first() {
        let (name, after) = after.split_at_checked(usize::from(length))?;
        let (length, after) = after.split_first_chunk()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (value, after) = after.split_at_checked(length)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 4096;

    #[test]
    fn frames_have_bounds() {
        assert_eq!(frame(b"\x02\xff\xff\xff\xff\xff\xff\xff\xff", MOST), Err(FrameError::TooLarge));
        assert_eq!(frame(b"\x02\0\0\0\0\0\0\x10\x01", MOST), Err(FrameError::TooLarge));
        assert_eq!(frame(b"\x02\0\0\0\0\0\0\x10\0", MOST), Ok(None));
        assert_eq!(frame(b"\x08\0", MOST), Err(FrameError::Flags));
        assert_eq!(frame(&[MORE | COMMAND, 0], MOST), Err(FrameError::Flags));
    }

    #[test]
    fn written_frame_is_read_and_cut_ones_are_not() {
        for (flags, len) in [(0, 0), (MORE, 255), (COMMAND, 256), (0, 4096)] {
            let mut wire = Vec::new();
            push_frame(&mut wire, flags, &vec![7; len]);
            let read = frame(&wire, MOST).unwrap().unwrap();
            assert_eq!((read.more, read.command), (flags & MORE != 0, flags & COMMAND != 0));
            assert_eq!((read.body.len(), read.body.end), (len, wire.len()));
            for cut in 0..wire.len() {
                assert_eq!(frame(&wire[..cut], MOST), Ok(None), "{cut} of {len} bytes");
            }
        }
    }

    #[test]
    fn other_peers_are_recognised() {
        let mut greeting = GREETING;
        greeting[12..17].copy_from_slice(b"PLAIN");
        assert_eq!(check_greeting(&greeting), Err(PeerError::Mechanism));
        let mut http = [b' '; GREETING_BYTES];
        http[..12].copy_from_slice(b"HTTP/1.1 400");
        assert_eq!(check_greeting(&http), Err(PeerError::Greeting));
        let mut old = GREETING;
        old[10] = 1;
        assert_eq!(check_greeting(&old), Err(PeerError::Greeting));
        assert_eq!(check_greeting(&GREETING), Ok(()));
    }

    #[test]
    fn a_socket_says_what_it_is() {
        assert_eq!(socket_type(&ready(b"REQ", b"\x08Identity\0\0\0\0")), Some(&b"REQ"[..]));
        let mut later = READY.to_vec();
        later.extend(b"\x08Identity\0\0\0\x01x\x0bSOCKET-TYPE\0\0\0\x03PUB");
        assert_eq!(socket_type(&later), Some(&b"PUB"[..]));
        for other in [&b"\x05ERROR\x00"[..], b"\x05READY", b"\x05READY\x0bSocket-Type\0\0\0\x09PUB", b""] {
            assert_eq!(socket_type(other), None);
        }
    }
}
