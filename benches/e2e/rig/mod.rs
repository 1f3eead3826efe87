//! Parts of the bench:
//!
//! * [`options`], [`plan`] and [`command`] read the command line.
//! * [`engines`], [`target`] and [`cores`] start engines and proxy.
//! * [`prompts`], [`client`], [`answer`], [`load`] and [`wave`] load the proxy.
//! * [`measure`], [`process`], [`sample`] and [`trouble`] measure it, and [`table`] prints the
//!   results.

pub(crate) mod answer;
pub(crate) mod client;
pub(crate) mod command;
mod cores;
mod engines;
mod load;
mod measure;
mod options;
mod plan;
mod process;
mod prompts;
mod sample;
mod table;
mod target;
pub(crate) mod trouble;
mod wave;

use std::io;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use measure::{Bench, Outcome};
use plan::{Cell, Scenario};
use table::Row;

pub(crate) use cores::Cores;
pub(crate) use options::{Options, Usage};

/// Measures all cells that `options` name and prints the tables; false if anything was wrong.
///
/// # Errors
/// An error of the system, or `Interrupted` after SIGINT or SIGTERM.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    run_on(options, &Cores::divide(&options.cores))
}

/// Runs the same on cores that are divided already.
///
/// # Errors
/// Fails as [`run`] does.
pub(crate) fn run_on(options: &Options, cores: &Cores) -> io::Result<bool> {
    let open_files = rlimit::increase_nofile_limit(u64::MAX)?;
    let work = tempfile::tempdir()?;
    let bench = Bench { options, cores, work: work.path(), open_files };
    println!("{cores}; {} s each, median of {}", options.window.as_secs_f64(), options.reps);
    println!("{{exe}} is {}, of profile {}", options.exe, options.profile());
    if cfg!(debug_assertions) {
        println!("**not a release build**: the numbers mean nothing");
    }
    runtime(cores.load.len())?.block_on(async {
        let (mut interrupt, mut end) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            good = all(&bench) => Ok(good),
            _ = interrupt.recv() => Err(io::ErrorKind::Interrupted.into()),
            _ = end.recv() => Err(io::ErrorKind::Interrupted.into()),
        }
    })
}

fn runtime(cores: usize) -> io::Result<Runtime> {
    match cores {
        1 => Builder::new_current_thread().enable_all().build(),
        n => Builder::new_multi_thread().worker_threads(n).enable_all().build(),
    }
}

/// Runs scenario by scenario and prints each table when it is complete; false if anything was
/// wrong.
async fn all(bench: &Bench<'_>) -> bool {
    let names: Vec<&str> = bench.options.proxies.iter().map(|proxy| proxy.name.as_str()).collect();
    let mut good = true;
    for scenario in Scenario::ALL {
        let cells: Vec<Cell> =
            bench.options.cells.iter().copied().filter(|cell| cell.scenario == scenario).collect();
        if cells.is_empty() {
            continue;
        }
        let rows = measured(bench, &cells).await;
        good &= !rows.iter().flat_map(|row| row.outcomes.iter().flatten()).any(table::is_bad);
        print!("{}", table::render(scenario, &names, &rows));
        let shared = |cell: &Cell| bench.cores.shared(&bench.cores.of_proxy(cell.cores()));
        if scenario == Scenario::Cores && cells.iter().any(shared) {
            println!("\nEngines and load share the last of the proxy's cores, for there are no others.");
        }
    }
    good
}

/// Measures repetition by repetition and the proxies in turn, so that other load of the machine
/// affects all proxies alike.
async fn measured(bench: &Bench<'_>, cells: &[Cell]) -> Vec<Row> {
    let proxies = &bench.options.proxies;
    let row = |cell: &Cell| Row { cell: *cell, outcomes: vec![Vec::new(); proxies.len()] };
    let mut rows: Vec<Row> = cells.iter().map(row).collect();
    for rep in 0..bench.options.reps as usize {
        for row in &mut rows {
            for turn in 0..proxies.len() {
                let place = (turn + rep) % proxies.len();
                if let (Some(proxy), Some(into)) = (proxies.get(place), row.outcomes.get_mut(place)) {
                    eprintln!("{} {}: {}", row.cell.scenario.name(), row.cell, proxy.name);
                    let outcome = bench.measure(row.cell, proxy).await;
                    if let Outcome::Failed(why) = &outcome {
                        eprintln!("  {why}");
                    }
                    into.push(outcome);
                }
            }
        }
    }
    rows
}
