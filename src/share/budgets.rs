//! The exchange of keys' budgets and places with the store, in the background: requests look at
//! this process alone.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::places::Places;
use super::retry::{Retry, in_time};
use super::slices::{Buckets, DueExchange, GatewayCount, TOGETHER};
use super::store::Store;
use super::{LinkSettings, ShareError};
use crate::auth::{Callers, KeyCell, KeyPlaces, NamedCells, Told};
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
    /// Gateways that share limits, as last counted.
    gateways: u32,
}

impl BudgetLink {
    /// The exchange for the keys of these callers.
    pub fn new(settings: LinkSettings, callers: Arc<Callers>, meters: Arc<Meters>) -> BudgetLink {
        let LinkSettings { store, prefix, me } = settings;
        let (buckets, places) = (Buckets::new(&prefix, me), Places::new(&prefix, me));
        BudgetLink { store, prefix, buckets, places, callers, meters, gateways: 1 }
    }

    /// Keeps limits and store together, and never returns. Without the store each limit goes on
    /// with this gateway's part.
    pub async fn run(mut self) {
        let mut retry = Retry::new();
        self.meters.share_budgets(None);
        loop {
            let error = match self.connect().await {
                Ok(store) => {
                    let gateways = self.gateways;
                    tracing::info!(share = %self.prefix, gateways, "limits of keys hold over all gateways");
                    retry.reached();
                    self.serve(store).await
                }
                Err(error) => error,
            };
            let now = Instant::now();
            self.callers.budgets().iter().for_each(|(_, cell)| cell.with(|budget| budget.leave(now)));
            self.callers.places().iter().for_each(|(_, cell)| cell.with(KeyPlaces::part));
            self.meters.share_budgets(None);
            if retry.is_news() {
                tracing::warn!(share = %self.prefix, %error, "limits of keys can't be shared: this gateway goes on with its part of them");
            }
            retry.wait().await;
        }
    }

    /// Connects to the store, and counts the gateways: a store that takes no word of this one is
    /// none.
    async fn connect(&mut self) -> Result<MultiplexedConnection, ShareError> {
        in_time(async {
            let mut store = self.store.connect().await?.commands;
            self.count(&mut store).await?;
            Ok(store)
        })
        .await
    }

    /// Counts the gateways. Those that were known are still counted in a store that came back empty
    /// a moment ago: it has not heard of them yet.
    async fn count(&mut self, store: &mut MultiplexedConnection) -> Result<(), ShareError> {
        let GatewayCount { gateways, young } = self.buckets.count_gateways(store).await?;
        self.gateways = if young { gateways.max(self.gateways) } else { gateways };
        Ok(())
    }

    /// Exchanges until something fails, and says what.
    async fn serve(&mut self, mut store: MultiplexedConnection) -> ShareError {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.meters.share_budgets(Some(self.gateways));
            if let Err(error) = self.exchange(&mut store).await {
                return error;
            }
            sleep(PAUSE).await;
            let is_look = tokio::select! {
                () = self.callers.limits_used() => false,
                _ = looks.tick() => true,
            };
            if is_look && let Err(error) = self.count(&mut store).await {
                return error;
            }
        }
    }

    /// Exchanges the slices and places of all keys that have something to tell.
    async fn exchange(&self, store: &mut MultiplexedConnection) -> Result<(), ShareError> {
        let (now, gateways) = (Instant::now(), self.gateways);
        let budgets = due(self.callers.budgets(), |budget| {
            budget.join(gateways, now);
            budget.next_exchange(now)
        });
        for due in budgets.chunks(TOGETHER) {
            let asked = Instant::now();
            let grants = self.buckets.exchange(store, due).await?;
            for (due, grant) in due.iter().zip(grants) {
                due.cell.with(|budget| budget.end_exchange(grant, asked));
            }
        }
        let now = Instant::now();
        let places = due(self.callers.places(), |places| {
            places.join(gateways);
            places.next_exchange(now)
        });
        for due in places.chunks(TOGETHER) {
            let grants = self.places.exchange(store, due).await?;
            due.iter().zip(grants).for_each(|(due, grant)| due.cell.with(|it| it.end_exchange(grant)));
        }
        Ok(())
    }
}

/// The exchanges that `next` finds due.
fn due<T: Told, R>(cells: NamedCells<T>, next: impl Fn(&mut T) -> Option<R>) -> Vec<DueExchange<T, R>> {
    let due = |(name, cell): (Arc<str>, Arc<KeyCell<T>>)| {
        let request = cell.with(&next)?;
        Some(DueExchange { name, cell, request })
    };
    cells.into_iter().filter_map(due).collect()
}
