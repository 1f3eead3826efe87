//! Connections to publishers, opened again and again; or waited for, where engines connect.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::watch::{Source, Times};
use super::zmtp::{Connection, LinkError, Listener, Role, Stream};

/// Opens a connection and subscribes, again and again until it succeeds.
pub(super) async fn open(
    source: &Source,
    times: Times,
    listener: &mut Option<Listener>,
    mut newer: Option<Box<dyn Stream>>,
) -> Connection {
    let mut wait_ms = times.retry_ms;
    loop {
        match try_open(source, times, listener, newer.take()).await {
            Ok(link) => return link,
            Err(error) => {
                tracing::debug!(engine = %source.name, role = "prefill", address = %source.events, %error, "no KV events");
            }
        }
        sleep(Duration::from_millis(wait_ms)).await;
        wait_ms = (2 * wait_ms).min(times.retry_max_ms);
    }
}

async fn try_open(
    source: &Source,
    times: Times,
    listener: &mut Option<Listener>,
    newer: Option<Box<dyn Stream>>,
) -> Result<Connection, LinkError> {
    let stream = match newer {
        Some(stream) => stream,
        None if source.engine_connects => {
            if listener.is_none() {
                *listener = Some(source.events.listen().await?);
            }
            // However long it takes: the engine may not be there yet.
            accept(listener.as_ref()).await?
        }
        None => within(times.connect_ms, source.events.connect()).await?,
    };
    within(times.connect_ms, async {
        let mut link = Connection::greet(stream, Role::Subscriber).await?;
        link.subscribe(&source.topic).await?;
        Ok(link)
    })
    .await
}

/// The next engine that connects; never, where none does.
async fn accept(listener: Option<&Listener>) -> Result<Box<dyn Stream>, LinkError> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

/// The same, while there is a connection to listen to.
pub(super) async fn accept_newer(listener: Option<&Listener>, times: Times) -> Box<dyn Stream> {
    loop {
        match accept(listener).await {
            Ok(stream) => return stream,
            Err(_) => sleep(Duration::from_millis(times.retry_max_ms)).await,
        }
    }
}

/// With a time limit.
pub(super) async fn within<T>(
    limit_ms: u64,
    work: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    timeout(Duration::from_millis(limit_ms), work).await.unwrap_or(Err(LinkError::TimedOut))
}
