//! The encode stage (`dialect::encode`): every item of a request to an encoder, before anything
//! else is asked for it.
//!
//! It leaves nothing behind that would have to be freed: what an encoder keeps is a cache. A client
//! that leaves drops the exchanges, which the encoders notice. Without encoders, and for requests
//! without items, there is no such stage.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Response, StatusCode};
use tokio::time::Instant;

use crate::codec::json::Edit;
use crate::dialect::Shape;
use crate::dialect::encode::{Encoded, Items};
use crate::error::{Error, Kind};
use crate::fleet::{Instance, Need, Outcome, Pace, Reservation, Role};
use crate::relay::ask::{Ask, ItemEncodings};
use crate::relay::failure::{Failure, FailureKind, Large};
use crate::relay::legs::LegTarget;
use crate::relay::progress::Waiting;
use crate::relay::vacancy::Passage;
use crate::relay::whole_answer::{SizeLimit, whole};
use crate::relay::{Relay, Tries, refusals, traced};
use crate::upstream::Written;
use crate::util::rng;

/// Items of one request that are at encoders at once.
const AT_ONCE: usize = 16;

/// Encodings of a request's items.
pub(super) struct Encodings {
    /// An encoder refused one, and that is the answer.
    pub(super) refusal: Option<Response<Bytes>>,
    /// The rights to go on to a decoder and to a prefiller, where not every request may.
    pub(super) decoder: Option<Passage>,
    pub(super) prefiller: Option<Passage>,
}

/// Outcome of encoding an item.
enum ItemEnd {
    /// Its embeddings, and the encoder that has them.
    Encoded { encoded: Encoded, by: Arc<Instance> },
    /// An encoder's refusal, which is the client's answer.
    Refused(Box<Response<Bytes>>),
}

impl ItemEnd {
    /// Status of the encoder's answer.
    fn status(&self) -> StatusCode {
        match self {
            ItemEnd::Encoded { .. } => StatusCode::OK,
            ItemEnd::Refused(refusal) => refusal.status(),
        }
    }
}

impl Relay {
    /// True if there is an encoder, and somebody to decode what it would encode.
    pub(super) fn encodes(&self) -> bool {
        self.fleet.serving(Role::Encode) > 0 && self.fleet.serving(Role::Decode) > 0
    }

    /// Has every item of the request encoded, once both a decoder and a prefiller could take what
    /// follows.
    pub(super) async fn encode(&self, ask: &mut Ask) -> Result<Encodings, Error> {
        let found = Items::of(ask.api, &ask.body, self.settings.now().encode_items);
        let items = found.map_err(|e| Error::new(Kind::InvalidField, e.to_string()))?;
        let mut encodings = Encodings { refusal: None, decoder: None, prefiller: None };
        if items.is_empty() {
            return Ok(encodings);
        }
        encodings.decoder = self.vacancy(Role::Decode, ask.arrived).await?;
        if self.bypass(ask).is_none() {
            encodings.prefiller = self.vacancy(Role::Prefill, ask.arrived).await?;
        }
        let (mut all, mut encoders) = (Encoded::default(), Vec::new());
        {
            let (asked, items) = (&*ask, &items);
            let each = stream::iter(0..items.len()).map(|at| self.encode_item(asked, items, at));
            let mut ends = each.buffer_unordered(AT_ONCE);
            while let Some(end) = ends.next().await {
                match end? {
                    ItemEnd::Encoded { encoded, by } => {
                        all.add(encoded);
                        encoders.push(by);
                    }
                    ItemEnd::Refused(refusal) => {
                        encodings.refusal = Some(*refusal);
                        return Ok(encodings);
                    }
                }
            }
        }
        let made = |params| ItemEncodings { params, encoders: encoders.into() };
        ask.received.encodings = all.params().map(made);
        Ok(encodings)
    }

