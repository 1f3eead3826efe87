//! All integration tests, in one binary: one link step.

mod common;

mod bad_input;
mod command;
mod dropin;
mod layers;
mod legs;
mod surface;
mod tidy;
mod wire;
