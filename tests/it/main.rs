//! All integration tests, in one binary: one link step.

#![expect(unreachable_pub, reason = "everything here is for this binary alone")]
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that can't go on fails")]

mod common;

mod bad_input;
mod chat_golden;
mod command;
mod dropin;
mod honest;
mod intake;
mod layers;
mod legs;
mod pool_mooncake;
mod pool_mooncake_real;
mod surface;
mod tidy;
mod vectors;
mod vectors_keys;
mod wire;
