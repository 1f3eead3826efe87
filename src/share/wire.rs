//! Messages between gateways as bytes: protobuf, whose readers pass over fields that they don't
//! know, so that gateways of two versions share a fleet during an upgrade. Tags are never used
//! again for something else.

use prost::{Message, Oneof};

/// One publication: some messages of one gateway to the same, in their order.
#[derive(Clone, PartialEq, Message)]
pub struct Envelope {
    /// Number of the sender.
    #[prost(fixed64, tag = "1")]
    pub from: u64,
    /// Messages of the gateway.
    #[prost(message, repeated, tag = "2")]
    pub items: Vec<Item>,
    /// Number of the gateway that hears it; none where all do.
    #[prost(fixed64, optional, tag = "3")]
    pub to: Option<u64>,
}

/// One message of several.
#[derive(Clone, PartialEq, Message)]
pub struct Item {
    /// Place among all messages of the sender to the same.
    #[prost(uint64, tag = "100")]
    pub number: u64,
    /// Content of the message; none of a kind that the reader does not know.
    #[prost(oneof = "Content", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9")]
    pub content: Option<Content>,
}

/// Content of a message.
#[derive(Clone, PartialEq, Oneof)]
pub enum Content {
    /// A request wants the leader to place it.
    #[prost(message, tag = "1")]
    Ask(Ask),
    /// The leader has requests in its line.
    #[prost(message, tag = "2")]
    Queued(Requests),
    /// The leader places a request.
    #[prost(message, tag = "3")]
    Place(Place),
    /// A request of the sender has a prefiller.
    #[prost(message, tag = "4")]
    Commit(Commit),
    /// A prefill ended.
    #[prost(message, tag = "5")]
    Ended(Ended),
    /// The number of a request that does not wait any more.
    #[prost(uint64, tag = "6")]
    Left(u64),
    /// A sign of life.
    #[prost(message, tag = "7")]
    Beat(Beat),
    /// The sender has just come. The number says nothing.
    #[prost(uint32, tag = "8")]
    Hello(u32),
    /// All that was said of the sender's requests is void. The number says nothing.
    #[prost(uint32, tag = "9")]
    Anew(u32),
}

/// A request that wants a prefiller.
#[derive(Clone, PartialEq, Message)]
pub struct Ask {
    /// Number of the request at the sender.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Time for which it has waited, ms.
    #[prost(uint32, tag = "2")]
    pub waited_ms: u32,
    /// Names of prefillers on which it failed.
    #[prost(fixed64, repeated, tag = "3")]
    pub tried: Vec<u64>,
    /// Facts of its prompt.
    #[prost(message, optional, tag = "4")]
    pub prompt: Option<Prompt>,
}

/// Names of requests.
#[derive(Clone, PartialEq, Message)]
pub struct Requests {
    /// Names of the requests.
    #[prost(message, repeated, tag = "1")]
    pub requests: Vec<Request>,
}

/// Name of a request.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Request {
    /// Number of its gateway.
    #[prost(fixed64, tag = "1")]
    pub replica: u64,
    /// Its number there.
    #[prost(uint64, tag = "2")]
    pub number: u64,
}

/// A place that the leader gives.
#[derive(Clone, PartialEq, Message)]
pub struct Place {
    /// Name of the request.
    #[prost(message, optional, tag = "1")]
    pub request: Option<Request>,
    /// Terms of its prefiller.
    #[prost(message, optional, tag = "2")]
    pub terms: Option<Terms>,
    /// Number of others that waited.
    #[prost(uint32, tag = "3")]
    pub waiting: u32,
}

/// A request of the sender that has a prefiller.
#[derive(Clone, PartialEq, Message)]
pub struct Commit {
    /// Number of the request at the sender.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Facts of its prompt.
    #[prost(message, optional, tag = "2")]
    pub prompt: Option<Prompt>,
    /// Terms of its prefiller.
    #[prost(message, optional, tag = "3")]
    pub terms: Option<Terms>,
}

/// The end of a prefill.
#[derive(Clone, PartialEq, Message)]
pub struct Ended {
    /// Number of the request at the sender.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// 0: it failed. 1: it is computed. 2: it is computed, nobody knows since when.
    #[prost(uint32, tag = "2")]
    pub end: u32,
    /// Tokens of the prompt, as its engine counted.
    #[prost(uint64, optional, tag = "3")]
    pub prompt_tokens: Option<u64>,
    /// Tokens that it found in a cache.
    #[prost(uint64, optional, tag = "4")]
    pub cached_tokens: Option<u64>,
    /// Tokens in the measure of estimates.
    #[prost(uint32, optional, tag = "5")]
    pub estimate_tokens: Option<u32>,
}

