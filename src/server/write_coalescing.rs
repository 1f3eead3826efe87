//! Small pieces of an answer, written as one.
//!
//! hyper hands over an event as three: the chunk's size, the data, the line's end. Put together on
//! the stack they cost the kernel less than one by one (`send` in place of `writev`), and a
//! connection that waits keeps no buffer for it.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncWrite, ReadBuf};

/// The most that is put together: events are smaller, and copying more would cost more than it
/// saves.
const GATHERED_BYTES: usize = 1 << 10;

/// Writes some of `pieces`, as `poll_write_vectored` does.
pub(super) fn poll_write<S: AsyncWrite>(
    socket: Pin<&mut S>,
    cx: &mut Context<'_>,
    pieces: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let mut room = [MaybeUninit::uninit(); GATHERED_BYTES];
    let mut gathered = ReadBuf::uninit(&mut room);
    for piece in pieces {
        if piece.len() > gathered.remaining() {
            return socket.poll_write_vectored(cx, pieces);
        }
        gathered.put_slice(piece);
    }
    socket.poll_write(cx, gathered.filled())
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    #[tokio::test]
    async fn all_of_it_goes_out_in_order_whatever_the_sizes() {
        for sizes in
            [vec![], vec![0, 3], vec![4, 180, 2], vec![4, 1_018, 2], vec![4, 1_019, 2], vec![5_000, 1]]
        {
            let parts: Vec<Vec<u8>> =
                sizes.iter().enumerate().map(|(at, &size)| vec![b'a' + at as u8; size]).collect();
            let pieces: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
            let (mut near, mut far) = duplex(1 << 16);
            let written = poll_fn(|cx| poll_write(Pin::new(&mut near), cx, &pieces)).await.unwrap();
            drop(near);
            let mut all = Vec::new();
            far.read_to_end(&mut all).await.unwrap();
            let sent = parts.concat();
            assert_eq!((written, &all[..]), (all.len(), &sent[..all.len()]));
            assert!(written == sent.len() || sent.len() > GATHERED_BYTES, "{sizes:?}");
        }
    }

    #[tokio::test]
    async fn a_socket_with_little_room_takes_what_it_can() {
        let (mut near, _far) = duplex(7);
        let pieces = [IoSlice::new(b"b4\r\n"), IoSlice::new(&[b'x'; 180]), IoSlice::new(b"\r\n")];
        let written = poll_fn(|cx| poll_write(Pin::new(&mut near), cx, &pieces)).await.unwrap();
        assert_eq!(written, 7);
    }
}
