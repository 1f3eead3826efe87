//! Messages of a REQ socket: a question is two frames, an empty one and its body, and so is the
//! answer. The module is pure.

use std::ops::Range;

use crate::pool::zmtp::{self, FrameError, MORE, PeerError};

/// Largest frame that is taken: a READY has some dozens of bytes, an answer fewer.
pub const MAX_FRAME_BYTES: usize = 4096;
/// Commands that may stand before an answer.
const MAX_COMMANDS: usize = 16;

/// Sockets that the other end may be: a REP socket, or a router before one.
const PEERS: [&[u8]; 2] = [b"REP", b"ROUTER"];

/// The READY command of a REQ socket without a name, as a frame.
pub const READY_FRAME: &[u8] = b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x03REQ\x08Identity\0\0\0\0";

/// Reasons why bytes are not what a REP socket sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZmtpError {
    /// No greeting that we can talk to.
    #[error("{0}")]
    Peer(#[from] PeerError),
    /// No READY, or the other end is not one that answers.
    #[error("it is no REP socket")]
    NotRep,
    /// Not a frame, or one beyond [`MAX_FRAME_BYTES`].
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// Not one answer.
    #[error("the frames are no answer")]
    NoAnswer,
}

/// Checks that a frame's body is the READY of a socket that answers questions.
///
/// # Errors
/// [`ZmtpError::NotRep`] names the other kind.
pub fn check_ready(command: &[u8]) -> Result<(), ZmtpError> {
    let peer = zmtp::socket_type(command).ok_or(ZmtpError::NotRep)?;
    if PEERS.contains(&peer) { Ok(()) } else { Err(ZmtpError::NotRep) }
}

/// The frames of a question.
pub fn question(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 11);
    zmtp::push_frame(&mut out, MORE, &[]);
    zmtp::push_frame(&mut out, 0, body);
    out
}

/// Place where the body of the answer is, and nothing may follow it; `None`: not all of it is
/// there.
///
/// # Errors
/// [`ZmtpError::Frame`], [`ZmtpError::NoAnswer`].
pub fn answer(bytes: &[u8]) -> Result<Option<Range<usize>>, ZmtpError> {
    let (mut at, mut delimited) = (0, false);
    for _ in 0..MAX_COMMANDS {
        let Some(next) = zmtp::frame(&bytes[at..], MAX_FRAME_BYTES)? else { return Ok(None) };
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
    use crate::pool::zmtp::{GREETING, GREETING_BYTES, check_greeting, frame};

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
    fn sent_frames_equal_the_recorded_ones() {
        let sent = capture("1 > ");
        let (greeting, rest) = sent.split_at(GREETING_BYTES);
        assert_eq!(greeting, GREETING);
        let asked = rest.strip_prefix(READY_FRAME).expect("the same READY");
        assert_eq!(question(&asked[4..]), asked);
        // libzmq sends the same READY and the same frames; its greeting has another minor version.
        assert!(capture("2 > ")[GREETING_BYTES..].starts_with(READY_FRAME));
    }

    #[test]
    fn recorded_answers_are_read_and_cut_ones_are_not() {
        for (from, expected) in [("1 < ", b"\x80\x04K\x03."), ("2 < ", b"\x80\x04K\x01.")] {
            let said = capture(from);
            let (greeting, rest) = said.split_first_chunk().unwrap();
            assert_eq!(check_greeting(greeting), Ok(()));
            let ready = frame(rest, MAX_FRAME_BYTES).unwrap().unwrap();
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
        assert_eq!(check_ready(b"\x05READY\x0bSocket-Type\0\0\0\x03PUB"), Err(ZmtpError::NotRep));
        assert_eq!(check_ready(b"\x05ERROR\x00"), Err(ZmtpError::NotRep));
        assert_eq!(READY_FRAME[2..], zmtp::ready(b"REQ", b"\x08Identity\0\0\0\0"));
    }

    #[test]
    fn answers_have_bounds() {
        let too_large = b"\x01\0\x02\0\0\0\0\0\0\x10\x01";
        assert_eq!(answer(too_large), Err(ZmtpError::Frame(FrameError::TooLarge)));
        let commands = b"\x04\0".repeat(MAX_COMMANDS);
        assert_eq!(answer(&commands), Err(ZmtpError::NoAnswer), "it may not go on like this");
        assert_eq!(answer(b"\0\x05\x80\x04K\x03."), Err(ZmtpError::NoAnswer), "no delimiter");
        let long = question(&[7; 256]);
        assert_eq!((long[..11].to_vec(), long.len()), (b"\x01\0\x02\0\0\0\0\0\0\x01\0".to_vec(), 267));
    }
}
