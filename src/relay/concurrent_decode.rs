//! A decode leg that is sent together with its prefill, right behind it: the engines meet by
//! themselves.
//!
//! It is the first attempt of the decode leg, begun before its time. The prefiller's failure drops
//! it, which the decoder notices; its own failure is looked at when the prefill is over, or at once
//! where a prefiller waits for its decoder.
//!
//! If engines are bound to each other by the request's id, the decoder is only chosen before the
//! prefill, and asked after it. What it was sent by then is freed by nothing but a request of that
//! id: if the client's is gone, one for a token is sent.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{sleep, timeout};

use crate::dialect::{self, Dialect, Peer, Transfer, p2p_nccl};
use crate::fleet::{Instance, InstanceId, Rank, Reservation};
use crate::obs::Handoff;
use crate::relay::ask::Ask;
use crate::relay::box_in_place::boxed;
use crate::relay::failure::Failure;
use crate::relay::legs::{Opening, PrefillEnd};
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

/// Limit for the one-token request that frees KV pushed to a decoder.
const PARTING: Duration = Duration::from_secs(10);

/// The pause after such a request that came to nothing: no other decoder can free what this one
/// holds.
const PARTING_PAUSE: Duration = Duration::from_millis(500);

/// A decode leg under way, or its end.
pub(super) struct Early {
    leg: Leg,
    ended: Option<Result<Opening, Failure>>,
    instance: Arc<Instance>,
    written: Written,
    dialect: Dialect,
    /// Identity of the prefiller that the decoder was told.
    peer: Option<Arc<Peer>>,
    /// The prefiller waits for this decoder: without it the prefill comes to nothing.
    awaited: bool,
}

/// A decode leg.
enum Leg {
    /// It was sent with the prefill.
    Begun(DecodeLeg),
    /// It is sent when the prefill has ended well.
    Due(Due),
}

/// A decode leg that waits for its prefill.
struct Due {
    reservation: Reservation,
    parting: Parting,
}

/// Guard of KV that was pushed to a decoder: when it is dropped, the decoder is asked for one
/// token, which frees the KV, unless it had the request.
struct Parting {
    relay: Arc<Relay>,
    ask: Arc<Ask>,
    prefiller: Arc<Instance>,
    instance: Arc<Instance>,
    rank: Option<Rank>,
    written: Written,
    /// The decoder has what the prefiller computed.
    filled: bool,
    /// It turned the request away unread.
    refused: bool,
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
        let leg = match &mut self.leg {
            Leg::Begun(leg) => leg,
            Leg::Due(due) => {
                let end = prefill.await?;
                due.parting.filled = matches!(end, PrefillEnd::Done(_));
                return Ok(end);
            }
        };
        let mut tail = None;
        poll_fn(|cx| {
            let prefill = prefill.as_mut().poll(cx);
            let begins = self.written.get() || (asked.get() && prefill.is_pending());
            if begins
                && self.ended.is_none()
                && let Poll::Ready(end) = leg.as_mut().poll(cx)
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
            None => match self.leg {
                Leg::Begun(leg) => leg.await,
                Leg::Due(due) => due.end().await,
            },
        }
    }
}

impl Due {
    async fn end(self) -> Result<Opening, Failure> {
        let Due { reservation, mut parting } = self;
        let (relay, ask, written) = (parting.relay.clone(), parting.ask.clone(), parting.written.clone());
        let edit = dialect::decode_edit(None);
        let origin = Origin::Known(parting.prefiller.clone());
        let outcome = relay.decode_leg(ask, reservation, (edit, Duration::ZERO, origin), written).await;
        parting.refused = outcome.as_ref().is_err_and(Failure::turned_away);
        outcome
    }
}

impl Drop for Parting {
    fn drop(&mut self) {
        if !self.filled || (self.written.get() && !self.refused) {
            return;
        }
        let (relay, ask) = (self.relay.clone(), self.ask.clone());
        let (instance, rank) = (self.instance.clone(), self.rank);
        self.relay.releases.finish(Box::pin(async move {
            let edit = dialect::parting_edit(ask.api, &ask.body);
            let asked = async {
                loop {
                    let written = Written::default();
                    let sent = relay.upstream.send(ask.leg_on(&instance, rank, &edit), &written);
                    let answer = timeout(PARTING, sent).await;
                    // One that is busy has not looked at it, and one that was not reached may be by
                    // the next time.
                    let unseen = match answer {
                        Ok(Ok(answer)) => answer.status() == StatusCode::SERVICE_UNAVAILABLE,
                        Ok(Err(_)) | Err(_) if written.get() => return false,
                        Ok(Err(_)) | Err(_) => true,
                    };
                    if !unseen {
                        return true;
                    }
                    sleep(PARTING_PAUSE).await;
                }
            };
            let freed = timeout(relay.settings.now().lease, asked).await.unwrap_or(false);
            relay.meters.handoff(if freed { Handoff::Released } else { Handoff::Expired });
        }));
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
        (prefill, transfer): (&Reservation, &Transfer),
        decode: &Tries,
    ) -> Option<Early> {
        let dialect = self.speech.now().dialect;
        let edit = dialect.early_decode_edit(transfer)?;
        let prefiller = prefill.instance();
        let reservation = self.decoder(ask, decode, Some(prefiller.id())).ok()?;
        let (instance, written) = (reservation.instance().clone(), Written::default());
        // Its first byte comes after the prefill.
        let settings = self.settings.now();
        let before = settings.computing(settings.prefill, ask.shape.prompt_tokens);
        let origin = Origin::Beside(prefiller.clone());
        let leg = boxed(|| {
            self.clone().decode_leg(ask.clone(), reservation, (edit, before, origin), written.clone())
        });
        let (peer, awaited) = (transfer.peer.clone(), dialect.binds_pairs());
        Some(Early { leg: Leg::Begun(leg), ended: None, instance, written, dialect, peer, awaited })
    }

    /// Chooses the decoder of an attempt whose engines are bound to each other by its id, and gives
    /// it that id; no leg where there is no decoder.
    pub(super) fn bound(
        self: &Arc<Self>,
        ask: &Arc<Ask>,
        prefill: &Reservation,
        decode: &Tries,
    ) -> (Arc<Ask>, Option<Early>) {
        let prefiller = prefill.instance().id();
        let Ok(reservation) = self.decoder(ask, decode, Some(prefiller)) else { return (ask.clone(), None) };
        let speech = self.speech.now();
        let at = |reservation: &Reservation| speech.kv_address(reservation.instance().endpoint()).authority();
        let id = p2p_nccl::request_id(&at(prefill), &at(&reservation), uuid::Uuid::new_v4().as_u128());
        let ask = Arc::new(ask.under(&id));
        let (instance, written) = (reservation.instance().clone(), Written::default());
        let parting = Parting {
            relay: self.clone(),
            ask: ask.clone(),
            prefiller: prefill.instance().clone(),
            instance: instance.clone(),
            rank: reservation.rank(),
            written: written.clone(),
            filled: false,
            refused: false,
        };
        let due = Due { reservation, parting };
        let (dialect, ended, peer) = (speech.dialect, None, None);
        (ask, Some(Early { leg: Leg::Due(due), ended, instance, written, dialect, peer, awaited: true }))
    }
}
