//! The client: a few connections to whichever master leads, kept open.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::admin::Admin;
use super::conn::{Ask, Conn, Limits, Reply};
use super::wire::{self, Form, Function, INVALID_ARGUMENTS, WireError};
use crate::endpoint::Endpoint;
use crate::kvhash::keys::KeyBatch;
use crate::pool::{Answer, KeyStore, Placement, PoolError};

/// Default of [`MooncakeConfig::connections`]: a master serves each by one thread.
pub const CONNECTIONS: usize = 2;
/// Default of [`MooncakeConfig::in_flight`].
pub const IN_FLIGHT: usize = 64;
/// Default of [`MooncakeConfig::connect_time`].
pub const CONNECT_TIME: Duration = Duration::from_secs(1);
/// Default of [`MooncakeConfig::patience`]: 20 000 keys take 7 ms.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// The tenant of masters without tenants.
pub const TENANT: &str = "default";

/// Keys that a master tells about within a millisecond.
const BATCH_KEYS: usize = 2048;
/// Between attempts to connect: doubled each time, up to the longest. A connection that lasted the
/// longest starts anew.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Errors of a master that does not lead, or not yet: unavailable in this status, in this mode.
const NOT_LEADING: [i32; 2] = [-1010, -1011];

/// Place where the masters are and how they are asked.
#[derive(Clone, Debug)]
pub struct MooncakeConfig {
    /// RPC addresses; the one that accepts and answers is asked. A standby refuses.
    pub masters: Vec<Endpoint>,
    /// Admin addresses, asked for the leader's RPC address before the list is gone through. May be
    /// empty.
    pub admins: Vec<Admin>,
    /// Connections kept open.
    pub connections: usize,
    /// Most open questions of one connection.
    pub in_flight: usize,
    /// Ask where objects are, not only whether they exist; costs a master a fifth more.
    pub locate: bool,
    /// Tenant whose objects are asked for, on masters that tell tenants apart.
    pub tenant: String,
    /// The longest that connecting may take, and the first answer.
    pub connect_time: Duration,
    /// The longest that a question stays open before the master counts as dead.
    pub patience: Duration,
}

/// Asks the RPC port of a Mooncake master.
///
/// Asking grants a lease and moves the objects back in the order of eviction; `http` has a client
/// that does neither. Connections are made in the background; until one is, every question is
/// [`PoolError::Unreachable`].
#[derive(Debug)]
pub struct Mooncake {
    shared: Arc<Shared>,
    _keepers: JoinSet<()>,
}

/// An open connection, for those who want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// Endpoint of the master.
    pub master: Endpoint,
    /// The argument list that it takes.
    pub form: Form,
    /// Number of open questions.
    pub open: usize,
}

/// Facts of a master's greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterGreeting {
    /// Endpoint of the master.
    pub master: Endpoint,
    /// The argument list that it takes.
    pub form: Form,
    /// As [`Mooncake::service`] says it.
    pub service: String,
}

#[derive(Debug)]
struct Shared {
    config: MooncakeConfig,
    links: Box<[ArcSwapOption<Link>]>,
    /// Place where in the list of masters to begin.
    begin: AtomicUsize,
    /// Connections made so far.
    made: watch::Sender<u64>,
    /// Reason why there is no connection.
    trouble: Mutex<PoolError>,
}

#[derive(Debug)]
struct Link {
    conn: Conn,
    form: Form,
    master: Endpoint,
    /// Its place in the list of masters; none when another one told of it.
    at: Option<usize>,
}

impl Default for MooncakeConfig {
    fn default() -> Self {
        Self {
            masters: Vec::new(),
            admins: Vec::new(),
            connections: CONNECTIONS,
            in_flight: IN_FLIGHT,
            locate: true,
            tenant: TENANT.to_owned(),
            connect_time: CONNECT_TIME,
            patience: PATIENCE,
        }
    }
}

impl Mooncake {
    /// Begins to connect; must be called inside a tokio runtime.
    pub fn new(config: MooncakeConfig) -> Mooncake {
        let shared = Arc::new(Shared::new(config));
        let mut keepers = JoinSet::new();
        for place in 0..shared.links.len() {
            keepers.spawn(keep(shared.clone(), place));
        }
        Mooncake { shared, _keepers: keepers }
    }

    /// Waits until there is a connection.
    pub async fn connected(&self) {
        let mut made = self.shared.made.subscribe();
        while self.status().is_empty() {
            // The sender is ours.
            let _ = made.changed().await;
        }
    }

    /// The connections that are open now.
    pub fn status(&self) -> Vec<LinkStatus> {
        let links = self.shared.links.iter().filter_map(|link| link.load_full());
        let status = |link: Arc<Link>| LinkStatus {
            master: link.master.clone(),
            form: link.form,
            open: link.conn.open(),
        };
        links.map(status).collect()
    }

