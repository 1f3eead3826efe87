//! `/instances/move`: an engine leaves one role and joins the other.
//!
//! It drains, is told its new role where it has one of its own (SGLang), is asked for its models,
//! and joins. An engine that is known to be as it was when a step fails goes back to its old role.
//! One of which that is not known is in neither role until it is moved again, or added.

mod carry_out;
mod order;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::endpoint::Endpoint;
use crate::error::{Error, Kind};
use crate::fleet::Role;

pub(super) use order::move_engine;

/// Moves of one fleet that are remembered, those that failed among them: more than anybody makes
/// at once, and few enough to show.
const MOST_MOVES: usize = 64;

/// Engine with the roles that it leaves and joins.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Turn {
    engine: Endpoint,
    from: Role,
    to: Role,
}

/// Step of a move; the last three are its ends.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// The requests end that it has in its old role.
    Draining,
    /// It is told its new role.
    Switching,
    /// It is asked until it answers.
    Probing,
    /// It serves in its new role.
    Joined,
    /// It serves in its old role again, for this reason.
    Kept(String),
    /// It is in neither role, for this reason.
    Lost(String),
}

impl Step {
    fn name(&self) -> &'static str {
        match self {
            Step::Draining => "draining",
            Step::Switching => "switching",
            Step::Probing => "probing",
            Step::Joined => "joined",
            Step::Kept(_) => "kept",
            Step::Lost(_) => "lost",
        }
    }

    fn cause(&self) -> Option<&str> {
        match self {
            Step::Kept(cause) | Step::Lost(cause) => Some(cause),
            _ => None,
        }
    }

    fn is_end(&self) -> bool {
        matches!(self, Step::Joined | Step::Kept(_) | Step::Lost(_))
    }
}

/// One move, and the step that it has come to.
#[derive(Debug)]
struct Move {
    turn: Turn,
    step: Arc<watch::Sender<Step>>,
}

impl Move {
    fn is_under_way(&self) -> bool {
        !self.step.borrow().is_end()
    }
}

/// A move that was asked for.
enum Begun {
    /// It is to be carried out by the caller.
    New(Arc<watch::Sender<Step>>),
    /// Somebody else's, of the same engine to the same role.
    UnderWay(watch::Receiver<Step>),
}

/// Moves under way and those that failed, the oldest first.
#[derive(Debug, Default)]
pub struct Moves(Mutex<VecDeque<Move>>);

impl Moves {
    fn all(&self) -> MutexGuard<'_, VecDeque<Move>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves for `/instances` and the status page.
    pub(super) fn to_json(&self) -> Vec<Value> {
        let shown = |it: &Move| {
            let step = it.step.borrow();
            json!({
                "instance": it.turn.engine.to_string(),
                "from": it.turn.from.name(),
                "to": it.turn.to.name(),
                "step": step.name(),
                "cause": step.cause(),
            })
        };
        self.all().iter().map(shown).collect()
    }

    /// The refusal of another change of an engine that is being moved. For others what came of
    /// their last move is forgotten: a newer change counts.
    pub(super) fn make_way(&self, engine: &Endpoint) -> Option<Error> {
        let mut all = self.all();
        all.retain(|it| it.turn.engine != *engine || it.is_under_way());
        let found = all.iter().find(|it| it.turn.engine == *engine)?;
        let message = format!("`{engine}` is being moved to {}: wait for its end", found.turn.to.name());
        Some(Error::new(Kind::InvalidField, message).param("instances"))
    }

