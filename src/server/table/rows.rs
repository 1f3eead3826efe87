//! The rows of the table of routes.
//!
//! Paths of engines as vLLM 0.32 and 0.33 (`/openapi.json`, `entrypoints`) and SGLang 0.5 have
//! them. An engine that lacks one answers 404 itself.

use axum::routing::{MethodFilter, on};
use http::Method;

use super::{Answer, Body, Document, Key, Listener, Passage, Query, Row, Stored};
use crate::dialect::Api;
use crate::fleet::Role;
use crate::server::openai::Route;
use crate::server::{admin, explain, instances, members, metaserver, models, moves, page, readiness};

const GET: &[Method] = &[Method::GET];
const POST: &[Method] = &[Method::POST];
const GET_OR_POST: &[Method] = &[Method::GET, Method::POST];
const DELETE: &[Method] = &[Method::DELETE];
const GET_OR_DELETE: &[Method] = &[Method::GET, Method::DELETE];

/// A prefiller, or a decoder where no prefiller answers.
const EITHER: &[Role] = &[Role::Prefill, Role::Decode];
const DECODER: &[Role] = &[Role::Decode];

/// The engines that an order is for.
const TO_ENGINES: &[Query] = &[Query::Role, Query::Fleet];
/// The same, of an order before which engines may end their requests.
const AFTER_DRAIN: &[Query] = &[Query::Role, Query::Fleet, Query::DrainMs];
const ANSWERED_LATER: &[Query] = &[Query::WaitMs];

/// A question that any engine can answer, as often as it is asked.
const READ: Passage = Passage { roles: EITHER, generates: false, repeatable: true, stored: Stored::Nowhere };
/// An answer that a decoder generates alone: several prompts in one body, or no prompt that a
/// prefiller could compute.
const ALONE: Passage = Passage { roles: DECODER, generates: true, repeatable: true, stored: Stored::Nowhere };
/// Passage of requests about a response that a decoder keeps.
const KEPT: Passage = Passage { roles: DECODER, generates: false, repeatable: false, stored: Stored::InPath };
/// A question about a request that may go on from such a response.
const GOES_ON: Passage = Passage { stored: Stored::InBody, ..READ };
/// The same, answered by a summary that the engine generates.
const SUMMARISED: Passage = Passage { generates: true, ..GOES_ON };

/// A path of `server.passthrough`, of which nothing is known.
pub(in crate::server) const CONFIGURED: Passage = Passage { repeatable: false, ..READ };

const fn own(
    path: &'static str,
    methods: &'static [Method],
    handler: fn(MethodFilter) -> axum::routing::MethodRouter<std::sync::Arc<crate::server::Gateway>>,
    summary: &'static str,
) -> Row {
    let answer = Answer::Gateway(handler);
    let (listener, key, body) = (Listener::Clients, Key::Client, Body::Empty);
    Row { path, methods, answer, listener, key, body, query: &[], summary }
}

const fn generating(path: &'static str, route: Route, summary: &'static str) -> Row {
    let answer = Answer::Generating(route);
    let (listener, key, body) = (Listener::Clients, Key::Client, Body::Json);
    Row { path, methods: POST, answer, listener, key, body, query: &[], summary }
}

const fn one(path: &'static str, passage: Passage, summary: &'static str) -> Row {
    let answer = Answer::OneEngine(passage);
    let (listener, key, body) = (Listener::Clients, Key::Client, Body::Json);
    Row { path, methods: POST, answer, listener, key, body, query: &[], summary }
}

const fn every(path: &'static str, body: Body, summary: &'static str) -> Row {
    let answer = Answer::EveryEngine;
    let (listener, key) = (Listener::Operators, Key::Admin);
    Row { path, methods: POST, answer, listener, key, body, query: TO_ENGINES, summary }
}

const fn document(path: &'static str, document: Document, summary: &'static str) -> Row {
    let answer = Answer::Document(document);
    let (listener, key, body) = (Listener::Both, Key::Open, Body::Empty);
    Row { path, methods: GET, answer, listener, key, body, query: &[], summary }
}

impl Row {
    const fn by(self, methods: &'static [Method]) -> Row {
        Row { methods, ..self }
    }

    const fn with(self, body: Body) -> Row {
        Row { body, ..self }
    }

    const fn on(self, listener: Listener, key: Key) -> Row {
        Row { listener, key, ..self }
    }

    const fn reads(self, query: &'static [Query]) -> Row {
        Row { query, ..self }
    }

    const fn asked(self) -> Row {
        Row { methods: GET, body: Body::Empty, ..self }
    }
}

