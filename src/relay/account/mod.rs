//! The account of one request: opened when it is let in, settled exactly once when it is over,
//! however it ended.

mod alone;
mod due;
mod expected;
mod pace;
mod settle;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use crate::auth::{Caller, Priority, TokenReservation};
use crate::dialect::usage::{CacheCounts, TokenCounts, Usage};
use crate::dialect::{Api, Shape};
use crate::error::{Error, Kind};
use crate::fleet::{Choice, Hits, Instance, InstanceId, Role};
use crate::obs::Meters;
use crate::relay::account::expected::Expected;
use crate::relay::admit::Pass;
use crate::relay::budget::OpenRequest;
use crate::relay::decision_log::{End as Ended, OutcomeWriter};
use crate::relay::lookup::{HitSource, PromptLookup};
use crate::relay::parts::RequestScope;
use crate::relay::places::ConcurrencyPermit;
use crate::relay::request_ids::Name;
use crate::relay::traced;
use crate::route::{Job, Terms};
use crate::trace::{Attribute, Scope, Span};

use alone::AloneFacts;
pub use due::Due;
pub use settle::rounded_ms;

/// Status that HTTP servers log for a client that left (nginx's 499): nobody receives it.
pub const CLIENT_GONE: u16 = 499;

/// The reason as long as nothing else is known.
pub const CLIENT_LEFT: &str = "client_gone";

/// Status and reason of a request that is over.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// The client's status, or [`CLIENT_GONE`].
    pub status: u16,
    /// As in the metrics of requests.
    pub reason: &'static str,
}

impl End {
    /// The end as it is reported. Nobody said how it ended of a request that the gateway's own end
    /// cut, either.
    #[must_use]
    pub fn reported(self, meters: &Meters) -> End {
        match self {
            End { status: CLIENT_GONE, reason: CLIENT_LEFT } if meters.cuts() => {
                End { status: 503, reason: "shutdown" }
            }
            End { status, reason: CLIENT_LEFT } if meters.cuts() => End { status, reason: "shutdown" },
            end => end,
        }
    }
}

/// Account of a request.
#[derive(Debug)]
pub struct Ledger {
    /// Times of the first and the last piece of a stream, and the longest pause between two.
    stream: Option<Pace>,
    meters: Arc<Meters>,
    due: Due,
    asked: Option<OpenRequest>,
    /// Assumed cost, as known when it came.
    expected: Expected,
    prefill_place: Option<ConcurrencyPermit>,
    decode_place: Option<ConcurrencyPermit>,
    /// Of all requests for its fleet.
    fleet_place: Option<ConcurrencyPermit>,
    api: Api,
    id: String,
    /// Engines know no other request by its name.
    name: Option<Arc<Name>>,
    arrived: Instant,
    stage: Role,
    prefiller: Option<Arc<Instance>>,
    decoder: Option<Arc<Instance>>,
    /// The counts of the prompt are a prefiller's.
    prefilled: bool,
    prompt: Option<u64>,
    cached: Option<u64>,
    /// Prompt tokens that the prefiller computed and put into its cache, as it says.
    created: Option<u64>,
    output: Option<u64>,
    /// Reason why the prefiller was chosen.
    chosen: Option<Chosen>,
    /// Reason why there is no prefill leg.
    alone: Option<AloneFacts>,
    /// To be told what becomes of that.
    outcome_writer: Option<OutcomeWriter>,
    /// Tokens that the pool had when the request came, and who said so.
    pooled: Option<(u32, HitSource)>,
    /// Tokens that the best prefiller had in memory of its own, by its events.
    held: Option<u32>,
    /// Leading tokens of the prompt that are known, where not all are.
    exact: Option<u32>,
    /// Number of times that its stream was continued elsewhere.
    resumed: u32,
    /// The fleet that could not serve it, and the reason, where another one was asked.
    fallback: Option<(Option<Arc<str>>, &'static str)>,
    end: End,
    /// Relation to the account of a whole request.
    request_scope: RequestScope,
    /// The request's span, where requests are traced.
    span: Span,
}

/// Facts of a choice that count until the request ends: the other candidates are in its record.
#[derive(Clone, Copy, Debug)]
pub struct Chosen {
    /// The prefiller's terms.
    pub terms: Terms,
    /// Time for which the request waited for it.
    pub waited: Duration,
    /// Time at which it was chosen.
    at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Pace {
    first: Instant,
    last: Instant,
    gap_max: Duration,
    events: u64,
}

impl Ledger {
    /// Opens the account of a request whose head has arrived.
    pub fn open(meters: Arc<Meters>, api: Api, id: String, arrived: Instant) -> Ledger {
        Ledger {
            meters,
            due: Due::default(),
            asked: None,
            expected: Expected::default(),
            prefill_place: None,
            decode_place: None,
            fleet_place: None,
            api,
            id,
            name: None,
            arrived,
            stage: Role::Prefill,
            prefiller: None,
            decoder: None,
            prefilled: false,
            prompt: None,
            cached: None,
            created: None,
            output: None,
            pooled: None,
            chosen: None,
            alone: None,
            outcome_writer: None,
            held: None,
            exact: None,
            resumed: 0,
            fallback: None,
            stream: None,
            end: End { status: CLIENT_GONE, reason: CLIENT_LEFT },
            request_scope: RequestScope::Alone,
            span: Span::default(),
        }
    }

