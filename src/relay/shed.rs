//! Turning requests away at once rather than serving everybody late: by the predicted time to the
//! first token, and by how many requests each side has.

use std::time::Duration;

use crate::auth::Priority;
use crate::error::{Error, Kind};
use crate::fleet::Role;
use crate::relay::Relay;
use crate::relay::account::Ledger;
use crate::relay::ask::Ask;
use crate::relay::places::Places;

/// A prompt that takes long by itself may wait as long as it takes, whatever the objective: on an
/// idle fleet it is served.
const OWN_TIMES: f64 = 2.0;

/// Concurrency limits of either role.
#[derive(Debug)]
pub struct RoleLimits {
    /// Waiting for prefillers or on one.
    pub prefill: Places,
    /// Answered by decoders, or to be.
    pub decode: Places,
}

/// A prediction of the first token: seconds that it waits, those it has waited included, and
/// seconds of its own.
#[derive(Clone, Copy, Debug)]
struct Predicted {
    wait_s: f64,
    own_s: f64,
}

/// The seconds by which a request would be too late; None when it is in time.
fn late_s(objective: Duration, priority: Priority, predicted: Predicted) -> Option<f64> {
    let patience = match priority {
        Priority::Low => 0.5,
        Priority::Normal => 1.0,
        Priority::High => 2.0,
    };
    let Predicted { wait_s, own_s } = predicted;
    let allowed_s = (objective.as_secs_f64() * patience).max(OWN_TIMES * own_s);
    let late_s = wait_s + own_s - allowed_s;
    (late_s > 0.0).then_some(late_s)
}

impl Relay {
    /// Refuses a request that would be served too late. `route.ttft_slo_ms` = 0 refuses none.
    pub(super) fn in_time(&self, ask: &Ask, ledger: &Ledger) -> Result<(), Error> {
        let objective = self.settings.now().ttft_objective;
        if objective.is_zero() {
            return Ok(());
        }
        let Some((line_s, own_s)) = self.fleet.scheduler().predict(&ask.job) else { return Ok(()) };
        let predicted = Predicted { wait_s: ask.arrived.elapsed().as_secs_f64() + line_s, own_s };
        let Some(late_s) = late_s(objective, ledger.priority(), predicted) else { return Ok(()) };
        self.meters.turned_away("slo");
        self.fleet.scheduler().note_refused(own_s);
        let message = "the first token would come too late: the prefillers have too much to do";
        let wait = Duration::try_from_secs_f64(late_s).unwrap_or(Duration::MAX);
        Err(Error::new(Kind::Overloaded, message).retry_after(wait))
    }

    /// Takes a place of the fleet's share, until the request's account is settled.
    pub(super) fn take_share(&self, ledger: &mut Ledger) -> Result<(), Error> {
        match self.share.take() {
            Some(place) => {
                ledger.takes_share(place);
                Ok(())
            }
            None => {
                self.meters.turned_away("fleet_inflight");
                Err(Error::new(Kind::Overloaded, "this model has as many requests under way as it may"))
            }
        }
    }

    /// Takes a place on one side for a request, which has it until its account is settled or the
    /// place is given up.
    pub(super) fn take_place(&self, side: Role, ledger: &mut Ledger) -> Result<(), Error> {
        let (places, reason, message) = match side {
            Role::Prefill => (
                &self.role_limits.prefill,
                "prefill_inflight",
                "the prefillers are at their limit of requests",
            ),
            Role::Decode => {
                (&self.role_limits.decode, "decode_inflight", "the decoders are at their limit of requests")
            }
            // Their limit is that of all requests.
            Role::Encode => return Ok(()),
        };
        let Some(place) = places.take() else {
            self.meters.turned_away(reason);
            return Err(Error::new(Kind::Overloaded, message));
        };
        ledger.takes(side, Some(place));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_requests_are_refused_low_priority_first() {
        let objective = Duration::from_secs(4);
        let late = |wait_s, priority| late_s(objective, priority, Predicted { wait_s, own_s: 0.5 });
        assert_eq!(late(3.5, Priority::Normal), None);
        assert_eq!(late(5.5, Priority::Normal), Some(2.0));
        assert_eq!(late(3.5, Priority::Low), Some(2.0));
        assert_eq!(late(5.5, Priority::High), None);
        assert_eq!(late(9.5, Priority::High), Some(2.0));
    }

    #[test]
    fn a_long_prompt_is_served_when_it_need_not_wait_long() {
        let late =
            |wait_s| late_s(Duration::from_secs(4), Priority::Normal, Predicted { wait_s, own_s: 30.0 });
        assert_eq!((late(0.0), late(29.0), late(31.0)), (None, None, Some(1.0)));
    }
}
