//! Wiring of `[share]`: the links of a fleet's scheduler and stored responses to those of other
//! gateways, and the exchange of keys' budgets with them.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::config::Config;
use crate::relay::Relay;
use crate::server::Gateway;

/// Client of the store; `None` where none is configured, or the fleet is an API elsewhere.
#[cfg(feature = "share")]
pub(super) type ShareStore = Option<crate::share::Store>;

/// No store: the program was built without it.
#[cfg(not(feature = "share"))]
#[derive(Clone, Copy, Debug)]
pub(super) struct ShareStore;

/// Makes the client of the store for a fleet.
///
/// # Errors
/// The store's URL can't be used.
#[cfg(feature = "share")]
pub(super) fn store(config: &Config) -> Result<ShareStore, String> {
    if config.fleet.remote.is_some() { Ok(None) } else { configured_store(config) }
}

#[cfg(feature = "share")]
fn configured_store(config: &Config) -> Result<ShareStore, String> {
    let Some(url) = config.share.store()? else { return Ok(None) };
    crate::share::Store::new(&url, &config.share.prefix_in_store())
        .map(Some)
        .map_err(|error| error.to_string())
}

/// Settings of a link to the store, in which all names begin with `prefix`. The gateway's number is
/// a new one at each start: others forget what the one before it had under way.
#[cfg(feature = "share")]
fn link_settings(store: crate::share::Store, prefix: String) -> crate::share::LinkSettings {
    use crate::route::shared::message::ReplicaId;

    let me = ReplicaId(uuid::Uuid::new_v4().as_u64_pair().0);
    crate::share::LinkSettings { store: Arc::new(store), prefix, me }
}

/// Starts the links of a fleet where there is a store, in which all names begin with `prefix`, and
/// tells its requests from those of other gateways.
#[cfg(feature = "share")]
pub(super) fn start(store: ShareStore, prefix: String, relay: &Arc<Relay>, loops: &mut JoinSet<()>) {
    let Some(store) = store else { return };
    let (settings, fleet) = (link_settings(store, prefix), &relay.fleet);
    // The upper half of a random number.
    relay.names.mark(u32::try_from(settings.me.0 >> 32).unwrap_or_default());
    if let Some(link) = crate::share::Link::new(settings.clone(), fleet.clone()) {
        loops.spawn(link.run());
    }
    if let Some(errands) = relay.kept.share() {
        loops.spawn(crate::share::ResponseLink::new(settings, relay.clone()).run(errands));
    }
}

/// Makes nothing: no configuration asks for it.
#[cfg(not(feature = "share"))]
#[expect(clippy::unnecessary_wraps, reason = "the other one can fail")]
pub(super) fn store(_: &Config) -> Result<ShareStore, String> {
    Ok(ShareStore)
}

/// Starts nothing: there is no store.
#[cfg(not(feature = "share"))]
pub(super) fn start(_: ShareStore, _: String, _: &Arc<Relay>, _: &mut JoinSet<()>) {}

/// Starts the exchange of keys' budgets where a store is configured, and keys are asked for.
///
/// # Errors
/// The store's URL can't be used.
#[cfg(feature = "share")]
pub(super) fn start_budgets(
    config: &Config,
    gateway: &Gateway,
    tasks: &mut JoinSet<()>,
) -> Result<(), String> {
    let Some(store) = configured_store(config)? else { return Ok(()) };
    if gateway.callers.checks() {
        let settings = link_settings(store, config.share.prefix_in_store());
        let (callers, meters) = (gateway.callers.clone(), gateway.meters.clone());
        tasks.spawn(crate::share::BudgetLink::new(settings, callers, meters).run());
    }
    Ok(())
}

/// Starts nothing, as above.
#[cfg(not(feature = "share"))]
#[expect(clippy::unnecessary_wraps, reason = "the other one can fail")]
pub(super) fn start_budgets(_: &Config, _: &Gateway, _: &mut JoinSet<()>) -> Result<(), String> {
    Ok(())
}
