//! Finds missed batches by their numbers alone. The module is pure.
//!
//! An engine numbers its batches from 0. Batches that were published while nobody listened come
//! again from its replay socket, as far as its buffer reaches. A restarted engine begins anew, and
//! may have come farther than the old one before it is heard again. Numbers alone don't show that:
//! the last batch seen is asked for once more and compared.

/// Place where one is in an engine's numbering.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    /// Number and digest of the last batch that was taken.
    last: Option<(u64, u64)>,
    /// Highest number that live batches exceed.
    live: Option<u64>,
    /// Batches before those that were taken are missing, and may still be had.
    owed: bool,
}

/// Action for a live batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is the next one.
    Take,
    /// It was replayed already.
    Known,
    /// Batches from this number on are missing.
    Gap(u64),
    /// The numbering began anew.
    Restart,
}

/// A replay under way.
#[derive(Clone, Debug)]
pub struct Replay {
    asked: u64,
    /// True if the batches taken so far can't be continued.
    anew: bool,
    /// Digest of the batch asked for, if it was seen before.
    expected: Option<u64>,
    /// The number that comes next, once one has come.
    next: Option<u64>,
}

/// Action for a replayed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// It is the next one.
    Take,
    /// It is the first, and those asked for before it are lost, or what was taken so far begins
    /// behind it.
    TakeAfterLoss,
    /// It was taken before.
    Known,
    /// Batches within the replay are missing: ask again from the cursor's next.
    Hole,
    /// It is not the engine that was listened to, or not known to be: begin anew.
    Stranger,
}

impl Cursor {
    /// A new connection: the engine goes on behind what was taken, or it is another.
    pub fn connected(&mut self) {
        self.live = self.last.map(|(last, _)| last);
    }

    /// On this connection a replay came to its end: what comes live may repeat it.
    pub fn caught_up(&mut self) {
        self.live = None;
        self.owed = false;
    }

    /// A batch was taken live while those before it could not be asked for: all are to be asked
    /// for, later.
    pub fn owes(&mut self) {
        self.owed = true;
    }

    /// Nothing was taken so far.
    pub fn forget(&mut self) {
        self.last = None;
        self.owed = false;
    }

    /// A batch was taken. `digest` is of its payload.
    pub fn took(&mut self, sequence: u64, digest: u64) {
        self.last = Some((sequence, digest));
    }

    /// The number after the last one that was taken.
    pub fn next(&self) -> u64 {
        self.last.map_or(0, |(last, _)| last.saturating_add(1))
    }

    /// True if a batch was taken.
    pub fn has_taken(&self) -> bool {
        self.last.is_some()
    }

    /// The replay to ask for after a connection was made. It covers all batches as long as any of
    /// them is missing. Otherwise it begins with the last one, which shows whether it is still the
    /// same engine.
    pub fn resume(&self) -> Replay {
        match self.last {
            Some((last, digest)) if !self.owed => Replay { expected: Some(digest), ..Replay::from(last) },
            _ => Replay { anew: self.owed, ..Replay::from(0) },
        }
    }

    /// A batch came live.
    pub fn live(&mut self, sequence: u64, digest: u64) -> Step {
        let went_back = self.live.is_some_and(|live| sequence <= live);
        self.live = Some(sequence);
        if went_back { Step::Restart } else { self.place(sequence, digest) }
    }

    /// Place where a batch belongs, if the numbering goes on.
    pub fn place(&self, sequence: u64, digest: u64) -> Step {
        match self.last {
            Some(last) if last.0 == sequence && last.1 != digest => Step::Restart,
            Some((last, _)) if sequence <= last => Step::Known,
            _ if sequence == self.next() => Step::Take,
            _ => Step::Gap(self.next()),
        }
    }
}

impl Replay {
    /// Of all batches from this number on.
    pub fn from(asked: u64) -> Self {
        Self { asked, anew: false, expected: None, next: None }
    }

