//! The steps of a move, one after the other.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, header};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{Step, Turn};
use crate::dialect::Dialect;
use crate::dialect::sglang::{self, Switched};
use crate::server::fleets::ServedFleet;
use crate::tokenization::exchange::{authorized, exchange};

/// Limit for the switch of a role: SGLang builds its queues anew and may capture graphs, for which
/// its own test waits so long.
const SWITCH_TIME: Duration = Duration::from_secs(180);

/// Bytes of the answer to it that are read.
const ANSWER_BYTES: usize = 16 << 10;

/// A move to carry out.
pub(super) struct Errand {
    pub(super) turn: Turn,
    pub(super) fleet: Arc<ServedFleet>,
    /// Hears the steps.
    pub(super) step: Arc<watch::Sender<Step>>,
    /// True if a move before has left it in neither role.
    pub(super) was_lost: bool,
    /// The longest that it may drain.
    pub(super) drain: Duration,
    /// Further members of what the engine is told.
    pub(super) switch: Map<String, Value>,
    /// Cancelled when the gateway is to end: an engine that still drains stays where it was.
    pub(super) stop: CancellationToken,
    /// Cancelled when the gateway ends.
    pub(super) cut: CancellationToken,
}

impl Errand {
    /// Moves the engine; its old role it has left already.
    pub(super) async fn run(self) {
        let end = tokio::select! {
            end = self.take() => end,
            end = self.given_up() => end,
        };
        let end = match end {
            // What it is still is what nobody knew before.
            Step::Kept(cause) if self.was_lost => Step::Lost(cause),
            end => end,
        };
        let Turn { engine, from, to } = &self.turn;
        let members = &self.fleet.relay.fleet;
        let end = match end {
            Step::Kept(cause) if !members.put_back(*from, engine) => {
                Step::Lost(format!("{cause}; and no list has it any more"))
            }
            end => end,
        };
        if !matches!(end, Step::Kept(_)) {
            members.remove(*from, engine);
        }
        if end == Step::Joined {
            members.add(*to, engine.clone());
        }
        let (from, to) = (from.name(), to.name());
        match end.cause() {
            None => tracing::info!(%engine, from, to, "moved"),
            Some(cause) => tracing::warn!(%engine, from, to, step = end.name(), "not moved: {cause}"),
        }
        members.show(&self.fleet.relay.meters);
        self.fleet.moves.end(&self.turn, &self.step, end);
    }

    /// Waits for the end of the gateway.
    async fn given_up(&self) -> Step {
        let cause = "the gateway shuts down".to_owned();
        self.stop.cancelled().await;
        if *self.step.borrow() == Step::Draining {
            return Step::Kept(cause);
        }
        self.cut.cancelled().await;
        Step::Lost(cause)
    }

    async fn take(&self) -> Step {
        if let Err(end) = self.wait_for_drain().await {
            return end;
        }
        self.step.send_replace(Step::Switching);
        if let Err(end) = self.tell_role().await {
            return end;
        }
        self.step.send_replace(Step::Probing);
        self.probe().await
    }

    async fn wait_for_drain(&self) -> Result<(), Step> {
        let Turn { engine, from, .. } = &self.turn;
        if self.fleet.drained(&[*from], &[engine], self.drain).await {
            return Ok(());
        }
        let (cause, ms) = (self.fleet.busy_cause(engine), self.drain.as_millis());
        Err(Step::Kept(format!("{cause} after {ms} ms (wait_ms)")))
    }

    /// Tells an SGLang server its new role; others serve in either as they are.
    async fn tell_role(&self) -> Result<(), Step> {
        if self.fleet.relay.speech.now().dialect != Dialect::Sglang {
            return Ok(());
        }
        let access = self.fleet.access.now();
        let url = self.turn.engine.url(sglang::SWITCH_PATH);
        let call = authorized(self.fleet.control.post(url), access.authorization.as_ref())
            .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .body(sglang::switch_body(self.turn.to.name(), self.switch.clone()))
            .timeout(SWITCH_TIME);
        let path = sglang::SWITCH_PATH;
        match exchange(call, SWITCH_TIME, ANSWER_BYTES).await {
            Err(why) => Err(Step::Lost(format!("{path}: {why}"))),
            Ok((status, body)) => match sglang::read_switch(status.as_u16(), &body) {
                Switched::Done => Ok(()),
                Switched::Unchanged(why) => Err(Step::Kept(format!("{path}: {why}"))),
                Switched::Unknown(why) => Err(Step::Lost(format!("{path}: {why}"))),
            },
        }
    }

    async fn probe(&self) -> Step {
        let access = self.fleet.access.now();
        for attempt in 0..access.probe_attempts.max(1) {
            if attempt > 0 {
                sleep(access.probe_interval).await;
            }
            if self.fleet.answers(&self.turn.engine).await {
                return Step::Joined;
            }
        }
        Step::Lost("it did not answer /v1/models (fleet.probe_attempts)".to_owned())
    }
}
