//! The handle of a running engine.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::faults::Fault;
use super::gate::Gate;
use super::hub::{CHORES, Chore, Hub, ObservedRequest, Phase, lock};
use super::ledger::Ledger;
use super::net::{MemoryListener, Net};
use super::socket::Entry;
use super::spec::EngineSpec;
use super::{http, layerwise, side};

/// Time a dead engine's last answer has to leave before the connections are reset.
const DEATH_GRACE: Duration = Duration::from_millis(100);
/// Time running requests have to finish in [`Engine::stop`].
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Chores at a time; the others wait in their queue.
const CHORES_AT_A_TIME: usize = 64;

/// A running engine; dropping it ends it without ceremony.
#[derive(Debug)]
pub struct Engine {
    hub: Arc<Hub>,
    tasks: Mutex<JoinSet<()>>,
}

impl Engine {
    /// Starts an engine that listens on `listen`; port 0 takes a free one.
    pub async fn start(spec: EngineSpec, listen: SocketAddr) -> io::Result<Engine> {
        Ok(Engine::run(spec, Entry::Tcp(Gate::bind(listen).await?)))
    }

    /// Starts an engine that is reached at `at` in `net`, and finds its peers there. Everything
    /// about it then happens in memory: under a paused clock in virtual time.
    pub fn start_in(spec: EngineSpec, net: &Arc<Net>, at: SocketAddr) -> io::Result<Engine> {
        Ok(Engine::run(spec, Entry::MemoryListener(MemoryListener::bind(net.clone(), at)?)))
    }

    fn run(spec: EngineSpec, gate: Entry) -> Engine {
        let (sender, receiver) = mpsc::channel(CHORES);
        let hub = Arc::new(Hub::new(spec, gate, sender));
        let mut tasks = JoinSet::new();
        tasks.spawn(http::serve(hub.clone()));
        tasks.spawn(do_chores(hub.clone(), receiver));
        Engine { hub, tasks: Mutex::new(tasks) }
    }

    /// Address at which it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.hub.gate.addr()
    }

    /// URL of the engine, as `http://host:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// Ledger of its state now.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.hub.ledger()
    }

    /// The last requests it has read, newest last; those under `/sim/` are left out.
    #[must_use]
    pub fn seen(&self) -> Vec<ObservedRequest> {
        self.hub.seen()
    }

    /// Statuses of metaservers' answers to its calls, newest last.
    #[must_use]
    pub fn heard(&self) -> Vec<u16> {
        self.hub.heard()
    }

    /// Forgets the requests seen.
    pub fn clear_seen(&self) {
        self.hub.clear_seen();
    }

    /// Adds a fault to the script, in force at once; false if the script is full.
    pub fn inject(&self, fault: Fault) -> bool {
        self.hub.inject(fault)
    }

    /// Forgets all faults; a port that refused listens again.
    pub fn clear_faults(&self) {
        self.hub.clear_faults();
    }

    /// KV that it reads from the engine at `from` comes at so many tokens per second, as over a
    /// link that others don't share.
    pub fn link(&self, from: SocketAddr, tokens_per_s: f64) {
        self.hub.set_link(from, tokens_per_s);
    }

    /// Streams that have their first token write nothing more until [`Engine::go_on`]: many can be
    /// open and silent.
    pub fn hold(&self) {
        self.hub.with(|core, _| core.hold(true));
    }

    /// Streams that were held go on at their pace, each within a second: they look no more often.
    pub fn go_on(&self) {
        self.hub.with(|core, _| core.hold(false));
    }

    /// As if the process were killed: the port refuses, every connection is reset, nothing is given
    /// back. The handle still answers questions.
    pub async fn kill(&self) {
        self.end(Phase::Killed).await;
    }

    /// Takes nothing new, lets requests finish, then ends.
    pub async fn stop(self) {
        if timeout(STOP_GRACE, self.end(Phase::Draining)).await.is_err() {
            self.end(Phase::Killed).await;
        }
    }

    async fn end(&self, phase: Phase) {
        self.hub.enter(phase);
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        while tasks.join_next().await.is_some() {}
    }
}

/// Does what requests leave behind, until the engine ends.
async fn do_chores(hub: Arc<Hub>, mut chores: mpsc::Receiver<Chore>) {
    let mut status = hub.status.subscribe();
    let mut running = JoinSet::new();
    while status.borrow_and_update().phase != Phase::Killed {
        tokio::select! {
            _ = status.changed() => {}
            Some(_) = running.join_next() => {}
            Some(chore) = chores.recv(), if running.len() < CHORES_AT_A_TIME => {
                running.spawn(do_chore(hub.clone(), chore));
            }
        }
    }
}

async fn do_chore(hub: Arc<Hub>, chore: Chore) {
    match chore {
        // An unreachable prefiller frees the blocks itself, when the lease ends.
        Chore::Release(source, why) => drop(side::release(hub.gate.net(), &source, why).await),
        Chore::Call(url, said) => layerwise::make_call(&hub, &url, &said).await,
        Chore::Store(prompt, delay) => {
            tokio::time::sleep(delay).await;
            hub.put(&prompt);
        }
        Chore::Die => {
            tokio::time::sleep(DEATH_GRACE).await;
            hub.enter(Phase::Killed);
        }
    }
}
