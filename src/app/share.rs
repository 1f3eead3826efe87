//! Wiring of `[share]`: the link of a fleet's scheduler to those of other gateways.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::config::Config;
use crate::fleet::Fleet;

/// Starts the link where a store is configured, and the fleet is no API elsewhere. The gateway's
/// number is a new one at each start: others forget what the one before it had under way.
///
/// # Errors
/// The store's URL can't be used.
#[cfg(feature = "share")]
pub(super) fn start(
    config: &Config,
    name: &str,
    fleet: &Arc<Fleet>,
    loops: &mut JoinSet<()>,
) -> Result<(), String> {
    use crate::route::shared::message::ReplicaId;
    use crate::share::{Link, LinkSettings, Store};

    let Some(url) = config.share.store()?.filter(|_| config.fleet.remote.is_none()) else { return Ok(()) };
    let settings = LinkSettings {
        store: Store::new(&url).map_err(|error| error.to_string())?,
        prefix: format!("{}:{name}", config.share.prefix),
        me: ReplicaId(uuid::Uuid::new_v4().as_u64_pair().0),
    };
    if let Some(link) = Link::new(settings, fleet.clone()) {
        loops.spawn(link.run());
    }
    Ok(())
}

/// Starts nothing: the program was built without it, and no configuration asks for it.
#[cfg(not(feature = "share"))]
#[expect(clippy::unnecessary_wraps, reason = "the other one can fail")]
pub(super) fn start(_: &Config, _: &str, _: &Arc<Fleet>, _: &mut JoinSet<()>) -> Result<(), String> {
    Ok(())
}
