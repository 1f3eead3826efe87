//! The spans of a request: what is said of each of its steps, in OpenTelemetry's words where it has
//! some (<https://opentelemetry.io/docs/specs/semconv/http/>), else under `pd_proxy.`. Nothing of a
//! body, and no key.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use tokio::time::Instant;

use crate::dialect::Api;
use crate::error::Error;
use crate::fleet::{Instance, Placement};
use crate::obs::failed_request;
use crate::relay::ask::{Ask, ReceivedRequest};
use crate::relay::failure::Failure;
use crate::relay::lookup::PromptLookup;
use crate::trace::{Kind, Scope, Span};

/// Names and paths that a client made up are repeated up to this length: what waits to be posted is
/// bounded by its number.
const CLIENTS_CHARS: usize = 100;

/// End of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestEnd<'a> {
    /// None = there was nobody to answer.
    pub status: Option<u16>,
    /// As in the metrics.
    pub reason: &'static str,
    /// Prompt tokens; None = not known.
    pub prompt: Option<u64>,
    /// Of these, from a cache.
    pub cached: Option<u64>,
    /// Generated tokens; None = not known.
    pub output: Option<u64>,
    /// Endpoint of the prefiller.
    pub prefiller: Option<&'a str>,
    /// Endpoint of the decoder.
    pub decoder: Option<&'a str>,
    /// Time at which the first piece of a stream came, how many events it had, and the longest
    /// pause in it.
    pub stream: Option<(Instant, u64, Option<Duration>)>,
}

/// A step that the gateway takes by itself.
pub(super) fn step(ask: &ReceivedRequest, name: &'static str) -> Span {
    Span::begin(ask.trace.as_ref(), name, Kind::Internal)
}

/// A prefill leg.
pub(super) fn prefill(ask: &Ask, instance: &Instance) -> Span {
    attempt(leg(ask, instance, "prefill"), Scope::next_prefill)
}

/// A decode leg, until its first event; or until its last byte, where nothing is streamed.
pub(super) fn decode(ask: &Ask, instance: &Instance) -> Span {
    let name = if ask.shape.stream { "decode first byte" } else { "decode" };
    attempt(leg(ask, instance, name), Scope::next_decode)
}

/// A leg to an engine.
pub(super) fn leg(ask: &Ask, instance: &Instance, name: &'static str) -> Span {
    client(ask.trace.as_ref(), instance, name, &Method::POST, ask.target.path())
}

/// A request to an engine: its name, method and path.
pub fn client(
    scope: Option<&Arc<Scope>>,
    instance: &Instance,
    name: &'static str,
    asked: &Method,
    path: &str,
) -> Span {
    let mut span = Span::begin(scope, name, Kind::Client);
    if span.is_kept() {
        let endpoint = instance.endpoint();
        span.set("http.request.method", method(asked));
        span.set("server.address", endpoint.host.clone());
        span.set("server.port", endpoint.port);
        // A query may hold what is nobody else's business.
        span.set("url.full", endpoint.url(&short(path)));
        span.set("pd_proxy.role", instance.role().name());
    }
    span
}

/// A method as spans have it: what a client made up is none.
pub fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "_OTHER",
    }
}

/// The beginning of what a client made up.
pub fn short(text: &str) -> String {
    text.chars().take(CLIENTS_CHARS).collect()
}

fn attempt(mut span: Span, next: fn(&Scope) -> u32) -> Span {
    let Some(made) = span.scope().map(|scope| next(scope)) else { return span };
    span.set("pd_proxy.attempt", made);
    if made > 1 {
        span.set("http.request.resend_count", made - 1);
    }
    span
}

/// An engine has answered with this status.
pub fn answered(span: &mut Span, status: StatusCode) {
    span.set("http.response.status_code", status.as_u16());
    if !status.is_success() {
        span.fail(status.as_str().to_owned());
    }
}

/// Records the end of a leg; its status counts more than its failure.
pub(super) fn ended<T>(span: &mut Span, outcome: &Result<T, Failure>) {
    match outcome {
        Ok(_) => span.close(),
        Err(failure) => {
            span.set("pd_proxy.failure", failure.reason());
            span.fail(failure.reason());
        }
    }
}

/// A prefiller was chosen.
pub(super) fn decided(mut span: Span, placed: &Result<Placement, Error>) {
    if let Some(Placement { reservation, choice }) = placed.as_ref().ok().filter(|_| span.is_kept()) {
        span.set("pd_proxy.prefiller", reservation.instance().endpoint().to_string());
        span.set("pd_proxy.candidates", choice.others.len() as u64 + 1);
        span.set("pd_proxy.predicted_cached_tokens", u64::from(choice.terms.hit.any_tokens));
        span.set("pd_proxy.predicted_prefill_s", choice.terms.prefill_s);
    }
    match placed {
        Ok(_) => span.close(),
        Err(error) => span.fail(error.kind().code()),
    }
}

/// Records the lookup of the prompt's blocks.
pub(super) fn found(mut span: Span, found: Option<&PromptLookup>) {
    if let Some((tokens, hit_source)) = found.and_then(PromptLookup::pooled) {
        span.set("pd_proxy.pooled_tokens", tokens);
        span.set("pd_proxy.pooled_by", hit_source.name());
    }
    span.set_if("pd_proxy.held_tokens", found.and_then(PromptLookup::best_held));
    span.close();
}

/// Records the request's shape and model.
pub(super) fn asks(root: &mut Span, api: Api, model: Option<&str>) {
    if root.is_kept() {
        let completes = matches!(api, Api::Completions | Api::Generate);
        let operation = if completes { "text_completion" } else { "chat" };
        root.set("gen_ai.operation.name", operation);
        root.set_if("gen_ai.request.model", model.map(short));
    }
}

/// The request is over.
pub fn settled(root: &mut Span, end: &RequestEnd<'_>) {
    if !root.is_kept() {
        return;
    }
    let broke = failed_request(end.status, end.reason);
    if let Some((first, events, gap_max)) = end.stream {
        let mut stream = Span::since(root.scope(), "stream", first);
        stream.set("pd_proxy.events", events);
        stream.set_if("pd_proxy.gap_max_s", gap_max.map(|gap| gap.as_secs_f64()));
        stream.set("pd_proxy.reason", end.reason);
        if broke { stream.fail(end.reason) } else { stream.close() }
    }
    root.set_if("http.response.status_code", end.status);
    root.set("pd_proxy.reason", end.reason);
    root.set_if("gen_ai.usage.input_tokens", end.prompt);
    root.set_if("gen_ai.usage.output_tokens", end.output);
    root.set_if("pd_proxy.cached_tokens", end.cached);
    root.set_if("pd_proxy.prefiller", end.prefiller.map(str::to_owned));
    root.set_if("pd_proxy.decoder", end.decoder.map(str::to_owned));
    if broke { root.fail(end.reason) } else { root.close() }
}
