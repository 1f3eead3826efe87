//! ZeroMQ's wire protocol (ZMTP 3.0, mechanism NULL), as far as a REQ socket needs it. Pure.
//!
//! After a greeting of 64 bytes and a READY command from each side, a question is two frames, an empty one and its
//! body, and so is the answer. <https://rfc.zeromq.org/spec/23/>

use std::ops::Range;

/// Length of a greeting.
pub const GREETING_BYTES: usize = 64;
/// Largest frame that is taken: a READY has some dozens of bytes, an answer fewer.
pub const MAX_FRAME_BYTES: usize = 4096;
/// Commands that may stand before an answer.
const MAX_COMMANDS: usize = 16;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// The mechanism's name in a greeting.
const MECHANISM: Range<usize> = 12..32;
const READY: &[u8] = b"\x05READY";
/// What the other end may be: a REP socket, or a router in front of one.
const PEERS: [&[u8]; 2] = [b"\x0bSocket-Type\0\0\0\x03REP", b"\x0bSocket-Type\0\0\0\x06ROUTER"];

/// Version 3.0: no heartbeats, which would have to be answered while nothing is asked.
pub const GREETING: [u8; GREETING_BYTES] = {
    let mut bytes = [0; GREETING_BYTES];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    (bytes[12], bytes[13], bytes[14], bytes[15]) = (b'N', b'U', b'L', b'L');
    bytes
};

/// The READY command of a REQ socket without a name, as a frame.
pub const READY_FRAME: &[u8] = b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x03REQ\x08Identity\0\0\0\0";

/// Why bytes are not what a REP socket sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZmtpError {
    /// No greeting of ZMTP 3.
    #[error("no ZeroMQ greeting of version 3")]
    Greeting,
    /// It wants a password or a key.
    #[error("it demands another security mechanism than NULL")]
    Mechanism,
    /// No READY, or the other end is not one that answers.
    #[error("it is no REP socket")]
    NotRep,
    /// Beyond [`MAX_FRAME_BYTES`].
    #[error("a frame is larger than {MAX_FRAME_BYTES} bytes")]
    TooLarge,
    /// Not one answer.
    #[error("the frames are no answer")]
    NoAnswer,
}

/// One frame at the beginning of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Another frame of the same message follows.
    pub more: bool,
    /// A command of the protocol, no part of a message.
    pub command: bool,
    /// Where its body is.
    pub body: Range<usize>,
}

/// The first frame of `bytes`; `None`: not all of it is there.
///
/// # Errors
/// [`ZmtpError::TooLarge`] as soon as its length is there; [`ZmtpError::NoAnswer`] for unknown flags.
pub fn frame(bytes: &[u8]) -> Result<Option<Frame>, ZmtpError> {
    let Some((&flags, rest)) = bytes.split_first() else { return Ok(None) };
    if flags > (MORE | LONG | COMMAND) || flags & (MORE | COMMAND) == MORE | COMMAND {
        return Err(ZmtpError::NoAnswer);
    }
    let (start, len) = if flags & LONG == 0 {
        let Some(&len) = rest.first() else { return Ok(None) };
        (2, u64::from(len))
    } else {
        let Some(&len) = rest.first_chunk() else { return Ok(None) };
        (9, u64::from_be_bytes(len))
    };
    let len = usize::try_from(len).ok().filter(|&len| len <= MAX_FRAME_BYTES).ok_or(ZmtpError::TooLarge)?;
    let body = start..start + len;
    let frame = Frame { more: flags & MORE != 0, command: flags & COMMAND != 0, body };
    Ok((frame.body.end <= bytes.len()).then_some(frame))
}

/// Whether a greeting is that of a peer we can talk to.
///
/// # Errors
/// [`ZmtpError::Greeting`], [`ZmtpError::Mechanism`].
pub fn check_greeting(greeting: &[u8; GREETING_BYTES]) -> Result<(), ZmtpError> {
    if greeting[0] != 0xff || greeting[9] & 1 == 0 || greeting[10] < 3 {
        return Err(ZmtpError::Greeting);
    }
    if greeting[MECHANISM] != GREETING[MECHANISM] {
        return Err(ZmtpError::Mechanism);
    }
    Ok(())
}

/// Whether a frame's body is the READY of a socket that answers questions.
///
/// # Errors
/// [`ZmtpError::NotRep`].
pub fn check_ready(command: &[u8]) -> Result<(), ZmtpError> {
    let Some(properties) = command.strip_prefix(READY) else { return Err(ZmtpError::NotRep) };
    let is_peer = |peer: &&[u8]| memchr::memmem::find(properties, peer).is_some();
    if PEERS.iter().any(is_peer) { Ok(()) } else { Err(ZmtpError::NotRep) }
}

