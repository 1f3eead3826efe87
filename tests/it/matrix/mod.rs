//! The fault matrix on real sockets: fault × leg × form × API × how many engines × continuation,
//! and for each cell what the client saw, how often engines were asked, and what was left behind.
//!
//! `cargo test --test it matrix -- --nocapture` prints it as Markdown; `MATRIX_OUT=path` writes it
//! to a file as well, and `MATRIX_ONLY=text` runs only the cells whose line contains the text.

mod journal;
mod oracle;
mod plan;
mod rig;
mod run;
mod seen;
mod stalls;
mod table;

use std::io::Write;
use std::time::Instant;

use futures_util::{StreamExt, stream};
use journal::Journal;
use pd_proxy::sim::{Engine, EngineSpec};
use run::{Model, Outcome};
use stalls::Stalls;

const THREADS: usize = 2;
/// Cells at a time, on each thread. Those that wait for a limit take no processor meanwhile.
const AT_ONCE: usize = 4;
const WAITING_AT_ONCE: usize = 16;

/// The cells of one of `THREADS` threads.
async fn some(journal: &Journal, thread: usize) -> Vec<(usize, Outcome)> {
    let listen = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let model = Model(Engine::start(EngineSpec::default(), listen).await.unwrap());
    let only = std::env::var("MATRIX_ONLY").unwrap_or_default();
    let cells = plan::cells().into_iter().enumerate().filter(|(nth, _)| nth / 4 % THREADS == thread);
    let chosen = cells.filter(|(_, cell)| format!("{cell:?} {}", cell.ill.name()).contains(&only));
    let (silent, quick): (Vec<_>, Vec<_>) = chosen.partition(|(_, cell)| cell.ill.silent());
    let stalls = Stalls::default();
    let run = async |cell: (usize, plan::Cell)| (cell.0, run::run(&model, journal, &stalls, cell).await);
    let work = async {
        let mut outcomes: Vec<_> = stream::iter(quick).map(run).buffer_unordered(AT_ONCE).collect().await;
        let waited: Vec<_> = stream::iter(silent).map(run).buffer_unordered(WAITING_AT_ONCE).collect().await;
        outcomes.extend(waited);
        outcomes
    };
    let outcomes = tokio::select! {
        outcomes = work => outcomes,
        () = stalls.watch() => Vec::new(),
    };
    model.0.stop().await;
    outcomes
}

/// All cells, in the order of the table. Each thread has a runtime of its own, since the log is
/// told apart by threads.
fn all() -> Vec<Outcome> {
    let work = |thread| {
        let journal = Journal::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tracing::subscriber::with_default(journal.clone(), || runtime.block_on(some(&journal, thread)))
    };
    let mut outcomes = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    outcomes.sort_by_key(|(nth, _)| *nth);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

#[test]
fn no_cell_is_wrong() {
    let began = Instant::now();
    let outcomes = all();
    let (full, condensed) = (table::full(&outcomes), table::condensed(&outcomes));
    println!("{full}\n{condensed}\n{} cells in {:?}", outcomes.len(), began.elapsed());
    let again: u32 = outcomes.iter().map(|outcome| outcome.rounds - 1).sum();
    let line = format!("matrix: {} cells, {again} repetitions since the machine stalled\n", outcomes.len());
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    if let Some(path) = std::env::var_os("MATRIX_OUT") {
        std::fs::write(path, format!("{condensed}\n{full}")).unwrap();
    }
    let wrong: Vec<String> = outcomes
        .iter()
        .filter(|outcome| !outcome.wrong().is_empty())
        .map(|outcome| format!("{:?}: {}", outcome.cell, outcome.wrong().join("; ")))
        .collect();
    assert!(wrong.is_empty(), "{} of {} cells are wrong:\n{}", wrong.len(), outcomes.len(), wrong.join("\n"));
}
