//! The generating endpoints: body read, KV found, answer written.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use serde_json::Value;

use super::ask::{Api, Ask};
use super::bodies::{self, Reply};
use super::chat;
use super::chunks::{Chunks, Format};
use super::encodings::Part;
use super::fail::ApiFailure;
use super::r#gen::{Gen, ReceivedHandoff};
use super::handoff::Handoff;
use super::http::{ReceivedRequest, respond, short_id, unix_s};
use super::hub::Hub;
use super::meet;
use super::spec::{Connector, Role};
use super::sse::{Body, Sse};
use super::{messages, responses};

/// Stands for the hand-off until the raw bytes of a scripted one take its place.
const RAW_HANDOFF: &str = "\u{1}handoff\u{1}";

/// The generating endpoint at `path`.
#[must_use]
pub fn of_path(path: &str) -> Option<Api> {
    match path {
        "/v1/completions" => Some(Api::Completions),
        "/v1/chat/completions" => Some(Api::Chat),
        "/v1/responses" => Some(Api::Responses),
        "/v1/messages" => Some(Api::Messages),
        _ => None,
    }
}

/// Refuses a model that is neither the engine's nor an adapter that it has loaded.
fn check_model(hub: &Hub, body: &Value) -> Result<(), ApiFailure> {
    let asked = body.get("model").and_then(Value::as_str);
    let is_served = |asked: &&str| *asked == hub.spec.model || hub.adapters().iter().any(|it| it == *asked);
    match asked.filter(|asked| !is_served(asked)) {
        Some(asked) => Err(ApiFailure::unknown_model(asked, &hub.spec.model)),
        None => Ok(()),
    }
}

/// Answers a generation request.
pub async fn generate(
    hub: &Arc<Hub>,
    api: Api,
    asked: ReceivedRequest,
) -> Result<Response<Body>, ApiFailure> {
    let body = read_json(&asked)?;
    check_model(hub, &body)?;
    let handoff = match hub.spec.connector {
        Connector::Layerwise => Handoff::read(hub.spec.connector, &body)?,
        _ => meet::read(hub, api, &asked, &body, Handoff::parse(&body)?)?,
    };
    let debt = ReceivedHandoff::of(hub, &handoff);
    let rank = rank(hub, &asked)?;
    let mut ask = Ask::parse(api, &body, handoff, &hub.spec)?;
    // Prefixes of different ranks are kept apart as those of different salts.
    ask.salt ^= u64::from(rank) << 32;
    let ask = Arc::new(ask);
    let encodings = hub.spec.encodings.as_ref().filter(|_| hub.spec.role != Role::Decode);
    if let Some((part @ (Part::Fetches | Part::OnlyFetches), encodings)) = encodings {
        encodings.fetch(*part, &body)?;
    }
    let reply = Reply {
        id: response_id(api, &asked, &body),
        created: unix_s(),
        model: hub.spec.model.clone(),
        details: hub.spec.prompt_details,
        streams_handoff: hub.spec.streams_handoff,
    };
    let beginning = Gen::begin(hub.clone(), ask.clone(), reply.id.clone(), debt);
    if ask.stream {
        let id = reply.id.clone();
        let sse = Sse::new(Box::pin(beginning), format_of(ask, reply), id, asked.twist);
        let mut response = respond(200, "text/event-stream; charset=utf-8", Bytes::new());
        *response.body_mut() = Body::Events(Box::new(sse));
        return Ok(response);
    }
    let mut generation = beginning.await?;
    let written = bodies::write_all(&mut generation).await;
    let mut answer = generation.settle(&reply.id);
    let counts = generation.counts;
    drop(generation);
    if let (Connector::Sglang, Handoff::KeepAs(name)) = (hub.spec.connector, &ask.handoff) {
        meet::NamedKvGuard::new(hub, name).fetched().await?;
    }
    if asked.bad_handoff.is_some() {
        answer = RAW_HANDOFF.into();
    }
    let mut answer = match api {
        Api::Completions | Api::Chat => bodies::whole(&reply, &ask, counts, &written, answer),
        Api::Responses => responses::whole(&reply, &ask, counts, &written, answer),
        Api::Messages => messages::whole(&reply, counts, &written, answer),
    };
    if let Some((Part::Encodes, encodings)) = encodings {
        answer["ec_transfer_params"] = encodings.keep(&body);
    }
    Ok(respond(200, "application/json", with_raw(&answer, asked.bad_handoff.as_ref())))
}

