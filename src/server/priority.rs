//! Priorities of clients' keys towards engines that schedule by priority
//! (`engine.priority_scheduling`).

use std::borrow::Cow;

use bytes::Bytes;
use http::HeaderMap;

use crate::auth::Priority;
use crate::codec::json::{Object, Value};
use crate::dialect::Dialect;
use crate::dialect::priority::{Claim, HEADER, MEMBER, with_priority};
use crate::error::{Error, Kind};
use crate::server::fleets::ServedFleet;
use crate::server::printable;

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
    ///
    /// # Errors
    /// `InvalidField` where either is no integer.
    pub(super) fn grant(&self, body: &Object) -> Result<Bytes, Error> {
        let of_key = number(self.class);
        let in_body = Claim::of_body(body).granted(of_key).ok_or_else(|| {
            let raw = |value: &Value<'_>| String::from_utf8_lossy(value.raw()).into_owned();
            let value = body.get(MEMBER).map(|it| it.as_str().map_or_else(|| raw(&it), Cow::into_owned));
            no_integer("`priority`", &value.unwrap_or_default())
        })?;
        let Some(value) = self.headers.get(HEADER) else { return Ok(with_priority(body, in_body)) };
        let in_header = Claim::of_header(value.as_bytes()).granted(of_key).ok_or_else(|| {
            no_integer("the header X-Vllm-Priority", &String::from_utf8_lossy(value.as_bytes()))
        })?;
        Ok(with_priority(body, in_header))
    }

    /// True if the client claims a priority.
    pub(super) fn claims(&self, body: &Object) -> bool {
        self.headers.contains_key(HEADER) || Claim::of_body(body) != Claim::None
    }
}

/// The refusal of a claim that vLLM could not read, either.
fn no_integer(place: &str, value: &str) -> Error {
    let said = printable(value);
    let message = format!("{place} is {said}: expected an integer, or none for the priority of the key");
    Error::new(Kind::InvalidField, message).param(MEMBER)
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