    /// One item, on as many encoders as it takes.
    async fn encode_item(&self, ask: &Ask, items: &Items, at: usize) -> Result<ItemEnd, Error> {
        let body = items.body(at).map_err(|e| Error::new(Kind::InvalidJson, e.to_string()))?;
        let mut shape = Shape::read(ask.api, &body);
        self.media.estimate(&mut shape);
        let tokens = shape.prompt_tokens;
        let mut tries = Tries::new(self.settings.now().attempts);
        tries.avoid_lacking(self.fleet.lacking_model(Role::Encode, ask.shape.model.as_deref()));
        loop {
            let tried = self.fleet.chosen_last(Role::Encode, &tries.tried, &tries.lacking);
            let need = Need { tokens, tried, random: rng::random(), ..Need::default() };
            let nobody = || Error::new(Kind::EncodeFailed, "no encoder is available");
            let reservation = self.fleet.pick(Role::Encode, need).ok_or_else(nobody)?;
            tries.start(reservation.instance());
            // Engines that meet an id again take it for the same request.
            let id = format!("{}:{at}:{:06x}", ask.id, rng::random() & 0xff_ffff);
            let mut item = ask.under(&id);
            (item.received.body, item.received.shape) = (body.clone(), shape.clone());
            let failure = match self.encode_once(&item, &reservation).await {
                Ok(end) => {
                    self.compare_refusals(&ask.id, end.status(), &mut tries);
                    return Ok(end);
                }
                Err(failure) => failure,
            };
            drop(reservation);
            let failure = match self.weigh(Role::Encode, failure, &mut tries) {
                Ok(refusal) => return Ok(ItemEnd::Refused(Box::new(refusal))),
                Err(failure) => failure,
            };
            if self.room_after(Role::Encode, &failure, ask.arrived, &mut tries).await? {
                continue;
            }
            if tries.left == 0
                || failure.lasting()
                || !self.back_off(Role::Encode, &failure, tries.made).await
            {
                return self
                    .conclude(Role::Encode, failure, &mut tries)
                    .map(|refusal| ItemEnd::Refused(Box::new(refusal)));
            }
        }
    }

    /// One exchange with one encoder.
    async fn encode_once(&self, item: &Ask, reservation: &Reservation) -> Result<ItemEnd, Failure> {
        let (settings, sent, written) = (self.settings.now(), Instant::now(), Written::default());
        let mut span = traced::leg(item, reservation.instance(), "encode");
        let outcome = {
            let limit = SizeLimit { bytes: settings.prefill_reply_bytes, exceeded: Large::PrefillReply };
            let leg = pin!(async {
                let response = self
                    .exchange(item, LegTarget { reservation, span: &mut span }, &Edit::new(), &written)
                    .await?;
                let response = whole(response, limit).await?;
                if response.status().is_client_error() {
                    return refusals::judge(refusals::AnswerSource::alone(reservation.instance()), response)
                        .map(|refusal| ItemEnd::Refused(Box::new(refusal)));
                }
                let mut encoded = Encoded::default();
                let read = encoded.read(response.into_body());
                read.map(|()| ItemEnd::Encoded { encoded, by: reservation.instance().clone() })
                    .map_err(|e| Failure::new(FailureKind::BadReply, true, e.to_string()))
            });
            let tokens = item.shape.prompt_tokens;
            let engine = reservation.instance();
            let waiting = Waiting::on(engine, Some(Pace::Prompt), tokens);
            self.within(settings.encode, waiting, &written, leg).await
        };
        traced::ended(&mut span, &outcome);
        if matches!(outcome, Ok(ItemEnd::Refused(_))) {
            self.fleet.report(reservation.instance(), Outcome::Declined);
            return outcome;
        }
        let end = self.record_outcome(item, reservation, outcome)?;
        self.fleet.note_encoded(reservation, sent.elapsed());
        reservation.instance().meter().done(sent.elapsed());
        reservation.instance().paces().observe(Pace::Prompt, sent.elapsed());
        Ok(end)
    }
}
