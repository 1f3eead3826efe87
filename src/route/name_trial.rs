//! Judges the names of KV blocks by prompts that the gateway's own prefills have stored.
//!
//! A wrong hash seed, model name or rank gives every block a name that nobody else uses: a lookup
//! finds nothing, as in an empty pool. But a prompt that a prefiller has just stored must be there.
//! Where [`WRONG_AFTER`] of them are not, and none ever was, the names are wrong.

/// Prompts that were stored and not found, with none found before, that make names wrong. One may
/// be late, and a few may be lost at a time; eight are not.
pub const WRONG_AFTER: u32 = 8;

/// One process of an engine: another one may have another seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineRun {
    /// Number of the engine.
    pub engine: u64,
    /// Restarts of its process before this one.
    pub restarts: u32,
}

/// State of the names in one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamesState {
    /// They are right, or nothing speaks against them yet.
    #[default]
    Plausible,
    /// Nothing that any prefiller stored was ever found.
    WrongEverywhere,
    /// Nothing that this engine stored is found, and prompts of others are.
    WrongAt(u64),
}

/// Prompts that were stored, as far as they were looked up again in one source.
#[derive(Clone, Debug, Default)]
pub struct NameTrial {
    runs: Vec<RunRecord>,
    /// Some lookup has found blocks, whoever stored them.
    hit: bool,
}

#[derive(Clone, Copy, Debug)]
struct RunRecord {
    run: EngineRun,
    found: bool,
    /// Prompts that were not found while none was.
    unfound: u32,
}

impl NameTrial {
    /// Some lookup has found blocks. The first one speaks for the names: what was not found before
    /// is forgotten.
    pub fn hit(&mut self) {
        if !self.hit {
            self.hit = true;
            self.acquit();
        }
    }

    /// A prompt that `run` stored was looked up again.
    pub fn looked_up(&mut self, run: EngineRun, found: bool) {
        let record = self.record(run);
        record.found |= found;
        if !record.found {
            record.unfound = record.unfound.saturating_add(1);
        }
        self.hit |= found;
    }

    /// Forgets what was not found: the source keeps nothing at all, which says nothing of names.
    pub fn acquit(&mut self) {
        self.runs.iter_mut().for_each(|record| record.unfound = 0);
    }

    /// Keeps the records of engines for which `is_member` holds.
    pub fn retain(&mut self, is_member: impl Fn(u64) -> bool) {
        self.runs.retain(|record| is_member(record.run.engine));
    }

    /// The present state.
    pub fn state(&self) -> NamesState {
        if !self.hit && self.unfound() >= WRONG_AFTER {
            return NamesState::WrongEverywhere;
        }
        let wrong = |record: &&RunRecord| !record.found && record.unfound >= WRONG_AFTER;
        let wrong = self.runs.iter().find(wrong);
        wrong.map_or(NamesState::Plausible, |record| NamesState::WrongAt(record.run.engine))
    }

    /// True if some lookup has found blocks.
    pub fn has_hit(&self) -> bool {
        self.hit
    }

    /// Prompts that were not found, of engines of which none was.
    pub fn unfound(&self) -> u32 {
        let open = self.runs.iter().filter(|record| !record.found);
        open.fold(0, |sum, record| sum.saturating_add(record.unfound))
    }

    fn record(&mut self, run: EngineRun) -> &mut RunRecord {
        self.runs.retain(|record| record.run.engine != run.engine || record.run == run);
        let at = self.runs.iter().position(|record| record.run == run).unwrap_or_else(|| {
            self.runs.push(RunRecord { run, found: false, unfound: 0 });
            self.runs.len() - 1
        });
        &mut self.runs[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(engine: u64) -> EngineRun {
        EngineRun { engine, restarts: 0 }
    }

    fn look_up(trial: &mut NameTrial, run: EngineRun, found: bool, times: u32) {
        (0..times).for_each(|_| trial.looked_up(run, found));
    }

    #[test]
    fn names_are_wrong_when_nothing_that_anybody_stored_is_found() {
        let mut trial = NameTrial::default();
        look_up(&mut trial, run(1), false, 3);
        look_up(&mut trial, run(2), false, 4);
        assert_eq!(trial.state(), NamesState::Plausible);
        look_up(&mut trial, run(2), false, 1);
        assert_eq!(trial.state(), NamesState::WrongEverywhere);
        look_up(&mut trial, run(3), true, 1);
        assert_eq!(trial.state(), NamesState::Plausible, "found: not wrong");
    }

    #[test]
    fn one_engine_with_another_seed_is_told_from_the_others() {
        let mut trial = NameTrial::default();
        look_up(&mut trial, run(1), true, 1);
        look_up(&mut trial, run(2), false, WRONG_AFTER);
        assert_eq!(trial.state(), NamesState::WrongAt(2));
        look_up(&mut trial, run(1), false, 100);
        assert_eq!(trial.state(), NamesState::WrongAt(2), "evicted, or not stored: found before");
        let restarted = EngineRun { restarts: 1, ..run(2) };
        look_up(&mut trial, restarted, false, 1);
        assert_eq!(trial.state(), NamesState::Plausible, "another process");
        look_up(&mut trial, restarted, false, WRONG_AFTER);
        trial.retain(|engine| engine != 2);
        assert_eq!(trial.state(), NamesState::Plausible, "it has left");
    }

    #[test]
    fn hits_of_others_and_an_empty_source_speak_for_the_names() {
        let mut trial = NameTrial::default();
        look_up(&mut trial, run(1), false, WRONG_AFTER - 1);
        trial.acquit();
        look_up(&mut trial, run(1), false, WRONG_AFTER - 1);
        assert_eq!(trial.state(), NamesState::Plausible, "it kept nothing");
        trial.hit();
        look_up(&mut trial, run(2), false, WRONG_AFTER - 1);
        assert_eq!(trial.state(), NamesState::Plausible, "lookups find blocks under these names");
        look_up(&mut trial, run(2), false, 1);
        assert_eq!(trial.state(), NamesState::WrongAt(2));
    }
}
