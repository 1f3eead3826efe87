//! Closes a connection without a reset.
//!
//! A client whose request was refused may still be writing it when the answer is out, and many
//! write all of it before they read. A socket that is closed with something unread, or is sent more
//! afterwards, answers with a reset, and that is what such a client sees in the answer's place (RFC
//! 9112 §9.6). So our side is closed first, and bytes that still come are read, and kept nowhere.

use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Reading goes on for so long, in which what is read at all arrives from most clients; meanwhile
/// they keep their place among `limit.connections`.
const LINGER_TIME: Duration = Duration::from_secs(2);

/// But not behind a silence of so long, which is more than the way of what had been sent before we
/// closed. Nearly all clients have closed by then; the others had nothing more to send.
const QUIET_TIME: Duration = Duration::from_millis(500);

/// As much is read: what is larger is rare, and reading it without end would be work that anybody
/// can ask for.
const LINGER_BYTES: usize = 16 << 20;

/// Read at once, on the stack.
const PIECE_BYTES: usize = 16 << 10;

/// The time between our end of a connection and the client's.
#[derive(Debug)]
pub(super) struct Parting {
    end: Instant,
    left_bytes: usize,
    quiet: Pin<Box<Sleep>>,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Parting {
    /// Begins to close. A shutdown waits for no client that has had an answer: `stop` ends it.
    pub(super) fn new(stop: &CancellationToken) -> Parting {
        Parting {
            end: Instant::now() + LINGER_TIME,
            left_bytes: LINGER_BYTES,
            quiet: Box::pin(sleep(QUIET_TIME)),
            stopped: Box::pin(stop.clone().cancelled_owned()),
        }
    }

    /// Ready when the client has closed, or need not be waited for any longer.
    pub(super) fn poll(&mut self, socket: &mut (impl AsyncRead + Unpin), cx: &mut Context<'_>) -> Poll<()> {
        // The clock is looked at, too: a client that sends without a pause leaves a timer no turn.
        if Instant::now() >= self.end || self.stopped.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut room = [MaybeUninit::uninit(); PIECE_BYTES];
        let mut heard = false;
        loop {
            let mut piece = ReadBuf::uninit(&mut room);
            let polled = Pin::new(&mut *socket).poll_read(cx, &mut piece);
            match (polled, piece.filled().len()) {
                (Poll::Pending, _) => break,
                (Poll::Ready(Ok(())), 1..) => {
                    let Some(left) = self.left_bytes.checked_sub(piece.filled().len()) else {
                        return Poll::Ready(());
                    };
                    (self.left_bytes, heard) = (left, true);
                }
                // It has closed, or broken off.
                (Poll::Ready(_), _) => return Poll::Ready(()),
            }
        }
        if heard {
            self.quiet.as_mut().reset((Instant::now() + QUIET_TIME).min(self.end));
        }
        self.quiet.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::server::stall::TimedSocket;

    const ANSWER: &str = "refused";

    /// Time for which it takes to close, after an answer, the connection of such a client; it stays
    /// open at its end if that is given back.
    async fn closed(
        stop: &CancellationToken,
        client: impl AsyncFnOnce(DuplexStream) -> Option<DuplexStream>,
    ) -> Duration {
        let (near, far) = duplex(64 << 10);
        let mut socket = TimedSocket::new(near, Duration::from_secs(60), stop.clone());
        let ours = async move {
            socket.write_all(ANSWER.as_bytes()).await.unwrap();
            let start = Instant::now();
            socket.shutdown().await.unwrap();
            start.elapsed()
        };
        tokio::join!(ours, client(far)).0
    }

    fn about(took: Duration, expected: Duration) -> bool {
        // The clock of tokio's timers has steps of a millisecond.
        took >= expected && took < expected + Duration::from_millis(10)
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_sends_all_first_gets_the_answer() {
        let took = closed(&CancellationToken::new(), async |mut client: DuplexStream| {
            client.write_all(&vec![b'x'; LINGER_BYTES]).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer, ANSWER);
            None
        })
        .await;
        assert!(about(took, Duration::ZERO), "closed as soon as it has: {took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn lingering_close_is_bounded() {
        let never = CancellationToken::new();
        let silent = closed(&never, async |client: DuplexStream| Some(client)).await;
        assert!(about(silent, QUIET_TIME), "{silent:?}");
        let slow = closed(&never, async |mut client: DuplexStream| {
            while client.write_all(b"x").await.is_ok() {
                sleep(QUIET_TIME / 2).await;
            }
            None
        })
        .await;
        assert!(about(slow, LINGER_TIME), "{slow:?}");
        let endless = closed(&never, async |mut client: DuplexStream| {
            let piece = vec![b'x'; 1 << 20];
            let mut sent = 0;
            while client.write_all(&piece).await.is_ok() {
                sent += piece.len();
            }
            assert!(sent <= LINGER_BYTES, "{sent} bytes were taken");
            None
        })
        .await;
        assert!(about(endless, Duration::ZERO), "{endless:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_waits_for_nobody() {
        let stop = CancellationToken::new();
        let silent = closed(&stop, async |client: DuplexStream| {
            sleep(QUIET_TIME / 5).await;
            stop.cancel();
            Some(client)
        })
        .await;
        assert!(about(silent, QUIET_TIME / 5), "{silent:?}");
        let afterwards = closed(&stop, async |client: DuplexStream| Some(client)).await;
        assert!(about(afterwards, Duration::ZERO), "{afterwards:?}");
    }
}
