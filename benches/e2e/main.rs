//! Measures a gateway under load in one command. Simulated engines and a load generator run in this
//! process, and the gateway in another, as operators start it. Measured are its CPU time for a
//! request or a chunk, and its memory for a stream.
//!
//! `cargo bench --bench e2e` runs a part that takes two minutes. The rest is named by
//! `cargo bench --bench e2e -- --help`.

mod rig;

use std::process::ExitCode;

use clap::Parser;
use rig::{Options, Usage};

/// Exit code if an answer was bad, or something could not be measured.
const FAILED: u8 = 1;
/// Exit code for a flag that makes no sense.
const BAD_OPTIONS: u8 = 2;

fn main() -> ExitCode {
    // `cargo test --benches` runs benches, too, and only checks that they start. `cargo bench`
    // alone passes this flag.
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
            // Help is such an error, too, with exit code 0.
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
