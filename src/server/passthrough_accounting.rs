//! The account of a request that one engine answers alone: settled exactly once when it is over,
//! however it ended.

use std::sync::Arc;

use http::StatusCode;
use tokio::time::Instant;
use tracing::Level;

use crate::auth::{Caller, TokenReservation};
use crate::dialect::Api;
use crate::dialect::usage::{PassingUsage, TokenCounts, Usage};
use crate::error::{Error, Kind};
use crate::fleet::{Instance, Role};
use crate::obs::{Meters, failed_request};
use crate::relay::account::{CLIENT_GONE, CLIENT_LEFT, Due, End, rounded_ms};
use crate::relay::admit::Pass;
use crate::relay::budget::OpenRequest;
use crate::relay::traced::{self, RequestEnd};
use crate::trace::{Scope, Span};

/// The route label of all of these.
const ROUTE: &str = "passthrough";

/// Account of a passed-through request. It travels with the answer's body; its permits are given
/// back when it is dropped.
#[derive(Debug)]
pub(super) struct PassthroughAccount {
    meters: Arc<Meters>,
    due: Due,
    asked: Option<OpenRequest>,
    id: String,
    arrived: Instant,
    /// Engine that was asked last.
    engine: Option<Arc<Instance>>,
    status: u16,
    reason: &'static str,
    /// Prompt and output, as estimated when the request came, tokens; None = it costs nothing.
    expected: Option<TokenCounts>,
    /// Counts in the answer.
    told: PassingUsage,
    /// Something of the answer went out.
    delivered: bool,
    /// Fleet that failed first with the request, if any did, and the reason for which others were
    /// asked.
    fallback: Option<(Option<Arc<str>>, &'static str)>,
    /// The request's span, where requests are traced.
    span: Span,
}

impl PassthroughAccount {
    /// Opens the account of a request whose head has arrived.
    pub(super) fn open(
        meters: Arc<Meters>,
        id: String,
        arrived: Instant,
        caller: Arc<Caller>,
    ) -> PassthroughAccount {
        let mut due = Due::default();
        due.called_by(caller);
        PassthroughAccount {
            meters,
            due,
            asked: None,
            id,
            arrived,
            engine: None,
            status: CLIENT_GONE,
            reason: CLIENT_LEFT,
            expected: None,
            told: PassingUsage::default(),
            delivered: false,
            fallback: None,
            span: Span::default(),
        }
    }

    /// The request is for the fleet with these metrics.
    pub(super) fn is_of_fleet(&mut self, meters: &Arc<Meters>) {
        self.meters = meters.clone();
    }

    /// The request goes on at another fleet, since `from` failed or none serves its model.
    pub(super) fn falls_back(&mut self, from: Option<&Arc<str>>, reason: &'static str) {
        self.fallback.get_or_insert((from.cloned(), reason));
        (self.engine, self.asked) = (None, None);
    }

    /// The id that the log and the client know it by.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The request has this span, which ends with the account.
    pub(super) fn traced(&mut self, span: Span) {
        self.span = span;
    }

    /// Scope of its steps' spans, where it is traced.
    pub(super) fn scope(&self) -> Option<&Arc<Scope>> {
        self.span.scope()
    }

    /// The request was let in; its pass is given back when the account is settled.
    pub(super) fn admitted(&mut self, pass: Pass) {
        self.due.admitted(pass);
    }

    /// So much is set aside for it, since so many tokens of prompt and output are expected.
    pub(super) fn reserved(&mut self, reserved: Option<TokenReservation>, expected: TokenCounts) {
        self.due.reserved(reserved);
        self.expected = Some(expected);
    }

    /// The request counts as open, for the budget of retries, until the account is settled.
    pub(super) fn counts(&mut self, asked: OpenRequest) {
        self.asked = Some(asked);
    }

    /// `instance` is asked.
    pub(super) fn leg(&mut self, instance: &Arc<Instance>) {
        self.engine = Some(instance.clone());
    }