    /// Reason why there is or was no connection.
    pub fn trouble(&self) -> PoolError {
        self.shared.trouble()
    }

    /// The version of the master's service, which is not that of its package: `2.0.0` since 0.3.8,
    /// nothing before.
    ///
    /// # Errors
    /// [`PoolError`].
    pub async fn service(&self) -> Result<String, PoolError> {
        let link = self.shared.link()?;
        self.shared.service(&link).await
    }

    async fn placements(&self, keys: &KeyBatch, indexes: &[u32]) -> Result<Vec<Placement>, PoolError> {
        if indexes.is_empty() {
            return Ok(Vec::new());
        }
        let link = self.shared.link()?;
        let function =
            if self.shared.config.locate { Function::BatchGetReplicaList } else { Function::BatchExistKey };
        let ask = Ask { function, form: link.form, tenant: &self.shared.config.tenant, keys, indexes };
        let reply = link.conn.ask(ask)?.reply().await?;
        read(&reply, indexes.len()).map_err(|error| self.shared.judge(&link, error))
    }
}

impl KeyStore for Mooncake {
    fn name(&self) -> &'static str {
        "mooncake"
    }

    fn batch_keys(&self) -> usize {
        BATCH_KEYS
    }

    fn locate<'a>(&'a self, keys: &'a KeyBatch, indexes: &'a [u32]) -> Answer<'a, Vec<Placement>> {
        Box::pin(self.placements(keys, indexes))
    }
}

/// Greets the first of the masters that answers, for a person who asks: nothing is kept, and no key
/// is touched.
///
/// # Errors
/// [`PoolError`] within [`MooncakeConfig::connect_time`] and [`MooncakeConfig::patience`].
pub async fn greet(config: MooncakeConfig) -> Result<MasterGreeting, PoolError> {
    let shared = Shared::new(config);
    let link = shared.connect().await?;
    let service = shared.service(&link).await?;
    Ok(MasterGreeting { master: link.master.clone(), form: link.form, service })
}

impl Shared {
    fn new(config: MooncakeConfig) -> Shared {
        Shared {
            links: (0..config.connections.max(1)).map(|_| ArcSwapOption::empty()).collect(),
            config,
            begin: AtomicUsize::new(0),
            made: watch::Sender::new(0),
            trouble: Mutex::new(PoolError::Unreachable("not connected yet".into())),
        }
    }

    async fn service(&self, link: &Link) -> Result<String, PoolError> {
        let keys = KeyBatch::default();
        let (function, tenant) = (Function::ServiceReady, self.config.tenant.as_str());
        let ask = Ask { function, form: link.form, tenant, keys: &keys, indexes: &[] };
        let reply = link.conn.ask(ask)?.reply().await?;
        let version = match reply.error {
            0 => wire::read_service(&reply.body),
            code => Err(wire::rpc_error(code, &reply.body)),
        };
        version.map_err(|error| self.judge(link, error))
    }

    /// The open connection with the fewest open questions.
    fn link(&self) -> Result<Arc<Link>, PoolError> {
        let links = self.links.iter().filter_map(|link| link.load_full());
        links.min_by_key(|link| link.conn.open()).ok_or_else(|| self.trouble())
    }

    /// Error for an answer that is none, and its consequence for the connection.
    fn judge(&self, link: &Link, error: WireError) -> PoolError {
        let leads = !matches!(&error, WireError::Entry(code) if NOT_LEADING.contains(code));
        let error = PoolError::from(error);
        match &error {
            // Another master leads.
            PoolError::Refused(_) if !leads => {
                self.pass_over(link.at);
                link.conn.close(error.clone());
            }
            // Perhaps the version has changed: the next connection finds out.
            PoolError::Protocol(_) => {
                tracing::warn!(master = %link.master, %error, "not understood");
                link.conn.close(error.clone());
            }
            _ => {}
        }
        error
    }

