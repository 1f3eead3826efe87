//! SIGINT and SIGTERM: the first one drains the gateway, the second one ends the drain.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::App;
use super::notify::{Notice, notify};
use crate::server::CUT_NOTICE;

/// SIGINT and SIGTERM.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Installs handlers of SIGINT and SIGTERM, whose default ends the process at once. Must run
    /// before the gateway announces itself, as a supervisor may stop it right then.
    ///
    /// # Errors
    /// The system refuses the handlers.
    pub fn install() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next of either.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Serves until a signal; a second one ends the drain.
pub async fn serve_until_signal(app: App, mut signals: Signals) {
    let (stop, ending, lame_duck) = (app.stop(), app.gateway.ending.clone(), app.lame_duck);
    let gateway = app.gateway();
    let mut serving = std::pin::pin!(app.serve());
    tokio::select! {
        _ = &mut serving => return,
        () = signals.next() => {}
    }
    tracing::info!("shutting down: open requests may finish; a second signal cuts them");
    notify(Notice::Stopping);
    // Load balancers need time to notice the drain; requests that arrive meanwhile are served.
    ending.cancel();
    let closing = async {
        tokio::time::sleep(lame_duck).await;
        stop.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = closing => {}
        cut = &mut serving => tracing::info!(connections_cut = cut, "stopped"),
        () = signals.next() => {
            // Connections listen for the cut once they have been told to end.
            gateway.stop.cancel();
            gateway.cut_all();
            let _ = tokio::time::timeout(CUT_NOTICE, serving).await;
            tracing::warn!("cut by a second signal");
        }
    }
}
