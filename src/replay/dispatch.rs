//! Decisions of the simulated gateways: the code that serves requests, and in tests anything that
//! sends them.

mod decoders;

use std::sync::Arc;

use super::peers::aged_srpt::Waiter;
use super::peers::line::{Line, LineKind};
use super::peers::{aged_srpt, aibrix, dynamo, kv_aware, llm_d_precise, llm_d_sticky, lmetric, smg_queue};
use super::{Cluster, Faults, Seconds};
use crate::route::links::Links;
use crate::route::shared::message::{Numbered, ReplicaId};
use crate::route::shared::{SharedScheduler, Sources};
use crate::route::{
    Bind, Booking, CacheView, Candidate, DecodeCosts, Done, Job, LaneId, LaneSpec, NewRequest, Policy,
    PrefillCosts, Reported, RequestFacts, Rule, SchedulerSettings, Ticket, TieBreak, choose, choose_decoder,
};
use decoders::DecoderMemory;
pub use decoders::{AnsweredLeg, Appending, DecodeQuestion, HandedOver};

/// A request that goes to a prefiller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillDispatch {
    /// Ticket that [`Dispatch::arrive`] returned.
    pub ticket: u64,
    /// To be told to [`Dispatch::done`].
    pub booking: u64,
    /// Place where to.
    pub lane: LaneId,
}

/// A request that failed on a prefiller.
#[derive(Clone, Debug)]
pub struct Returned {
    /// Time at which it came.
    pub since_s: Seconds,
    /// Facts of the request.
    pub job: Arc<Job>,
    /// Place where it failed.
    pub failed: LaneId,
}

/// Load that one gateway has on a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeLoad {
    /// Answers under way.
    pub requests: u32,
    /// Tokens of context that they have, or are expected to have at their end.
    pub context_tokens: u64,
    /// Microseconds that computing prompts takes which it has still to compute.
    pub appends_us: u64,
}

impl DecodeLoad {
    /// Both loads together.
    #[must_use]
    pub fn and(self, other: DecodeLoad) -> DecodeLoad {
        DecodeLoad {
            requests: self.requests + other.requests,
            context_tokens: self.context_tokens + other.context_tokens,
            appends_us: self.appends_us + other.appends_us,
        }
    }

    /// A request goes to the decoder.
    pub fn take(&mut self, job: &Job) {
        self.requests += 1;
        self.context_tokens += u64::from(job.prompt_tokens) + u64::from(job.output_tokens);
    }

    /// Its answer has ended.
    pub fn give_back(&mut self, job: &Job) {
        self.requests -= 1;
        self.context_tokens -= u64::from(job.prompt_tokens) + u64::from(job.output_tokens);
    }
}

/// A request that has just come, and what its gateway knows then.
#[derive(Clone, Copy)]
pub struct AppendQuestion<'a> {
    /// Time of the question.
    pub now: Seconds,
    /// The request, as the scheduler sees it.
    pub job: &'a Arc<Job>,
    /// Loads of the decoders.
    pub loads: &'a [DecodeLoad],
    /// Caches of the prefillers, as far as they are told of.
    pub sight: &'a dyn CacheView,
}

