//! The decoder that keeps a response that this gateway has not seen made: another one has, or this
//! one before it was restarted.

use std::sync::Arc;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use crate::auth::Caller;
use crate::codec::json::{Edit, Object};
use crate::dialect::Api;
use crate::error::{Error, Kind};
use crate::fleet::{Instance, InstanceId, Role};
use crate::relay::box_in_place::boxed;
use crate::relay::response_owners;
use crate::server::fleets::ServedFleet;
use crate::server::{Gateway, printable};
use crate::tokenization::exchange::authorized;

/// Decoders that are asked side by side: each costs a request of its own, for any id that a client
/// makes up.
const AT_ONCE: usize = 64;

/// Searches at once, for the same reason. Who is one too many waits, as long as one engine may
/// take.
static PLACES: Semaphore = Semaphore::const_new(16);

/// The member by which a client may choose the id of a response.
const CHOSEN_ID: &str = "request_id";

/// The fleet that a response is of, and its engine there.
pub(super) struct KeptResponse {
    pub(super) fleet: Arc<ServedFleet>,
    pub(super) keeper: Option<InstanceId>,
}

/// A decoder's word about a response.
enum ResponsePresence {
    /// It has it.
    Here,
    /// It has not, or does not say so to this client.
    Not,
    /// It could not be asked.
    None,
}

/// A search for a response: who asks, with the headers of its request.
#[derive(Clone, Copy)]
pub(super) struct ResponseSearch<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) caller: &'a Caller,
    pub(super) client: &'a HeaderMap,
}

impl ResponseSearch<'_> {
    /// Finds the engine of a fleet that keeps the response `id`: as known, or as the decoders say;
    /// `None` where nobody does.
    ///
    /// # Errors
    /// `ResponseNotFound` where it is another key's. `EngineFailed` where nobody says that it is
    /// there, and some decoder could not be asked: a 404 would be taken for the last word.
    /// `Overloaded` where too many are looked for.
    pub(super) async fn keeper(self, fleet: &ServedFleet, id: &str) -> Result<Option<InstanceId>, Error> {
        self.check_owner(fleet, id)?;
        let known = &fleet.relay.kept;
        if let Some(keeper) = known.keeper(id).filter(|keeper| is_member(fleet, *keeper)) {
            return Ok(Some(keeper));
        }
        let decoders = fleet.relay.fleet.members(Role::Decode);
        let alone = self.gateway.fleets().single().is_some();
        if !is_askable(id) || alone && decoders.len() < 2 {
            return Ok(None);
        }
        let models_time = fleet.access.now().models_time;
        let place = timeout(models_time, PLACES.acquire()).await;
        let _place = place.map_err(|_| Error::new(Kind::Overloaded, "too many responses are looked for"))?;
        // Collected first: the closure that makes them is of one lifetime, which a handler's
        // futures are not to be.
        let asked: Vec<_> = decoders
            .iter()
            .map(|decoder| async move { (decoder.id(), ask_decoder(fleet, decoder, id, self.client).await) })
            .collect();
        let mut words = stream::iter(asked).buffer_unordered(AT_ONCE);
        let mut sure = true;
        // All of them have the time of one, so that engines that hang keep no place for longer.
        let until = Instant::now() + models_time;
        loop {
            match timeout_at(until, words.next()).await {
                Ok(Some((decoder, ResponsePresence::Here))) => {
                    known.note(id, decoder, None);
                    return Ok(Some(decoder));
                }
                Ok(Some((_, ResponsePresence::Not))) => {}
                Ok(Some((_, ResponsePresence::None))) => sure = false,
                Ok(None) => break,
                Err(_) => {
                    sure = false;
                    break;
                }
            }
        }
        match sure {
            true => Ok(None),
            false => {
                Err(Error::new(Kind::EngineFailed, "not all engines that may have this response answer"))
            }
        }
    }

    /// The fleet of the response `id` and the engine that keeps it there; the only fleet, where
    /// there are no others, whether or not it has the response.
    ///
    /// # Errors
    /// As [`ResponseSearch::keeper`]; `ResponseNotFound` where no fleet has it.
    pub(super) async fn keeper_anywhere(self, id: &str) -> Result<KeptResponse, Error> {
        let fleets = self.gateway.fleets();
        if let Some(fleet) = fleets.single() {
            return Ok(KeptResponse { fleet: fleet.clone(), keeper: self.keeper(fleet, id).await? });
        }
        let knows = |fleet: &&Arc<ServedFleet>| {
            let kept = &fleet.relay.kept;
            kept.owner(id).is_some() || kept.keeper(id).is_some()
        };
        let known = fleets.iter().find(knows);
        let mut failed = None;
        for fleet in fleets.iter().filter(|fleet| known.is_none_or(|known| Arc::ptr_eq(known, fleet))) {
            match self.keeper(fleet, id).await {
                Ok(Some(keeper)) => return Ok(KeptResponse { fleet: fleet.clone(), keeper: Some(keeper) }),
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| not_found(id)))
    }

    /// Looks for the keeper of the response `id` that a request goes on from: the relay then knows
    /// it. Where decoders are not asked alone, the relay refuses such a request.
    ///
    /// # Errors
    /// As [`ResponseSearch::keeper`].
    pub(super) async fn keeper_before(self, fleet: &ServedFleet, id: &str) -> Result<(), Error> {
        self.check_owner(fleet, id)?;
        if !fleet.relay.speech.now().dialect.decodes_alone() {
            return Ok(());
        }
        // Few requests have it, and all would be larger by it.
        boxed(|| self.keeper(fleet, id)).await.map(drop)
    }

    /// Refuses a response that was made for another key, as one that does not exist. Engines know
    /// no keys of clients: they show a response to whoever has its id. One of which this gateway
    /// does not know for whom it was made is anybody's only with `auth.unknown_responses`, and only
    /// under an id that engines read as it stands.
    ///
    /// # Errors
    /// `ResponseNotFound`.
    fn check_owner(self, fleet: &ServedFleet, id: &str) -> Result<(), Error> {
        if !self.gateway.callers.checks() {
            return Ok(());
        }
        let is_own = match fleet.relay.kept.owner(id) {
            Some(owner) => owner == response_owners::owner_named(&self.caller.name),
            None => self.gateway.edge.now().unknown_responses && is_askable(id),
        };
        if is_own { Ok(()) } else { Err(not_found(id)) }
    }
}

