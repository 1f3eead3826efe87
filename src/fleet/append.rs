//! Decoders that compute the rest of a prompt by themselves: the search for one, and its seat.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Fleet;
use super::decoder_memory::{HeldByDecoders, LegMemory, PromptOnDecoder};
use super::instance::{Instance, InstanceId, Rank, Role};
use super::member::Member;
use super::reservation::Reservation;
use super::scheduler_handle::CacheReports;
use crate::route::{
    Append, AppendCosts, AppendGrounds, AppendRules, DecodeCandidate, HeldPrompt, Job, Policy, Seconds,
    choose_append,
};

/// A request for which a decoder may compute the rest of the prompt.
#[derive(Clone, Copy, Debug)]
pub struct AppendNeed<'a> {
    /// Facts of the request; its tokens are counted.
    pub job: &'a Arc<Job>,
    /// Bounds of the harm to those who are served there.
    pub rules: AppendRules,
    /// Decoders that are none.
    pub tried: &'a [InstanceId],
    /// A random number.
    pub random: u64,
}

/// A seat on a decoder that computes the rest of a prompt.
#[derive(Debug)]
pub struct AppendSeat {
    /// It is reserved.
    pub reservation: Reservation,
    /// Prediction for which it was chosen.
    pub append: Append,
}

/// The decoder that would compute the rest of a prompt soonest.
#[derive(Clone, Debug)]
pub struct BestAppend {
    /// The decoder, or one of its ranks.
    pub decoder: Member,
    /// Prediction for it.
    pub append: Append,
    /// True if what the decoder is believed to hold is acted on.
    pub is_trusted: bool,
    held: HeldPrompt,
}

/// Facts about a prompt that hold for all decoders, looked up once.
struct AppendFacts {
    held: HeldByDecoders,
    /// Seconds until a prefiller would have computed it.
    prefilled_s: Seconds,
}

/// A decoder, or one of its ranks, and what it is believed to hold of a prompt.
struct Place {
    instance: Arc<Instance>,
    rank: Option<Rank>,
    held: HeldPrompt,
    load: DecodeCandidate,
}

impl Fleet {
    /// A seat on the decoder that had better compute the rest of a prompt itself, if one had.
    pub fn append_seat(&self, need: &AppendNeed<'_>) -> Option<AppendSeat> {
        let facts = self.append_facts(need)?;
        let _turn = self.role_members(Role::Decode).lock();
        let best = self.weigh_append(need, &facts).filter(|best| best.append.is_worth_it())?;
        if !best.is_trusted && !self.decoder_memory.tries_append() {
            return None;
        }
        let BestAppend { decoder: Member { instance, rank }, append, held, .. } = best;
        let job = need.job;
        let tokens = u64::from(job.prompt_tokens) + u64::from(job.output_tokens);
        let memory = LegMemory::new(&self.decoder_memory, &instance, rank, PromptOnDecoder { job, held });
        instance.health().taken(self.now_ms());
        let reservation = self.paced(&instance, rank, tokens).remembered(memory).appending(append.compute_s);
        Some(AppendSeat { reservation, append })
    }

    /// The decoder that would compute the rest of a prompt soonest within the rules, whether that
    /// is worth it or not.
    pub fn best_append(&self, need: &AppendNeed<'_>) -> Option<BestAppend> {
        self.weigh_append(need, &self.append_facts(need)?)
    }

    /// Sets the source of what decoders tell that they hold, once. Of others it is remembered what
    /// they were given.
    pub fn set_decoder_reports(&self, reports: Arc<dyn CacheReports>) {
        self.decoder_memory.set_reports(reports);
    }

    /// Facts about a prompt; `None` where no decoder may compute it. Without a prefiller it
    /// would never be computed by one.
    fn append_facts(&self, need: &AppendNeed<'_>) -> Option<AppendFacts> {
        if need.rules.gap_s <= 0.0 || self.settings.board.policy != Policy::Predicted {
            return None;
        }
        let held = self.decoder_memory.held(need.job);
        let loads = loads(&self.append_places(need, &held));
        choose_append(&need.rules, &self.append_costs(), &loads, need.job)?;
        let predicted = self.scheduler.predict(need.job);
        let prefilled_s = predicted.map_or(Seconds::INFINITY, |(wait_s, own_s)| wait_s + own_s);
        Some(AppendFacts { held, prefilled_s })
    }

