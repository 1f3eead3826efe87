//! Why the last requests went where they went, for who asks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use crate::fleet::{Choice, Instance, Member, Seat};
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
    /// When, by the clock on the wall.
    pub at: SystemTime,
    /// What became of it.
    pub fate: Arc<Fate>,
}

/// What became of a placement. The account of its request writes it, so that nobody has to look for the story again.
#[derive(Debug, Default)]
pub struct Fate {
    decoder: Mutex<Option<Arc<Instance>>>,
    end: OnceLock<End>,
}

/// How a request ended, or the attempt at it that a placement was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The client's, or 0 where that is another's to say.
    pub status: u16,
    /// As in the metrics of requests; or [`End::RETRIED`], or [`End::PART`].
    pub reason: &'static str,
    /// Since the request came.
    pub took: Duration,
    /// Tokens of the answer.
    pub output_tokens: u64,
}

impl End {
    /// The request was placed once more.
    pub const RETRIED: &'static str = "retried";
    /// It was one prompt of several: how their request ended, its log line says.
    pub const PART: &'static str = "part";
}

impl Fate {
    /// A decode leg starts.
    pub fn decodes(&self, decoder: &Arc<Instance>) {
        *self.decoder.lock().unwrap_or_else(PoisonError::into_inner) = Some(decoder.clone());
    }

    /// It is over. Only the first word counts.
    pub fn ends(&self, end: End) {
        let _ = self.end.set(end);
    }

    /// The decoder, once there is one.
    pub fn decoder(&self) -> Option<Arc<Instance>> {
        self.decoder.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How it ended; None while it lasts.
    pub fn end(&self) -> Option<End> {
        self.end.get().copied()
    }
}

/// The last placements, a request's retries among them.
#[derive(Debug, Default)]
pub struct Stories(Mutex<VecDeque<Story>>);

impl Stories {
    /// A request was placed; what is to be told of what becomes of it.
    pub fn placed(&self, id: &str, job: &Arc<Job>, seat: &Seat, choice: &Choice) -> Arc<Fate> {
        let fate = Arc::<Fate>::default();
        let story = Story {
            id: id.to_owned(),
            job: Job { blocks: Arc::default(), ..job.as_ref().clone() },
            blocks: job.blocks.len(),
            prefiller: seat.member(),
            choice: choice.clone(),
            cached_tokens: None,
            at: SystemTime::now(),
            fate: fate.clone(),
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.pop_front();
        }
        all.push_back(story);
        fate
    }

    /// Its prefiller has answered.
    pub fn prefilled(&self, id: &str, cached_tokens: Option<u64>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(story) = all.iter_mut().rev().find(|story| story.id == id) {
            story.cached_tokens = cached_tokens;
        }
    }

    /// The last placements, newest first, `most` at most.
    pub fn last(&self, most: usize) -> Vec<Story> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().rev().take(most).cloned().collect()
    }

    /// All placements of a request that are still remembered, oldest first.
    pub fn of(&self, id: &str) -> Vec<Story> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|story| story.id == id).cloned().collect()
    }
}