    /// Opens the account of one part of the request, which is known as `id` to engines. It is not
    /// settled: what it comes to is the whole's, and its last word is the whole's as well.
    pub fn part(&mut self, id: String) -> Ledger {
        let mut part = Ledger::open(self.meters.clone(), self.api, id, self.arrived);
        part.request_scope = self.request_scope.part();
        part.expected = self.expected.of_part();
        part
    }

    /// The request counts as open, for the budget of retries, until the account is settled.
    pub fn counts(&mut self, asked: OpenRequest) {
        self.asked = Some(asked);
    }

    /// Engines call it so until the account is settled, and perhaps for longer.
    pub fn is_called(&mut self, name: Option<Arc<Name>>) {
        self.name = name;
    }

    /// The request was let in; its pass is given back when the account is settled.
    pub fn admitted(&mut self, pass: Pass) {
        self.due.admitted(pass);
    }

    /// Sets the caller of the request.
    pub fn called_by(&mut self, caller: Arc<Caller>) {
        self.due.called_by(caller);
    }

    /// The name of its key; None where none are asked for.
    pub fn key_name(&self) -> Option<&str> {
        self.due.key_name()
    }

    /// Priority class of its caller.
    pub fn priority(&self) -> Priority {
        self.due.priority()
    }

    /// So much is set aside for it, which is settled with the account.
    pub fn reserved(&mut self, reserved: Option<TokenReservation>, shape: &Shape) {
        self.due.reserved(reserved);
        self.expected = Expected::of(shape);
    }

    /// It has a place on a side, until the account is settled; or gives it up with None.
    pub fn takes(&mut self, side: Role, place: Option<ConcurrencyPermit>) {
        *match side {
            Role::Prefill => &mut self.prefill_place,
            Role::Decode => &mut self.decode_place,
            Role::Encode => return,
        } = place;
    }

    /// It has a place among the requests for its fleet, until the account is settled.
    pub fn takes_share(&mut self, place: ConcurrencyPermit) {
        self.fleet_place = Some(place);
    }

    /// Charge of its caller, prompt and output: zero where nothing was delivered, unless the client
    /// left.
    fn took(&self) -> TokenCounts {
        let events = self.stream.map_or(0, |pace| pace.events);
        let told = self.tokens().unwrap_or(events);
        let goes_on = self.decoder.is_some() && matches!(self.end.reason, "ok" | CLIENT_LEFT);
        let output = if goes_on && self.output.is_none() { self.expected.unseen(told) } else { told };
        if output == 0 && !matches!(self.end.reason, "ok" | CLIENT_LEFT) {
            return TokenCounts::default();
        }
        let begun = self.prefiller.is_some() || self.decoder.is_some() || self.request_scope.began();
        let expected = if begun { self.expected.prompt_tokens } else { 0 };
        TokenCounts { prompt: self.prompt.unwrap_or(expected), output }
    }

