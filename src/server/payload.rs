//! Payload of a request that one engine answers alone: read far enough to know its model, and rid
//! of members that only the gateway may set.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, header};

use crate::auth::Caller;
use crate::codec::json::{Object, Parts};
use crate::dialect::usage::TokenCounts;
use crate::dialect::{Api, Shape, guard, media};
use crate::error::{Error, Kind};
use crate::relay::response_owners;
use crate::route::estimate;
use crate::server::fleets::{ChosenFleet, ModelAlias, NamedTarget, RequestTies};
use crate::server::table::{self, Passage};
use crate::server::{Gateway, alias_answer, auth, form};

/// Bytes of a file per token that an engine makes of it: Whisper has 50 tokens for a second of
/// sound, which has 32 000 bytes where it is not compressed. As text, a film of a minute would pass
/// for the longest prompt of all.
const FILE_BYTES_PER_TOKEN: u64 = 640;

/// A body that may be sent to an engine.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "it is nearly always the large one, and is not kept")]
pub(super) enum Payload {
    /// There is none.
    Nothing,
    /// A JSON object.
    Json(Object),
    /// A form, which goes on as it came.
    Form { body: Bytes, model: Option<String> },
}

/// A caller's tokens that are set aside, and the prompt and output that they are for.
pub(super) type Reserved = (Option<crate::auth::TokenReservation>, TokenCounts);

impl Payload {
    /// Reads `body`, of which `kind` says what it may be.
    ///
    /// # Errors
    /// `InvalidJson`, or `InvalidField` where something else is sent than what the route takes, or
    /// what only the gateway may set.
    pub(super) fn read(
        gateway: &Gateway,
        kind: table::Body,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Payload, Error> {
        let content_type = headers.get(header::CONTENT_TYPE);
        let takes_forms = matches!(kind, table::Body::Form | table::Body::Any);
        match content_type.filter(|_| takes_forms && form::is_form(content_type)) {
            Some(content_type) => {
                let model = form::read(content_type, &body)?.model;
                Ok(Payload::Form { body, model })
            }
            None if kind == table::Body::Form => {
                let message = "this route takes a form: send its fields and the file with `Content-Type: multipart/form-data`";
                Err(Error::new(Kind::InvalidField, message).param("file"))
            }
            None if body.is_empty() => Ok(Payload::Nothing),
            None => Ok(Payload::Json(gateway.scan(body)?)),
        }
    }

    /// The model that it asks for.
    pub(super) fn model(&self) -> Option<String> {
        match self {
            Payload::Nothing => None,
            Payload::Json(body) => body.get("model").and_then(|model| model.as_str().map(Cow::into_owned)),
            Payload::Form { model, .. } => model.clone(),
        }
    }

    /// True if it says which model it is for.
    pub(super) fn names_model(&self) -> bool {
        self.model().is_some()
    }

    /// Finds the fleet that the request is for, which the caller may use: that of its model; where
    /// it names none, the `fleet` of this name.
    ///
    /// # Errors
    /// Those of [`Gateway::find_fleet`]; without a body `InvalidField` where there are several
    /// fleets and none is named, or one that is not served.
    pub(super) async fn find_fleet(
        &self,
        gateway: &Gateway,
        caller: &Caller,
        fleet: Option<&str>,
    ) -> Result<ChosenFleet, Error> {
        if !matches!(self, Payload::Nothing) {
            let model = self.model();
            let named = NamedTarget { model: model.as_deref(), fleet };
            return gateway.find_fleet(caller, named, RequestTies::default).await;
        }
        let fleets = gateway.fleets();
        if let (None, Some(only)) = (fleet, fleets.single()) {
            return Ok(ChosenFleet::known(only.clone()));
        }
        if let Some(name) = fleet {
            return gateway.fleet_for_operator(Some(name)).map(ChosenFleet::known);
        }
        let known: Vec<&str> = fleets.iter().map(|fleet| &*fleet.name).collect();
        let message = format!(
            "several models are served: say which fleet this request is for, by ?fleet= and one of {}",
            known.join(", ")
        );
        Err(Error::new(Kind::InvalidField, message).param("fleet"))
    }

    /// The same with the name that engines know in place of an alias.
    ///
    /// # Errors
    /// `InvalidField` for a form, which goes on as it came.
    pub(super) fn with_model(self, gateway: &Gateway, alias: &ModelAlias) -> Result<Payload, Error> {
        match self {
            Payload::Json(body) => gateway.scan(alias_answer::with_model(&body, alias)).map(Payload::Json),
            Payload::Form { .. } => {
                let message =
                    format!("an alias can't be used in a form: ask for the model `{}`", alias.model);
                Err(Error::new(Kind::InvalidField, message).param("model"))
            }
            Payload::Nothing => Ok(Payload::Nothing),
        }
    }

    /// Sets aside what it is expected to take of the caller's tokens per minute.
    ///
    /// # Errors
    /// `RateLimited`.
    pub(super) fn allow(
        &self,
        gateway: &Gateway,
        caller: &Caller,
        passage: &Passage,
    ) -> Result<Option<Reserved>, Error> {
        let output = match self {
            Payload::Nothing => return Ok(None),
            Payload::Json(body) => Shape::read(Api::Chat, body).output_tokens,
            Payload::Form { .. } => estimate::output_tokens(None),
        };
        // The others only read.
        let output = if passage.generates { output } else { 0 };
        let expected = TokenCounts { prompt: self.tokens(), output };
        Ok(Some((auth::reserve(gateway, caller, self.len(), expected)?, expected)))
    }

    fn len(&self) -> usize {
        match self {
            Payload::Nothing => 0,
            Payload::Json(body) => body.bytes().len(),
            Payload::Form { body, .. } => body.len(),
        }
    }

    /// The tokens that an engine computes for it, about.
    pub(super) fn tokens(&self) -> u64 {
        match self {
            Payload::Nothing => estimate::prompt_tokens(0),
            Payload::Json(body) => media::body_tokens(body),
            Payload::Form { body, .. } => (body.len() as u64 / FILE_BYTES_PER_TOKEN).max(1),
        }
    }

    /// The id of the stored response that the request goes on from.
    pub(super) fn goes_on_from(&self) -> Option<String> {
        match self {
            Payload::Json(body) => response_owners::before(Api::Responses, body).map(Cow::into_owned),
            Payload::Nothing | Payload::Form { .. } => None,
        }
    }

    /// Body for an engine, without addresses that a client made up.
    pub(super) fn into_parts(self) -> Parts {
        match self {
            Payload::Nothing => Parts::default(),
            Payload::Json(body) => body.splice(&guard::edit()),
            Payload::Form { body, .. } => Parts::from(body),
        }
    }
}
