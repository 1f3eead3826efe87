//! The connection of one fleet's scheduler to the other gateways.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::{MultiplexedConnection, PubSubStream};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::cluster::is_elsewhere;
use super::lease::{Lease, RENEWAL};
use super::retry::{Retry, in_time};
use super::store::{Connected, Store};
use super::{IN_FLIGHT, LARGEST_BYTES, ShareError, TOGETHER, codec};
use crate::fleet::peers::PeerMessages;
use crate::fleet::{Fleet, SchedulerHandle};
use crate::route::shared::message::{Numbered, ReplicaId};
use crate::route::shared::{BEAT_S, LATER_S, SILENCE_S};

/// Settings of a link to the store.
#[derive(Clone, Debug)]
pub struct LinkSettings {
    /// Way to the store.
    pub store: Arc<Store>,
    /// First part of all names in the store: gateways that share a fleet have it in common.
    pub prefix: String,
    /// Number of this gateway.
    pub me: ReplicaId,
}

/// A fleet's link to the other gateways.
#[derive(Debug)]
pub struct Link {
    settings: LinkSettings,
    fleet: Arc<Fleet>,
    scheduler: Arc<SchedulerHandle>,
    unsent: PeerMessages,
}

/// State of a link that is up.
struct Session {
    store: MultiplexedConnection,
    heard: PubSubStream,
    lease: Lease,
    last_echo: Instant,
    /// Number of gateways that were heard at the last beat.
    gateways: usize,
}

impl Link {
    /// A link of a fleet; None if that has one already.
    pub fn new(settings: LinkSettings, fleet: Arc<Fleet>) -> Option<Link> {
        let scheduler = fleet.scheduler().clone();
        let unsent = scheduler.share(settings.me)?;
        Some(Link { settings, fleet, scheduler, unsent })
    }

    /// Keeps the link up, and never returns. Without it the scheduler decides alone.
    pub async fn run(mut self) {
        let mut retry = Retry::new();
        loop {
            match self.connect().await {
                Ok(session) => {
                    tracing::info!(share = %self.settings.prefix, "what gateways tell through the store is heard");
                    retry.reached();
                    self.unsent.reset();
                    self.scheduler.connect(true);
                    let error = self.serve(session).await;
                    self.scheduler.connect(false);
                    self.fleet.take_told_loads();
                    tracing::warn!(share = %self.settings.prefix, %error, "other gateways can't be heard: this one decides alone");
                    retry.is_news();
                }
                Err(error) if retry.is_news() => {
                    tracing::warn!(share = %self.settings.prefix, %error, "the store of share.url can't be used: this gateway decides alone");
                }
                Err(_) => {}
            }
            retry.wait().await;
        }
    }

    async fn connect(&self) -> Result<Session, ShareError> {
        let LinkSettings { store, prefix, me } = &self.settings;
        let channels = [channel(prefix, None), channel(prefix, Some(*me))];
        let opened = async {
            let Connected { client, commands: store } = store.connect().await?;
            let mut listener = client.get_async_pubsub().await?;
            listener.subscribe(&channels).await?;
            Ok((store, listener.into_on_message()))
        };
        let (store, heard) = in_time(opened).await?;
        let lease = Lease::new(format!("{prefix}:leader"), *me);
        Ok(Session { store, heard, lease, last_echo: Instant::now(), gateways: 1 })
    }