    fn weigh_append(&self, need: &AppendNeed<'_>, facts: &AppendFacts) -> Option<BestAppend> {
        let mut places = self.append_places(need, &facts.held);
        let policy = self.settings.board.policy;
        let grounds = AppendGrounds { rules: need.rules, costs: self.append_costs(), policy };
        let append = grounds.weigh(&loads(&places), need.job, || facts.prefilled_s)?;
        let Place { instance, rank, held, .. } = places.swap_remove(append.at);
        let is_trusted = facts.held.is_trusted(&instance, rank);
        Some(BestAppend { decoder: Member { instance, rank }, append, is_trusted, held })
    }

    /// The decoders as they are loaded at the moment, with what they are believed to hold.
    fn append_places(&self, need: &AppendNeed<'_>, held: &HeldByDecoders) -> SmallVec<[Place; 8]> {
        let (now_ms, members) = (self.now_ms(), self.members(Role::Decode));
        let serving = members.iter().filter(|it| !it.draining());
        let each = serving.flat_map(|it| it.ranks().map(move |rank| (it, rank)));
        let places = each.map(|(instance, rank)| {
            let held = held.supposed(instance, rank);
            let standing = instance.standing(now_ms, need.random, need.tried.contains(&instance.id()));
            let load =
                DecodeCandidate { held_tokens: held.tokens, ..instance.decode_candidate(rank, standing) };
            Place { instance: instance.clone(), rank, held, load }
        });
        places.collect()
    }

    /// Decoders are taken to compute as prefillers do.
    fn append_costs(&self) -> AppendCosts {
        AppendCosts { prefill: self.scheduler.costs(), decode: self.decode_costs() }
    }
}

