//! Identity of an engine's process: a process that restarted has an empty cache. The module is
//! pure.
//!
//! Two things tell. The hand-offs name the engine that made them, by an id that is new with each
//! start. Behind one address there may be several, the data-parallel ranks of several nodes, so an
//! id which is merely new to us proves nothing. And the process says in its metrics when it
//! started.

/// Ids that are remembered: more nodes than stand behind one address.
const MOST_IDS: usize = 64;
/// So many answers by one id alone, and there is but one: another is another process.
const STEADY: u32 = 8;
/// Questions for its models that an engine may leave unanswered. One that begins may be slow once.
const MOST_UNANSWERED: u32 = 3;
/// Start times are seconds; two that differ by less are one, printed by different hands.
const SAME_START_S: f64 = 0.5;

/// Identity of the process at one address.
#[derive(Debug, Default)]
pub struct Identity {
    /// Ids, oldest first.
    ids: Vec<u64>,
    /// Answers of the only id.
    answers: u32,
    /// It was out of reach since the last answer.
    away: bool,
    started_s: Option<f64>,
    /// A hand-off has shown a restart that the start time will show as well.
    told_by_id: bool,
    /// It was asked when it started, and was not out of reach since.
    start_asked: bool,
    /// It was asked for its models since it was out of reach, or refused one.
    models_asked: bool,
    /// It is to be asked for both at once, and not with the next probe that is due.
    hurried: bool,
    /// Questions for its models in a row that brought no answer.
    unanswered: u32,
    /// It has not answered the last question for its models yet.
    is_asked: bool,
    /// An adapter came or went since it was asked.
    is_overtaken: bool,
}

impl Identity {
    /// It could not be reached.
    pub fn away(&mut self) {
        self.away = true;
        self.start_asked = false;
        self.models_asked = false;
    }

    /// True if it is to be asked for its models.
    pub fn models_wanted(&self) -> bool {
        !self.models_asked
    }

    /// It is being asked for its models.
    pub fn models_asked(&mut self) {
        self.models_asked = true;
        self.is_asked = true;
        self.is_overtaken = false;
    }

    /// It has listed its models. True if an adapter came or went meanwhile: the list is old.
    pub fn models_listed(&mut self) -> bool {
        self.is_asked = false;
        self.is_overtaken
    }

    /// True if its list is being read, or is to be.
    pub fn is_read(&self) -> bool {
        self.is_asked || !self.models_asked
    }

    /// Its process may be another one by now: it is asked again, at once, what it was asked at its
    /// start.
    pub fn doubt(&mut self) {
        self.start_asked = false;
        self.models_asked = false;
        self.hurried = true;
        self.unanswered = 0;
    }

    /// True once after a doubt: it is to be asked at once.
    pub fn take_hurry(&mut self) -> bool {
        std::mem::take(&mut self.hurried)
    }

    /// It did not say which models it serves. True if it is to be asked again: one that never says
    /// is not asked for ever.
    pub fn models_unanswered(&mut self) -> bool {
        self.is_asked = false;
        self.unanswered = self.unanswered.saturating_add(1);
        self.models_asked = self.unanswered >= MOST_UNANSWERED;
        !self.models_asked
    }

    /// Its list of models may have changed since it was asked: it is asked anew, `at_once` or with
    /// the next probe. One that never says is not asked for ever.
    pub fn models_may_differ(&mut self, at_once: bool) {
        if self.unanswered < MOST_UNANSWERED {
            self.models_asked = false;
            self.hurried |= at_once;
        }
    }

    /// It has loaded or unloaded an adapter: it is asked at once.
    pub fn models_changed(&mut self) {
        self.is_overtaken = true;
        self.models_asked = false;
        self.hurried = true;
        self.unanswered = 0;
    }

    /// True if it is to be asked when it started.
    pub fn start_wanted(&self) -> bool {
        !self.start_asked
    }

