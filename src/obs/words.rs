//! Words of the log and of labels, with their meanings, for the reference: fields of lines, and
//! reasons.

/// A word with its meaning.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// Name of a field, or value of a reason.
    pub name: &'static str,
    /// Meaning in a phrase, with its unit.
    pub meaning: &'static str,
}

const fn word(name: &'static str, meaning: &'static str) -> Word {
    Word { name, meaning }
}

/// Fields of the line `request`, in its order. Those that say nothing are left out of a line.
pub const REQUEST_FIELDS: [Word; 25] = [
    word("id", "id of the request, which the client has as `x-request-id`"),
    word("route", "API of the request, `passthrough` where one engine answers alone"),
    word("fleet", "fleet that served it, where there are several"),
    word("fallback_from", "fleet that could not serve it, of a request that another one took over"),
    word("fallback_reason", "reason for that: `no_engine`, `overloaded`, `failed`, `timeout`"),
    word("key_name", "name of the client's key"),
    word("status", "status of the answer; 499 if the client left before it began"),
    word("reason", "how it ended: [the reasons](#how-a-request-ended)"),
    word("prompts", "number of prompts in the body, where it was split"),
    word("prefiller", "prefiller that computed the prompt"),
    word("decoder", "decoder that answered"),
    word("prompt_tokens", "tokens of the prompt, as the engine counts"),
    word("exact_tokens", "leading tokens of the prompt that were known before it was routed"),
    word("cached_tokens", "of these tokens, what the prefiller found in caches"),
    word("predicted_cached_tokens", "the same, as predicted"),
    word("bypass", "reason why a decoder answered alone"),
    word("pooled_tokens", "leading tokens that the pool had"),
    word("pooled_by", "source that found them there: the pool, or its events"),
    word("held_tokens", "leading tokens that the best prefiller held by its KV events"),
    word("output_tokens", "tokens of the answer"),
    word("resumed", "times that its stream was continued elsewhere"),
    word("waited_ms", "wait for a prefiller, ms"),
    word("ttft_ms", "time from the request's head to the first byte of the answer, ms"),
    word("total_ms", "time to the end of the answer, ms"),
    word("trace_id", "id of its trace, where it is traced"),
];

/// Fields that many lines have.
pub const SHARED_FIELDS: [Word; 8] = [
    word("engine", "address of an engine"),
    word("role", "`prefill`, `decode` or `encode`"),
    word("fleet", "name of a fleet, where there are several"),
    word("id", "id of a request"),
    word("error", "cause, as the system or the library says it"),
    word("state", "[state](../operating.md#states) of an engine or a role"),
    word("source", "the part that was asked: a discovery, the pool, events"),
    word("reason", "code of an [error](errors.md), or a reason of its own"),
];

/// Reasons with which requests end, beside the codes of errors.
pub const END_REASONS: [Word; 4] = [
    word("ok", "the answer is complete"),
    word("engine", "an engine refused the request, or said in its stream that the request was wrong"),
    word("client_gone", "the client left before the end"),
    word("shutdown", "the gateway ended before it: `server.drain_ms` was over"),
];

/// Reasons why requests are refused for want of room.
pub const TURNED_AWAY: [Word; 13] = [
    word("queue_full", "the queue is full: `limit.queue`"),
    word("queue_share", "the key's share of the queue is full"),
    word("queue_wait", "the wait in the queue was longer than `limit.queue_ms`"),
    word("key_inflight", "the key has as many requests under way as it may"),
    word("key_tokens", "the key's tokens per minute are used up"),
    word("slo", "the first token would come too late: `route.ttft_slo_ms`"),
    word("fleet_inflight", "the fleet has its share of all requests under way"),
    word("prefill_inflight", "the prefillers have as many requests as `limit.prefill_inflight` allows"),
    word("decode_inflight", "the decoders have as many requests as `limit.decode_inflight` allows"),
    word("prefill_busy", "every prefiller stayed busy for `limit.queue_ms`"),
    word("decode_busy", "every decoder stayed busy for `limit.queue_ms`"),
    word("body_memory", "all bodies have the memory of `limit.bodies_bytes`"),
    word("body_unread", "too many bodies are on their way"),
];

/// Reasons why a key is refused.
pub const KEY_REFUSED: [Word; 3] = [
    word("missing", "the request has none"),
    word("unknown", "nobody has this key"),
    word("grant", "the key may not do this"),
];

/// Reasons why legs fail, and are tried again.
pub const LEG_FAILURES: [Word; 13] = [
    word("connect", "no connection was made"),
    word("broken", "the connection or the stream broke"),
    word("timeout", "the leg took longer than its time"),
    word("no_progress", "no byte came while other engines answered, or probes went unanswered"),
    word("busy", "the engine answered 429 or 503"),
    word("refused", "the engine refused what another one served"),
    word("status", "the engine answered with another 5xx"),
    word("bad_reply", "the answer could not be used"),
    word("handoff", "its hand-offs fail with several partners, which do well with others"),
    word("stale", "the hand-off was older than the prefiller's lease"),
    word("other_release", "the engine was of another release than its partner, and was sent nothing"),
    word("given_up", "the decoder ended what was not complete: `recomputed`, `abort`"),
    word("too_large", "the answer was larger than a limit of the gateway; it is not tried again"),
];

/// Reasons why a decoder answers a request alone.
pub const BYPASSED: [Word; 16] = [
    word("several_prompts", "the body has several prompts that can't be split"),
    word("beam", "beam search runs inside one engine"),
    word("embeddings", "the prompt is given as embeddings"),
    word("prompt_scores", "the prompt's own tokens are to be scored"),
    word("stored_response", "it goes on from a response that one decoder keeps"),
    word("engine_tools", "the engine calls tools by itself"),
    word("truncation", "the engine is to cut the prompt to what fits"),
    word("several_choices", "it asks for several answers, and a hand-off is for one"),
    word("unknown_names", "engines could not find each other by the request's name"),
    word("forced_call", "prefillers fail with answers that must call a tool"),
    word("short", "little is to be computed: `route.bypass_tokens`"),
    word("no_prefiller", "no prefiller serves: `route.bypass_without_prefiller`"),
    word("saturated", "the wait for prefillers is longer than `route.bypass_wait_ms`"),
    word("other_release", "no prefiller and decoder of one release serve, and their connector compares"),
    word("remembered", "the decoder has the beginning of the prompt: `route.append_gap_ms`"),
    word("both_roles", "the best prefiller is a decoder too, and takes the request whole"),
];