/// Asks other gateways that share the fleets for a response that this one does not know.
pub(super) async fn learn_from_others(gateway: &Gateway, id: &str) {
    let fleets = gateway.fleets();
    let is_known = fleets.iter().any(|fleet| fleet.relay.kept.keeper(id).is_some());
    if !is_known && is_askable(id) {
        join_all(fleets.iter().map(|fleet| fleet.relay.kept.learn_from_others(id))).await;
    }
}

fn not_found(id: &str) -> Error {
    let message = format!("Response with id '{}' not found.", printable(id));
    Error::new(Kind::ResponseNotFound, message).param("response_id")
}

/// Leaves out the id that a response is to have (`request_id`) where keys are asked for: engines
/// keep a response in the place of an earlier one of its id, for whomever that was made.
///
/// # Errors
/// `InvalidJson`, never for a body that was read before.
pub(super) fn without_chosen_id(gateway: &Gateway, api: Api, body: Object) -> Result<Object, Error> {
    if api != Api::Responses || !gateway.callers.checks() || !body.contains(CHOSEN_ID) {
        return Ok(body);
    }
    gateway.scan(body.splice(&Edit::dropping(&[CHOSEN_ID], &[])).to_bytes())
}

/// True if an id may stand in a path; another one would only be refused, in one way or another.
fn is_askable(id: &str) -> bool {
    response_owners::is_id(id)
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fn is_member(fleet: &ServedFleet, decoder: InstanceId) -> bool {
    fleet.relay.fleet.members(Role::Decode).iter().any(|member| member.id() == decoder)
}

async fn ask_decoder(
    fleet: &ServedFleet,
    decoder: &Instance,
    id: &str,
    client: &HeaderMap,
) -> ResponsePresence {
    let access = fleet.access.now();
    let authorization = access.authorization.as_ref().or(client.get(AUTHORIZATION));
    let url = decoder.endpoint().url(&format!("/v1/responses/{id}"));
    let call = authorized(fleet.control.get(url), authorization).timeout(access.models_time);
    match call.send().await.map(|answer| answer.status()) {
        Ok(status) if status.is_success() => ResponsePresence::Here,
        Ok(StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS) => ResponsePresence::None,
        Ok(status) if status.is_client_error() => ResponsePresence::Not,
        _ => ResponsePresence::None,
    }
}