    /// Begins behind a master the next time; once, however many questions it fails at the same
    /// time.
    fn pass_over(&self, at: Option<usize>) {
        if let Some(at) = at {
            let next = (at + 1) % self.config.masters.len().max(1);
            let _ = self.begin.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn trouble(&self) -> PoolError {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, why: PoolError) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// A connection to the first master that answers: the leader by the admin ports, then the list,
    /// from where the last one was found.
    async fn connect(&self) -> Result<Link, PoolError> {
        for admin in &self.config.admins {
            if let Ok(Some(leader)) = admin.leader().await
                && let Ok(link) = self.link_to(&leader, None).await
            {
                return Ok(link);
            }
        }
        let masters = &self.config.masters;
        let begin = self.begin.load(Ordering::Relaxed);
        let mut why = PoolError::Unreachable("no master is known".into());
        for turn in 0..masters.len() {
            let at = begin.wrapping_add(turn) % masters.len();
            let Some(master) = masters.get(at) else { continue };
            match self.link_to(master, Some(at)).await {
                Ok(link) => {
                    self.begin.store(at, Ordering::Relaxed);
                    return Ok(link);
                }
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    async fn link_to(&self, master: &Endpoint, at: Option<usize>) -> Result<Link, PoolError> {
        let limits = Limits { in_flight: self.config.in_flight.max(1), patience: self.config.patience };
        let link = async {
            let tcp = TcpStream::connect((master.host.as_str(), master.port)).await;
            let tcp = tcp.and_then(|tcp| tcp.set_nodelay(true).map(|()| tcp));
            let tcp = tcp.map_err(|error| PoolError::Unreachable(error.to_string()))?;
            let conn = Conn::over(tcp, limits);
            let form = negotiate(&conn, &self.config.tenant).await?;
            Ok(Link { conn, form, master: master.clone(), at })
        };
        let late =
            || PoolError::Unreachable(format!("no answer in {} ms", self.config.connect_time.as_millis()));
        let link = timeout(self.config.connect_time, link).await.unwrap_or_else(|_| Err(late()));
        link.map_err(|error| match error {
            PoolError::Unreachable(why) => PoolError::Unreachable(format!("{master}: {why}")),
            other => other,
        })
    }
}

/// The argument list that a master takes: asked with no key, so that nothing is touched.
async fn negotiate(conn: &Conn, tenant: &str) -> Result<Form, PoolError> {
    let keys = KeyBatch::default();
    let mut refused = PoolError::Busy;
    for form in [Form::Tenant, Form::Plain] {
        let function = Function::BatchExistKey;
        let reply = conn.ask(Ask { function, form, tenant, keys: &keys, indexes: &[] })?.reply().await?;
        match read(&reply, 0) {
            Ok(_) => return Ok(form),
            Err(error @ WireError::Rpc { code: INVALID_ARGUMENTS, .. }) => refused = error.into(),
            Err(error) => return Err(error.into()),
        }
    }
    Err(refused)
}

fn read(reply: &Reply, asked: usize) -> Result<Vec<Placement>, WireError> {
    match reply.error {
        0 => wire::read_answer(&reply.body, asked),
        code => Err(wire::rpc_error(code, &reply.body)),
    }
}

/// Keeps one connection open.
async fn keep(shared: Arc<Shared>, place: usize) {
    let Some(slot) = shared.links.get(place) else { return };
    let mut pause = FIRST_PAUSE;
    loop {
        let why = match shared.connect().await {
            Ok(link) => {
                tracing::debug!(master = %link.master, form = ?link.form, "connected");
                let link = Arc::new(link);
                slot.store(Some(link.clone()));
                shared.made.send_modify(|made| *made += 1);
                let begun = Instant::now();
                let why = link.conn.closed().await;
                slot.store(None);
                if begun.elapsed() >= LONGEST_PAUSE {
                    pause = FIRST_PAUSE;
                }
                why
            }
            Err(why) => why,
        };
        tracing::debug!(%why, "no connection to a Mooncake master");
        shared.note(why);
        sleep(jittered(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Half of `pause` and a random part of the other half, so that gateways don't come back all at
/// once.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0_u8) % 1024;
    pause / 2 + pause.mul_f64(random as f64 / 2048.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_differ_and_stay_within_bounds() {
        let pauses: Vec<_> = (0..64).map(|_| jittered(FIRST_PAUSE)).collect();
        assert!(pauses.iter().all(|pause| (FIRST_PAUSE / 2..=FIRST_PAUSE).contains(pause)));
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }

    #[test]
    fn a_master_that_fails_two_questions_at_once_is_passed_over_once() {
        let masters = vec![Endpoint::new("h", 1); 3];
        let shared = Shared {
            config: MooncakeConfig { masters, ..MooncakeConfig::default() },
            links: Box::default(),
            begin: AtomicUsize::new(0),
            made: watch::Sender::new(0),
            trouble: Mutex::new(PoolError::Busy),
        };
        shared.pass_over(Some(0));
        shared.pass_over(Some(0));
        shared.pass_over(None);
        assert_eq!(shared.begin.load(Ordering::Relaxed), 1);
        (1..3).for_each(|at| shared.pass_over(Some(at)));
        assert_eq!(shared.begin.load(Ordering::Relaxed), 0, "behind the last comes the first");
    }
}
