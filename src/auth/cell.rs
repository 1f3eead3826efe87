//! State of a key that requests use, and the exchange with other gateways.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::{KeyBudget, KeyPlaces};

/// State of a key of which other gateways hear.
pub trait Told {
    /// True if a request came, or ended, of which they have not heard.
    fn is_touched(&self) -> bool;
}

/// State of one key, which requests and the exchange with other gateways use at once.
#[derive(Debug)]
pub struct KeyCell<T> {
    state: Mutex<T>,
    /// Wakes the exchange with other gateways.
    used: Arc<Notify>,
}

/// Token budget of a key.
pub type BudgetCell = KeyCell<KeyBudget>;
/// Places of a key.
pub type PlacesCell = KeyCell<KeyPlaces>;
/// States of several keys, each with the name of its key.
pub type NamedCells<T> = Vec<(Arc<str>, Arc<KeyCell<T>>)>;

impl<T: Told> KeyCell<T> {
    pub(super) fn new(state: T, used: Arc<Notify>) -> KeyCell<T> {
        KeyCell { state: Mutex::new(state), used }
    }

    /// Does `work` with the state. A panic of another's work leaves it usable.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let was_touched = state.is_touched();
        let result = work(&mut state);
        let is_news = !was_touched && state.is_touched();
        drop(state);
        if is_news {
            self.used.notify_one();
        }
        result
    }
}
