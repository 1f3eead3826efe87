//! Finds the engine at fault when KV that one engine computed can't be used by another: evidence
//! across pairs. Pure: the time is an argument, in ms of any clock that does not go back.
//!
//! The engine that fails is the one that was to read the KV (the *consumer*: a decoder, or a
//! prefiller that reads an encoder's embeddings), and the cause may be the one that made it (the
//! *producer*). One failure tells nothing. The spread of failures tells:
//! * a producer whose KV fails on several consumers, which meanwhile read others' KV, is at fault;
//! * a consumer that fails with the KV of several producers, which others meanwhile read, is at
//!   fault;
//! * a pair that fails while both do well with others is avoided as a pair (two releases whose
//!   connectors don't match, a broken link between two hosts).

use std::collections::HashMap;

use crate::fleet::InstanceId;

/// Pairs whose outcomes are remembered: each of 64 producers with each of 64 consumers. Beyond it
/// the one that is silent for longest is forgotten, and its evidence has to be gathered anew.
const MOST_PAIRS: usize = 4_096;
/// After this time an outcome counts half: the evidence is of the last minute.
const HALF_LIFE_MS: f64 = 30_000.0;
/// A pair of which nothing was heard for this time is forgotten.
const MEMORY_MS: u64 = 120_000;
/// Failures with so many different partners are no accident of one pair.
const SPREAD: usize = 2;
/// Failures of a pair, as they have decayed, from which on it is believed that there will be more.
const REPEATED: f64 = 1.5;
/// The first time for which a pair is avoided; it doubles with each failure after it.
const AVOIDED_MS: u64 = 10_000;
/// The longest such time: each costs a request one failed attempt.
const AVOIDED_MAX_MS: u64 = 300_000;
/// The time for which a pair is kept apart after a failure that tells nothing: what either does
/// with others tells more than the same pair again. Engines that the least load always brings
/// together would fail together for ever.
const APART_MS: u64 = 10_000;
/// A failure makes successes of the next minutes worth counting.
const ACTIVE_MS: u64 = MEMORY_MS;

/// An engine that made KV, and one that was to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    /// The engine that made it.
    pub producer: InstanceId,
    /// The engine that was to read it.
    pub consumer: InstanceId,
}

/// Engines that could take either part now, those that are known to be away left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partners {
    /// Engines that make KV.
    pub producers: usize,
    /// Engines that read it.
    pub consumers: usize,
}

/// The engine that a failure is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not known: the failure may be of either.
    Unknown,
    /// The producer: its KV fails on so many consumers, which read others' KV.
    Producer(usize),
    /// The consumer: it fails with the KV of so many producers, which others read.
    Consumer(usize),
    /// Neither: the two don't match. The pair is avoided for so long, in ms.
    Pair(u64),
}

/// Outcomes of pairs.
#[derive(Debug, Default)]
pub struct Evidence {
    pairs: HashMap<Pair, Record>,
}

/// Outcomes of one pair.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    failed: f64,
    served: f64,
    /// Up to when both have decayed; the last outcome.
    at_ms: u64,
    /// Since when it has only failed.
    failing_since_ms: Option<u64>,
    served_ms: Option<u64>,
    avoided_until_ms: u64,
    avoided_for_ms: u64,
    /// Until when it is kept apart to see what either does with others.
    apart_until_ms: u64,
}

impl Record {
    fn decay(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.at_ms) as f64;
        let left = (-passed_ms / HALF_LIFE_MS).exp2();
        self.failed *= left;
        self.served *= left;
        self.at_ms = now_ms.max(self.at_ms);
    }

    /// Since when it fails, if failures outweigh successes.
    fn fails_since(&self) -> Option<u64> {
        self.failing_since_ms.filter(|_| self.failed > self.served)
    }

    fn is_avoided(&self, now_ms: u64) -> bool {
        now_ms < self.avoided_until_ms.max(self.apart_until_ms)
    }

    fn serves(&self) -> bool {
        self.served > self.failed
    }
}