    /// The number to ask for.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// A batch came.
    pub fn came(&mut self, sequence: u64, digest: u64) -> Replayed {
        let Some(next) = self.next else { return self.first(sequence, digest) };
        if sequence < next {
            return Replayed::Known;
        }
        if sequence > next {
            return Replayed::Hole;
        }
        self.next = Some(next.saturating_add(1));
        Replayed::Take
    }

    fn first(&mut self, sequence: u64, digest: u64) -> Replayed {
        if sequence < self.asked {
            return Replayed::Known;
        }
        self.next = Some(sequence.saturating_add(1));
        match self.expected {
            Some(expected) if (sequence, digest) == (self.asked, expected) => Replayed::Known,
            Some(_) => Replayed::Stranger,
            None if sequence == self.asked && !self.anew => Replayed::Take,
            None => Replayed::TakeAfterLoss,
        }
    }

    /// True if the replay has ended without the batch that was seen before: the engine is another.
    pub fn ended_strange(&self) -> bool {
        self.expected.is_some() && self.next.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u64) -> Cursor {
        let mut cursor = Cursor::default();
        cursor.took(last, last.wrapping_mul(10));
        cursor
    }

    #[test]
    fn live_batches() {
        let mut fresh = Cursor::default();
        assert_eq!((fresh.clone().live(0, 0), fresh.live(4, 40)), (Step::Take, Step::Gap(0)));
        let mut cursor = at(7);
        assert_eq!(cursor.live(5, 50), Step::Known);
        assert_eq!(cursor.live(7, 70), Step::Known);
        assert_eq!(cursor.live(8, 80), Step::Take);
        cursor.took(8, 80);
        assert_eq!(cursor.live(11, 0), Step::Gap(9));
        assert_eq!(cursor.live(0, 0), Step::Restart);
        cursor.connected();
        assert_eq!(cursor.clone().live(3, 30), Step::Restart, "nothing was replayed that it could repeat");
        assert_eq!(cursor.clone().live(9, 90), Step::Take);
        cursor.caught_up();
        assert_eq!(cursor.live(3, 30), Step::Known);
        assert_eq!(at(7).live(7, 71), Step::Restart, "the same number, another batch");
        assert_eq!(at(u64::MAX).live(u64::MAX, 0), Step::Restart);
    }

    #[test]
    fn a_replay_of_all() {
        let mut replay = Cursor::default().resume();
        assert_eq!((replay.asked(), replay.ended_strange()), (0, false));
        assert_eq!(replay.clone().came(3, 0), Replayed::TakeAfterLoss);
        let steps = [0, 1, 1, 2, 4].map(|sequence| replay.came(sequence, 0));
        use Replayed::{Hole, Known, Take};
        assert_eq!(steps, [Take, Take, Known, Take, Hole]);
    }

    #[test]
    fn the_last_batch_tells_whether_it_is_the_same_engine() {
        let mut same = at(7).resume();
        assert_eq!((same.asked(), same.ended_strange()), (7, true));
        assert_eq!((same.came(7, 70), same.came(8, 0)), (Replayed::Known, Replayed::Take));
        assert!(!same.ended_strange());
        assert_eq!(at(7).resume().came(7, 71), Replayed::Stranger);
        assert_eq!(at(7).resume().came(9, 70), Replayed::Stranger);
    }

    #[test]
    fn missing_batches_are_requested_from_the_first() {
        let mut cursor = at(7);
        cursor.owes();
        let mut replay = cursor.resume();
        assert_eq!((replay.asked(), replay.ended_strange()), (0, false));
        let steps = [0, 1].map(|sequence| replay.came(sequence, 0));
        assert_eq!(
            steps,
            [Replayed::TakeAfterLoss, Replayed::Take],
            "what was taken out of its order is forgotten"
        );
        cursor.caught_up();
        assert_eq!(cursor.resume().asked(), 7);
    }

    #[test]
    fn a_gap() {
        let mut replay = Replay::from(5);
        assert_eq!((replay.came(4, 0), replay.came(5, 0)), (Replayed::Known, Replayed::Take));
        assert_eq!(Replay::from(5).came(6, 0), Replayed::TakeAfterLoss);
    }
}
