//! The listener's TLS: a client's handshake, and files that change.

use std::sync::Arc;
use std::time::Duration;

use crate::tls::ListenerTls;

/// The files are looked at this often.
const LOOK: Duration = Duration::from_secs(2);

/// Reads the files again and again; new connections get what they say. What can't be used is
/// logged, once, and ignored.
pub async fn renew(tls: Arc<ListenerTls>) {
    let mut told = String::new();
    loop {
        tokio::time::sleep(LOOK).await;
        let tls = tls.clone();
        match tokio::task::spawn_blocking(move || tls.refresh()).await {
            Ok(Ok(false)) => told.clear(),
            Ok(Ok(true)) => {
                told.clear();
                tracing::info!("the certificate of the listener was replaced");
            }
            Ok(Err(e)) => {
                let why = e.to_string();
                if why != told {
                    tracing::warn!("the certificate of the listener stays as it was: {why}");
                }
                told = why;
            }
            // The runtime ends.
            Err(_) => return,
        }
    }
}

#[cfg(feature = "tls")]
mod begun;

#[cfg(feature = "tls")]
pub(super) use begun::HandshakenStream;
#[cfg(feature = "tls")]
pub(super) use open::open;

#[cfg(feature = "tls")]
mod open {
    use http::Version;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use crate::tls::{ClientStream, ListenerTls};

    /// The first byte of a handshake (RFC 8446 §5.1).
    const HANDSHAKE: u8 = 22;

    /// Read of a client that speaks something else, so that the close is no reset: a head, and then
    /// some.
    const STRAY_BYTES: usize = 64 << 10;

    /// The handshake with one client, and which HTTP was agreed on; None when there is nobody to
    /// serve. The time limit is the caller's.
    pub(in crate::server) async fn open(
        tls: &ListenerTls,
        mut socket: TcpStream,
    ) -> Option<(ClientStream, Version)> {
        let mut first = [0];
        socket.peek(&mut first).await.ok().filter(|n| *n > 0)?;
        if first[0] != HANDSHAKE {
            tracing::debug!("a client speaks no TLS");
            see_off(&mut socket).await;
            return None;
        }
        match tls.accept(socket).await {
            Ok((stream, true)) => Some((stream, Version::HTTP_2)),
            Ok((stream, false)) => Some((stream, Version::HTTP_11)),
            Err(e) => {
                tracing::debug!("a client's TLS handshake failed: {e}");
                None
            }
        }
    }

    /// Closes with an end rather than a reset: what the client sent is read before.
    async fn see_off(socket: &mut TcpStream) {
        let _ = socket.shutdown().await;
        let (mut piece, mut left) = (vec![0; 4 << 10], STRAY_BYTES);
        while let Ok(n @ 1..) = socket.read(&mut piece).await {
            left = left.saturating_sub(n);
            if left == 0 {
                return;
            }
        }
    }
}
