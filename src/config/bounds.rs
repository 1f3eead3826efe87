//! Bounds of numbers, by their unit: a table says the smallest value, and the unit the largest.

use super::table::Rule;

/// Longest time any `_ms` key may hold: a week. Keeps deadline arithmetic far from overflow.
const MAX_MS: u64 = 7 * 24 * 3_600_000;
/// Largest value of any `_bytes` key: 1 TiB.
const MAX_BYTES: u64 = 1 << 40;
/// Largest value of any count; far below what a semaphore or channel can hold.
const MAX_COUNT: u64 = 1 << 24;
/// Most attempts per leg, and most probes of an instance.
const MAX_ATTEMPTS: u64 = 1_000;
/// Most token ids kept of earlier prompts: 16 GiB.
const MAX_CACHE_TOKENS: u64 = 1 << 32;
/// Largest block, tokens.
const MAX_BLOCK_TOKENS: u64 = 1 << 20;
/// Largest parallel size, and most heads or layers.
const MAX_PARALLEL: u64 = 4_096;
/// Most prompts of a request that are asked one by one, and most items that are encoded apart.
const MAX_PROMPTS: u64 = 4_096;
/// Most data-parallel ranks of an engine.
pub(super) const MAX_RANKS: u64 = 64;

/// Any other number from `min` to `max`.
pub(super) const fn within(min: u64, max: u64) -> Rule {
    Rule::Within { min, max }
}

/// A time from `min` milliseconds to a week.
pub(super) const fn ms(min: u64) -> Rule {
    within(min, MAX_MS)
}

/// A size from `min` bytes to 1 TiB, or as many bytes per second.
pub(super) const fn bytes(min: u64) -> Rule {
    within(min, MAX_BYTES)
}

/// A number of things, at least `min`.
pub(super) const fn count(min: u64) -> Rule {
    within(min, MAX_COUNT)
}

/// A number of attempts or probes, at least `min`.
pub(super) const fn attempts(min: u64) -> Rule {
    within(min, MAX_ATTEMPTS)
}

/// A number of prompts of one request, or of items in it.
pub(super) const fn prompts() -> Rule {
    within(1, MAX_PROMPTS)
}

/// A number of token ids that are kept; 0 = none are.
pub(super) const fn kept_tokens() -> Rule {
    within(0, MAX_CACHE_TOKENS)
}

/// A number of tokens in a block or chunk; 0 = not said.
pub(super) const fn block_tokens() -> Rule {
    within(0, MAX_BLOCK_TOKENS)
}

/// A parallel size, or a number of heads or layers, at least `min`.
pub(super) const fn parallel(min: u64) -> Rule {
    within(min, MAX_PARALLEL)
}

/// A number of data-parallel ranks, at least `min`.
pub(super) const fn ranks(min: u64) -> Rule {
    within(min, MAX_RANKS)
}

/// A TCP port, at least `min`: 0 where a port may be left to the system or to chance.
pub(super) const fn port(min: u64) -> Rule {
    within(min, u16::MAX as u64)
}

/// A percentage from 1 to 100.
pub(super) const fn percent() -> Rule {
    within(1, 100)
}

/// A share from 0 to 1.
pub(super) const fn share() -> Rule {
    within(0, 1)
}
