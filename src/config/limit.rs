//! `[limit]`: how large anything may grow.

use super::bounds::{bytes, count, kept_tokens, ms, percent, prompts, within};
use super::table::section;

/// The HTTP server cannot read a head into less, bytes.
const MIN_HEADER_BYTES: u64 = 8_192;
/// Deepest JSON, levels.
const MAX_DEPTH: u64 = 1 << 16;

section! {
    /// `[limit]`: how large anything may grow; bytes, or counts of what the name says.
    Limit = "limit" {
        /// A client's request body.
        body_bytes: usize = 64 << 20, AtOnce, bytes(1);
        /// The bodies of all requests in memory together, on their way, waiting or being served; at
        /// least `body_bytes` count.
        bodies_bytes: usize = 1 << 30, AtOnce, bytes(1);
        /// Of these, those that are on their way; the oldest gives way to more. At least
        /// `body_bytes` count.
        unread_bytes: usize = 256 << 20, AtOnce, bytes(1);
        /// Bodies on their way at once; the oldest gives way to more.
        unread_bodies: usize = 16_384, AtOnce, count(1);
        /// Of `unread_bytes`, those on one HTTP/2 connection; at least `body_bytes` count.
        connection_unread_bytes: usize = 128 << 20, AtOnce, bytes(1);
        /// The least rate of a body, bytes per second, once `timeout.body_grace_ms` are over; 0 =
        /// none.
        body_rate: usize = 1_024, AtOnce, bytes(0);
        /// A client's request head.
        header_bytes: usize = 64 << 10, AtOnce, bytes(MIN_HEADER_BYTES);
        /// Header fields in a request.
        headers: usize = 100, AtOnce, count(1);
        /// Open client connections; more than `inflight` and `queue` together, so that health
        /// checks always get one.
        connections: usize = 32_768, AfterRestart, count(1);
        /// Requests being served at once.
        inflight: usize = 16_384, AfterRestart, count(1);
        /// The share of these that the requests of one key may have, %; 1 to 100. Only where keys
        /// are asked for; more of them wait.
        inflight_key_percent: usize = 50, AfterRestart, percent();
        /// The share of these that the requests for one fleet of several may have, %; 1 to 100.
        /// More of them are refused: a fleet that hangs leaves places to the others.
        inflight_fleet_percent: usize = 75, AfterRestart, percent();
        /// Requests waiting for a place; 0 = none waits, surplus is refused at once.
        queue: usize = 4_096, AfterRestart, count(0);
        /// Longest time that a request may wait for a place, ms.
        queue_ms: u64 = 30_000, AfterRestart, ms(1);
        /// The share of the places in line that the requests of one key may have, %; 1 to 100. Only
        /// where keys are asked for.
        queue_key_percent: usize = 50, AfterRestart, percent();
        /// The status of what is refused for want of room: 503 or 429. What all engines refuse with
        /// 429 is refused so.
        overload_status: u16 = 503, AtOnce, within(429, 503);
        /// Requests at or on their way to prefillers; 0 = no limit of its own.
        prefill_inflight: usize = 0, AfterRestart, count(0);
        /// Requests that are being answered by decoders or are to be; 0 = no limit of its own.
        decode_inflight: usize = 0, AfterRestart, count(0);
        /// Images, sounds and films of one request that are encoded apart; a request with more is
        /// refused.
        encode_items: usize = 256, AtOnce, prompts();
        /// Prompts of one completions request that are asked one by one; 1 = none are.
        prompts: usize = 128, AtOnce, prompts();
        /// A prefiller's answer.
        prefill_reply_bytes: usize = 64 << 20, AtOnce, bytes(1);
        /// A decoder's answer that is not streamed.
        answer_bytes: usize = 64 << 20, AtOnce, bytes(1);
        /// One frame of a streamed answer (SSE).
        frame_bytes: usize = 1 << 20, AtOnce, bytes(1);
        /// Nesting depth of a request's JSON.
        json_depth: usize = 512, AtOnce, within(1, MAX_DEPTH);
        /// Top-level members of a request's JSON.
        json_members: usize = 4_096, AtOnce, count(1);
        /// Hand-offs waiting to be released at a prefiller.
        releases: usize = 1_024, AfterRestart, count(1);
        /// Token ids kept of all streams that could be continued, 4 bytes each; a stream that finds
        /// no room can't be.
        resume_tokens: usize = 128 << 20, AfterRestart, kept_tokens();
        /// Token ids kept of earlier prompts, 4 bytes each; 0 = none are kept.
        prompt_cache_tokens: usize = 16 << 20, AfterRestart, kept_tokens();
        /// Questions to the engines' `/tokenize` at once.
        tokenize_inflight: usize = 64, AfterRestart, count(1);
        /// Questions to the pool at once.
        pool_inflight: usize = 256, AfterRestart, count(1);
        /// Answers of the pool that are kept while they are fresh.
        pool_answers: usize = 16_384, AfterRestart, count(0);
    }
}
