//! MemCache by its binary protocol: one connection, kept up in the background.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::conn::Conn;
use super::greet::connect;
use super::ranks::RankHosts;
use super::wire::{Form, Object};
use crate::endpoint::Endpoint;
use crate::kvhash::keys::KeyBatch;
use crate::pool::store::{KeyStore, Placement, ReplicaPlace};
use crate::pool::{Answer, MAX_HOSTS, PoolError};

/// Most keys of one question: 0.4 ms for presence alone, 0.6 ms with places.
pub const BATCH_KEYS: usize = 1024;

/// Waits between attempts to connect: the first, and the longest, to which they double.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Place where a meta service is and what to ask it for.
#[derive(Clone, Debug)]
pub struct MemCacheConfig {
    /// Its `meta_service_url`; with several replicas the address that leads to the leader.
    pub service: Endpoint,
    /// Hosts of ranks; without any, only presence is asked for.
    pub hosts: RankHosts,
    /// Most questions on the way.
    pub in_flight: usize,
}

/// A client of one meta service. It connects when it is first asked, and from then on by itself.
#[derive(Debug)]
pub struct MemCache {
    config: Arc<MemCacheConfig>,
    link: watch::Sender<Link>,
    keeper: Mutex<JoinSet<()>>,
}

#[derive(Clone, Debug)]
enum Link {
    /// For the first time; whoever asks waits.
    Connecting,
    Up(Arc<Conn>),
    /// Between two attempts; whoever asks is told why.
    Down(PoolError),
}

impl MemCache {
    /// Connects to nothing yet.
    pub fn new(config: MemCacheConfig) -> Self {
        let link = watch::Sender::new(Link::Connecting);
        Self { config: Arc::new(config), link, keeper: Mutex::default() }
    }

    /// The form in which the service tells places, once connected; `None`: it was not asked for
    /// any, or knows neither.
    ///
    /// # Errors
    /// [`PoolError`] when there is no connection.
    pub async fn form(&self) -> Result<Option<Form>, PoolError> {
        Ok(self.conn().await?.form())
    }

    async fn conn(&self) -> Result<Arc<Conn>, PoolError> {
        let mut link = self.link.subscribe();
        self.keep();
        let settled = link.wait_for(|link| !matches!(link, Link::Connecting)).await;
        match settled.as_deref() {
            Ok(Link::Up(conn)) => Ok(conn.clone()),
            Ok(Link::Down(error)) => Err(error.clone()),
            Ok(Link::Connecting) | Err(_) => Err(PoolError::Unreachable("not connected".to_owned())),
        }
    }

    fn keep(&self) {
        let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        if keeper.is_empty() {
            keeper.spawn(keep(self.config.clone(), self.link.clone()));
        }
    }

    async fn ask(&self, keys: &KeyBatch, indexes: &[u32]) -> Result<Vec<Placement>, PoolError> {
        let count = indexes.len();
        if count > BATCH_KEYS {
            return Err(PoolError::TooLarge(format!("{count} keys at once")));
        }
        if count == 0 {
            return Ok(Vec::new());
        }
        let names = indexes.iter().filter_map(|index| keys.get(*index as usize));
        if names.clone().count() != count {
            return Err(PoolError::TooLarge("an index beyond the keys".to_owned()));
        }
        let conn = self.conn().await?;
        match conn.form() {
            None => Ok(conn.exist(names, count).await?.into_iter().map(somewhere).collect()),
            Some(Form::Flagged) => {
                let objects = conn.query(Form::Flagged, names, count).await?;
                Ok(objects.iter().map(|object| self.placement(object)).collect())
            }
            // 1.1 tells the places of objects that are still being written like those of others.
            Some(Form::Plain) => {
                let present = conn.exist(names.clone(), count);
                let places = conn.query(Form::Plain, names, count);
                let (present, objects) = futures_util::future::try_join(present, places).await?;
                let places = objects.iter().map(|object| self.placement(object).places);
                let both = present.into_iter().zip(places);
                Ok(both.map(|(there, places)| placed(there, places)).collect())
            }
        }
    }

    fn placement(&self, object: &Object) -> Placement {
        let place = |rank: &super::wire::Rank| {
            Some(ReplicaPlace { host: self.config.hosts.get(rank.rank)?.clone(), tier: rank.tier })
        };
        let places = object.ranks.iter().filter_map(place).take(MAX_HOSTS).collect();
        Placement { present: object.present, places }
    }
}

impl KeyStore for MemCache {
    fn name(&self) -> &'static str {
        "memcache"
    }

    fn batch_keys(&self) -> usize {
        BATCH_KEYS
    }

    fn locate<'a>(&'a self, keys: &'a KeyBatch, indexes: &'a [u32]) -> Answer<'a, Vec<Placement>> {
        Box::pin(self.ask(keys, indexes))
    }
}

fn somewhere(present: bool) -> Placement {
    placed(present, SmallVec::new())
}

/// Placement of a key. A key that is not present has no places.
fn placed(present: bool, places: SmallVec<[ReplicaPlace; 2]>) -> Placement {
    if present { Placement { present, places } } else { Placement::default() }
}

/// Connects again and again, until it is dropped.
async fn keep(config: Arc<MemCacheConfig>, link: watch::Sender<Link>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let error = match connect(&config.service, !config.hosts.is_empty(), config.in_flight).await {
            Ok((conn, line)) => {
                tracing::info!(service = %config.service, form = ?conn.form(), "connected to MemCache");
                link.send_replace(Link::Up(Arc::new(conn)));
                let began = Instant::now();
                let error = line.run().await;
                // One that takes connections and ends them at once is waited for as long as one
                // that takes none.
                if began.elapsed() > LONGEST_PAUSE {
                    pause = FIRST_PAUSE;
                }
                error
            }
            Err(error) => error,
        };
        tracing::debug!(service = %config.service, %error, "no connection to MemCache");
        link.send_replace(Link::Down(error));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
