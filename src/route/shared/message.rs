//! Messages between gateways that share a fleet, as values. How they look as bytes is not this
//! module's affair.
//!
//! A request has a number at its own gateway, the replica; both together name it everywhere.
//! Prefillers are named by what stays the same in all gateways ([`crate::route::LaneSpec`]).

use crate::route::job::Seconds;
use crate::route::scheduler::Done;

/// Number of a gateway among those that share a fleet, drawn when it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u64);

/// Name of a request in all gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// Gateway that has the request.
    pub replica: ReplicaId,
    /// Its number there.
    pub number: u64,
}

/// One message to other gateways.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A request wants the leader to place it. For the leader alone.
    Ask(Ask),
    /// The leader has requests in its line. For their gateway alone.
    Queued(Vec<RequestId>),
    /// The leader places a request of another gateway. For that one alone.
    Place(Place),
    /// A request of the sender has a prefiller.
    Commit(Commitment),
    /// A prefill of the sender ended.
    Ended {
        /// Number of the request.
        number: u64,
        /// End of the prefill.
        end: Done,
    },
    /// A request of the sender does not wait any more.
    Left {
        /// Number of the request.
        number: u64,
    },
    /// The sender is there.
    Beat(Beat),
    /// The sender has just come, or missed something: others tell it what they have under way.
    Hello,
    /// All that was said of the sender's requests is void: what it has under way follows.
    Anew,
}

/// A message, and its place among those of its sender for the same, by which they see that they
/// missed one.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbered {
    /// One more than that of the message before it.
    pub number: u64,
    /// The gateway that hears it; none = all do.
    pub to: Option<ReplicaId>,
    /// Content of the message.
    pub message: Message,
}

/// A request that wants a prefiller.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Number of the request.
    pub number: u64,
    /// Time for which it has waited.
    pub waited_s: Seconds,
    /// Prefillers on which it failed.
    pub tried: Vec<u64>,
    /// Facts of its prompt.
    pub prompt: PromptFacts,
}

/// A place that the leader gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Name of the request.
    pub request: RequestId,
    /// Terms of its prefiller.
    pub terms: PlaceTerms,
    /// Number of others that waited.
    pub waiting: u32,
}

/// A request of the sender that has a prefiller.
#[derive(Clone, Debug, PartialEq)]
pub struct Commitment {
    /// Number of the request.
    pub number: u64,
    /// Facts of its prompt.
    pub prompt: PromptFacts,
    /// Terms of its prefiller.
    pub terms: PlaceTerms,
}

/// Facts of a prompt, without its text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptFacts {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens that the answer is expected to have.
    pub output_tokens: u32,
    /// Tokens of an engine's block, 0 if unknown.
    pub block_tokens: u32,
    /// The tokens were counted, not estimated.
    pub exact: bool,
    /// The blocks have the engines' own names.
    pub named: bool,
    /// The pool has answered.
    pub pool_asked: bool,
    /// Leading tokens that the pool has for every prefiller.
    pub pool_tokens: u32,
    /// Leading tokens that the pool has on a prefiller's own host.
    pub near: Vec<HeldTokens>,
    /// Leading tokens that prefillers told that they hold.
    pub told: Vec<HeldTokens>,
    /// Hashes of the beginning of the prompt (`chain.rs`).
    pub chain: Vec<u64>,
    /// Tokens of each of them.
    pub chain_tokens: u32,
    /// Time from its arrival within which its first token is due.
    pub ttft_slo_s: Option<Seconds>,
}

/// Leading tokens of a prompt at one prefiller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldTokens {
    /// Name of the prefiller.
    pub lane: u64,
    /// Leading tokens there.
    pub tokens: u32,
}

/// Terms of a prefiller for one request, as the gateway that decided saw them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PlaceTerms {
    /// Name of the prefiller.
    pub lane: u64,
    /// Tokens in its accelerator's memory.
    pub hbm_tokens: u32,
    /// Tokens there or on its host.
    pub near_tokens: u32,
    /// Tokens there or in the pool.
    pub any_tokens: u32,
    /// Seconds until it can begin.
    pub wait_s: Seconds,
    /// Seconds of computing.
    pub prefill_s: Seconds,
    /// Seconds of fetching from the pool.
    pub restore_s: Seconds,
}

/// A sign of life.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Beat {
    /// Time at the sender, by which it knows its own beat when it hears it.
    pub sent_s: Seconds,
    /// The sender places the requests of all.
    pub leads: bool,
    /// Requests that wait at the sender.
    pub waiting: u32,
    /// Predicted seconds of their work, for each prefiller.
    pub line_s: Seconds,
    /// Load that the sender has on decoders; those without any are left out.
    pub decoders: Vec<DecoderLoad>,
}

/// Load of one gateway, or of several, on one decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderLoad {
    /// Name of the decoder, as those of prefillers.
    pub decoder: u64,
    /// Answers under way.
    pub requests: u32,
    /// Tokens of their context.
    pub tokens: u64,
}