    /// Begins a move by `start`, which two callers never run at once. It is told if the engine was
    /// lost on its way to either role.
    ///
    /// # Errors
    /// That of `start`; or the engine is being moved elsewhere; or too many are being moved.
    fn begin(&self, turn: &Turn, start: impl FnOnce(bool) -> Result<(), Error>) -> Result<Begun, Error> {
        let mut all = self.all();
        let of_engine = |it: &&Move| it.turn.engine == turn.engine;
        if let Some(found) = all.iter().filter(of_engine).find(|it| it.is_under_way()) {
            if found.turn.to == turn.to {
                return Ok(Begun::UnderWay(found.step.subscribe()));
            }
            let (engine, to) = (&turn.engine, found.turn.to.name());
            let message = format!("`{engine}` is being moved to {to}: wait for its end");
            return Err(Error::new(Kind::InvalidField, message).param("to"));
        }
        if all.len() >= MOST_MOVES {
            let ended = all.iter().position(|it| !it.is_under_way());
            let message = format!("{MOST_MOVES} engines are being moved: wait for one of them");
            let ended = ended.ok_or_else(|| Error::new(Kind::Overloaded, message))?;
            all.remove(ended);
        }
        let lost = all.iter().filter(of_engine).any(|it| matches!(*it.step.borrow(), Step::Lost(_)));
        start(lost)?;
        all.retain(|it| it.turn.engine != turn.engine);
        let step = Arc::new(watch::Sender::new(Step::Draining));
        all.push_back(Move { turn: turn.clone(), step: step.clone() });
        Ok(Begun::New(step))
    }

    /// Ends a move. One that succeeded is forgotten.
    fn end(&self, turn: &Turn, step: &watch::Sender<Step>, end: Step) {
        let mut all = self.all();
        if end == Step::Joined {
            all.retain(|it| it.turn.engine != turn.engine);
        }
        step.send_replace(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(engine: &str, from: Role, to: Role) -> Turn {
        Turn { engine: engine.parse().unwrap(), from, to }
    }

    #[test]
    fn moves_of_one_engine_are_one_and_failures_are_remembered() {
        let (moves, there) = (Moves::default(), turn("a:1", Role::Prefill, Role::Decode));
        let Ok(Begun::New(step)) = moves.begin(&there, |lost| {
            assert!(!lost);
            Ok(())
        }) else {
            panic!()
        };
        let again = moves.begin(&there, |_| panic!("it is under way"));
        assert!(matches!(again, Ok(Begun::UnderWay(_))));
        let back = turn("a:1", Role::Decode, Role::Prefill);
        assert!(
            moves.begin(&back, |_| Ok(())).is_err_and(|e| e.to_string().contains("being moved to decode"))
        );
        assert!(moves.make_way(&there.engine).is_some());
        moves.end(&there, &step, Step::Lost("it is gone".to_owned()));
        let shown = json!([{"instance": "a:1", "from": "prefill", "to": "decode", "step": "lost", "cause": "it is gone"}]);
        assert_eq!(Value::from(moves.to_json()), shown);
        for way in [&back, &there] {
            let Ok(Begun::New(step)) = moves.begin(way, |lost| {
                assert!(lost);
                Ok(())
            }) else {
                panic!()
            };
            moves.end(way, &step, Step::Lost("it is gone".to_owned()));
        }
        let Ok(Begun::New(step)) = moves.begin(&there, |_| Ok(())) else { panic!() };
        moves.end(&there, &step, Step::Joined);
        assert!(moves.to_json().is_empty() && moves.make_way(&there.engine).is_none());
    }

    #[test]
    fn moves_are_bounded_and_failed_ones_give_way() {
        let moves = Moves::default();
        let of = |port: usize| turn(&format!("a:{port}"), Role::Prefill, Role::Decode);
        let mut steps: Vec<_> =
            (1..=MOST_MOVES).map(|port| moves.begin(&of(port), |_| Ok(())).ok()).collect();
        assert!(moves.begin(&of(MOST_MOVES + 1), |_| Ok(())).is_err_and(|e| e.kind() == Kind::Overloaded));
        let Some(Some(Begun::New(step))) = steps.pop() else { panic!() };
        moves.end(&of(MOST_MOVES), &step, Step::Kept("it is busy".to_owned()));
        assert!(moves.begin(&of(MOST_MOVES + 1), |_| Ok(())).is_ok());
        assert_eq!(moves.to_json().len(), MOST_MOVES);
    }
}