/// One of the two engines of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PairMember {
    Producer,
    Consumer,
}

impl PairMember {
    fn of(self, pair: &Pair) -> InstanceId {
        match self {
            PairMember::Producer => pair.producer,
            PairMember::Consumer => pair.consumer,
        }
    }

    fn other(self) -> PairMember {
        match self {
            PairMember::Producer => PairMember::Consumer,
            PairMember::Consumer => PairMember::Producer,
        }
    }
}

impl Evidence {
    /// Until when successes are worth counting after a failure at `now_ms`.
    pub fn active_until_ms(now_ms: u64) -> u64 {
        now_ms.saturating_add(ACTIVE_MS)
    }

    /// The consumer has read the producer's KV.
    pub fn served(&mut self, pair: Pair, now_ms: u64) {
        let record = self.record(pair, now_ms);
        record.served += 1.0;
        record.served_ms = Some(now_ms);
        record.failing_since_ms = None;
        (record.avoided_until_ms, record.avoided_for_ms, record.apart_until_ms) = (0, 0, 0);
    }

    /// The consumer has failed with the producer's KV at `now_ms`, in a leg that could have been
    /// served since `since_ms`: what others did meanwhile counts.
    pub fn failed(&mut self, pair: Pair, partners: Partners, since_ms: u64, now_ms: u64) -> Verdict {
        let record = self.record(pair, now_ms);
        record.failed += 1.0;
        let since_ms = since_ms.max(record.served_ms.unwrap_or(0));
        record.failing_since_ms.get_or_insert(since_ms);
        let of_producer = self.at_fault(PairMember::Producer, pair.producer, partners.consumers);
        let of_consumer = match partners.consumers {
            0 | 1 => self.fails_with_all(pair.consumer, partners.producers),
            _ => self.at_fault(PairMember::Consumer, pair.consumer, partners.producers),
        };
        match (of_producer, of_consumer) {
            (Some(on), with) if with.is_none_or(|with| on >= with) => Verdict::Producer(on),
            (_, Some(with)) => Verdict::Consumer(with),
            _ => match self.avoid(pair, now_ms) {
                Some(avoided_ms) => Verdict::Pair(avoided_ms),
                None => self.keep_apart(pair, now_ms),
            },
        }
    }

    /// True if another consumer has read the producer's KV since `since_ms`.
    pub fn is_read_elsewhere(&self, pair: Pair, since_ms: u64) -> bool {
        self.does_well(PairMember::Producer, pair.producer, pair.consumer, since_ms)
    }

    /// True if the consumer has read others' KV since the pair fails, and the producer has been of
    /// use to nobody: of a producer that does nothing at all, whose consumers are well.
    pub fn is_idle_producer(&self, pair: Pair) -> bool {
        let since_ms = self.pairs.get(&pair).and_then(Record::fails_since);
        since_ms.is_some_and(|since_ms| {
            self.does_well(PairMember::Consumer, pair.consumer, pair.producer, since_ms)
                && !self.does_well(PairMember::Producer, pair.producer, pair.consumer, since_ms)
        })
    }

    /// True if the pair fails while both do well with others, so that it is tried again only now
    /// and then; or if it has just failed, and it is not known whose fault that was.
    pub fn is_avoided(&self, pair: Pair, now_ms: u64) -> bool {
        self.pairs.get(&pair).is_some_and(|record| record.is_avoided(now_ms))
    }