    /// Sends and hears until something fails, and says what.
    async fn serve(&mut self, mut session: Session) -> ShareError {
        let mut beats = interval(Duration::from_secs_f64(BEAT_S));
        let mut renewals = interval(RENEWAL);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        renewals.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut rests = interval(Duration::from_secs_f64(LATER_S));
        rests.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut published_at = Instant::now();
        let mut publishing = FuturesUnordered::new();
        let mut renewing = FuturesUnordered::new();
        let mut refused = false;
        loop {
            // What comes before the answer waits for it a moment, and then goes out together.
            let together_until = (!publishing.is_empty()).then_some(published_at + TOGETHER);
            tokio::select! {
                heard = session.heard.next() => match heard {
                    Some(message) => self.hear(&mut session, message.get_payload_bytes()),
                    None => return ShareError::Closed,
                },
                messages = self.unsent.next(together_until), if publishing.len() < IN_FLIGHT => {
                    published_at = Instant::now();
                    publishing.push(self.publish(session.store.clone(), &messages));
                }
                Some(published) = publishing.next(), if !publishing.is_empty() => {
                    if let Err(error) = published {
                        return error;
                    }
                }
                Some((answer, asked)) = renewing.next(), if !renewing.is_empty() => {
                    if let Err(error) = &answer && is_elsewhere(error) {
                        return answer.err().unwrap_or(ShareError::Closed);
                    }
                    refused = self.note_lease(&mut session.lease, answer, asked, refused);
                }
                _ = beats.tick() => {
                    self.scheduler.beat(self.fleet.decoder_loads());
                    self.fleet.take_told_loads();
                    self.note_gateways(&mut session.gateways);
                    if session.last_echo.elapsed().as_secs_f64() > SILENCE_S {
                        return ShareError::Silent(session.last_echo.elapsed());
                    }
                    if self.unsent.has_overflowed() {
                        return ShareError::Overflow;
                    }
                    self.scheduler.lead(session.lease.leads());
                }
                _ = rests.tick() => self.scheduler.tell_rest(),
                _ = renewals.tick(), if renewing.is_empty() => {
                    renewing.push(renew(session.store.clone(), session.lease.clone()));
                }
            }
        }
    }

    /// The future of publishing some messages. They stay in their order, since the connection sends
    /// in the order in which it is asked.
    fn publish(
        &self,
        mut store: MultiplexedConnection,
        messages: &[Numbered],
    ) -> impl Future<Output = Result<(), ShareError>> + use<> {
        let mut pipeline = redis::pipe();
        for (to, bytes) in codec::encode(self.settings.me, messages) {
            pipeline.cmd("PUBLISH").arg(channel(&self.settings.prefix, to)).arg(bytes).ignore();
        }
        async move { Ok(pipeline.query_async::<()>(&mut store).await?) }
    }

    fn hear(&self, session: &mut Session, bytes: &[u8]) {
        if bytes.len() > LARGEST_BYTES {
            return;
        }
        let Ok((from, messages)) = codec::decode(bytes) else { return };
        if from == self.settings.me {
            session.last_echo = Instant::now();
        }
        self.scheduler.hear(from, &messages);
    }

    /// Says in the log when another number of gateways is heard than before.
    fn note_gateways(&self, before: &mut usize) {
        let gateways = self.scheduler.heard_gateways();
        let was = std::mem::replace(before, gateways);
        if gateways != was {
            tracing::info!(share = %self.settings.prefix, gateways, was, "other gateways came or went");
        }
    }

    /// Takes over the answer about the lease. A store that refuses to keep it, as a full one does,
    /// still carries messages: each gateway then decides for itself by what it hears.
    fn note_lease(
        &self,
        lease: &mut Lease,
        answer: Result<bool, ShareError>,
        asked: Instant,
        refused: bool,
    ) -> bool {
        match answer {
            Ok(taken) => {
                self.scheduler.lead(lease.note(taken, asked));
                false
            }
            Err(error) => {
                if !refused {
                    tracing::warn!(share = %self.settings.prefix, %error, "the lease of the leader can't be taken");
                }
                true
            }
        }
    }
}

/// Name of the channel of all gateways, or of one.
fn channel(prefix: &str, to: Option<ReplicaId>) -> String {
    match to {
        None => format!("{prefix}:messages"),
        Some(ReplicaId(number)) => format!("{prefix}:messages:{number:016x}"),
    }
}

async fn renew(mut store: MultiplexedConnection, lease: Lease) -> (Result<bool, ShareError>, Instant) {
    let asked = Instant::now();
    (lease.take(&mut store).await, asked)
}
