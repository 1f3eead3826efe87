//! Attacks over real sockets: what people send who mean harm. Each is refused or served as what it
//! is, costs a bounded amount of memory and time, reaches no engine as anything but one honest
//! request, and leaves a gateway that serves.

mod bodies;
mod connection;
mod doors;
mod framing;
mod heads;
pub mod http2;
mod memory;
mod pages;
mod secrets;
mod slow;
pub mod trickle;
mod unread;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::common::stage::{Script, Stage};

const PATH: &str = "/v1/completions";
const GOOD: &str = r#"{"model":"sim","prompt":"Good?","max_tokens":4}"#;
/// Nothing here takes longer, unless something hangs.
const PATIENCE: Duration = Duration::from_secs(20);
/// The mark of a smuggled request; no engine may ever see it.
const SMUGGLED: &str = "smuggled";

/// Everything that came back until the end of the connection.
struct Said {
    bytes: Vec<u8>,
    closed: bool,
}

impl Said {
    /// The status of each answer. The bodies here have no text like a status line.
    fn statuses(&self) -> Vec<u16> {
        let text = String::from_utf8_lossy(&self.bytes);
        let status = |part: &str| part.get(..3).and_then(|code| code.parse().ok());
        text.split("HTTP/1.1 ").skip(1).filter_map(status).filter(|status| *status != 100).collect()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Sends `pieces`, reading meanwhile, until the gateway closes or has been silent for `quiet`.
async fn converse(to: SocketAddr, pieces: &[&[u8]], quiet: Duration) -> Said {
    let (mut reader, mut writer) = TcpStream::connect(to).await.unwrap().into_split();
    let writing = async {
        for piece in pieces {
            // It may be closed already.
            if writer.write_all(piece).await.is_err() {
                break;
            }
        }
        // An end of what we send would be an answer to "is there more?".
        std::future::pending::<()>().await;
    };
    let reading = async {
        let (mut bytes, mut piece) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            match timeout(quiet, reader.read(&mut piece)).await {
                Ok(Ok(n)) if n > 0 => bytes.extend_from_slice(&piece[..n]),
                ended => return Said { bytes, closed: ended.is_ok() },
            }
        }
    };
    tokio::select! {
        said = reading => said,
        () = writing => unreachable!("it never ends"),
    }
}

/// One prefiller, one decoder.
async fn stage(change: impl FnOnce(&mut Script)) -> Stage {
    let mut script = Script { prefillers: 1, decoders: 1, ..Script::default() };
    change(&mut script);
    Stage::set(script).await
}

/// Requests that reached the prefiller, none of which is a smuggled one.
fn reached(stage: &Stage, when: &str) -> usize {
    for engine in stage.engines() {
        for seen in engine.seen() {
            let text = format!("{seen:?}");
            assert!(!text.contains(SMUGGLED), "{when}: {text}");
            assert_eq!(seen.path, PATH, "{when}");
            let host = seen.headers.iter().find(|(name, _)| name == "host").map(|(_, value)| value.clone());
            assert_eq!(host, Some(engine.addr().to_string()), "{when}: engines are named by us alone");
        }
    }
    stage.seen(&stage.prefillers).len()
}

/// A good request is served after all that.
async fn assert_serves(stage: &Stage, when: &str) {
    let good = stage.post(PATH, GOOD).await;
    assert_eq!((good.status, good.words().is_empty()), (200, false), "{when}: {}", good.text());
    stage.forget();
}
