//! A decode leg that is sent together with its prefill, right behind it: the engines meet by
//! themselves.
//!
//! It is the first attempt of the decode leg, begun before its time. The prefiller's failure drops
//! it, which the decoder notices; its own failure is looked at when the prefill is over, or at once
//! where a prefiller waits for its decoder.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use crate::dialect::{Dialect, Peer, Transfer};
use crate::fleet::{Instance, InstanceId, Reservation};
use crate::relay::ask::Ask;
use crate::relay::box_in_place::boxed;
use crate::relay::failure::Failure;
use crate::relay::legs::{DecodeSpec, Opening, PrefillEnd};
use crate::relay::origin::Origin;
use crate::relay::release::HandoffGuard;
use crate::relay::{Relay, Tries};
use crate::upstream::Written;

/// A prefiller's answer may come so much after its decoder's; it has nothing to say but its token
/// counts.
const TAIL: Duration = Duration::from_millis(200);

/// The leg that a decode leg runs beside. Such futures are large: boxed, they are moved once.
type PrefillLeg = Pin<Box<dyn Future<Output = Result<PrefillEnd, Failure>> + Send>>;

type DecodeLeg = Pin<Box<dyn Future<Output = Result<Opening, Failure>> + Send>>;

/// A decode leg under way, or its end.
pub(super) struct Early {
    leg: DecodeLeg,
    ended: Option<Result<Opening, Failure>>,
    instance: Arc<Instance>,
    written: Written,
    dialect: Dialect,
    /// Identity of the prefiller that the decoder was told.
    peer: Option<Arc<Peer>>,
    /// The prefiller waits for this decoder: without it the prefill comes to nothing.
    awaited: bool,
    /// Time at which the prompt was computed, in ms of the fleet's clock.
    computed_ms: Arc<OnceLock<u64>>,
    relay: Arc<Relay>,
}

/// End of a prefill, and the decode leg that was sent together with it.
pub(super) type Ended = (PrefillEnd, Option<Early>);

impl Early {
    /// The decoder of the leg.
    pub(super) fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// The decoder, if its prefiller waits for it.
    pub(super) fn waited_for(&self) -> Option<InstanceId> {
        self.awaited.then(|| self.instance.id())
    }

    /// The decoder, if the prefill does not end without it.
    pub(super) fn partner(&self) -> Option<Arc<Instance>> {
        self.awaited.then(|| self.instance.clone())
    }

    /// True if hanging up on both before the prefill has ended leaves the decoder's blocks taken.
    pub(super) fn needs_its_prefill(&self) -> bool {
        self.dialect == Dialect::NixlPush
    }

    /// The prefiller is not who the decoder was told that it is: another process by now, for which
    /// it would wait in vain.
    fn is_misled(&self, guard: &HandoffGuard) -> bool {
        let told = guard.handoff().and_then(|handoff| self.dialect.peer_of(handoff));
        told.zip(self.peer.as_deref()).is_some_and(|(is, was)| is != *was)
    }

    /// Goes on until the prefill is over, or has come to nothing because of it. The decoder is
    /// asked when its prefiller has been, which `asked` tells: blocks that a decoder keeps for a
    /// prefill that never begins are freed by nobody.
    async fn beside(&mut self, mut prefill: PrefillLeg, asked: &Written) -> Result<PrefillEnd, Failure> {
        let mut tail = None;
        poll_fn(|cx| {
            let prefill = prefill.as_mut().poll(cx);
            let begins = self.written.get() || (asked.get() && prefill.is_pending());
            if begins
                && self.ended.is_none()
                && let Poll::Ready(end) = self.leg.as_mut().poll(cx)
            {
                self.ended = Some(end);
            }
            match (&self.ended, prefill) {
                // The decoder has what it needed, whatever its prefiller says, or if it says
                // nothing.
                (Some(Ok(_)), Poll::Ready(Err(_))) => Poll::Ready(Ok(PrefillEnd::InVain)),
                (_, Poll::Ready(end)) => Poll::Ready(end),
                (Some(Ok(_)), Poll::Pending) => {
                    let tail = tail.get_or_insert_with(|| Box::pin(tokio::time::sleep(TAIL)));
                    tail.as_mut().poll(cx).map(|()| Ok(PrefillEnd::InVain))
                }
                (Some(Err(_)), Poll::Pending) if self.awaited => Poll::Ready(Ok(PrefillEnd::InVain)),
                _ => Poll::Pending,
            }
        })
        .await
    }

    /// Waits for the end of the leg.
    pub(super) async fn end(self) -> Result<Opening, Failure> {
        match self.ended {
            Some(end) => end,
            None => self.leg.await,
        }
    }
}

/// A prefill, whose request `asked` tells of, and the decode leg beside it, if there is one.
/// Dropped, both are hung up on.
pub(super) async fn beside(
    prefill: PrefillLeg,
    asked: Written,
    early: Option<Early>,
) -> Result<Ended, Failure> {
    let Some(mut early) = early else {
        return prefill.await.map(|end| (end, None));
    };
    let mut end = early.beside(prefill, &asked).await?;
    if let PrefillEnd::Done(guard) = &mut end {
        if early.is_misled(guard) {
            return Ok((end, None));
        }
        // The leg looks at it from now on. It is set once.
        let _ = early.computed_ms.set(early.relay.fleet.now_ms());
        // From here on a hang-up frees both sides, if the decoder has the request.
        guard.give(&early.written);
    }
    Ok((end, Some(early)))
}

impl fmt::Debug for Early {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Early").field("decoder", self.instance.endpoint()).finish_non_exhaustive()
    }
}

impl Relay {
    /// Prepares the decode leg of an attempt that sends both at once; `None` where the decoder must
    /// wait, or there is none.
    pub(super) fn early(
        self: &Arc<Self>,
        ask: &Arc<Ask>,
        prefill: &Reservation,
        transfer: &Transfer,
        decode: &Tries,
    ) -> Option<Early> {
        let dialect = self.speech.now().dialect;
        let edit = dialect.early_decode_edit(transfer)?;
        let prefiller = prefill.instance();
        let reservation = self.decoder(ask, decode, Some(prefiller.id())).ok()?;
        let (instance, written) = (reservation.instance().clone(), Written::default());
        // Its first byte comes after the prefill.
        let settings = self.settings.now();
        let extra_time = settings.computing(settings.prefill, ask.shape.prompt_tokens);
        let computed_ms = Arc::new(OnceLock::new());
        let origin = Origin::Beside(prefiller.clone(), computed_ms.clone());
        let spec = DecodeSpec { edit, extra_time, origin, is_moved: decode.is_moved };
        let leg = boxed(|| self.clone().decode_leg(ask.clone(), reservation, spec, written.clone()));
        let (peer, awaited) = (transfer.peer.clone(), dialect.binds_pairs());
        let (ended, relay) = (None, self.clone());
        Some(Early { leg, ended, instance, written, dialect, peer, awaited, computed_ms, relay })
    }
}
