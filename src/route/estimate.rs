//! Work in tokens, estimated from bytes until the tokenizer tells exactly.

/// Bytes of a request's text per token: the rule of thumb that the reference proxies use as well.
const BYTES_PER_TOKEN: u64 = 4;

/// Assumed output of a request that sets no limit: longer than a tool call, shorter than an essay.
const UNKNOWN_OUTPUT_TOKENS: u64 = 256;

/// A request that asks for more is not taken at its word: clients set generous caps and stop early.
pub const BELIEVED_OUTPUT_TOKENS: u64 = 1024;

/// Prompt tokens of a body of `body_bytes`.
pub fn prompt_tokens(body_bytes: usize) -> u64 {
    (body_bytes as u64 / BYTES_PER_TOKEN).max(1)
}

/// Tokens that the answer is expected to have, given the client's `max_tokens`.
pub fn output_tokens(max_tokens: Option<u64>) -> u64 {
    max_tokens.map_or(UNKNOWN_OUTPUT_TOKENS, |m| m.clamp(1, BELIEVED_OUTPUT_TOKENS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_never_zero_and_never_absurd() {
        assert_eq!(prompt_tokens(0), 1);
        assert_eq!(prompt_tokens(400), 100);
        assert_eq!(output_tokens(None), 256);
        assert_eq!(output_tokens(Some(0)), 1);
        assert_eq!(output_tokens(Some(1_000_000)), 1024);
    }
}