    /// The request has this span, which ends with the account.
    pub fn traced(&mut self, span: Span) {
        self.span = span;
    }

    /// Scope of its steps' spans, where it is traced.
    pub fn scope(&self) -> Option<&Arc<Scope>> {
        self.span.scope()
    }

    /// It is for the fleet with these metrics.
    pub fn is_of_fleet(&mut self, meters: &Arc<Meters>) {
        if !Arc::ptr_eq(&self.meters, meters) {
            self.meters = meters.clone();
        }
    }

    /// The fleet `from` could not serve it, and the one with these metrics is asked: nothing that
    /// was counted there is this one's.
    pub fn falls_back(&mut self, meters: &Arc<Meters>, from: Option<&Arc<str>>, reason: &'static str) {
        self.tries_anew();
        self.fallback.get_or_insert((from.cloned(), reason));
        self.meters = meters.clone();
        (self.prefill_place, self.decode_place, self.fleet_place) = (None, None, None);
        self.asked = None;
        (self.prefiller, self.decoder, self.chosen, self.stage) = (None, None, None, Role::Prefill);
        (self.pooled, self.held, self.output, self.alone) = (None, None, None, None);
        if let Some(before) = self.outcome_writer.take() {
            before.ends(self.ended(0, Ended::RETRIED));
        }
    }

    /// It asks for this model.
    pub fn asks(&mut self, model: Option<&str>) {
        traced::asks(&mut self.span, self.api, model);
    }

    /// The API that it is, where the path alone did not say.
    pub fn is_about(&mut self, api: Api) {
        self.api = api;
    }

    /// A leg starts on `instance`.
    pub fn leg(&mut self, instance: &Arc<Instance>) {
        self.stage = instance.role();
        let place = match self.stage {
            Role::Prefill => &mut self.prefiller,
            Role::Decode => &mut self.decoder,
            Role::Encode => return,
        };
        *place = Some(instance.clone());
        if let (Role::Decode, Some(outcome_writer)) = (self.stage, &self.outcome_writer) {
            outcome_writer.decodes(instance);
        }
    }

    /// Prefiller that was asked last.
    pub fn prefiller(&self) -> Option<InstanceId> {
        self.prefiller.as_ref().map(|instance| instance.id())
    }

    /// The same, as a member of the fleet.
    pub fn prefilled_by(&self) -> Option<&Arc<Instance>> {
        self.prefiller.as_ref()
    }

    /// Cache hits of its prefiller.
    pub fn hits(&self) -> Option<&Hits> {
        self.prefiller.as_ref().map(|instance| instance.hits())
    }

    /// Reason why its prefiller was chosen.
    pub fn chosen(&self) -> Option<&Chosen> {
        self.chosen.as_ref()
    }

    /// Seconds from the choice of its prefiller to that one's answer, divided by those predicted.
    pub fn prefill_ratio(&self, answered: Instant) -> Option<f64> {
        let Chosen { terms, at, .. } = self.chosen.as_ref()?;
        let predicted_s = terms.wait_s + terms.prefill_s;
        (predicted_s > 0.0).then(|| answered.duration_since(*at).as_secs_f64() / predicted_s)
    }

    /// It waited for its prefiller, which was chosen for these reasons.
    pub fn placed(&mut self, choice: &Choice, at: Instant, outcome_writer: OutcomeWriter) {
        self.chosen = Some(Chosen { terms: choice.terms, waited: choice.waited, at });
        if let Some(before) = self.outcome_writer.replace(outcome_writer) {
            before.ends(self.ended(0, Ended::RETRIED));
        }
    }

    /// Kind of the time-out that the total time limit amounts to right now.
    pub fn timeout_kind(&self) -> Kind {
        let decodes = self.request_scope.sum().is_some_and(|sum| !sum.decoders.is_empty());
        match if decodes { Role::Decode } else { self.stage } {
            Role::Prefill => Kind::PrefillTimeout,
            Role::Decode => Kind::DecodeTimeout,
            Role::Encode => Kind::EncodeTimeout,
        }
    }

