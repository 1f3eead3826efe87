//! Models that several fleets serve: shares of the requests, and fleets that are asked where the
//! model's own fails.

use std::sync::Arc;

use super::names::Named;
use super::{ChosenFleet, Fleets, ModelAlias, ServedFleet};
use crate::util::rng;

/// The configured rule for a model.
#[derive(Clone, Debug, Default)]
pub struct ModelRule {
    /// Name in requests.
    pub name: Box<str>,
    /// Fleets with their shares, relative to each other; none = the model's name says the fleet.
    pub targets: Vec<(Box<str>, f64)>,
    /// Fleets that are asked where that fails, in their order.
    pub fallback: Vec<Box<str>>,
}

/// The same with the fleets themselves.
#[derive(Debug)]
pub(crate) struct ModelRoute {
    /// Name of the model in the rule.
    name: Arc<str>,
    targets: Vec<(Named, f64)>,
    pub(super) fallback: Vec<Named>,
}

/// Facts by which requests of one caller stay with one fleet of several.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestTies<'a> {
    /// Hash of the session.
    pub(crate) session: Option<u64>,
    /// The stored response that the request goes on from.
    pub(crate) response: Option<&'a str>,
}

impl ModelRoute {
    /// The rule of `fleets`; fleets that are not there are left out.
    pub(super) fn of(rule: &ModelRule, fleets: &Fleets) -> ModelRoute {
        let named = |fleet: &str| {
            let fleet = fleets.any_named(fleet)?.clone();
            let alias = alias_in(&fleet, &rule.name);
            Some(Named { fleet, alias })
        };
        let target = |(fleet, weight): &(Box<str>, f64)| Some((named(fleet)?, *weight));
        ModelRoute {
            name: (*rule.name).into(),
            targets: rule.targets.iter().filter_map(target).collect(),
            fallback: rule.fallback.iter().filter_map(|fleet| named(fleet)).collect(),
        }
    }

    /// The fleet for a request with these ties; `None` where the model's name says it.
    pub(super) fn choose(&self, ties: RequestTies<'_>) -> Option<&Named> {
        if let Some(response) = ties.response {
            let keeps = |named: &Named| named.fleet.relay.kept.keeper(response).is_some();
            let keeper = self.targets.iter().map(|(named, _)| named).find(|named| keeps(named));
            if let Some(keeper) = keeper {
                keeper.fleet.relay.meters.shared_out("response");
                return Some(keeper);
            }
        }
        let total: f64 = self.targets.iter().map(|(_, weight)| weight).sum();
        let (point, by) = match ties.session {
            Some(session) => (session, "session"),
            None => (rng::random(), "request"),
        };
        let chosen = pick(self.targets.iter().map(|(_, weight)| *weight), share_of(point) * total)?;
        let (named, _) = self.targets.get(chosen)?;
        named.fleet.relay.meters.shared_out(by);
        Some(named)
    }

    /// This fleet, if requests may go to it.
    pub(super) fn target_at(self: &Arc<Self>, fleet: &Arc<ServedFleet>) -> Option<ChosenFleet> {
        let target = self.targets.iter().find(|(named, _)| Arc::ptr_eq(&named.fleet, fleet))?;
        Some(ChosenFleet { route: Some(self.clone()), ..ChosenFleet::of(&target.0) })
    }

    /// True if requests are shared out among fleets.
    pub(super) fn has_targets(&self) -> bool {
        !self.targets.is_empty()
    }

    /// True if other fleets may take requests over.
    pub(crate) fn has_fallback(&self) -> bool {
        !self.fallback.is_empty()
    }

    /// Fleets that may take over from `fleet` for a client that calls the model `said`, in their
    /// order.
    pub(crate) fn after<'a>(
        &'a self,
        fleet: &'a Arc<ServedFleet>,
        said: Arc<str>,
    ) -> impl Iterator<Item = ChosenFleet> + 'a {
        let others = self.fallback.iter().filter(|named| !Arc::ptr_eq(&named.fleet, fleet));
        others.map(move |named| {
            let model = named.alias.as_ref().map_or(&self.name, |alias| &alias.model).clone();
            let alias = (model != said).then(|| ModelAlias { name: said.clone(), model });
            ChosenFleet { alias, ..ChosenFleet::known(named.fleet.clone()) }
        })
    }
}

/// A number from 0 to 1 for a number of 64 bits.
fn share_of(point: u64) -> f64 {
    // The upper bits, as many as a fraction has.
    (point >> 11) as f64 / (1u64 << 53) as f64
}

/// The place whose share `point` lies in, of shares laid end to end: with another weight few
/// sessions move.
fn pick(weights: impl Iterator<Item = f64>, point: f64) -> Option<usize> {
    let mut end = 0.0;
    let mut last = None;
    for (at, weight) in weights.enumerate().filter(|(_, weight)| *weight > 0.0) {
        end += weight;
        last = Some(at);
        if point < end {
            break;
        }
    }
    last
}

/// The name that engines of a fleet know in place of `model`, where it is another one.
pub(super) fn alias_in(fleet: &ServedFleet, model: &str) -> Option<ModelAlias> {
    let access = fleet.access.now();
    if let Some(alias) = access.alias(model) {
        return Some(alias.clone());
    }
    let own = access.model.as_deref().filter(|own| *own != model)?;
    let is_listed = || super::names::listed_models(fleet).iter().any(|listed| listed == model);
    (fleet.remote.is_some() || !is_listed()).then(|| ModelAlias { name: model.into(), model: own.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_as_large_as_their_weights() {
        let weights = [95.0, 0.0, 5.0];
        let mut counts = [0; 3];
        for step in 0..10_000 {
            let point = f64::from(step) / 10_000.0 * 100.0;
            counts[pick(weights.into_iter(), point).unwrap()] += 1;
        }
        assert_eq!(counts, [9_500, 0, 500]);
        assert_eq!(pick([0.0, 1.0].into_iter(), 1.0), Some(1), "rounding leaves nobody out");
        assert_eq!(pick([].into_iter(), 0.0), None);
    }

    #[test]
    fn few_sessions_move_when_a_weight_changes() {
        let at = |first: f64, session| pick([first, 100.0 - first].into_iter(), share_of(session) * 100.0);
        let sessions = || (0..10_000u64).map(|n| xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes()));
        let moved = sessions().filter(|session| at(95.0, *session) != at(90.0, *session)).count();
        assert!((400..600).contains(&moved), "{moved}");
        assert_eq!((share_of(0), share_of(u64::MAX) < 1.0), (0.0, true));
    }
}
