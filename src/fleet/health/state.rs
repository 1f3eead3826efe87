//! States of engines and roles, in one set of words for page, API, metrics, log and `/readyz`, and
//! the record of what was last said of an engine.

/// Longest text of a cause, in characters: an error of a connection is far shorter.
const MAX_CAUSE_CHARS: usize = 200;
/// The state of an engine that stays down is logged again after this time, in ms: often enough for
/// a log that is read from its end, seldom enough to leave it readable.
const REPEAT_MS: u64 = 300_000;

/// State of an engine in one role, or of a role as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineState {
    /// It has neither answered nor failed yet.
    #[default]
    Unknown,
    /// It takes requests.
    Up,
    /// Some engines of the role are down and others are up. Of one engine: it refuses the gateway
    /// for want of a key that clients may have.
    Degraded,
    /// The engine is left alone, or no engine of the role takes requests.
    Down,
    /// It finishes what is under way, and gets nothing new.
    Draining,
}

/// Numbers of a role's members by their state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts {
    /// Members that have neither answered nor failed yet.
    pub unknown: usize,
    /// Members that take requests.
    pub up: usize,
    /// Members that take those which bring a key that we have not.
    pub degraded: usize,
    /// Members that are left alone.
    pub down: usize,
    /// Members that finish what is under way.
    pub draining: usize,
}

/// News of an engine's state, as far as the log is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Nothing that the log has not said, or said a short time ago.
    None,
    /// The state is another one than before.
    Changed {
        /// The state before.
        from: EngineState,
        /// Time for which that lasted, in ms.
        lasted_ms: u64,
    },
    /// It is still down, and that was not said for a while.
    StillDown {
        /// Time since it went down, in ms.
        since_ms: u64,
    },
}

/// State of an engine that was last told, and the cause of its last failure.
#[derive(Debug, Default)]
pub struct StateRecord {
    state: EngineState,
    changed_ms: u64,
    said_ms: u64,
    cause: Option<String>,
}

impl EngineState {
    /// All of them, gravest last but one.
    pub const ALL: [EngineState; 5] = [
        EngineState::Unknown,
        EngineState::Up,
        EngineState::Degraded,
        EngineState::Down,
        EngineState::Draining,
    ];

    /// `unknown`, `up`, `degraded`, `down` or `draining`.
    pub fn name(self) -> &'static str {
        match self {
            EngineState::Unknown => "unknown",
            EngineState::Up => "up",
            EngineState::Degraded => "degraded",
            EngineState::Down => "down",
            EngineState::Draining => "draining",
        }
    }
}

impl StateCounts {
    /// Counts one more member that is in `state`.
    pub fn add(&mut self, state: EngineState) {
        match state {
            EngineState::Unknown => self.unknown += 1,
            EngineState::Up => self.up += 1,
            EngineState::Degraded => self.degraded += 1,
            EngineState::Down => self.down += 1,
            EngineState::Draining => self.draining += 1,
        }
    }

    /// Members that don't drain.
    pub fn serving(&self) -> usize {
        self.unknown + self.up + self.degraded + self.down
    }

    /// State of the role. A role without members is down. New members that have not answered yet
    /// don't degrade it.
    pub fn role(&self) -> EngineState {
        match self {
            StateCounts { degraded: 1.., .. } => EngineState::Degraded,
            StateCounts { unknown: 0, up: 0, down: 0, draining: 1.., .. } => EngineState::Draining,
            StateCounts { unknown: 0, up: 0, .. } => EngineState::Down,
            StateCounts { up: 0, .. } => EngineState::Unknown,
            StateCounts { down: 0, .. } => EngineState::Up,
            _ => EngineState::Degraded,
        }
    }
}