    /// The prefiller's counts.
    pub fn prefilled(&mut self, usage: Usage) {
        // The prompt of a continuation is not the client's.
        if self.resumed > 0 {
            return;
        }
        self.prefilled = true;
        self.prompt = usage.prompt;
        (self.cached, self.created) = (usage.cached, usage.created);
    }

    /// Both legs begin, perhaps once more: what was counted for an attempt that came to nothing is
    /// not this one's.
    pub fn tries_anew(&mut self) {
        if self.resumed == 0 {
            (self.prefilled, self.prompt) = (false, None);
            (self.cached, self.created) = (None, None);
        }
    }

    /// The prefiller's counts of its caches; `None` when there was no prefill leg or it did not
    /// say.
    pub fn cached_of_prefill(&self) -> Option<CacheCounts> {
        let cached = self.cached.filter(|_| self.prefilled)?;
        Some(CacheCounts { cached, created: self.created })
    }

    /// Its stream broke in this way and is continued elsewhere.
    pub fn resumes(&mut self, cause: &'static str) {
        self.resumed += 1;
        let cause = Attribute { key: "pd_proxy.cause", value: cause.into() };
        self.span.mark("stream continued elsewhere", vec![cause]);
    }

    /// Nobody turns it away any more: another pair goes on with its stream, or it is a part of a
    /// request that was let in.
    pub fn is_let_in(&self) -> bool {
        self.resumed > 0 || self.request_scope.is_part()
    }

    /// Records what is known of the prompt before it is routed.
    pub fn understood(&mut self, job: &Job) {
        self.exact = Some(job.prefix_tokens).filter(|tokens| *tokens > 0);
    }

    /// Records the lookup of the prompt before it was routed.
    pub fn found(&mut self, found: &PromptLookup) {
        self.pooled = found.pooled();
        self.held = found.best_held();
    }

    /// The decoder's counts.
    pub fn decoded(&mut self, usage: Usage) {
        self.output = usage.output.or(self.output);
        self.prompt = self.prompt.or(usage.prompt);
        self.cached = self.cached.or(usage.cached);
    }

    /// Metrics of the fleet that it is for.
    pub fn meters(&self) -> &Arc<Meters> {
        &self.meters
    }

    /// The request is answered with an error of ours, under `status`.
    pub fn refused(&mut self, error: &Error, status: StatusCode) {
        self.end = End { status: status.as_u16(), reason: error.kind().code() };
        tracing::warn!(id = %self.id, reason = error.kind().code(), "{}", error.log_line());
    }

    /// The id that the log and the client know it by.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A complete answer goes out.
    pub fn whole(&mut self, status: StatusCode) {
        let reason = if status.is_success() { "ok" } else { "engine" };
        self.end = End { status: status.as_u16(), reason };
    }

    /// A stream begins: until it is over, the client may still leave.
    pub fn streams(&mut self, status: StatusCode) {
        self.end.status = status.as_u16();
    }

    /// A piece of the stream with `events` complete events.
    pub fn piece(&mut self, now: Instant, events: u64) {
        match &mut self.stream {
            None => {
                self.stream = Some(Pace { first: now, last: now, gap_max: std::time::Duration::ZERO, events })
            }
            Some(pace) => {
                pace.gap_max = pace.gap_max.max(now - pace.last);
                pace.last = now;
                pace.events = events;
            }
        }
    }

    /// The stream ended as it should.
    pub fn complete(&mut self) {
        self.end.reason = "ok";
    }

    /// The stream ended with an error that its engine wrote.
    pub fn said(&mut self, reason: &'static str) {
        self.end.reason = reason;
    }

    /// The stream broke.
    pub fn broken(&mut self, error: &Error) {
        self.end.reason = error.kind().code();
        tracing::warn!(id = %self.id, reason = error.kind().code(), "{}", error.log_line());
    }
}

#[cfg(test)]
mod tests;
