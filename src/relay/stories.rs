//! Why the last requests went where they went, for who asks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::fleet::{Choice, Member, Seat};
use crate::route::Job;

/// Requests that are remembered.
const MOST: usize = 1024;

/// One placement of one request.
#[derive(Clone, Debug)]
pub struct Story {
    /// The request's id.
    pub id: String,
    /// What was known of it, without its blocks' hashes: those are long.
    pub job: Job,
    /// How many blocks it has.
    pub blocks: usize,
    /// The prefiller.
    pub prefiller: Member,
    /// Why this one.
    pub choice: Choice,
    /// Tokens that it found in its caches, once it has said.
    pub cached_tokens: Option<u64>,
}

/// The last placements, a request's retries among them.
#[derive(Debug, Default)]
pub struct Stories(Mutex<VecDeque<Story>>);

impl Stories {
    /// A request was placed.
    pub fn placed(&self, id: &str, job: &Arc<Job>, seat: &Seat, choice: &Choice) {
        let story = Story {
            id: id.to_owned(),
            job: Job { blocks: Arc::default(), ..job.as_ref().clone() },
            blocks: job.blocks.len(),
            prefiller: seat.member(),
            choice: choice.clone(),
            cached_tokens: None,
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.pop_front();
        }
        all.push_back(story);
    }

    /// Its prefiller has answered.
    pub fn prefilled(&self, id: &str, cached_tokens: Option<u64>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(story) = all.iter_mut().rev().find(|story| story.id == id) {
            story.cached_tokens = cached_tokens;
        }
    }

    /// All placements of a request that are still remembered, oldest first.
    pub fn of(&self, id: &str) -> Vec<Story> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|story| story.id == id).cloned().collect()
    }
}
