//! The policies that compare instances by load, or by an approximate idea of what they hold: those
//! of other gateways, for people who come from them and want the same.
//!
//! Pure functions over a snapshot: the caller passes the candidates, a turn counter and a random
//! number.

/// Policies by which an instance is chosen for a leg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The least predicted seconds: to the first token for prefillers, per token of everybody for
    /// decoders.
    #[default]
    Predicted,
    /// The least work, in tokens; ties rotate.
    LeastWork,
    /// The fewest requests; ties rotate.
    LeastRequests,
    /// One after the other.
    RoundRobin,
    /// Any, with equal chances.
    Random,
    /// Two at random, the less loaded of them.
    PowerOfTwo,
    /// The score of vllm-ascend's `load_balance_proxy_server_example.py`.
    Reference,
    /// The longest prefix sent there before, unless loads differ much (sglang, vllm-router).
    CacheAware,
    /// The same place for the same session, unless it is much above the mean.
    Session,
}

/// A rule of a caller's own in place of a policy: the position of the chosen candidate.
pub type Rule = fn(&[Candidate], RequestFacts, TieBreak) -> Option<usize>;

/// The load of one instance that may be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Tokens that the gateway committed to it and has not seen finished.
    pub work_tokens: u64,
    /// Tokens of KV that it holds for a decoder which has not begun to answer.
    pub held_tokens: u64,
    /// Requests on it.
    pub requests: u32,
    /// Leading tokens of the request that it is believed to hold.
    pub hit_tokens: u32,
    /// Tokens that it is believed to have in its prefix cache, in all.
    pub resident_tokens: u64,
    /// Something that stays its own when others come and go.
    pub identity: u64,
    /// Standing of the instance.
    pub standing: Standing,
}

/// Standing of an instance: the best standing there is counts, loads decide among its holders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Nothing speaks against it.
    #[default]
    Good,
    /// It came back a while ago and takes less than its share: none of this request.
    Warming,
    /// It has as many requests as it takes, by what it refused a moment ago.
    Full,
    /// It failed a moment ago.
    Resting,
    /// This very request failed on it.
    Tried,
}

/// Facts of the request that policies use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFacts {
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// The same for requests that belong together.
    pub session: Option<u64>,
}

/// A turn and a random number, by which two decisions over the same loads differ.
#[derive(Clone, Copy, Debug, Default)]
pub struct TieBreak {
    /// Counts the decisions of this role: rotates ties and drives round robin.
    pub turn: u64,
    /// A random number.
    pub random: u64,
}

/// Held KV weighs this much of the same number of tokens still to be computed. It is the figure of
/// vllm-ascend's `load_balance_proxy_server_example.py`, which adds 0.3 of the KV score to the
/// active tokens.
const HELD_WEIGHT: f64 = 0.3;
/// That proxy's score of a request: so much per token, and so much whatever its length.
const REFERENCE_PER_TOKEN: f64 = 0.0345;
const REFERENCE_PER_REQUEST: f64 = 120.0745;
/// sglang's defaults: loads are out of balance when they differ by so many requests and by this
/// factor.
const BALANCE_REQUESTS: u32 = 64;
const BALANCE_FACTOR: f64 = 1.5;
/// sglang's default: a prefix counts if it is more than this share of the prompt.
const MATCH_SHARE: f64 = 0.3;
/// A session's place may have this much of the mean load (Mirrokni, Thorup, Zadimoghaddam: 1 + ε).
const SESSION_BOUND: f64 = 1.25;

impl Candidate {
    fn work(&self) -> f64 {
        self.work_tokens as f64 + HELD_WEIGHT * self.held_tokens as f64
    }

    fn reference(&self) -> f64 {
        REFERENCE_PER_TOKEN * self.work() + REFERENCE_PER_REQUEST * f64::from(self.requests)
    }
}