/// The frames of a question.
pub fn question(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 11);
    out.extend_from_slice(&[MORE, 0]);
    match u8::try_from(body.len()) {
        Ok(len) => out.extend_from_slice(&[0, len]),
        Err(_) => {
            out.push(LONG);
            out.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
    out
}

/// Where the body of the answer is, and nothing may follow it; `None`: not all of it is there.
///
/// # Errors
/// [`ZmtpError::TooLarge`], [`ZmtpError::NoAnswer`].
pub fn answer(bytes: &[u8]) -> Result<Option<Range<usize>>, ZmtpError> {
    let (mut at, mut delimited) = (0, false);
    for _ in 0..MAX_COMMANDS {
        let Some(next) = frame(&bytes[at..])? else { return Ok(None) };
        let body = at + next.body.start..at + next.body.end;
        at = body.end;
        match (next.command, next.more, delimited) {
            (true, _, false) => {}
            (false, true, false) if body.is_empty() => delimited = true,
            (false, false, true) if at == bytes.len() => return Ok(Some(body)),
            _ => return Err(ZmtpError::NoAnswer),
        }
    }
    Err(ZmtpError::NoAnswer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One direction of one recorded connection.
    fn capture(from: &str) -> Vec<u8> {
        let text = include_str!("../../../tests/captures/ems-zmtp.hex");
        let lines = text.lines().filter_map(|line| line.strip_prefix(from)).filter(|hex| *hex != "EOF");
        let hex: String = lines.collect();
        hex.as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    #[test]
    fn what_we_send_is_what_was_recorded() {
        let sent = capture("1 > ");
        let (greeting, rest) = sent.split_at(GREETING_BYTES);
        assert_eq!(greeting, GREETING);
        let asked = rest.strip_prefix(READY_FRAME).expect("the same READY");
        assert_eq!(question(&asked[4..]), asked);
        // libzmq sends the same READY and the same frames; its greeting has another minor version.
        assert!(capture("2 > ")[GREETING_BYTES..].starts_with(READY_FRAME));
    }

    #[test]
    fn what_servers_answered_is_read_and_no_part_of_it_is() {
        for (from, expected) in [("1 < ", b"\x80\x04K\x03."), ("2 < ", b"\x80\x04K\x01.")] {
            let said = capture(from);
            let (greeting, rest) = said.split_first_chunk().unwrap();
            assert_eq!(check_greeting(greeting), Ok(()));
            let ready = frame(rest).unwrap().unwrap();
            assert!(ready.command && !ready.more);
            assert_eq!(check_ready(&rest[ready.body.clone()]), Ok(()));
            let reply = &rest[ready.body.end..];
            assert_eq!(&reply[answer(reply).unwrap().unwrap()], expected);
            for cut in 0..reply.len() {
                assert_eq!(answer(&reply[..cut]), Ok(None), "{cut} bytes");
            }
            assert_eq!(answer(rest).unwrap().unwrap().len(), expected.len(), "commands are passed over");
            assert_eq!(answer(&[reply, b"\0"].concat()), Err(ZmtpError::NoAnswer), "nothing follows");
            for at in 0..reply.len() {
                let mut longer = reply.to_vec();
                longer[at] = 0xff;
                assert!(answer(&longer).is_err() || at >= 4 || answer(&longer) == Ok(None), "byte {at}");
            }
        }
    }

    #[test]
    fn other_peers_are_recognised() {
        let mut greeting = GREETING;
        greeting[12..17].copy_from_slice(b"PLAIN");
        assert_eq!(check_greeting(&greeting), Err(ZmtpError::Mechanism));
        let mut http = [b' '; GREETING_BYTES];
        http[..12].copy_from_slice(b"HTTP/1.1 400");
        assert_eq!(check_greeting(&http), Err(ZmtpError::Greeting));
        let mut old = GREETING;
        old[10] = 1;
        assert_eq!(check_greeting(&old), Err(ZmtpError::Greeting));
        assert_eq!(check_ready(b"\x05READY\x0bSocket-Type\0\0\0\x03PUB"), Err(ZmtpError::NotRep));
        assert_eq!(check_ready(b"\x05ERROR\x00"), Err(ZmtpError::NotRep));
    }

    #[test]
    fn frames_have_bounds() {
        assert_eq!(frame(b"\x02\xff\xff\xff\xff\xff\xff\xff\xff"), Err(ZmtpError::TooLarge));
        assert_eq!(frame(b"\x02\0\0\0\0\0\0\x10\x01"), Err(ZmtpError::TooLarge));
        assert_eq!(frame(b"\x02\0\0\0\0\0\0\x10\0"), Ok(None));
        assert_eq!(frame(b"\x08\0"), Err(ZmtpError::NoAnswer));
        let commands = b"\x04\0".repeat(MAX_COMMANDS);
        assert_eq!(answer(&commands), Err(ZmtpError::NoAnswer), "it may not go on like this");
        assert_eq!(answer(b"\0\x05\x80\x04K\x03."), Err(ZmtpError::NoAnswer), "no delimiter");
        let long = question(&[7; 256]);
        assert_eq!((long[..11].to_vec(), long.len()), (b"\x01\0\x02\0\0\0\0\0\0\x01\0".to_vec(), 267));
    }
}