/// A sign of life.
#[derive(Clone, PartialEq, Message)]
pub struct Beat {
    /// Time at the sender, seconds since its start.
    #[prost(double, tag = "1")]
    pub sent_s: f64,
    /// The sender leads.
    #[prost(bool, tag = "2")]
    pub leads: bool,
    /// Requests that wait at the sender.
    #[prost(uint32, tag = "3")]
    pub waiting: u32,
    /// Seconds of their work for each prefiller.
    #[prost(float, tag = "4")]
    pub line_s: f32,
    /// Load of the sender on decoders.
    #[prost(message, repeated, tag = "5")]
    pub decoders: Vec<DecoderLoad>,
}

/// Load on one decoder.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct DecoderLoad {
    /// Name of the decoder.
    #[prost(fixed64, tag = "1")]
    pub decoder: u64,
    /// Answers under way.
    #[prost(uint32, tag = "2")]
    pub requests: u32,
    /// Tokens of their context.
    #[prost(uint64, tag = "3")]
    pub tokens: u64,
}

/// Value of a stored response's key.
#[derive(Clone, PartialEq, Message)]
pub struct StoredResponse {
    /// Name of the decoder that has it.
    #[prost(fixed64, tag = "1")]
    pub decoder: u64,
    /// Hash of the name of the client's key, 32 bytes; none where no key was asked for.
    #[prost(bytes = "vec", tag = "2")]
    pub owner: Vec<u8>,
    /// The client's name of its model, where engines have another.
    #[prost(string, tag = "3")]
    pub alias: String,
    /// The engines' name of it.
    #[prost(string, tag = "4")]
    pub model: String,
}

/// Facts of a prompt.
#[derive(Clone, PartialEq, Message)]
pub struct Prompt {
    /// Tokens of the prompt.
    #[prost(uint32, tag = "1")]
    pub prompt_tokens: u32,
    /// Tokens that the answer is expected to have.
    #[prost(uint32, tag = "2")]
    pub output_tokens: u32,
    /// Tokens of an engine's block.
    #[prost(uint32, tag = "3")]
    pub block_tokens: u32,
    /// 1: tokens were counted. 2: blocks have the engines' names. 4: the pool has answered.
    #[prost(uint32, tag = "4")]
    pub flags: u32,
    /// Leading tokens that the pool has for every prefiller.
    #[prost(uint32, tag = "5")]
    pub pool_tokens: u32,
    /// Leading tokens that it has on prefillers' hosts.
    #[prost(message, repeated, tag = "6")]
    pub near: Vec<Held>,
    /// Leading tokens that prefillers told of.
    #[prost(message, repeated, tag = "7")]
    pub told: Vec<Held>,
    /// Hashes of its beginning, five bytes each, little-endian.
    #[prost(bytes = "vec", tag = "8")]
    pub chain: Vec<u8>,
    /// Tokens of each.
    #[prost(uint32, tag = "9")]
    pub chain_tokens: u32,
    /// Milliseconds from its arrival within which its first token is due; 0 = none is.
    #[prost(uint32, tag = "10")]
    pub ttft_slo_ms: u32,
}

/// Leading tokens of a prompt at one prefiller.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Held {
    /// Name of the prefiller.
    #[prost(fixed64, tag = "1")]
    pub lane: u64,
    /// Leading tokens there.
    #[prost(uint32, tag = "2")]
    pub tokens: u32,
}

/// Terms of a prefiller for a request.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Terms {
    /// Name of the prefiller.
    #[prost(fixed64, tag = "1")]
    pub lane: u64,
    /// Tokens in its memory.
    #[prost(uint32, tag = "2")]
    pub hbm_tokens: u32,
    /// Tokens there or on its host.
    #[prost(uint32, tag = "3")]
    pub near_tokens: u32,
    /// Tokens there or in the pool.
    #[prost(uint32, tag = "4")]
    pub any_tokens: u32,
    /// Seconds until it can begin.
    #[prost(float, tag = "5")]
    pub wait_s: f32,
    /// Seconds of computing.
    #[prost(float, tag = "6")]
    pub prefill_s: f32,
    /// Seconds of fetching.
    #[prost(float, tag = "7")]
    pub restore_s: f32,
}
