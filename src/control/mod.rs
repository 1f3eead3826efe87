//! Background loops that look at engines and at the configuration while the gateway serves. They
//! get the parts that they read and change, never the relay that serves requests.

pub mod chat_ids;
pub mod dialect_detect;
pub mod discovery;
mod event_sources;
pub mod findings;
pub mod health_probe;
pub mod kv_events;
pub mod load_scrape;
pub mod parity;
pub mod reload;
mod rounds;

use std::sync::Arc;

use crate::fleet::Fleet;
use crate::obs::Meters;
use crate::upstream::Upstream;

/// Parts by which engines come into the fleet and leave it.
#[derive(Clone, Debug)]
pub struct FleetHandles {
    /// Members of the fleet.
    pub fleet: Arc<Fleet>,
    /// The client towards engines, which knows those that it can't speak to.
    pub upstream: Upstream,
    /// Metrics of what was looked for.
    pub meters: Arc<Meters>,
}
