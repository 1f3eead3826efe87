//! Requests whose fleet can't serve them go to another one (`models.fallback`), as long as nothing
//! of an answer is there.

use std::fmt::Write as _;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::error::{Error, Kind};
use crate::relay::Refusal;
use crate::relay::account::Ledger;
use crate::relay::answer::Answer;
use crate::relay::ask::ReceivedRequest;
use crate::relay::box_in_place::boxed;
use crate::server::Gateway;
use crate::server::fleets::{ChosenFleet, ModelAlias, ModelRoute, ServedFleet};
use crate::server::openai::ClientRequest;

/// Header of an answer that names the fleet it came from, of a model with a rule in `[models]`.
pub(super) const ROUTE: HeaderName = HeaderName::from_static("x-pd-route");

/// The reason where a fleet has no engine, or none has told that it has the model.
pub(super) const NO_ENGINE: &str = "no_engine";

/// An answer, and the name of the model where the client knows it by another.
pub(super) struct FleetAnswer {
    pub(super) answer: Answer,
    pub(super) alias: Option<ModelAlias>,
}

/// A request that others may take over.
pub(super) struct Fallback {
    pub(super) gateway: Arc<Gateway>,
    /// The request as its client sent it.
    pub(super) client: ClientRequest,
    pub(super) route: Arc<ModelRoute>,
}

/// Reason for which another fleet is asked after this error; `None` where that would be no use, or
/// the answer would be another one.
pub(super) fn reason(error: &Error) -> Option<&'static str> {
    if error.is_lasting() {
        return None;
    }
    match error.kind() {
        Kind::NoPrefiller | Kind::NoDecoder => Some(NO_ENGINE),
        Kind::Overloaded => Some("overloaded"),
        Kind::PrefillFailed
        | Kind::DecodeFailed
        | Kind::EncodeFailed
        | Kind::EngineFailed
        | Kind::BadPrefillReply => Some("failed"),
        Kind::PrefillTimeout | Kind::DecodeTimeout | Kind::EncodeTimeout => Some("timeout"),
        _ => None,
    }
}

impl Fallback {
    /// Drives a request, and where its fleet fails, the same on the next one. The refusal is that
    /// of the first, unless another one says that it is overloaded: its want of room will pass.
    pub(super) async fn drive(
        self,
        chosen: ChosenFleet,
        request: ReceivedRequest,
        ledger: Ledger,
    ) -> Result<FleetAnswer, Box<Refusal>> {
        let Fallback { gateway, client, route } = self;
        let mut others = route.after(&chosen.fleet, client.model());
        let mut refusal = match drive_one(&chosen, request, ledger).await {
            Ok(answer) => return Ok(answer),
            Err(refusal) => refusal,
        };
        let mut error = refusal.error.clone();
        let (mut from, mut hops) = (chosen.fleet.clone(), Hops::default());
        while let Some(reason) = reason(&error) {
            let Some(next) = others.next() else { break };
            let Ok(request) = client.for_fleet(&gateway, &next, &mut refusal.ledger) else { continue };
            hops.add(&from, reason);
            note(&FleetChange { id: refusal.ledger.id(), from: &from, to: &next.fleet, reason }, &error);
            refusal.ledger.falls_back(&next.fleet.relay.meters, Some(&from.name), reason);
            match drive_one(&next, request, refusal.ledger).await {
                Ok(FleetAnswer { mut answer, alias }) => {
                    hops.name_in(answer.headers_mut(), &next.fleet);
                    return Ok(FleetAnswer { answer, alias });
                }
                Err(other) => {
                    let kept = refusal.error.or(&other.error);
                    refusal = Box::new(Refusal { error: kept, ledger: other.ledger });
                    error = other.error;
                }
            }
            from = next.fleet;
        }
        refusal.error = refusal.error.routed(&hops.to(&from));
        Err(refusal)
    }
}

/// Drives a request on its fleet. Where a rule shares the model out, answer and refusal name it.
pub(super) async fn drive_one(
    chosen: &ChosenFleet,
    request: ReceivedRequest,
    ledger: Ledger,
) -> Result<FleetAnswer, Box<Refusal>> {
    let relay = &chosen.fleet.relay;
    // A large future, which would else be moved with each of the router's layers.
    let driven = boxed(|| relay.drive(request, ledger)).await;
    let alias = chosen.alias.clone();
    if chosen.route.is_none() {
        return driven.map(|answer| FleetAnswer { answer, alias });
    }
    let name = &*chosen.fleet.name;
    let mut answer = driven.map_err(|mut refusal| {
        refusal.error = refusal.error.routed(name);
        refusal
    })?;
    name_route(answer.headers_mut(), name);
    Ok(FleetAnswer { answer, alias })
}

/// Says in an answer which fleet it came from.
pub(super) fn name_route(headers: &mut HeaderMap, route: &str) {
    if let Ok(route) = HeaderValue::from_str(route) {
        headers.insert(ROUTE, route);
    }
}

/// Fleets that failed with a request, in their order, each with the reason.
#[derive(Debug, Default)]
pub(super) struct Hops(String);

impl Hops {
    /// Adds a fleet that failed.
    pub(super) fn add(&mut self, from: &ServedFleet, reason: &str) {
        let _ = write!(self.0, ";from={};reason={reason}", from.name);
    }

    /// Says in an answer that it came from `to`, and who failed before.
    pub(super) fn name_in(&self, headers: &mut HeaderMap, to: &ServedFleet) {
        name_route(headers, &self.to(to));
    }

    /// The way of a request to `last`, which was asked after all others.
    pub(super) fn to(&self, last: &ServedFleet) -> String {
        format!("{}{}", last.name, self.0)
    }
}

/// A request that goes on from one fleet to another.
pub(super) struct FleetChange<'a> {
    pub(super) id: &'a str,
    pub(super) from: &'a ServedFleet,
    pub(super) to: &'a ServedFleet,
    pub(super) reason: &'static str,
}

/// Logs and counts that another fleet is asked after this error.
pub(super) fn note(change: &FleetChange<'_>, error: &Error) {
    let FleetChange { id, from, to, reason } = change;
    let (why, to) = (error.log_line(), &*to.name);
    tracing::info!(id, from = &*from.name, to, reason, "another fleet is asked: {why}");
    from.relay.meters.fell_back(to, reason);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_fleets_are_asked_for_what_they_could_do_better() {
        let reason = |kind| reason(&Error::new(kind, ""));
        assert_eq!(reason(Kind::NoPrefiller), Some("no_engine"));
        assert_eq!(reason(Kind::Overloaded), Some("overloaded"));
        assert_eq!(reason(Kind::DecodeFailed), Some("failed"));
        assert_eq!(reason(Kind::PrefillTimeout), Some("timeout"));
        for kind in [Kind::InvalidField, Kind::RateLimited, Kind::ModelNotFound, Kind::Loop, Kind::Internal] {
            assert_eq!(reason(kind), None, "{kind:?}");
        }
        assert_eq!(super::reason(&Error::new(Kind::DecodeFailed, "too large").lasting()), None);
    }
}
