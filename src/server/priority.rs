//! Priorities of clients' keys towards engines that schedule by priority
//! (`engine.priority_scheduling`).

use bytes::Bytes;
use http::HeaderMap;

use crate::auth::Priority;
use crate::codec::json::Object;
use crate::dialect::Dialect;
use crate::dialect::priority::{Claim, HEADER, with_priority};
use crate::server::fleets::ServedFleet;

/// Distance between two classes of keys: room for a client that orders its own requests.
const STEP: i64 = 10;

/// The number by which vLLM orders requests of this class.
fn number(class: Priority) -> i64 {
    match class {
        Priority::Low => STEP,
        Priority::Normal => 0,
        Priority::High => -STEP,
    }
}

/// A client's key and what its request claims by a header.
pub(super) struct Claimant<'a> {
    pub(super) class: Priority,
    pub(super) headers: &'a HeaderMap,
}

impl Claimant<'_> {
    /// The text of the body with the priority that engines are told. The header outranks the body,
    /// as in vLLM.
    pub(super) fn grant(&self, body: &Object) -> Bytes {
        let by_header = self.headers.get(HEADER).map(|value| Claim::of_header(value.as_bytes()));
        let claim = by_header.unwrap_or_else(|| Claim::of_body(body));
        with_priority(body, claim.granted(number(self.class)))
    }

    /// True if the client claims a priority.
    pub(super) fn claims(&self, body: &Object) -> bool {
        self.headers.contains_key(HEADER) || Claim::of_body(body) != Claim::None
    }
}

/// True if the fleet's engines are told priorities. SGLang's are ordered the other way round.
pub(super) fn is_told(fleet: &ServedFleet) -> bool {
    let schedules = fleet.access.now().priority_scheduling && fleet.remote.is_none();
    schedules && fleet.relay.speech.now().dialect != Dialect::Sglang
}

/// Takes the client's claim out of headers for an engine that reads the body's.
pub(super) fn remove_claim(fleet: &ServedFleet, headers: &mut HeaderMap) {
    if is_told(fleet) {
        headers.remove(HEADER);
    }
}
