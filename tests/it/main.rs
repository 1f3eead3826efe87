//! All integration tests, in one binary: one link step.

#![expect(unreachable_pub, reason = "everything here is for this binary alone")]
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that can't go on fails")]

mod common;

mod attacks;
mod bad_input;
mod batch;
mod blame;
mod broken_answers;
mod chaos;
mod chat_golden;
mod command;
mod converted_golden;
mod demo;
mod dialects;
mod documents;
mod dropin;
mod e2e;
mod ems_kimi;
mod encode;
mod encoded_golden;
mod error_events;
mod fleets;
mod forced;
mod given_up;
mod health;
mod honest;
mod inspect;
mod keys;
mod keys_api;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod layers;
mod layerwise;
mod legs;
mod log_lines;
mod matrix;
mod output;
mod passage;
mod pool_ems;
mod pool_events;
mod pool_faults;
mod pool_lmcache;
mod pool_memcache;
mod pool_memcache_real;
mod pool_mooncake;
mod pool_mooncake_real;
mod pool_wire;
mod proof;
mod replay;
mod resume;
mod route;
mod shutdown;
mod signatures;
mod sizing;
mod stream_ends;
mod surface;
mod tidy;
#[cfg(feature = "tls")]
mod tls;
mod token_ids;
mod tokenization;
mod tokenizer_golden;
mod trace;
mod vacancy;
mod vectors;
mod vectors_keys;
mod virtual_time;
mod wire;
mod wording;
