//! Identity of each engine for the other side, by the protocol of the fleet.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::dialect::{Peer, Transfer, mooncake, signs};
use crate::endpoint::Endpoint;
use crate::fleet::{EngineProtocol, Instance, Reservation};
use crate::relay::Relay;
use crate::relay::failure::Failure;
use crate::upstream::collect;

/// Limit for a bootstrap server's answer.
const BOOTSTRAP_BYTES: usize = 1 << 20;
const BOOTSTRAP_TIME: Duration = Duration::from_secs(2);

impl Relay {
    /// Looks whether a prefiller's hand-off tells what it speaks.
    pub(super) fn heed(&self, handoff: &Bytes) {
        let speech = self.speech.now();
        if !speech.open {
            return;
        }
        if let Some(told) = signs::of_handoff(handoff, speech.dialect) {
            tracing::info!(dialect = told.dialect.name(), "dialect: {}", told.why);
            self.speech.turn_to(told.dialect, None);
        }
    }

    /// Values that both legs of an attempt with this prefiller need before either is sent.
    pub(super) async fn transfer(&self, reservation: &Reservation) -> Result<Transfer, Failure> {
        let (speech, rank) = (self.speech.now(), reservation.rank());
        let peer = match speech.dialect.asks_bootstrap() {
            true => Some(self.peer(reservation.instance(), &speech).await?),
            // What one rank said is not true of another.
            false => reservation.instance().peer().filter(|_| rank.is_none()),
        };
        if rank.is_none() && peer.as_ref().is_some_and(|peer| peer.ranks() > 1) {
            return Err(Failure::unprepared("it has several data-parallel ranks: set fleet.prefill_ranks"));
        }
        let bootstrap =
            speech.dialect.has_rooms().then(|| speech.bootstrap(reservation.instance().endpoint()));
        Ok(Transfer {
            id: uuid::Uuid::new_v4().as_u128(),
            peer,
            bootstrap: bootstrap.map(|at| (at.host, at.port)),
            rank,
            offer: None,
            called: None,
        })
    }

    /// Identity of a prefiller from its bootstrap server: asked once, and again when it is another
    /// process.
    async fn peer(&self, instance: &Instance, speech: &EngineProtocol) -> Result<Arc<Peer>, Failure> {
        if let Some(known) = instance.peer() {
            return Ok(known);
        }
        let bootstrap = speech.bootstrap(instance.endpoint());
        let asked = tokio::time::timeout(BOOTSTRAP_TIME, self.ask_bootstrap(&bootstrap)).await;
        let peer = asked.unwrap_or_else(|_| Err("it does not answer".to_owned()));
        let peer = peer.map_err(|why| Failure::unprepared(format!("bootstrap server {bootstrap}: {why}")))?;
        let peer = Arc::new(peer);
        instance.know(peer.clone());
        Ok(peer)
    }

    async fn ask_bootstrap(&self, bootstrap: &Endpoint) -> Result<Peer, String> {
        let answer = self.upstream.get(bootstrap, mooncake::QUERY_PATH).await.map_err(|e| e.causes())?;
        let status = answer.status();
        let body = collect(answer.into_body(), BOOTSTRAP_BYTES).await.map_err(|e| e.to_string())?;
        let read = status.is_success().then(|| mooncake::read_query(body, bootstrap.authority())).flatten();
        read.ok_or_else(|| format!("status {}, and no list of engine ids", status.as_u16()))
    }
}
