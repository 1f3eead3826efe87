//! API keys: the identity of callers, their rights and their token budgets.
//!
//! The file of `auth.keys_file` holds digests only. A presented key is hashed, and the digest is
//! looked up in a map. The time of a look-up depends on the digest, never on the key. An attacker
//! who can't invert SHA-256 can't steer a digest towards one in the table. So a comparison that
//! ends early reveals nothing, and it costs the same with one key or with thousands. Keys must be
//! too long to be guessed; [`digest::refuse`] sees to that where they are made.
//!
//! Without a file all clients are one caller with all rights.

pub mod budget;
pub mod cell;
pub mod digest;
pub mod entry;
pub mod file;
pub mod key_budget;
pub mod key_places;
pub mod watch;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use budget::Budget;
pub use cell::{BudgetCell, KeyCell, NamedCells, PlacesCell, Told};
pub use digest::Digest;
use file::Entry;
pub use key_budget::KeyBudget;
pub use key_places::KeyPlaces;

/// Name of the one caller if no keys are configured.
pub const ANYONE: &str = "anyone";

/// Wrong keys are logged at most this often, with their number.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Priority class: its share of admissions while others wait, and the order in which classes are
/// refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// A quarter of the service of `Normal`.
    Low,
    /// The default class.
    #[default]
    Normal,
    /// Four times the service of `Normal`.
    High,
}

/// The owner of a key, or all clients if no keys are configured.
#[derive(Debug)]
pub struct Caller {
    /// Name of the entry in the file, which logs and metrics show.
    pub name: Arc<str>,
    /// Rights and budget of the caller.
    pub grants: Grants,
    /// Tokens per minute; None = unlimited. It outlives a change of the file, so that a change
    /// refills no bucket.
    budget: Option<Arc<BudgetCell>>,
    /// Requests under way, which outlive a change of the file as well.
    places: Arc<PlacesCell>,
}

/// Rights and budget of a caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// Models that it may name; None = all.
    pub models: Option<Vec<String>>,
    /// Prompt and output tokens per minute; None = unlimited.
    pub tokens_per_minute: Option<u64>,
    /// Requests at once; None = unlimited.
    pub requests_inflight: Option<usize>,
    /// Priority class of its requests.
    pub priority: Priority,
    /// Time within which the first tokens of its requests are due, ms; None = the gateway's own.
    pub ttft_slo_ms: Option<u32>,
    /// True if the key may use operators' routes: change the fleet, read its state.
    pub admin: bool,
}

/// All callers, as of the last valid reading of the file.
#[derive(Debug)]
pub struct Callers {
    /// `None` = clients need no key.
    table: Option<ArcSwap<Table>>,
    anyone: Arc<Caller>,
    wrong: Mutex<WrongKeyCount>,
    /// Notified when a budget or a place was used of which other gateways have not heard.
    limits_used: Arc<Notify>,
}

type Table = HashMap<Digest, Arc<Caller>>;

/// Number of wrong keys that were not logged yet.
#[derive(Debug, Default)]
struct WrongKeyCount {
    count: u64,
    told: Option<Instant>,
}

/// Tokens reserved for a request until it is known how many it took. A reservation that is dropped
/// without being settled counts as taken.
#[derive(Debug)]
pub struct TokenReservation {
    budget: Arc<BudgetCell>,
    tokens: u64,
}

/// One of a caller's requests under way; its place is given back when this is dropped.
#[derive(Debug)]
pub struct HeldPlace(Arc<PlacesCell>);

/// Level of a caller's token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Tokens per minute.
    pub limit: u64,
    /// Tokens that could be taken now.
    pub remaining: u64,
    /// Time until the bucket is full again.
    pub full_in: Duration,
}

impl Callers {
    /// Accepts all clients without a key.
    pub fn open() -> Callers {
        let (wrong, limits_used) = (Mutex::default(), Arc::default());
        Callers { table: None, anyone: Arc::new(Caller::anyone()), wrong, limits_used }
    }

    /// Accepts only the keys in the file.
    pub fn of(entries: Vec<Entry>) -> Callers {
        let open = Callers::open();
        let table = table(entries, &Table::new(), &open.limits_used);
        Callers { table: Some(ArcSwap::from_pointee(table)), ..open }
    }

    /// True if clients need a key.
    pub fn checks(&self) -> bool {
        self.table.is_some()
    }

    /// The one caller if no keys are configured.
    pub fn anyone(&self) -> &Arc<Caller> {
        &self.anyone
    }

    /// The caller that this key belongs to.
    pub fn of_key(&self, key: &[u8]) -> Option<Arc<Caller>> {
        self.table.as_ref()?.load().get(&Digest::of(key)).cloned()
    }

