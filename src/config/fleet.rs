//! `[fleet]`: the engines.

use super::bounds::{attempts, ms, ranks};
use super::ranks::rank_count_fault;
use super::table::{Rule, section};

section! {
    /// `[fleet]`: the engines, and how one is probed before it is used.
    Fleet = "fleet" {
        /// Prefillers, each `host:port`, `http://host:port` or `https://host:port`.
        prefill: Vec<String> = vec!["localhost:8001".to_owned()], AtOnce;
        /// Decoders, written the same way.
        decode: Vec<String> = vec!["localhost:8002".to_owned()], AtOnce;
        /// Encoders of images, sounds and films, written the same way; none = prefillers encode.
        encode: Vec<String> = Vec::new(), AtOnce;
        /// Data-parallel ranks inside each prefiller among which the gateway chooses
        /// (`X-data-parallel-rank`), until the prefiller tells another number; 0 = as many as it
        /// tells, 1 = the engine chooses, or has only one.
        // Ranks are set when an engine joins.
        prefill_ranks: u32 = 1, AfterRestart, ranks(0);
        /// The same inside each decoder.
        decode_ranks: u32 = 1, AfterRestart, ranks(0);
        /// Engines with another number of ranks than the others, each `engine=number`.
        ranks: Vec<String> = Vec::new(), AfterRestart, Rule::Judged(rank_count_fault);
        /// The served model name that requests must carry, of a path its last part; None = any.
        model: Option<String> = None, AtOnce, Rule::NotEmpty;
        /// Probes of an instance being added before it is given up.
        probe_attempts: u32 = 3, AtOnce, attempts(1);
        /// Pause between those probes, ms.
        probe_interval_ms: u64 = 10_000, AtOnce, ms(1);
        /// Longest time that one probe may take, ms.
        probe_timeout_ms: u64 = 5_000, AtOnce, ms(1);
        /// Time for which requests wait when a role has just lost its last engine, as in a rollout,
        /// ms; 0 = they are refused at once.
        empty_wait_ms: u64 = 1_000, AtOnce, ms(0);
    }
}