    /// Pairs that are avoided.
    pub fn avoided(&self, now_ms: u64) -> impl Iterator<Item = Pair> + use<'_> {
        let avoided = move |(_, record): &(&Pair, &Record)| record.is_avoided(now_ms);
        self.pairs.iter().filter(avoided).map(|(pair, _)| *pair)
    }

    /// Forgets an engine: another process is in its place.
    pub fn forget(&mut self, id: InstanceId) {
        self.pairs.retain(|pair, _| pair.producer != id && pair.consumer != id);
    }

    fn record(&mut self, pair: Pair, now_ms: u64) -> &mut Record {
        if !self.pairs.contains_key(&pair) && self.pairs.len() >= MOST_PAIRS {
            self.pairs.retain(|_, record| now_ms.saturating_sub(record.at_ms) < MEMORY_MS);
            if self.pairs.len() >= MOST_PAIRS {
                let oldest = self.pairs.iter().min_by_key(|(_, record)| record.at_ms).map(|(pair, _)| *pair);
                oldest.map(|pair| self.pairs.remove(&pair));
            }
        }
        let record = self.pairs.entry(pair).or_default();
        record.decay(now_ms);
        record
    }

    /// With how many partners an engine fails, if it is at fault: they are several (or all that
    /// there are), each has done well with somebody else since, and it does well with fewer.
    fn at_fault(&self, side: PairMember, id: InstanceId, partners: usize) -> Option<usize> {
        let mine = || self.pairs.iter().filter(|(pair, _)| side.of(pair) == id);
        let fails = |(pair, record): (&Pair, &Record)| {
            let since_ms = record.fails_since()?;
            self.does_well(side.other(), side.other().of(pair), id, since_ms).then_some(record.failed)
        };
        let (mut failing, mut failures) = (0, 0.0);
        for failed in mine().filter_map(fails) {
            failing += 1;
            failures += failed;
        }
        let serving = mine().filter(|(_, record)| record.serves()).count();
        let enough = failing >= SPREAD.min(partners.max(1)) && failures >= REPEATED;
        (enough && failing > serving).then_some(failing)
    }

    /// With how many producers a consumer fails that is the only one, if it does well with none and
    /// they are several (or all that there are): nobody else could tell which of them are at fault,
    /// and one engine fails more easily than several at once. With the only producer the first
    /// failure is its own, as where no KV is read: no other pair will ever tell more.
    fn fails_with_all(&self, id: InstanceId, producers: usize) -> Option<usize> {
        let mine = || self.pairs.iter().filter(|(pair, _)| pair.consumer == id).map(|(_, record)| record);
        let failing = mine().filter(|record| record.fails_since().is_some()).count();
        let failures: f64 = mine().map(|record| record.failed).sum();
        let repeated = producers <= 1 || failures >= REPEATED;
        let enough = failing >= SPREAD.min(producers.max(1)) && repeated;
        (enough && !mine().any(Record::serves)).then_some(failing)
    }

    /// True if an engine has done well since `since_ms` with another partner than `except`.
    fn does_well(&self, side: PairMember, id: InstanceId, except: InstanceId, since_ms: u64) -> bool {
        self.pairs.iter().any(|(pair, record)| {
            side.of(pair) == id
                && side.other().of(pair) != except
                && record.served_ms.is_some_and(|served_ms| served_ms >= since_ms)
        })
    }

    /// Keeps the two apart for a while, so that each shows what it does with others.
    fn keep_apart(&mut self, pair: Pair, now_ms: u64) -> Verdict {
        self.record(pair, now_ms).apart_until_ms = now_ms.saturating_add(APART_MS);
        Verdict::Unknown
    }

    /// Avoids a pair if it keeps failing while both do well with others; says for how long.
    fn avoid(&mut self, pair: Pair, now_ms: u64) -> Option<u64> {
        let record = self.pairs.get(&pair)?;
        let since_ms = record.fails_since().filter(|_| record.failed >= REPEATED)?;
        let both = self.does_well(PairMember::Producer, pair.producer, pair.consumer, since_ms)
            && self.does_well(PairMember::Consumer, pair.consumer, pair.producer, since_ms);
        let record = self.pairs.get_mut(&pair).filter(|_| both)?;
        if now_ms >= record.avoided_until_ms {
            record.avoided_for_ms = (record.avoided_for_ms * 2).clamp(AVOIDED_MS, AVOIDED_MAX_MS);
            record.avoided_until_ms = now_ms.saturating_add(record.avoided_for_ms);
        }
        Some(record.avoided_for_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: Partners = Partners { producers: 4, consumers: 4 };

    fn pair(producer: u64, consumer: u64) -> Pair {
        Pair { producer: InstanceId(producer), consumer: InstanceId(100 + consumer) }
    }

    /// Requests over all pairs in turn, for so many ms; each fails if `fails` says so. The
    /// verdicts, in order.
    fn play(evidence: &mut Evidence, ms: u64, fails: impl Fn(u64, u64) -> bool) -> Vec<(Pair, Verdict)> {
        let mut verdicts = Vec::new();
        for now_ms in (0..ms).step_by(10) {
            let turn = now_ms / 10;
            let (producer, consumer) = (turn % 4, (turn / 4 + turn) % 4);
            let pair = pair(producer, consumer);
            if fails(producer, consumer) {
                verdicts.push((pair, evidence.failed(pair, FOUR, now_ms, now_ms)));
            } else {
                evidence.served(pair, now_ms);
            }
        }
        verdicts
    }

    #[test]
    fn producers_whose_kv_fails_everywhere_are_found_however_many_they_are() {
        for bad in 1..4 {
            let verdicts = play(&mut Evidence::default(), 3_000, |producer, _| producer < bad);
            let blamed = verdicts.iter().filter(|(_, verdict)| *verdict != Verdict::Unknown);
            assert!(blamed.clone().count() > 20, "{bad}: {verdicts:?}");
            for (pair, verdict) in blamed {
                assert!(matches!(verdict, Verdict::Producer(_)), "{bad}: {pair:?} {verdict:?}");
            }
            assert!(matches!(verdicts.last().unwrap().1, Verdict::Producer(4)));
        }
    }

    #[test]
    fn consumers_that_fail_with_everybody_are_found_however_many_they_are() {
        for bad in 1..4 {
            let verdicts = play(&mut Evidence::default(), 3_000, |_, consumer| consumer < bad);
            assert!(verdicts.iter().all(|(_, it)| matches!(it, Verdict::Unknown | Verdict::Consumer(_))));
            assert!(matches!(verdicts.last().unwrap().1, Verdict::Consumer(4)));
        }
    }

    #[test]
    fn a_pair_that_fails_alone_is_avoided_as_a_pair_and_tried_again_later() {
        let mut evidence = Evidence::default();
        let verdicts = play(&mut evidence, 3_000, |producer, consumer| (producer, consumer) == (1, 1));
        assert!(verdicts.iter().all(|(_, it)| matches!(it, Verdict::Unknown | Verdict::Pair(_))));
        assert!(evidence.is_avoided(pair(1, 1), 3_000) && !evidence.is_avoided(pair(1, 2), 3_000));
        assert_eq!(evidence.avoided(3_000).collect::<Vec<_>>(), [pair(1, 1)]);
        assert!(!evidence.is_avoided(pair(1, 1), 3_000 + AVOIDED_MAX_MS));
        evidence.served(pair(1, 1), 3_001);
        assert!(!evidence.is_avoided(pair(1, 1), 3_001), "it works again");
    }

    #[test]
    fn a_pair_that_fails_is_kept_apart_until_it_is_known_whose_fault_it_is() {
        let mut evidence = Evidence::default();
        assert_eq!(evidence.failed(pair(0, 0), FOUR, 0, 0), Verdict::Unknown);
        assert_eq!(evidence.avoided(APART_MS - 1).collect::<Vec<_>>(), [pair(0, 0)]);
        assert_eq!(evidence.avoided(APART_MS).count(), 0);
        evidence.served(pair(0, 0), 1);
        assert!(!evidence.is_avoided(pair(0, 0), 1), "it works");
    }

    #[test]
    fn two_halves_of_a_fleet_that_do_not_match_are_nobodys_fault() {
        let mut evidence = Evidence::default();
        let verdicts = play(&mut evidence, 6_000, |producer, consumer| (producer < 2) != (consumer < 2));
        assert!(
            verdicts.iter().all(|(_, it)| matches!(it, Verdict::Unknown | Verdict::Pair(_))),
            "{verdicts:?}"
        );
        assert_eq!(evidence.avoided(6_000).count(), 8);
    }

    #[test]
    fn successes_of_others_during_a_leg_count() {
        let mut evidence = Evidence::default();
        for producer in 0..2 {
            evidence.served(pair(producer, 1), 500);
        }
        assert_eq!(evidence.failed(pair(0, 0), FOUR, 100, 1_000), Verdict::Unknown);
        assert_eq!(evidence.failed(pair(1, 0), FOUR, 100, 1_000), Verdict::Consumer(2));
        let mut evidence = Evidence::default();
        for producer in 0..2 {
            evidence.served(pair(producer, 1), 500);
            let verdict = evidence.failed(pair(producer, 0), FOUR, 1_000, 1_000);
            assert_eq!(verdict, Verdict::Unknown, "of this moment nothing is known");
        }
    }

    #[test]
    fn a_producer_is_idle_that_serves_nobody_while_its_consumer_reads_others_kv() {
        let mut evidence = Evidence::default();
        assert_eq!(evidence.failed(pair(0, 0), FOUR, 100, 1_000), Verdict::Unknown);
        assert!(!evidence.is_idle_producer(pair(0, 0)), "either may be at fault");
        evidence.served(pair(1, 0), 1_500);
        assert!(evidence.is_idle_producer(pair(0, 0)));
        evidence.served(pair(0, 1), 2_000);
        assert!(!evidence.is_idle_producer(pair(0, 0)), "it does well with another one");
    }

    #[test]
    fn one_failure_or_a_failing_fleet_blames_no_engine() {
        let mut evidence = Evidence::default();
        play(&mut evidence, 1_000, |_, _| false);
        for partner in 0..4 {
            let verdict = evidence.failed(pair(partner, partner), FOUR, 1_000, 1_000);
            assert_eq!(verdict, Verdict::Unknown, "a request that fails wherever it goes");
        }
        let verdicts = play(&mut Evidence::default(), 3_000, |_, _| true);
        assert!(verdicts.iter().all(|(_, it)| *it == Verdict::Unknown));
    }

    #[test]
    fn a_lone_partner_is_enough_where_there_is_no_other() {
        let mut evidence = Evidence::default();
        let one = Partners { producers: 2, consumers: 1 };
        assert_eq!(evidence.failed(pair(0, 0), one, 0, 0), Verdict::Unknown);
        evidence.served(pair(1, 0), 1);
        assert_eq!(evidence.failed(pair(0, 0), one, 2, 2), Verdict::Producer(1));
    }

    #[test]
    fn the_only_consumer_is_at_fault_where_it_fails_with_several_producers_or_with_the_only_one() {
        let lone = |producers| Partners { producers, consumers: 1 };
        let mut evidence = Evidence::default();
        assert_eq!(evidence.failed(pair(0, 0), lone(2), 0, 0), Verdict::Unknown);
        assert_eq!(evidence.failed(pair(0, 0), lone(2), 1, 1), Verdict::Unknown);
        assert_eq!(evidence.failed(pair(1, 0), lone(2), 2, 2), Verdict::Consumer(2));
        let mut evidence = Evidence::default();
        assert_eq!(evidence.failed(pair(0, 0), lone(1), 0, 0), Verdict::Consumer(1));
    }

    #[test]
    fn remembered_evidence_is_bounded_and_decays() {
        let mut evidence = Evidence::default();
        for n in 0..2 * MOST_PAIRS as u64 {
            evidence.served(pair(n, n), n);
        }
        assert_eq!(evidence.pairs.len(), MOST_PAIRS);
        evidence.failed(pair(1, 1), FOUR, 10_000, 10_000);
        evidence.served(pair(1, 2), 10_000 + 10 * MEMORY_MS);
        let record = evidence.record(pair(1, 1), 10_000 + 10 * MEMORY_MS);
        assert!(record.failed < 0.001, "{record:?}");
        evidence.forget(InstanceId(1));
        assert!(!evidence.pairs.keys().any(|pair| pair.producer == InstanceId(1)));
    }
}
