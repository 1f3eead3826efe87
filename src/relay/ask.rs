//! A generating request in its phases: as it was received, and with the facts of its prompt. The
//! third phase is its [`Placement`](crate::fleet::Placement).

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tokio::time::Instant;

use crate::codec::json::{Edit, Object};
use crate::dialect::resume::{Plan, prompt_ids_bytes};
use crate::dialect::{Api, Shape, encode};
use crate::fleet::{Instance, Rank, Reservation};
use crate::relay::lookup::PoolQuery;
use crate::relay::request_ids::Name;
use crate::relay::response_owners::AliasedModel;
use crate::relay::reusable_kv::ConversationTurn;
use crate::relay::token_ids::SentIds;
use crate::route::Job;
use crate::trace::Scope;
use crate::upstream::Leg;

/// Header that names the data-parallel rank that an engine is to use (vLLM from 0.10 on).
const RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");

/// Header of which engines make their own ids.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A request as it was received: its body scanned, its headers cleaned.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// Shape of the request.
    pub api: Api,
    /// The id that the client, both engines and the log share.
    pub id: String,
    /// Name of the request at engines, where the client named it: the same, unless another request
    /// has that id.
    pub name: Option<Arc<Name>>,
    /// Path and query, as the client sent them.
    pub target: PathAndQuery,
    /// Headers for both engines, `x-request-id` among them.
    pub headers: HeaderMap,
    /// The client's body.
    pub body: Object,
    /// Names of the model, where the client knows it by another than engines.
    pub alias: Option<AliasedModel>,
    /// Facts that were read from the body.
    pub shape: Shape,
    /// See [`ReceivedRequest::plan`]; shared by all that are the same request. `None` where no
    /// stream is to be continued.
    pub resume: Option<Arc<OnceLock<Option<Plan>>>>,
    /// Encodings of its items, where encoders have made some. The continuation of its stream has
    /// them, too.
    pub encodings: Option<ItemEncodings>,
    /// The client speaks HTTP/2, where a body that is cut takes what was sent before it along.
    pub http2: bool,
    /// Time at which its head was read.
    pub arrived: Instant,
    /// Time from then within which its first token is due, where its client or its key says so.
    pub ttft_slo: Option<Duration>,
    /// Scope of its spans, where requests are traced.
    pub trace: Option<Arc<Scope>>,
}

/// Encodings of a request's items.
#[derive(Clone, Debug)]
pub struct ItemEncodings {
    /// The parameters for both engines (`ec_transfer_params`).
    pub params: Bytes,
    /// The encoders that have the embeddings.
    pub encoders: Arc<[Arc<Instance>]>,
}

/// A request whose prompt was looked at, as far as that can be done.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The request as it was received.
    pub received: ReceivedRequest,
    /// Facts for routing.
    pub job: Arc<Job>,
    /// Question to the pool about its prompt, if one was put: it may be repeated.
    pub asked: Option<PoolQuery>,
    /// As a turn of a conversation, where decoders offer KV back.
    pub turn: Option<ConversationTurn>,
    /// Its tokens for its legs, where they are sent in place of its text.
    pub ids: SentIds,
}

impl Deref for Ask {
    type Target = ReceivedRequest;

    fn deref(&self) -> &ReceivedRequest {
        &self.received
    }
}

impl Ask {
    /// The same request under another id towards engines, one that nobody else knows.
    pub fn under(&self, id: &str) -> Ask {
        let mut ask = self.clone();
        if let Ok(id) = HeaderValue::from_str(id) {
            ask.received.headers.insert(REQUEST_ID, id);
        }
        ask
    }
}

impl Ask {
    /// Most bytes of an incomplete event of its stream that are held back, where it is
    /// `frame_bytes` otherwise: one that repeats the prompt in numbers is longer.
    pub fn frame_bytes(&self, frame_bytes: usize) -> usize {
        let is_followed = self.plan().is_some_and(|plan| plan.exact.is_ok());
        let tells_ids = is_followed || self.turn.as_ref().is_some_and(ConversationTurn::returns);
        if tells_ids { frame_bytes + prompt_ids_bytes(self.body.bytes().len()) } else { frame_bytes }
    }
}

impl ReceivedRequest {
    /// The request for routing by `job`, without questions about its prompt.
    pub fn with_job(self, job: Arc<Job>) -> Ask {
        Ask { received: self, job, asked: None, turn: None, ids: SentIds::default() }
    }

    /// Another question of the gateway's own, for the same client: `body` goes to `target`.
    pub fn instead(&self, target: PathAndQuery, body: Object) -> ReceivedRequest {
        let api = Api::Completions;
        ReceivedRequest { api, target, shape: Shape::read(api, &body), body, ..self.clone() }
    }

    /// The encoders that have embeddings of its items.
    pub fn encoders(&self) -> Arc<[Arc<Instance>]> {
        self.encodings.as_ref().map(|encodings| encodings.encoders.clone()).unwrap_or_default()
    }

    /// Plan for continuing its stream if it breaks; `None` where it is not followed. Read from the
    /// body when it is first asked for: no prefiller needs it.
    pub fn plan(&self) -> Option<&Plan> {
        let of_body = || Plan::of(self.api, &self.body, self.shape.bypass.is_some());
        self.resume.as_ref()?.get_or_init(of_body).as_ref()
    }

    /// Its leg on the instance of `reservation`, and on the rank, with `edit` applied to the body.
    pub fn leg<'a>(&'a self, reservation: &'a Reservation, edit: &Edit) -> Leg<'a> {
        self.leg_on(reservation.instance(), reservation.rank(), edit)
    }

    /// The same where there is no reservation.
    pub fn leg_on<'a>(&'a self, instance: &'a Instance, rank: Option<Rank>, edit: &Edit) -> Leg<'a> {
        let mut headers = Cow::Borrowed(&self.headers);
        if let Some(rank) = rank {
            headers.to_mut().insert(RANK, HeaderValue::from(rank));
        }
        Leg {
            instance,
            method: Method::POST,
            target: &self.target,
            headers,
            body: match &self.encodings {
                Some(made) => self.body.splice(&edit.clone().set(encode::PARAMS, made.params.clone())),
                None => self.body.splice(edit),
            },
        }
    }
}