/// Every route of the gateway; those that nearly all requests are for come first.
pub(in crate::server) static TABLE: &[Row] = &[
    generating("/v1/chat/completions", Route::Of(Api::Chat), "Generates the next message of a chat."),
    generating("/v1/completions", Route::Of(Api::Completions), "Continues a text."),
    generating("/v1/responses", Route::Of(Api::Responses), "Generates a response (OpenAI's Responses API)."),
    generating("/v1/messages", Route::Of(Api::Messages), "Generates a message (Anthropic's Messages API)."),
    generating("/inference/v1/generate", Route::Of(Api::Generate), "Generates token ids from token ids."),
    generating("/invocations", Route::ByBody, "A chat or a completion, as SageMaker asks for it."),
    // Answered by one engine.
    one("/v1/embeddings", READ, "Embeds texts."),
    one("/v2/embed", READ, "Embeds texts (Cohere's API)."),
    one("/pooling", READ, "Runs a pooling model."),
    one("/classify", READ, "Classifies texts."),
    one("/v1/classify", READ, "Classifies texts (SGLang)."),
    one("/score", READ, "Scores pairs of texts."),
    one("/v1/score", READ, "Scores pairs of texts."),
    one("/rerank", READ, "Orders documents by a query."),
    one("/v1/rerank", READ, "Orders documents by a query."),
    one("/v2/rerank", READ, "Orders documents by a query."),
    one("/v1/decisions", READ, "Decides between alternatives by their probabilities."),
    one("/v1/systemone", READ, "Decides between alternatives by their probabilities (vLLM 0.32)."),
    one("/tokenize", READ, "Turns a prompt into token ids."),
    one("/v1/tokenize", READ, "Turns a prompt into token ids (SGLang)."),
    one("/detokenize", READ, "Turns token ids into text."),
    one("/v1/detokenize", READ, "Turns token ids into text (SGLang)."),
    one("/v1/messages/count_tokens", READ, "Counts the tokens of a message."),
    one("/v1/responses/input_tokens", GOES_ON, "Counts the input tokens of a response."),
    one("/v1/responses/compact", SUMMARISED, "Compacts the input of a response."),
    one("/v1/chat/completions/render", READ, "Renders a chat into what an engine generates from."),
    one("/v1/completions/render", READ, "Renders a completion into what an engine generates from."),
    one("/v1/messages/render", READ, "Renders a message into what an engine generates from."),
    one("/v1/responses/render", GOES_ON, "Renders a response into what an engine generates from."),
    one("/cohere/v2/chat/render", READ, "Renders a chat into what an engine generates from (Cohere's API)."),
    one("/v1/chat/completions/derender", READ, "Turns generated token ids into a chat completion."),
    one("/v1/completions/derender", READ, "Turns generated token ids into a completion."),
    one("/v1/messages/derender", READ, "Turns generated token ids into a message."),
    one("/v1/responses/derender", READ, "Turns generated token ids into a response."),
    one("/load", READ, "The load of some engine.").asked(),
    one("/server_info", READ, "The configuration of some engine.").asked(),
    one("/get_server_info", READ, "The configuration of some engine (SGLang).").asked(),
    one("/model_info", READ, "The model of some engine (SGLang).").asked(),
    one("/get_model_info", READ, "The model of some engine (SGLang).").asked(),
    one("/tokenizer_info", READ, "The tokenizer of some engine.").asked(),
    one("/version", READ, "The version of some engine.").asked(),
    // Answered by one decoder.
    one("/v1/chat/completions/batch", ALONE, "Generates the next messages of several chats."),
    one("/generative_scoring", ALONE, "Scores items by generating."),
    one("/cohere/v2/chat", ALONE, "Generates the next message of a chat (Cohere's API)."),
    one("/v1/audio/transcriptions", ALONE, "Writes down what is said in an audio file.").with(Body::Form),
    one("/v1/audio/translations", ALONE, "Translates what is said in an audio file.").with(Body::Form),
    one("/v1/audio/speech", ALONE, "Speaks a text."),
    one("/v1/responses/{id}", KEPT, "A stored response, or its deletion.")
        .by(GET_OR_DELETE)
        .with(Body::Empty),
    one("/v1/responses/{id}/input_items", KEPT, "The input of a stored response.").asked(),
    one("/v1/responses/{id}/cancel", KEPT, "Cancels a response that is generated in the background."),
    // Answered by the gateway, for clients.
    own("/v1/models", GET, |by| on(by, models::list), "The models that are served."),
    own("/v1/models/{*name}", GET, |by| on(by, models::one), "One of the models."),
    own(metaserver::PATH, POST, |by| on(by, metaserver::called), "Called by decoders that are asked first.")
        .on(Listener::Clients, Key::Open)
        .with(Body::Json),
    // For supervisors and load balancers.
    own("/health", GET, |by| on(by, admin::alive), "The process serves.").on(Listener::Both, Key::Open),
    own("/healthz", GET, |by| on(by, admin::alive), "The process serves.").on(Listener::Both, Key::Open),
    own("/ping", GET_OR_POST, |by| on(by, admin::alive), "The process serves (SageMaker).")
        .on(Listener::Both, Key::Open),
    own("/readyz", GET, |by| on(by, readiness::ready), "A request can be served.")
        .on(Listener::Both, Key::Open),
    own(
        "/healthcheck",
        GET,
        |by| on(by, admin::healthcheck),
        "Members and open requests, as vLLM's proxy tells them.",
    )
    .on(Listener::Both, Key::Open),
    document("/openapi.json", Document::OpenApi, "This table, for tools."),
    document("/docs", Document::Page, "This table, for people."),
    // For operators.
    own("/metrics", GET, |by| on(by, admin::metrics), "Metrics, as Prometheus reads them.")
        .on(Listener::Operators, Key::Open),
    own("/status", GET, |by| on(by, admin::status), "The members.").on(Listener::Operators, Key::Admin),
    own("/debug/route", POST, |by| on(by, explain::dry_run), "Where a request would go, and why.")
        .on(Listener::Operators, Key::Admin)
        .reads(&[Query::Path, Query::Fleet])
        .with(Body::Json),
    own("/debug/route/{id}", GET, |by| on(by, explain::of_request), "Where a request went, and why.")
        .on(Listener::Operators, Key::Admin),
    own("/instances", GET, |by| on(by, members::list), "The members, with load and health.")
        .on(Listener::Operators, Key::Admin),
    own("/instances", DELETE, |by| on(by, instances::remove), "Takes members out.")
        .on(Listener::Operators, Key::Admin)
        .reads(ANSWERED_LATER)
        .with(Body::Members),
    own("/instances/add", POST, |by| on(by, instances::add), "Takes engines in.")
        .on(Listener::Operators, Key::Admin)
        .with(Body::Members),
    own("/instances/move", POST, |by| on(by, moves::move_engine), "Moves an engine into the other role.")
        .on(Listener::Operators, Key::Admin)
        .with(Body::Move),
    own("/instances/remove", POST, |by| on(by, instances::remove), "Takes members out.")
        .on(Listener::Operators, Key::Admin)
        .reads(ANSWERED_LATER)
        .with(Body::Members),
    own(
        "/reset_prefix_cache",
        POST,
        |by| on(by, admin::reset_prefix_cache),
        "Empties the prefix caches of all engines.",
    )
    .on(Listener::Operators, Key::Admin)
    .reads(TO_ENGINES),
    every("/reset_mm_cache", Body::Empty, "Empties the caches of images, sounds and films."),
    every("/reset_encoder_cache", Body::Empty, "Empties the caches of encoders."),
    every("/flush_cache", Body::Empty, "Empties the prefix caches (SGLang)."),
    every("/sleep", Body::Json, "Puts engines to sleep.").reads(AFTER_DRAIN),
    every("/wake_up", Body::Json, "Wakes engines."),
    every("/is_sleeping", Body::Empty, "Tells which engines sleep.").by(GET),
    every("/pause", Body::Json, "Stops generating.").reads(AFTER_DRAIN),
    every("/resume", Body::Json, "Goes on generating."),
    every("/release_memory_occupation", Body::Json, "Puts engines to sleep (SGLang).").reads(AFTER_DRAIN),
    every("/resume_memory_occupation", Body::Json, "Wakes engines (SGLang)."),
    every("/pause_generation", Body::Json, "Stops generating (SGLang).").reads(AFTER_DRAIN),
    every("/continue_generation", Body::Json, "Goes on generating (SGLang)."),
    every("/is_paused", Body::Empty, "Tells which engines have stopped.").by(GET),
    every(
        "/abort_requests",
        Body::Json,
        "Ends requests by their ids; engines that don't know one ignore it.",
    ),
    every("/inference/v1/abort_requests", Body::Json, "The same, for generation from token ids."),
    every("/fault_tolerance/apply", Body::Json, "Has engines recover from a fault, after they answered."),
    every("/fault_tolerance/status", Body::Empty, "Tells how engines recover.").by(GET),
    every("/abort_request", Body::Json, "Ends a request by its id, or all of them (SGLang)."),
    every("/v1/load_lora_adapter", Body::Json, "Loads an adapter."),
    every("/v1/unload_lora_adapter", Body::Json, "Unloads an adapter."),
    every("/load_lora_adapter", Body::Json, "Loads an adapter (SGLang)."),
    every("/unload_lora_adapter", Body::Json, "Unloads an adapter (SGLang)."),
    every("/start_profile", Body::Json, "Begins a profile."),
    every("/stop_profile", Body::Json, "Ends a profile."),
    // For people, in a browser.
    own(page::HTML, GET, |by| on(by, page::html), "The status page.").on(Listener::Pages, Key::Open),
    own(page::STYLE, GET, |by| on(by, page::style), "Its style.").on(Listener::Pages, Key::Open),
    own(page::SCRIPT, GET, |by| on(by, page::script), "Its script.").on(Listener::Pages, Key::Open),
    own(page::ENGINES_SCRIPT, GET, |by| on(by, page::engines_script), "Its script for engines.")
        .on(Listener::Pages, Key::Open),
    own(page::TRY_SCRIPT, GET, |by| on(by, page::try_script), "Its script for a request.")
        .on(Listener::Pages, Key::Open),
    own(page::JSON, GET, |by| on(by, page::json), "What it shows.").on(Listener::Pages, Key::Admin),
];
