//! A gateway under load: simulated engines and a load generator in this process, the gateway as operators start it in another,
//! in one command. What is measured is the CPU time that the gateway takes for a request or a chunk, and its memory for a stream.
//!
//! `cargo bench --bench e2e` runs a part that takes two minutes; `cargo bench --bench e2e -- --help` names the rest.

mod rig;

use std::process::ExitCode;

use clap::Parser;
use rig::{Options, Usage};

/// Some answer was not as it should be, or something could not be measured.
const FAILED: u8 = 1;
/// A flag that makes no sense.
const BAD_OPTIONS: u8 = 2;

fn main() -> ExitCode {
    // `cargo test --benches` runs benches too, and wants to know no more than that they start; only `cargo bench` says this.
    if std::env::args().all(|word| word != "--bench") {
        return ExitCode::SUCCESS;
    }
    let options = match Usage::try_parse().map(Options::try_from) {
        Ok(Ok(options)) => options,
        Ok(Err(e)) => {
            eprintln!("error: {e}");
            return ExitCode::from(BAD_OPTIONS);
        }
        Err(e) => {
            // Help comes through the same door, with code 0.
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(BAD_OPTIONS));
        }
    };
    match rig::run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(FAILED)
        }
    }
}
