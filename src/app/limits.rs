//! Wiring of `[auth]` and of the keys of `[limit]` that bound concurrent and waiting requests.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::auth::watch::{self, KeysError, Watch};
use crate::config::{Auth, Config, Limit};
use crate::obs::Meters;
use crate::relay::admit::GateLimits;
use crate::relay::places::Places;
use crate::relay::shed::RoleLimits;

/// Reads the file of clients' keys and starts the watch that reads it again when it changes. `None`
/// = no file is configured, and everybody may ask.
///
/// # Errors
/// The file is configured and can't be used.
pub fn open_keys(auth: &Auth, meters: &Arc<Meters>) -> Result<Option<Watch>, KeysError> {
    let Some(file) = &auth.keys_file else { return Ok(None) };
    Watch::open(file.into(), Duration::from_millis(auth.reload_ms), meters.clone()).map(Some)
}

/// Checks that [`open_keys`] would find a file that it can use.
///
/// # Errors
/// Those of [`open_keys`].
pub fn check_keys(auth: &Auth) -> Result<(), KeysError> {
    let read = |file: &String| watch::load(Path::new(file)).map(|_| ());
    auth.keys_file.as_ref().map_or(Ok(()), read)
}

/// Limits of the admission gate: requests inside, and requests that wait.
pub fn gate_limits(config: &Config) -> GateLimits {
    let limit = &config.limit;
    GateLimits {
        inflight: limit.inflight,
        inflight_per_key: (limit.inflight * limit.inflight_key_percent).div_ceil(100),
        queue: limit.queue,
        queue_per_key: (limit.queue * limit.queue_key_percent).div_ceil(100),
        patience: Duration::from_millis(limit.queue_ms),
        keys: config.auth.keys_file.is_some(),
    }
}

/// Limit of a fleet's requests: its share of all, where there are `several`.
pub fn fleet_share(limit: &Limit, several: bool) -> Places {
    let share = (limit.inflight * limit.inflight_fleet_percent).div_ceil(100);
    Places::new(if several { share } else { 0 })
}

/// Concurrency limits of either role.
pub fn role_limits(limit: &Limit) -> RoleLimits {
    RoleLimits { prefill: Places::new(limit.prefill_inflight), decode: Places::new(limit.decode_inflight) }
}