impl StateRecord {
    /// Takes over the state at `now_ms`, and tells what of it is news.
    pub fn set(&mut self, now_ms: u64, state: EngineState) -> News {
        let lasted_ms = now_ms.saturating_sub(self.changed_ms);
        if state != self.state {
            let from = std::mem::replace(&mut self.state, state);
            (self.changed_ms, self.said_ms) = (now_ms, now_ms);
            return News::Changed { from, lasted_ms };
        }
        if state == EngineState::Down && now_ms.saturating_sub(self.said_ms) >= REPEAT_MS {
            self.said_ms = now_ms;
            return News::StillDown { since_ms: lasted_ms };
        }
        News::None
    }

    /// Notes why a leg or a probe failed. An operating system's number for an error is left out.
    pub fn note_cause(&mut self, text: &str) {
        let text = text.split(" (os error ").next().unwrap_or(text);
        let mut chars = text.chars().filter(|c| !c.is_control()).take(MAX_CAUSE_CHARS);
        // A method's name, as in `GET /health answers 503`, stays as it is.
        let is_word = !text.starts_with("GET ");
        let first = chars.next().map(|c| if is_word { c.to_ascii_lowercase() } else { c });
        self.cause = first.map(|first| std::iter::once(first).chain(chars).collect());
    }

    /// Forgets the cause: it answered well.
    pub fn forget_cause(&mut self) {
        self.cause = None;
    }

    /// Cause of the last failure, if it has not answered well since.
    pub fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(unknown: usize, up: usize, down: usize, draining: usize) -> EngineState {
        StateCounts { unknown, up, degraded: 0, down, draining }.role()
    }

    #[test]
    fn a_role_is_what_its_members_are_together() {
        assert_eq!(role(0, 0, 0, 0), EngineState::Down, "nobody is there");
        assert_eq!(role(2, 0, 0, 0), EngineState::Unknown);
        assert_eq!(role(1, 0, 1, 0), EngineState::Unknown, "the other one may be well");
        assert_eq!(role(1, 1, 0, 0), EngineState::Up, "a new member degrades nothing");
        assert_eq!(role(0, 1, 1, 0), EngineState::Degraded);
        assert_eq!(role(1, 1, 1, 3), EngineState::Degraded);
        assert_eq!(role(0, 0, 2, 1), EngineState::Down);
        assert_eq!(role(0, 0, 0, 1), EngineState::Draining);
        assert_eq!(role(0, 1, 0, 1), EngineState::Up, "what leaves is no trouble");
        let keyed = StateCounts { degraded: 1, ..StateCounts::default() };
        assert_eq!((keyed.role(), keyed.serving()), (EngineState::Degraded, 1));
    }

    #[test]
    fn a_state_is_told_once_and_a_bad_one_every_five_minutes() {
        let mut record = StateRecord::default();
        assert_eq!(record.set(10, EngineState::Unknown), News::None);
        let up = News::Changed { from: EngineState::Unknown, lasted_ms: 20 };
        assert_eq!(record.set(20, EngineState::Up), up);
        assert_eq!(record.set(900_000, EngineState::Up), News::None);
        let down = News::Changed { from: EngineState::Up, lasted_ms: 980 };
        assert_eq!(record.set(1_000, EngineState::Down), down);
        let news: Vec<News> =
            (0..1_260).map(|second| record.set(1_000 + second * 1_000, EngineState::Down)).collect();
        let told: Vec<usize> = (0..news.len()).filter(|at| news[*at] != News::None).collect();
        assert_eq!(told, [300, 600, 900, 1_200]);
        assert_eq!(news[600], News::StillDown { since_ms: 600_000 });
    }

    #[test]
    fn a_cause_is_one_bounded_line() {
        let mut record = StateRecord::default();
        record.note_cause("Connection refused (os error 111)");
        assert_eq!(record.cause(), Some("connection refused"));
        record.note_cause(&format!("a\nb{}", "x".repeat(1_000)));
        assert!(record.cause().is_some_and(|it| it.starts_with("abx") && it.len() == MAX_CAUSE_CHARS));
        record.forget_cause();
        assert_eq!(record.cause(), None);
    }
}
