//! Reason why the last requests went where they went, for who asks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use crate::fleet::{Choice, Instance, Member};
use crate::route::{Append, Job};

/// Requests that are remembered.
const MOST: usize = 1024;

/// One placement of one request.
#[derive(Clone, Debug)]
pub struct DecisionRecord {
    /// The request's id.
    pub id: String,
    /// Facts of the request, without its blocks' hashes: those are long.
    pub job: Job,
    /// Number of its blocks.
    pub blocks: usize,
    /// Prefiller that was chosen.
    pub prefiller: Member,
    /// Reason why this one.
    pub choice: Choice,
    /// Tokens that it found in its caches, once it has said.
    pub cached_tokens: Option<u64>,
    /// Time of the choice, by the clock on the wall.
    pub at: SystemTime,
    /// Outcome of the request.
    pub fate: Arc<DecisionOutcome>,
}

/// One request that a decoder answers alone, since it remembers the prompt.
#[derive(Clone, Debug)]
pub struct AppendRecord {
    /// The request's id.
    pub id: String,
    /// Facts of the request, without its blocks' hashes.
    pub job: Job,
    /// Number of its blocks.
    pub blocks: usize,
    /// Decoder that was chosen.
    pub decoder: Member,
    /// Prediction for which it was chosen.
    pub append: Append,
    /// Tokens that it found in its caches, once it has said.
    pub cached_tokens: Option<u64>,
}

/// Outcome of a placement. The account of its request writes it, so that nobody has to look for the
/// record again.
#[derive(Debug, Default)]
pub struct DecisionOutcome {
    decoder: Mutex<Option<Arc<Instance>>>,
    end: OnceLock<End>,
}

/// Writer of an outcome. If it is dropped without a word, the request went away before anybody
/// could tell more.
#[derive(Debug)]
pub struct OutcomeWriter(Arc<DecisionOutcome>);

/// End of a request, or of the attempt at it that a placement was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The client's, or 0 where that is another's to say.
    pub status: u16,
    /// As in the metrics of requests; or [`End::RETRIED`], [`End::GONE`] or [`End::PART`].
    pub reason: &'static str,
    /// Since the request came.
    pub took: Duration,
    /// Tokens of the answer.
    pub output_tokens: u64,
}

impl End {
    /// The request was placed once more.
    pub const RETRIED: &'static str = "retried";
    /// It went away while a prefiller was looked for, beside its decoder.
    pub const GONE: &'static str = "gone";
    /// It was one prompt of several: how their request ended, its log line says.
    pub const PART: &'static str = "part";
}

impl OutcomeWriter {
    /// A decode leg starts.
    pub fn decodes(&self, decoder: &Arc<Instance>) {
        *self.0.decoder.lock().unwrap_or_else(PoisonError::into_inner) = Some(decoder.clone());
    }

    /// It is over. Only the first word counts.
    pub fn ends(&self, end: End) {
        let _ = self.0.end.set(end);
    }
}

impl Drop for OutcomeWriter {
    fn drop(&mut self) {
        self.ends(End { status: 0, reason: End::GONE, took: Duration::ZERO, output_tokens: 0 });
    }
}

impl DecisionOutcome {
    /// The decoder, once there is one.
    pub fn decoder(&self) -> Option<Arc<Instance>> {
        self.decoder.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// End of the request; `None` while it lasts.
    pub fn end(&self) -> Option<End> {
        self.end.get().copied()
    }
}

/// The last placements, a request's retries among them.
#[derive(Debug, Default)]
pub struct DecisionLog {
    placements: Mutex<VecDeque<DecisionRecord>>,
    /// Requests without a prefiller, since a decoder remembers their prompts.
    appends: Mutex<VecDeque<AppendRecord>>,
}

impl DecisionLog {
    /// A request was placed. What becomes of it is to be told to who is returned.
    pub fn placed(&self, id: &str, job: &Arc<Job>, prefiller: Member, choice: &Choice) -> OutcomeWriter {
        let fate = Arc::<DecisionOutcome>::default();
        let record = DecisionRecord {
            id: id.to_owned(),
            job: Job { blocks: Arc::default(), ..job.as_ref().clone() },
            blocks: job.blocks.len(),
            prefiller,
            choice: choice.clone(),
            cached_tokens: None,
            at: SystemTime::now(),
            fate: fate.clone(),
        };
        let mut all = self.placements.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.pop_front();
        }
        all.push_back(record);
        OutcomeWriter(fate)
    }

    /// A request goes to a decoder alone, which remembers its prompt.
    pub fn appended(&self, id: &str, job: &Arc<Job>, decoder: Member, append: Append) {
        let record = AppendRecord {
            id: id.to_owned(),
            job: Job { blocks: Arc::default(), ..job.as_ref().clone() },
            blocks: job.blocks.len(),
            decoder,
            append,
            cached_tokens: None,
        };
        let mut all = self.appends.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.pop_front();
        }
        all.push_back(record);
    }

    /// Its decoder has answered.
    pub fn append_found(&self, id: &str, cached_tokens: Option<u64>) {
        let mut all = self.appends.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(record) = all.iter_mut().rev().find(|record| record.id == id) {
            record.cached_tokens = cached_tokens;
        }
    }

    /// Those of a request that are still remembered, oldest first.
    pub fn appends_of(&self, id: &str) -> Vec<AppendRecord> {
        let all = self.appends.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|record| record.id == id).cloned().collect()
    }

    /// Its prefiller has answered.
    pub fn prefilled(&self, id: &str, cached_tokens: Option<u64>) {
        let mut all = self.placements.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(record) = all.iter_mut().rev().find(|record| record.id == id) {
            record.cached_tokens = cached_tokens;
        }
    }

    /// The last placements, newest first, `most` at most.
    pub fn last(&self, most: usize) -> Vec<DecisionRecord> {
        let all = self.placements.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().rev().take(most).cloned().collect()
    }

    /// All placements of a request that are still remembered, oldest first.
    pub fn of(&self, id: &str) -> Vec<DecisionRecord> {
        let all = self.placements.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|record| record.id == id).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::fleet::{Fleet, Role};
    use crate::route::Policy;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn the_first_word_counts_and_silence_is_one() {
        let (fleet, decision_log, job) =
            (Fleet::new(Policy::Predicted), DecisionLog::default(), Arc::<Job>::default());
        fleet.add(Role::Prefill, Endpoint::new("p", 1));
        let placed = fleet.scheduler().place(job.clone(), Instant::now(), &[]).unwrap().await.unwrap();
        let outcome_writers =
            ["a", "b"].map(|id| decision_log.placed(id, &job, placed.reservation.member(), &placed.choice));
        let end = |id: &str| decision_log.of(id)[0].fate.end().map(|end| end.reason);
        assert_eq!((end("a"), end("b")), (None, None));
        outcome_writers[0].decodes(placed.reservation.instance());
        outcome_writers[0].ends(End { status: 200, reason: "ok", took: Duration::ZERO, output_tokens: 1 });
        outcome_writers[0].ends(End {
            status: 500,
            reason: "internal",
            took: Duration::ZERO,
            output_tokens: 1,
        });
        drop(outcome_writers);
        assert_eq!((end("a"), end("b")), (Some("ok"), Some(End::GONE)));
        assert!(decision_log.of("a")[0].fate.decoder().is_some());
        let newest: Vec<String> = decision_log.last(9).into_iter().map(|record| record.id).collect();
        assert_eq!((newest, decision_log.last(1).len()), (vec!["b".to_owned(), "a".to_owned()], 1));
    }
}