fn loads(places: &[Place]) -> SmallVec<[DecodeCandidate; 16]> {
    places.iter().map(|place| place.load).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::endpoint::Endpoint;
    use crate::fleet::{DecodeCounts, FleetSettings, Holding, Need};
    use crate::route::SchedulerSettings;

    fn fleet() -> Fleet {
        let board = SchedulerSettings { policy: Policy::Predicted, ..SchedulerSettings::default() };
        let fleet = Fleet::with(FleetSettings { board, cache_tokens: 100_000, ..FleetSettings::default() });
        fleet.add(Role::Prefill, Endpoint::new("p", 1));
        (1..=3).for_each(|port| assert!(fleet.add(Role::Decode, Endpoint::new("d", port))));
        fleet
    }

    /// A prompt of so many blocks of 100 tokens and a half.
    fn prompt(blocks: u64) -> Arc<Job> {
        let hashes: Vec<u64> = (1..=blocks).collect();
        Arc::new(Job {
            prompt_tokens: u32::try_from(blocks).unwrap() * 100 + 50,
            output_tokens: 100,
            blocks: hashes.into(),
            block_tokens: 100,
            named: true,
            exact: true,
            ..Job::default()
        })
    }

    fn decode(fleet: &Fleet, job: &Arc<Job>) -> Reservation {
        let need = Need { tokens: 100, job: Some(job), ..Need::default() };
        let mut taken = fleet.pick(Role::Decode, need).unwrap();
        taken.begin_answer();
        taken
    }

    fn need(job: &Arc<Job>) -> AppendNeed<'_> {
        AppendNeed { job, rules: AppendRules::default(), tried: &[], random: 0 }
    }

    #[test]
    fn decoder_that_served_a_conversation_is_chosen_and_computes_its_next_turn() {
        let fleet = fleet();
        let (first, next) = (prompt(40), prompt(44));
        assert!(fleet.append_seat(&need(&next)).is_none(), "nobody remembers it");
        let mut served = decode(&fleet, &first);
        let holder = served.instance().id();
        assert!(fleet.append_seat(&need(&next)).is_none(), "the answer is not over");
        served.end_answer(DecodeCounts { output_tokens: Some(150), ..DecodeCounts::default() });
        drop(served);
        for _ in 0..4 {
            assert_eq!(decode(&fleet, &next).instance().id(), holder, "what it has is not transferred");
        }
        let seat = fleet.append_seat(&need(&prompt(45))).unwrap();
        assert_eq!((seat.reservation.instance().id(), seat.append.held_tokens), (holder, 4_400));
        let appends = || {
            fleet
                .members(Role::Decode)
                .iter()
                .map(|it| it.decode_candidate(None, crate::route::Standing::Good).appends_s)
                .sum::<f64>()
        };
        assert!(appends() > 0.0);
        drop(seat);
        assert_eq!(appends(), 0.0, "given back");
        let off = AppendRules { gap_s: 0.0, ..AppendRules::default() };
        assert!(fleet.append_seat(&AppendNeed { rules: off, ..need(&prompt(45)) }).is_none());
        assert!(fleet.append_seat(&AppendNeed { tried: &[holder], ..need(&prompt(45)) }).is_none());
    }

    /// A source that tells of the first decoder alone.
    struct Teller(Holding);

    impl CacheReports for Teller {
        fn held(&self, _: &Job) -> Vec<Holding> {
            vec![self.0]
        }
    }

    #[test]
    fn decoder_that_tells_what_it_holds_is_believed() {
        let fleet = fleet();
        let all = fleet.members(Role::Decode).to_vec();
        let told = Holding { instance: all[1].id(), rank: 0, tokens: 3_900 };
        fleet.set_decoder_reports(Arc::new(Teller(told)));
        let seat = fleet.append_seat(&need(&prompt(40))).unwrap();
        assert_eq!((seat.reservation.instance().id(), seat.append.held_tokens), (all[1].id(), 3_900));
    }

    #[test]
    fn decoder_that_reports_less_is_believed_less_and_a_new_process_nothing() {
        let fleet = fleet();
        let first = prompt(40);
        drop(decode(&fleet, &first));
        let mut seat = fleet.append_seat(&need(&prompt(41))).unwrap();
        assert_eq!(seat.append.held_tokens, 4_000);
        seat.reservation.begin_answer();
        let counts = DecodeCounts { cached_tokens: Some(0), is_alone: true, ..DecodeCounts::default() };
        let verdict = seat.reservation.end_answer(counts).unwrap().verdict;
        assert_eq!(verdict.verdict.name(), "miss");
        let holder = seat.reservation.instance().clone();
        drop(seat);
        let held = fleet.append_seat(&need(&prompt(42))).map(|seat| seat.append.held_tokens);
        assert_eq!(held, Some(4_100), "it has computed that prompt");
        fleet.decoder_memory.emptied(&holder, 100_000);
        assert!(fleet.append_seat(&need(&prompt(42))).is_none());
    }
    /// Turns of new conversations, each offered to a decoder alone and, if it gets none, handed
    /// over. Returns how many a decoder computed, which found so many tokens in its cache.
    fn serve(fleet: &Fleet, conversations: std::ops::Range<u64>, cached_tokens: u64) -> usize {
        let block = |conversation: u64| move |at: u64| conversation * 1_000 + at;
        let alone = conversations.filter(|conversation| {
            let turn = |blocks: u64| {
                let hashes: Vec<u64> = (1..=blocks).map(block(*conversation)).collect();
                Arc::new(Job { blocks: hashes.into(), ..Job::clone(&prompt(blocks)) })
            };
            drop(decode(fleet, &turn(40)));
            let next = turn(41);
            let seat = fleet.append_seat(&need(&next));
            let is_alone = seat.is_some();
            let mut taken = seat.map_or_else(|| decode(fleet, &next), |seat| seat.reservation);
            taken.begin_answer();
            let cached_tokens = Some(if is_alone { cached_tokens } else { 4_100 });
            taken.end_answer(DecodeCounts { cached_tokens, is_alone, ..DecodeCounts::default() });
            is_alone
        });
        alone.count()
    }

    #[test]
    fn decoders_that_forgot_are_tried_and_believed_again_when_they_remember() {
        let fleet = fleet();
        assert_eq!(serve(&fleet, 0..20, 0), 20, "until trust is lost");
        assert_eq!(serve(&fleet, 20..20 + 96, 0), 3, "trials alone");
        let trials = serve(&fleet, 200..200 + 5 * 32, 4_000);
        assert_eq!(trials, 5);
        assert_eq!(serve(&fleet, 400..410, 4_000), 10, "trusted again");
    }
}