/// The data-parallel rank that is to answer: the one that was asked for, or the next.
fn rank(hub: &Hub, asked: &ReceivedRequest) -> Result<u16, ApiFailure> {
    let ranks = hub.spec.ranks.max(1);
    let Some(rank) = asked.header("x-data-parallel-rank") else { return Ok(hub.next_rank(ranks)) };
    let known = rank.parse().ok().filter(|rank| *rank < ranks);
    known.ok_or_else(|| {
        ApiFailure::bad_request(&format!("data_parallel_rank {rank} is out of range [0, {ranks})."))
    })
}

fn format_of(ask: Arc<Ask>, reply: Reply) -> Box<dyn Format> {
    match ask.api {
        Api::Completions | Api::Chat => Box::new(Chunks::new(ask, reply)),
        Api::Responses => Box::new(responses::Events::new(&ask, reply)),
        Api::Messages => Box::new(messages::Events::new(reply)),
    }
}

fn with_raw(body: &Value, raw: Option<&Bytes>) -> Bytes {
    let text = body.to_string();
    let mark = Value::from(RAW_HANDOFF).to_string();
    match raw.zip(text.split_once(&mark)) {
        Some((raw, (before, after))) => [before.as_bytes(), raw, after.as_bytes()].concat().into(),
        None => text.into(),
    }
}

fn response_id(api: Api, asked: &ReceivedRequest, body: &Value) -> String {
    let given = asked.header("x-request-id").or_else(|| body.get("request_id").and_then(Value::as_str));
    let id = given.map_or_else(short_id, str::to_owned);
    let prefix = match api {
        Api::Completions => "cmpl-",
        Api::Chat | Api::Messages => "chatcmpl-",
        Api::Responses => "resp_",
    };
    format!("{prefix}{id}")
}

/// The request body as a JSON object, or vLLM's complaint.
pub fn read_json(asked: &ReceivedRequest) -> Result<Value, ApiFailure> {
    let kind = asked.header("content-type").unwrap_or("application/json").to_ascii_lowercase();
    if !kind.starts_with("application/json") {
        let found = "Unsupported Media Type: Only 'application/json' is allowed".to_owned();
        return Err(ApiFailure::validation(&[found], Value::Null));
    }
    if asked.body.is_empty() {
        return Err(ApiFailure::schema("missing", "body", "Field required", "None"));
    }
    let Ok(text) = std::str::from_utf8(&asked.body) else {
        return Err(ApiFailure::detail(400, "There was an error parsing the body"));
    };
    match serde_json::from_str(text) {
        Ok(body @ Value::Object(_)) => Ok(body),
        Ok(other) => {
            let input = match &other {
                Value::Array(items) => format!("<list of {} items>", items.len()),
                Value::Object(_) => chat::dict_of(&other),
                scalar => scalar.to_string(),
            };
            let message = "Input should be a valid dictionary or object to extract fields from";
            Err(ApiFailure::schema("model_attributes_type", "body", message, &input))
        }
        Err(_) => {
            let place = format!("body.{}", text.len());
            let found = format!(
                "{{'type': 'json_invalid', 'loc': '{place}', 'msg': 'JSON decode error', \
                 'input': '<dict of 0 items>', 'ctx': {{'error': 'Expecting value'}}}}"
            );
            Err(ApiFailure::validation(&[found], place.into()))
        }
    }
}
