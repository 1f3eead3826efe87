//! Costs of the simulated engines' work, with their reasons.
//!
//! The model is a dense one of 70 billion parameters (80 layers, 8192 wide, 8 KV heads of 128,
//! BF16) on nodes of eight accelerators of 80 GB and 312 TFLOP/s, joined by 8 x 200 Gbit/s: the
//! class of testbed that Mooncake (FAST'25) describes. The order of policies in a run hardly
//! depends on these numbers; its seconds do.

use super::Seconds;

/// Costs of an engine and of the ways between engines. Times in seconds, sizes in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Most tokens of one prefill step (vLLM's `max_num_batched_tokens`): 8192, as deployments of
    /// this class set it.
    pub chunk_tokens: u32,
    /// Each prefill step, whatever is in it: scheduling, launches, the collective operations of 80
    /// layers.
    pub step_s: Seconds,
    /// Each computed prompt token: 2 x 70e9 FLOP at half of 8 x 312 TFLOP/s are 112 us, 8.9 k
    /// tokens a second.
    pub token_s: Seconds,
    /// Each unit of n² − h²: attention over the causal half costs 80 x 2 x 8192 FLOP, one 107 000th
    /// of a token's weights.
    pub square_s: Seconds,
    /// Prefix cache of a prefiller, tokens. 8 x 80 GB less weights and activations hold 1.3 M
    /// tokens at 320 KiB each; the requests being computed take their part.
    pub hbm_tokens: u32,
    /// Pool memory on a prefiller's host, tokens: 1 TB at 320 KiB.
    pub pool_tokens: u32,
    /// Each token restored from the host's own memory: 320 KiB at 40 GB/s, half of what eight PCIe
    /// 4 links copy.
    pub near_token_s: Seconds,
    /// Each token restored from wherever in a shared pool: 320 KiB at 20 GB/s, four of the network
    /// links at a good half of their rate, since the others carry the hand-offs.
    pub far_token_s: Seconds,
    /// One question to the pool and the set-up of a transfer.
    pub restore_s: Seconds,
    /// From the end of a prefill until its blocks are found in the pool.
    pub store_s: Seconds,
    /// Each prompt token on the way from prefiller to decoder: 320 KiB at 80 GB/s.
    pub handoff_token_s: Seconds,
    /// The set-up of a hand-off.
    pub handoff_s: Seconds,
    /// One way between the gateway and an engine, its HTTP server included.
    pub hop_s: Seconds,
    /// Time of a decode step without requests: 140 GB of weights at 65 % of 8 x 2 TB/s, and 160
    /// collective operations.
    pub decode_step_s: Seconds,
    /// Each request in a decode step: sampling and bookkeeping.
    pub decode_request_s: Seconds,
    /// Each token of context in a decode step: its 320 KiB at the same bandwidth.
    pub decode_token_s: Seconds,
    /// Most tokens of a step of a decoder that computes a prompt, its answers' included
    /// (`max_num_batched_tokens` there): 512, which Sarathi-Serve (OSDI'24) takes for strict limits
    /// on the time between tokens.
    pub decode_chunk_tokens: u32,
    /// KV room of a decoder, tokens.
    pub decode_kv_tokens: u64,
    /// Most requests of a decode step (vLLM's `max_num_seqs`).
    pub decode_requests: usize,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            chunk_tokens: 8192,
            step_s: 0.025,
            token_s: 112e-6,
            square_s: 1.05e-9,
            hbm_tokens: 1_000_000,
            pool_tokens: 3_200_000,
            near_token_s: 8e-6,
            far_token_s: 16e-6,
            restore_s: 0.002,
            store_s: 0.2,
            handoff_token_s: 4e-6,
            handoff_s: 0.005,
            hop_s: 0.001,
            decode_step_s: 0.018,
            decode_request_s: 150e-6,
            decode_token_s: 31e-9,
            decode_chunk_tokens: 512,
            decode_kv_tokens: 1_300_000,
            decode_requests: 256,
        }
    }
}

impl Costs {
    /// Seconds to compute the tokens from `start` up to `end`, without the steps' own cost.
    #[must_use]
    pub fn span(&self, start: u32, end: u32) -> Seconds {
        let (start, end) = (f64::from(start.min(end)), f64::from(end));
        self.token_s * (end - start) + self.square_s * (end * end - start * start)
    }

    /// Seconds of a prefill alone on an engine that knows `cached` tokens of the prompt.
    #[must_use]
    pub fn prefill(&self, prompt_tokens: u32, cached: u32) -> Seconds {
        let steps = prompt_tokens.saturating_sub(cached).div_ceil(self.chunk_tokens.max(1));
        f64::from(steps) * self.step_s + self.span(cached, prompt_tokens)
    }

    /// Seconds of a decode step with this number of requests and of tokens of context.
    #[must_use]
    pub fn decode(&self, requests: usize, context_tokens: u64) -> Seconds {
        self.decode_step_s
            + self.decode_request_s * requests as f64
            + self.decode_token_s * context_tokens as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_of_machine_is_the_one_described() {
        let costs = Costs::default();
        let second = costs.prefill(8192, 0);
        assert!((0.8..1.2).contains(&second), "8 k tokens take {second} s");
        // A token alone, and with 64 requests of 8 k tokens.
        assert!((0.015..0.025).contains(&costs.decode(1, 8_000)));
        assert!((0.035..0.055).contains(&costs.decode(64, 512_000)));
    }

    #[test]
    fn cached_tokens_are_not_computed() {
        let costs = Costs::default();
        assert!(costs.prefill(10_000, 9_999) < 0.03);
        assert!(
            (costs.prefill(10_000, 0) - costs.prefill(10_000, 5_000) - costs.prefill(5_000, 0)).abs() < 1e-9
        );
    }
}
