//! Work of a millisecond and more, off the threads that everybody's sockets wait for.

use super::PoolError;

/// Does `work`, beside the runtime if it is `heavy`. Dropped, it is finished there all the same.
///
/// # Errors
/// [`PoolError::Refused`] when the work panicked, or the gateway shuts down.
pub(super) async fn aside<T: Send + 'static>(
    heavy: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PoolError> {
    if !heavy {
        return Ok(work());
    }
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| PoolError::Refused(format!("the work beside the runtime has failed: {error}")))
}