    /// Replaces the entries. A key in both keeps its budget as far as it is used up. Requests under
    /// way keep the rights that they began with.
    pub fn replace(&self, entries: Vec<Entry>) {
        if let Some(place) = &self.table {
            let table = table(entries, &place.load(), &self.limits_used);
            place.store(Arc::new(table));
        }
    }

    /// Budgets of all keys that have one, each with the name of its key.
    pub fn budgets(&self) -> NamedCells<KeyBudget> {
        self.cells(|caller| caller.budget.clone())
    }

    /// Places of all keys whose requests in flight have a limit, each with the name of its key.
    pub fn places(&self) -> NamedCells<KeyPlaces> {
        self.cells(|caller| caller.grants.requests_inflight.map(|_| caller.places.clone()))
    }

    /// States that `find` finds, one of each key at most.
    fn cells<T>(&self, find: impl Fn(&Caller) -> Option<Arc<KeyCell<T>>>) -> NamedCells<T> {
        let table = self.table.as_ref().map(ArcSwap::load_full);
        let named = |caller: &Arc<Caller>| Some((caller.name.clone(), find(caller)?));
        table.iter().flat_map(|table| table.values().filter_map(named)).collect()
    }

    /// Waits until a budget or a place was used of which other gateways have not heard.
    pub async fn limits_used(&self) {
        self.limits_used.notified().await;
    }

    /// Counts a wrong key. Returns how many there were since the last log line, if it is time for
    /// another.
    pub fn wrong(&self, now: Instant) -> Option<u64> {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.count += 1;
        if wrong.told.is_some_and(|told| now.saturating_duration_since(told) < TELL_EVERY) {
            return None;
        }
        wrong.told = Some(now);
        Some(std::mem::take(&mut wrong.count))
    }
}

fn table(entries: Vec<Entry>, before: &Table, used: &Arc<Notify>) -> Table {
    let known: HashMap<&str, &Arc<Caller>> = before.values().map(|caller| (&*caller.name, caller)).collect();
    let caller = |entry: Entry| {
        let known = known.get(entry.name.as_str());
        let limit = entry.grants.requests_inflight;
        let places = known.map(|known| known.places.clone());
        let places = places.unwrap_or_else(|| Arc::new(PlacesCell::new(KeyPlaces::new(limit), used.clone())));
        places.with(|places| places.set_limit(limit));
        let budget = entry.grants.tokens_per_minute.map(|per_minute| {
            let known = known.and_then(|known| known.budget.clone());
            let full = || BudgetCell::new(KeyBudget::full(per_minute), used.clone());
            let budget = known.unwrap_or_else(|| Arc::new(full()));
            budget.with(|budget| budget.set_per_minute(per_minute));
            budget
        });
        (entry.digest, Arc::new(Caller { name: entry.name.into(), grants: entry.grants, budget, places }))
    };
    entries.into_iter().map(caller).collect()
}

impl Caller {
    fn anyone() -> Caller {
        let grants = Grants { admin: true, ..Grants::default() };
        let places = Arc::new(PlacesCell::new(KeyPlaces::new(None), Arc::default()));
        Caller { name: ANYONE.into(), grants, budget: None, places }
    }

    /// True if the caller may use `model`. A request that names none may be for any model.
    pub fn may_use(&self, model: Option<&str>) -> bool {
        match &self.grants.models {
            None => true,
            Some(models) => model.is_some_and(|model| models.iter().any(|allowed| allowed == model)),
        }
    }

    /// True if it may have one more request under way.
    pub fn has_place(&self) -> bool {
        self.places.with(|places| places.is_free())
    }

    /// Takes a place for a request; None if it has as many under way as it may.
    pub fn take_place(&self) -> Option<HeldPlace> {
        self.places.with(KeyPlaces::take).then(|| HeldPlace(self.places.clone()))
    }

    /// Reserves `tokens`; `None` if the caller has no budget.
    ///
    /// # Errors
    /// The time until that many tokens are available.
    pub fn reserve(&self, tokens: u64, now: Instant) -> Result<Option<TokenReservation>, Duration> {
        let Some(budget) = &self.budget else { return Ok(None) };
        budget.with(|budget| budget.take(tokens, now))?;
        Ok(Some(TokenReservation { budget: budget.clone(), tokens }))
    }

    /// A prompt of the caller's, in a body of so many bytes, had so many tokens.
    pub fn learn(&self, bytes: usize, tokens: u64) {
        self.budget.iter().for_each(|budget| budget.with(|budget| budget.learn(bytes, tokens)));
    }