/// The decisions of one gateway. Times are seconds since the run's start.
pub trait Dispatch {
    /// A request comes; returns its ticket.
    fn arrive(&mut self, now: Seconds, job: Arc<Job>, sight: &dyn CacheView) -> u64;
    /// A request that came earlier failed on a prefiller and needs another one; returns its new
    /// ticket.
    fn again(&mut self, now: Seconds, returned: Returned, sight: &dyn CacheView) -> u64;
    /// Those that go to a prefiller now.
    fn pump(
        &mut self,
        now: Seconds,
        sight: &dyn CacheView,
        random: &mut dyn FnMut() -> u64,
    ) -> Vec<PrefillDispatch>;
    /// Time at which to pump though nothing happens until then.
    fn wake_s(&self) -> Option<Seconds>;
    /// Reports a prefill that is done, with its number of cached tokens, or that failed.
    fn done(&mut self, now: Seconds, booking: u64, cached_tokens: Option<u32>);
    /// A prefiller takes no requests, or does from now on.
    fn drain(&mut self, _: LaneId, _: bool) {}
    /// Takes over a message of another gateway.
    fn hear(&mut self, now: Seconds, from: ReplicaId, message: &Numbered);
    /// Lets time pass, and says that it is there.
    fn beat(&mut self, now: Seconds);
    /// Says what has waited for a later message.
    fn tell_rest(&mut self);
    /// Messages for the other gateways.
    fn messages(&mut self) -> Vec<Numbered>;
    /// Reports a change of the tokens that a prefiller holds for decoders.
    fn hold(&mut self, lane: LaneId, tokens: i64);
    /// A prefiller is gone.
    fn close(&mut self, lane: LaneId);
    /// The position of the decoder for a request that is computed.
    fn decoder(&mut self, question: DecodeQuestion<'_>) -> usize;
    /// The first token after a hand-over has come.
    fn handed_over(&mut self, _: HandedOver) {}
    /// The decoder that had better compute the rest of an arriving request's prompt, if one had.
    fn append(&mut self, _question: AppendQuestion<'_>) -> Option<Appending> {
        None
    }
    /// A decoder has generated the answer to a request.
    fn answered(&mut self, _leg: AnsweredLeg<'_>) {}
}

/// A way to decide that is compared with others.
#[derive(Clone, Copy, Debug)]
pub struct Contender {
    /// Its name in tables and on the command line.
    pub name: &'static str,
    /// Policy by which prefillers and decoders are compared.
    pub policy: Policy,
    /// Rule by which prefillers are compared instead.
    pub rule: Option<Rule>,
    /// Moment at which requests are bound to prefillers.
    pub bind: Bind,
    /// Line in which requests wait before that.
    pub line: Option<LineKind>,
    /// True if it remembers what decoders hold, and lets them compute the rest of prompts.
    pub appends: bool,
    /// True if it learns how long KV takes between each prefiller and decoder, as all do that weigh
    /// decoders by seconds.
    pub learns_links: bool,
}

/// All of them; the first is the gateway's default, which the others are compared with.
pub const CONTENDERS: [Contender; 21] = [
    early("predicted", Policy::Predicted).bound(Bind::Late),
    early("predicted-append", Policy::Predicted).bound(Bind::Late).appending(),
    early("predicted-on-arrival", Policy::Predicted),
    early("predicted-any-link", Policy::Predicted).bound(Bind::Late).blind_to_links(),
    early("least-work", Policy::LeastWork),
    early("least-requests", Policy::LeastRequests),
    early("reference", Policy::Reference),
    early("cache-aware", Policy::CacheAware),
    early("session", Policy::Session),
    early("prefix-first", Policy::LeastRequests).ruled(prefix_first),
    early("power-of-two", Policy::PowerOfTwo),
    early("round-robin", Policy::RoundRobin),
    early("random", Policy::Random),
    peer("llm-d-precise", llm_d_precise::choose),
    peer("llm-d-sticky", llm_d_sticky::choose),
    peer("dynamo", dynamo::choose),
    peer("lmetric", lmetric::choose),
    peer("aibrix", aibrix::choose),
    peer("kv-aware", kv_aware::choose),
    peer("smg-queue", smg_queue::choose).lined(LineKind::Fifo),
    peer("aged-srpt", aged_srpt::choose).lined(LineKind::AgedSrpt),
];

/// A formula of another gateway. Its decoders are those of the fewest requests: formulas for
/// prefillers are compared.
const fn peer(name: &'static str, rule: Rule) -> Contender {
    early(name, Policy::LeastRequests).ruled(rule)
}

const fn early(name: &'static str, policy: Policy) -> Contender {
    let learns_links = matches!(policy, Policy::Predicted);
    Contender { name, policy, rule: None, bind: Bind::Arrival, line: None, appends: false, learns_links }
}

/// Chooses the longest hit, whatever the load; ties by work. It shows what following prefixes alone
/// costs.
fn prefix_first(candidates: &[Candidate], _: RequestFacts, tie_break: TieBreak) -> Option<usize> {
    let longest = candidates.iter().map(|c| c.hit_tokens).max()?;
    let holders = candidates.iter().enumerate().filter(|(_, c)| c.hit_tokens == longest);
    let (places, holders): (Vec<usize>, Vec<Candidate>) = holders.unzip();
    let at = choose(Policy::LeastWork, &holders, RequestFacts::default(), tie_break)?;
    places.get(at).copied()
}

impl Contender {
    const fn bound(self, bind: Bind) -> Contender {
        Contender { bind, ..self }
    }

    const fn appending(self) -> Contender {
        Contender { appends: true, ..self }
    }

    const fn blind_to_links(self) -> Contender {
        Contender { learns_links: false, ..self }
    }

    /// True if it decides otherwise than the others in front of these machines: where decoders keep
    /// nothing there is nothing to remember, and where links are alike nothing to learn.
    #[must_use]
    pub fn differs(&self, cluster: &Cluster) -> bool {
        (cluster.decode_cache || !self.appends) && (cluster.far_links > 1.0 || !self.ignores_links())
    }

    fn ignores_links(&self) -> bool {
        self.policy == Policy::Predicted && !self.learns_links
    }

    const fn ruled(self, rule: Rule) -> Contender {
        Contender { rule: Some(rule), ..self }
    }

    const fn lined(self, line: LineKind) -> Contender {
        Contender { line: Some(line), ..self }
    }

    /// The contender of that name; underscores are as good as hyphens.
    #[must_use]
    pub fn named(name: &str) -> Option<Contender> {
        let name = name.replace('_', "-");
        CONTENDERS.into_iter().find(|contender| contender.name == name)
    }
}

/// A gateway's own decision code.
#[derive(Debug)]
pub struct Director {
    board: SharedScheduler,
    line: Option<Line>,
    policy: Policy,
    decode_costs: DecodeCosts,
    decoder_kv_tokens: u64,
    memory: Option<DecoderMemory>,
    /// Beliefs about the links to decoders.
    links: Option<Links>,
    turn: u64,
}

impl Director {
    /// The decisions of `contender` in a gateway that has just been started in front of a cluster.
    #[must_use]
    pub fn new(contender: Contender, cluster: &Cluster, faults: &Faults, gateway: u16) -> Director {
        let Contender { policy, rule, bind, line, .. } = contender;
        let costs = scaled(PrefillCosts::default(), faults.cost_factor);
        let mut board = SharedScheduler::new(SchedulerSettings {
            policy,
            rule,
            bind,
            costs,
            ..SchedulerSettings::default()
        });
        for lane in 0..cluster.prefillers {
            let cache_tokens = u64::from(cluster.costs.hbm_tokens);
            board.open(LaneId(lane), LaneSpec { class: 0, cache_tokens, identity: u64::from(lane) });
        }
        if faults.share_s.is_some() {
            board.share(ReplicaId(u64::from(gateway)));
            board.connect(true, 0.0);
            board.lead(gateway == 0, 0.0);
        }
        let start = DecodeCosts::default();
        let decode_costs = DecodeCosts {
            base_s: start.base_s * faults.cost_factor,
            per_request_s: start.per_request_s * faults.cost_factor,
            per_token_s: start.per_token_s * faults.cost_factor,
        };
        let line = line.map(|kind| Line::new(kind, cluster.prefillers));
        let decoder_kv_tokens = cluster.costs.decode_kv_tokens;
        let memory = (contender.appends && cluster.decode_cache).then(|| DecoderMemory::new(cluster));
        let links = contender.learns_links.then(Links::default);
        Director { board, line, policy, decode_costs, decoder_kv_tokens, memory, links, turn: 0 }
    }

    /// Takes a request in, and returns its ticket.
    fn take(&mut self, now: Seconds, new: NewRequest<'_>, sight: &dyn CacheView) -> u64 {
        let Some(line) = &mut self.line else {
            return self.seat(now, new, sight);
        };
        let NewRequest { since_s, job, tried } = new;
        let hits = self.board.board().weigh(now, &job, sight);
        let held_tokens = hits.iter().map(|terms| terms.hit.hbm_tokens).max().unwrap_or(0);
        let waiter = Waiter { since_s, prompt_tokens: job.prompt_tokens, held_tokens };
        line.enter(waiter, job, tried.first().copied())
    }

    /// Lets a request choose its prefiller; returns its ticket on the board.
    fn seat(&mut self, now: Seconds, new: NewRequest<'_>, sight: &dyn CacheView) -> u64 {
        self.board.return_to_line(new, Sources { now, view: sight, random: &mut || 0 }).0
    }

    /// Sends those for whom there is a prefiller.
    fn send(
        &mut self,
        now: Seconds,
        sight: &dyn CacheView,
        random: &mut dyn FnMut() -> u64,
    ) -> Vec<PrefillDispatch> {
        let commits = self.board.pump(Sources { now, view: sight, random }).into_iter();
        let sent = commits.map(|commit| {
            let (Ticket(ticket), booking, lane) = (commit.ticket, commit.booking.0, commit.terms.lane);
            let line = self.line.as_mut();
            let ticket = line.map_or(ticket, |line| line.sent(ticket, booking, lane));
            PrefillDispatch { ticket, booking, lane }
        });
        sent.collect()
    }
}

fn scaled(costs: PrefillCosts, factor: f64) -> PrefillCosts {
    PrefillCosts {
        base_s: costs.base_s * factor,
        per_token_s: costs.per_token_s * factor,
        per_square_s: costs.per_square_s * factor,
        near_token_s: costs.near_token_s * factor,
        far_token_s: costs.far_token_s * factor,
    }
}

impl Dispatch for Director {
    fn arrive(&mut self, now: Seconds, job: Arc<Job>, sight: &dyn CacheView) -> u64 {
        self.take(now, NewRequest { since_s: now, job, tried: &[] }, sight)
    }

    fn again(&mut self, now: Seconds, returned: Returned, sight: &dyn CacheView) -> u64 {
        let Returned { since_s, job, failed } = returned;
        self.take(now, NewRequest { since_s, job, tried: &[failed] }, sight)
    }

    fn pump(
        &mut self,
        now: Seconds,
        sight: &dyn CacheView,
        random: &mut dyn FnMut() -> u64,
    ) -> Vec<PrefillDispatch> {
        self.board.pass(now);
        let mut sent = self.send(now, sight, random);
        while let Some(next) = self.line.as_mut().and_then(|line| line.leave(now)) {
            let new =
                NewRequest { since_s: next.waiter.since_s, job: next.job, tried: next.failed.as_slice() };
            let inner = self.seat(now, new, sight);
            if let Some(line) = &mut self.line {
                line.rename(next.ticket, inner);
            }
            sent.extend(self.send(now, sight, random));
        }
        sent
    }

    fn wake_s(&self) -> Option<Seconds> {
        let wakes = self.board.board().wake_s().into_iter().chain(self.board.next_pass_s());
        wakes.min_by(f64::total_cmp)
    }

    fn done(&mut self, now: Seconds, booking: u64, cached_tokens: Option<u32>) {
        if let Some(line) = &mut self.line {
            line.done(booking);
        }
        let done = cached_tokens.map_or(Done::Failed, |cached| {
            Done::Computed(Reported { cached_tokens: Some(u64::from(cached)), ..Reported::default() })
        });
        self.board.done(now, Booking(booking), done);
    }

    fn drain(&mut self, lane: LaneId, draining: bool) {
        self.board.board_mut().drain(lane, draining);
    }

    fn hold(&mut self, lane: LaneId, tokens: i64) {
        self.board.board_mut().hold(lane, tokens);
    }

    fn hear(&mut self, now: Seconds, from: ReplicaId, message: &Numbered) {
        self.board.hear(now, from, message);
    }

    fn beat(&mut self, now: Seconds) {
        self.board.pass(now);
        self.board.beat(now, Vec::new());
    }

    fn tell_rest(&mut self) {
        self.board.tell_rest();
    }

    fn messages(&mut self) -> Vec<Numbered> {
        self.board.take_messages()
    }

    fn close(&mut self, lane: LaneId) {
        if let Some(line) = &mut self.line {
            line.close(lane);
        }
        self.board.close(lane);
    }

    fn decoder(&mut self, question: DecodeQuestion<'_>) -> usize {
        let DecodeQuestion { job, random, .. } = question;
        self.turn += 1;
        let candidates = self.reached_decoders(&question);
        let tie_break = TieBreak { turn: self.turn, random };
        choose_decoder(self.policy, &self.decode_costs, &candidates, job, tie_break).unwrap_or(0)
    }

    fn handed_over(&mut self, handed_over: HandedOver) {
        self.learn_link(&handed_over);
    }

    fn append(&mut self, question: AppendQuestion<'_>) -> Option<Appending> {
        self.soonest_append(question)
    }

    fn answered(&mut self, leg: AnsweredLeg<'_>) {
        self.remember(&leg);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_have_names_of_their_own() {
        for contender in CONTENDERS {
            let named = Contender::named(contender.name).map(|it| (it.name, it.policy, it.bind));
            assert_eq!(named, Some((contender.name, contender.policy, contender.bind)));
        }
        assert_eq!(Contender::named("round_robin").map(|c| c.policy), Some(Policy::RoundRobin));
        assert!(Contender::named("best").is_none());
        assert_eq!(CONTENDERS[0].bind, Bind::Late);
    }

    #[test]
    fn the_longest_prefix_wins_and_load_decides_among_equals() {
        let hit = |hit_tokens, work_tokens| Candidate { hit_tokens, work_tokens, ..Candidate::default() };
        let pick = |c: &[Candidate]| prefix_first(c, RequestFacts::default(), TieBreak::default());
        assert_eq!(pick(&[hit(5, 0), hit(9, 99), hit(9, 50)]), Some(2));
        assert_eq!((pick(&[hit(0, 7)]), pick(&[])), (Some(0), None));
    }
}