/// The position of the chosen candidate, `None` when there is none.
///
/// Those of a worse standing are chosen only when there are no others: a leg that has nowhere else
/// to go is better tried than refused. [`Policy::Predicted`] needs more than loads; here it is
/// [`Policy::LeastWork`].
pub fn choose(
    policy: Policy,
    candidates: &[Candidate],
    asked: RequestFacts,
    tie_break: TieBreak,
) -> Option<usize> {
    let best = candidates.iter().map(|c| c.standing).min()?;
    let usable = Usable { candidates, best };
    match policy {
        Policy::RoundRobin => usable.nth(tie_break.turn),
        Policy::Random => usable.nth(tie_break.random),
        Policy::PowerOfTwo => usable.two(tie_break.random),
        Policy::Predicted | Policy::LeastWork => usable.least(Candidate::work, tie_break.turn),
        Policy::LeastRequests => usable.least(|c| f64::from(c.requests), tie_break.turn),
        // The example proxy of vllm-ascend picks from a heap, so that ties go to the first.
        Policy::Reference => usable.least(Candidate::reference, 0),
        Policy::CacheAware => usable.cache_aware(asked, tie_break.turn),
        Policy::Session => usable.session(asked, tie_break),
    }
}

/// Those of the best standing.
#[derive(Clone, Copy)]
struct Usable<'a> {
    candidates: &'a [Candidate],
    best: Standing,
}

impl<'a> Usable<'a> {
    fn all(self) -> impl Iterator<Item = (usize, &'a Candidate)> {
        self.candidates.iter().enumerate().filter(move |(_, c)| c.standing == self.best)
    }

    fn count(self) -> u64 {
        self.all().count().max(1) as u64
    }

    fn nth(self, n: u64) -> Option<usize> {
        let at = usize::try_from(n % self.count()).unwrap_or(0);
        self.all().nth(at).map(|(at, _)| at)
    }

    /// Of the least cost; among equals the one whose turn it is.
    fn least(self, cost: impl Fn(&Candidate) -> f64, turn: u64) -> Option<usize> {
        let least = self.all().map(|(_, c)| cost(c)).fold(f64::INFINITY, f64::min);
        let tied = || self.all().filter(|(_, c)| cost(c) <= least);
        let at = turn % tied().count().max(1) as u64;
        tied().nth(usize::try_from(at).unwrap_or(0)).map(|(at, _)| at)
    }

    fn two(self, random: u64) -> Option<usize> {
        let count = self.count();
        let first = self.nth(random)?;
        // The second is drawn among the others, so that two instances are always compared.
        let step = if count > 1 { 1 + (random >> 32) % (count - 1) } else { 0 };
        let second = self.nth(random % count + step)?;
        let work = |at: usize| self.candidates.get(at).map_or(f64::INFINITY, Candidate::work);
        Some(if work(second) < work(first) { second } else { first })
    }

    fn cache_aware(self, asked: RequestFacts, turn: u64) -> Option<usize> {
        let requests = || self.all().map(|(_, c)| c.requests);
        let (most, least) = (requests().max()?, requests().min()?);
        if most - least > BALANCE_REQUESTS && f64::from(most) > BALANCE_FACTOR * f64::from(least) {
            return self.least(|c| f64::from(c.requests), turn);
        }
        let longest = self.all().map(|(_, c)| c.hit_tokens).max()?;
        if f64::from(longest) > MATCH_SHARE * f64::from(asked.prompt_tokens) {
            let far =
                |c: &Candidate| if c.hit_tokens == longest { f64::from(c.requests) } else { f64::INFINITY };
            return self.least(far, turn);
        }
        self.least(|c| c.resident_tokens as f64, turn)
    }

    /// The places of a session in an order of its own (rendezvous hashing); the first that is not
    /// overloaded.
    fn session(self, asked: RequestFacts, tie_break: TieBreak) -> Option<usize> {
        let Some(session) = asked.session else {
            return self.least(|c| f64::from(c.requests), tie_break.turn);
        };
        let total: f64 = self.all().map(|(_, c)| f64::from(c.requests)).sum();
        let bound = (SESSION_BOUND * (total + 1.0) / self.count() as f64).ceil();
        let room = |c: &Candidate| f64::from(c.requests) < bound;
        let rank = |(_, c): &(usize, &Candidate)| mix(c.identity ^ mix(session));
        self.all().filter(|(_, c)| room(c)).max_by_key(rank).map(|(at, _)| at)
    }
}

/// A number that depends on every bit of another (the finisher of SplitMix64).
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests;
