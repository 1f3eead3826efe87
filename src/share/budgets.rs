//! The exchange of keys' budgets and places with the store, in the background: requests look at
//! this process alone.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::places::{DuePlaces, Places};
use super::slices::{Buckets, DueExchange, TOGETHER};
use super::store::Store;
use super::{CONNECT_TIME, LinkSettings, RETRY_MAX, RETRY_MIN, ShareError};
use crate::auth::{BudgetCell, Callers, KeyPlaces, PlacesCell};
use crate::obs::Meters;

/// Pause between two exchanges: what happens meanwhile goes into one of them. A hundred in a second
/// of a busy gateway are little to the store, and what a gateway knows of it is hardly ever older.
const PAUSE: Duration = Duration::from_millis(10);
/// Time between two looks at how many gateways there are, and at slices that nobody uses.
const LOOK: Duration = Duration::from_secs(1);

/// The exchange of a gateway's budgets and places.
#[derive(Debug)]
pub struct BudgetLink {
    store: Arc<Store>,
    prefix: String,
    buckets: Buckets,
    places: Places,
    callers: Arc<Callers>,
    meters: Arc<Meters>,
}

impl BudgetLink {
    /// The exchange for the keys of these callers.
    pub fn new(settings: LinkSettings, callers: Arc<Callers>, meters: Arc<Meters>) -> BudgetLink {
        let LinkSettings { store, prefix, me } = settings;
        let (buckets, places) = (Buckets::new(&prefix, me), Places::new(&prefix, me));
        BudgetLink { store, prefix, buckets, places, callers, meters }
    }

    /// Keeps limits and store together, and never returns. Without the store each limit goes on
    /// with this gateway's part.
    pub async fn run(self) {
        let (mut pause, mut told) = (RETRY_MIN, false);
        self.meters.share_budgets(None);
        loop {
            let error = match self.connect().await {
                Ok((store, gateways)) => {
                    tracing::info!(share = %self.prefix, gateways, "limits of keys hold over all gateways");
                    (pause, told) = (RETRY_MIN, false);
                    self.serve(store, gateways).await
                }
                Err(error) => error,
            };
            let now = Instant::now();
            self.callers.budgets().iter().for_each(|(_, cell)| cell.with(|budget| budget.leave(now)));
            self.callers.places().iter().for_each(|(_, cell)| cell.with(KeyPlaces::part));
            self.meters.share_budgets(None);
            if !told {
                told = true;
                tracing::warn!(share = %self.prefix, %error, "limits of keys can't be shared: this gateway goes on with its part of them");
            }
            sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Connects to the store, and counts the gateways: a store that takes no word of this one is
    /// none.
    async fn connect(&self) -> Result<(MultiplexedConnection, u32), ShareError> {
        let opened = async {
            let mut store = self.store.connect().await?.commands;
            let gateways = self.buckets.count_gateways(&mut store).await?;
            Ok((store, gateways))
        };
        timeout(CONNECT_TIME, opened).await.map_err(|_| ShareError::Slow(CONNECT_TIME))?
    }

    /// Exchanges until something fails, and says what.
    async fn serve(&self, mut store: MultiplexedConnection, mut gateways: u32) -> ShareError {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.meters.share_budgets(Some(gateways));
            if let Err(error) = self.exchange(&mut store, gateways).await {
                return error;
            }
            sleep(PAUSE).await;
            let is_look = tokio::select! {
                () = self.callers.limits_used() => false,
                _ = looks.tick() => true,
            };
            if is_look {
                gateways = match self.buckets.count_gateways(&mut store).await {
                    Ok(gateways) => gateways,
                    Err(error) => return error,
                };
            }
        }
    }

    /// Exchanges the slices and places of all keys that have something to tell.
    async fn exchange(&self, store: &mut MultiplexedConnection, gateways: u32) -> Result<(), ShareError> {
        for due in self.due_exchanges(gateways).chunks(TOGETHER) {
            let asked = Instant::now();
            let grants = self.buckets.exchange(store, due).await?;
            for (due, grant) in due.iter().zip(grants) {
                due.cell.with(|budget| budget.end_exchange(grant, asked));
            }
        }
        for due in self.due_places(gateways).chunks(TOGETHER) {
            let grants = self.places.exchange(store, due).await?;
            due.iter().zip(grants).for_each(|(due, grant)| due.cell.with(|it| it.end_exchange(grant)));
        }
        Ok(())
    }

    fn due_places(&self, gateways: u32) -> Vec<DuePlaces> {
        let now = Instant::now();
        let due = |(name, cell): (Arc<str>, Arc<PlacesCell>)| {
            let request = cell.with(|places| {
                places.join(gateways);
                places.next_exchange(now)
            })?;
            Some(DuePlaces { name, cell, request })
        };
        self.callers.places().into_iter().filter_map(due).collect()
    }

    fn due_exchanges(&self, gateways: u32) -> Vec<DueExchange> {
        let now = Instant::now();
        let due = |(name, cell): (Arc<str>, Arc<BudgetCell>)| {
            let request = cell.with(|budget| {
                budget.join(gateways, now);
                budget.next_exchange(now)
            })?;
            Some(DueExchange { name, cell, request })
        };
        self.callers.budgets().into_iter().filter_map(due).collect()
    }
}