    /// A hand-off names the engine `id`. True when that shows a restart.
    pub fn answered(&mut self, id: u64) -> bool {
        if self.ids.contains(&id) {
            self.answers = self.answers.saturating_add(1);
            self.away = false;
            return false;
        }
        let alone = self.ids.len() == 1 && self.answers >= STEADY;
        let restarted = !self.ids.is_empty() && (self.away || alone);
        if restarted {
            self.ids.clear();
            self.models_asked = false;
            self.told_by_id = true;
        } else if self.ids.len() == MOST_IDS {
            self.ids.remove(0);
        }
        self.ids.push(id);
        (self.answers, self.away) = (1, false);
        restarted
    }

    /// Its process began at `started_s`, in Unix seconds; None = it does not say. True when that
    /// shows a restart.
    pub fn began(&mut self, started_s: Option<f64>) -> bool {
        self.start_asked = true;
        let (Some(now_s), before_s) = (started_s, self.started_s) else { return false };
        self.started_s = Some(now_s);
        let is_told = std::mem::take(&mut self.told_by_id);
        let restarted = before_s.is_some_and(|before_s| (now_s - before_s).abs() >= SAME_START_S);
        if restarted {
            // Its ids are new as well, and are not to be taken for another restart.
            self.ids.clear();
            self.answers = 0;
            self.models_asked = false;
        }
        self.away = false;
        restarted && !is_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_id_after_an_absence_is_a_restart() {
        let mut it = Identity::default();
        it.away();
        assert!(!it.answered(1), "it was never seen before");
        assert!(!it.answered(1));
        it.away();
        assert!(!it.answered(1), "it was only out of reach");
        it.away();
        assert!(it.answered(2) && !it.answered(2));
    }

    #[test]
    fn ranks_behind_one_address_are_no_restarts() {
        let mut it = Identity::default();
        for n in 0..100 {
            assert!(!it.answered(n % 4));
        }
    }

    #[test]
    fn another_id_after_many_of_one_is_a_restart_too() {
        let mut it = Identity::default();
        (0..STEADY).for_each(|_| assert!(!it.answered(1)));
        assert!(it.answered(2));
        assert!(!it.answered(3), "the second is young: these may be two");
    }

    #[test]
    fn another_start_is_a_restart() {
        let mut it = Identity::default();
        assert!(!it.began(Some(1_700_000_000.25)));
        assert!(!it.start_wanted() && !it.began(None));
        it.away();
        assert!(it.start_wanted());
        assert!(!it.began(Some(1_700_000_000.3)));
        (0..20).for_each(|_| assert!(!it.answered(1)));
        assert!(it.began(Some(1_700_000_100.0)));
        assert!(!it.answered(2), "the same restart");
    }

    #[test]
    fn a_restart_that_an_id_has_shown_is_not_counted_by_its_start_again() {
        let mut it = Identity::default();
        assert!(!it.began(Some(100.0)) && !it.answered(1));
        it.away();
        assert!(it.answered(2));
        assert!(!it.began(Some(200.0)), "the same restart");
        it.away();
        assert!(it.began(Some(300.0)), "the next one");
    }

    #[test]
    fn a_doubt_asks_for_all_again_once_at_once_and_three_times_in_vain() {
        let mut it = Identity::default();
        it.began(None);
        it.models_asked();
        assert!(!it.models_wanted() && !it.start_wanted() && !it.take_hurry());
        it.models_may_differ(false);
        assert!(it.models_wanted() && !it.take_hurry());
        it.models_may_differ(true);
        assert!(it.models_wanted() && it.take_hurry());
        it.models_asked();
        it.doubt();
        assert!(it.models_wanted() && it.start_wanted() && it.take_hurry() && !it.take_hurry());
        assert!(it.models_unanswered() && it.models_unanswered() && it.models_wanted());
        assert!(!it.models_unanswered() && !it.models_wanted());
    }

    #[test]
    fn ids_are_bounded() {
        let mut it = Identity::default();
        for n in 0..10_000 {
            it.answered(n);
        }
        assert!(it.ids.len() <= MOST_IDS);
    }
}