    /// Tokens of a prompt in a body of so many bytes, if it is like the caller's last ones; `None`
    /// where nothing is known of these.
    pub fn expected(&self, bytes: u64) -> Option<u64> {
        self.budget.as_ref().and_then(|budget| budget.with(|budget| budget.expected(bytes)))
    }

    /// Level of its token bucket at `now`; `None` if it has no budget.
    pub fn level(&self, now: Instant) -> Option<Level> {
        self.budget.as_ref().map(|budget| budget.with(|budget| budget.level(now)))
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        self.0.with(KeyPlaces::leave);
    }
}

impl TokenReservation {
    /// Settles a request that took `tokens`: the rest of the reservation is returned, or the excess
    /// is taken.
    pub fn settle(self, tokens: u64, now: Instant) {
        self.budget.with(|budget| budget.settle(self.tokens, tokens, now));
    }
}

impl Priority {
    /// Service relative to `Low`.
    pub fn weight(self) -> u64 {
        match self {
            Priority::Low => 1,
            Priority::Normal => 4,
            Priority::High => 16,
        }
    }

    /// The name as written in the file.
    pub fn name(self) -> &'static str {
        match self {
            Priority::Low => "low",
            Priority::Normal => "normal",
            Priority::High => "high",
        }
    }

    /// All classes in order.
    pub const ALL: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::High];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, key: &str, tokens_per_minute: Option<u64>) -> Entry {
        let grants = Grants { tokens_per_minute, ..Grants::default() };
        Entry { name: name.into(), digest: Digest::of(key.as_bytes()), grants }
    }

    #[test]
    fn each_key_identifies_its_owner_alone() {
        let callers = Callers::of(vec![entry("a", "sk-a", None), entry("b", "sk-b", None)]);
        let name = |key: &str| callers.of_key(key.as_bytes()).map(|it| it.name.to_string());
        assert_eq!((name("sk-a").as_deref(), name("sk-b").as_deref()), (Some("a"), Some("b")));
        for wrong in ["", "sk-", "sk-a ", "sk-A", "sk-aa"] {
            assert_eq!(name(wrong), None, "{wrong:?}");
        }
        assert!(callers.checks() && !Callers::open().checks());
        assert!(Callers::open().of_key(b"sk-a").is_none());
    }

    #[test]
    fn another_file_keeps_what_a_budget_has_used_up() {
        let callers = Callers::of(vec![entry("a", "sk-1", Some(600))]);
        let now = Instant::now();
        drop(callers.of_key(b"sk-1").unwrap().reserve(500, now).unwrap());
        callers.replace(vec![entry("a", "sk-2", Some(600)), entry("b", "sk-3", Some(600))]);
        assert!(callers.of_key(b"sk-1").is_none(), "the key was changed");
        let remaining = |key: &[u8]| callers.of_key(key).unwrap().level(now).unwrap().remaining;
        assert_eq!((remaining(b"sk-2"), remaining(b"sk-3")), (100, 600));
        callers.replace(vec![entry("a", "sk-2", Some(60))]);
        assert_eq!(remaining(b"sk-2"), 60, "never more than fits");
    }

    #[test]
    fn another_file_keeps_the_places_of_requests_under_way() {
        let limited = |key: &str, requests_inflight| {
            let grants = Grants { requests_inflight, ..Grants::default() };
            Entry { name: "a".into(), digest: Digest::of(key.as_bytes()), grants }
        };
        let callers = Callers::of(vec![limited("sk-1", None)]);
        let held = callers.of_key(b"sk-1").unwrap().take_place().unwrap();
        assert!(callers.places().is_empty());
        callers.replace(vec![limited("sk-2", Some(1))]);
        let caller = callers.of_key(b"sk-2").unwrap();
        assert!(!caller.has_place() && caller.take_place().is_none());
        drop(held);
        assert!(caller.has_place() && caller.take_place().is_some());
        assert_eq!(callers.places().len(), 1);
    }

    #[test]
    fn many_wrong_keys_make_few_lines_and_no_memory() {
        let callers = Callers::of(vec![entry("a", "sk-a", None)]);
        let start = Instant::now();
        let told: Vec<u64> =
            (0..10_000).filter_map(|ms| callers.wrong(start + Duration::from_millis(2 * ms))).collect();
        assert_eq!(told, [1, 5_000]);
    }

    #[test]
    fn models_are_those_of_the_list() {
        let mut caller = Caller::anyone();
        assert!(caller.may_use(Some("any")) && caller.may_use(None));
        caller.grants.models = Some(vec!["a".into()]);
        assert!(caller.may_use(Some("a")) && !caller.may_use(Some("b")) && !caller.may_use(None));
    }
}