    /// The request is answered with an error of ours, under `status`.
    pub(super) fn refused(&mut self, error: &Error, status: StatusCode) {
        (self.status, self.reason) = (status.as_u16(), error.kind().code());
        tracing::warn!(id = %self.id, route = ROUTE, reason = self.reason, "{}", error.log_line());
    }

    /// An engine's answer begins: until it is over, the client may still leave.
    pub(super) fn answers(&mut self, status: StatusCode) {
        self.status = status.as_u16();
    }

    /// A piece of it goes out.
    pub(super) fn passes(&mut self, piece: &[u8]) {
        self.delivered = true;
        if self.is_success() {
            self.told.push(piece);
        }
    }

    /// All of it went out, unless it broke.
    pub(super) fn complete(&mut self) {
        if self.reason == CLIENT_LEFT {
            self.reason = if self.is_success() { "ok" } else { "engine" };
        }
    }

    /// It ended before it was complete.
    pub(super) fn broken(&mut self) {
        self.reason = Kind::EngineFailed.code();
    }

    fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Charge of its caller, prompt and output: the answer's counts, else the expected ones; zero
    /// where nothing was delivered, unless the client left.
    fn took(&self, usage: Usage) -> TokenCounts {
        let charged = match self.reason {
            "ok" => true,
            CLIENT_LEFT => self.engine.is_some() && (self.status == CLIENT_GONE || self.is_success()),
            _ => self.delivered && self.is_success(),
        };
        match self.expected.filter(|_| charged) {
            Some(expected) => TokenCounts {
                prompt: usage.prompt.unwrap_or(expected.prompt),
                output: usage.output.unwrap_or(expected.output),
            },
            None => TokenCounts::default(),
        }
    }

    fn asked_of(&self, role: Role) -> Option<String> {
        self.engine
            .as_ref()
            .filter(|engine| engine.role() == role)
            .map(|engine| engine.endpoint().to_string())
    }
}

impl Drop for PassthroughAccount {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.status, self.reason) = (500, Kind::Internal.code());
        }
        let end = End { status: self.status, reason: self.reason }.reported(&self.meters);
        (self.status, self.reason) = (end.status, end.reason);
        self.meters.request(ROUTE, self.status, self.reason);
        // Chat's names: those of the routes that cost anything.
        let usage = self.told.usage(Api::Chat);
        self.due.settle(&self.meters, end, self.took(usage));
        let (prefiller, decoder) = (self.asked_of(Role::Prefill), self.asked_of(Role::Decode));
        let fallback_from = self.fallback.as_ref().and_then(|(from, _)| from.as_deref());
        // A level is fixed where a line is written.
        macro_rules! request_line {
            ($level:expr) => {
        tracing::event!(
            $level,
            id = %self.id,
            route = ROUTE,
            key_name = self.due.key_name(),
            status = self.status,
            reason = self.reason,
            prefiller,
            decoder,
            fleet = self.meters.label().name(),
            fallback_from,
            fallback_reason = self.fallback.as_ref().map(|(_, reason)| *reason),
            prompt_tokens = usage.prompt,
            output_tokens = usage.output,
            total_ms = rounded_ms(self.arrived.elapsed()),
            trace_id = self.scope().and_then(|scope| scope.trace()).map(|trace| trace.to_string()),
            "request"
        )
            };
        }
        if failed_request(Some(self.status), self.reason) {
            request_line!(Level::WARN);
        } else {
            request_line!(Level::INFO);
        }
        let end = RequestEnd {
            status: Some(self.status).filter(|status| *status != CLIENT_GONE),
            reason: self.reason,
            prompt: usage.prompt,
            cached: usage.cached,
            output: usage.output,
            prefiller: prefiller.as_deref(),
            decoder: decoder.as_deref(),
            stream: None,
        };
        traced::settled(&mut self.span, &end);
    }
}
