//! Faults of `[fleets]`, and of names of models, which several fleets may claim.

use super::Problem;
use thiserror::Error;

/// Description of a fault; reads after the origin and a colon.
#[derive(Debug, Error)]
pub enum FleetProblem {
    /// An alias that leads to another alias, perhaps back to itself.
    #[error(
        "fleet.aliases: `{alias}` leads to `{model}`, which is an alias itself: give the name that engines list"
    )]
    AliasOfAlias {
        /// Name in requests.
        alias: String,
        /// Name that it leads to.
        model: String,
    },
    /// An alias for the model of another fleet, which the engines of this one don't have.
    #[error(
        "fleet.aliases: `{alias}` leads to `{model}`, which is the model of [fleets.{other}]: set the alias there"
    )]
    AliasElsewhere {
        /// Name in requests.
        alias: String,
        /// Name that it leads to.
        model: String,
        /// Fleet with that model.
        other: String,
    },
    /// A name by which two models could be meant.
    #[error(
        "{key}: the model name `{model}` is claimed twice, by {}: give it to one of them",
        of_fleets(one, other)
    )]
    NameClaimedTwice {
        /// Name of the configuration key.
        key: &'static str,
        /// Name that is claimed.
        model: String,
        /// Fleet that has it first.
        one: String,
        /// Fleet that claims it as well; the same where it claims it twice.
        other: String,
    },
    /// An engine of two fleets, whose load either would count alone.
    #[error("{key}: `{endpoint}` is an engine of {}: leave it to one of them", of_fleets(one, other))]
    EngineOfTwoFleets {
        /// Name of the configuration key.
        key: &'static str,
        /// Engine as it was given.
        endpoint: String,
        /// Fleet that has it first.
        one: String,
        /// Fleet that has it as well.
        other: String,
    },
    /// A fleet that only a variable or a flag names, without engines.
    #[error(
        "there is no [fleets.{fleet}]: expected one of {known}, or its engines as well (fleets.{fleet}.fleet.prefill)"
    )]
    NoSuchFleet {
        /// Name as it was given.
        fleet: String,
        /// Names of the fleets that are there.
        known: String,
    },
    /// More fleets than one process serves.
    #[error("[fleets] names {count} fleets: expected at most {max}")]
    TooManyFleets {
        /// Number of names.
        count: usize,
        /// Limit of them.
        max: usize,
    },
    /// A name that no fleet can have.
    #[error(
        "[fleets.{name}]: expected a name of small letters, digits, `-` and `_`, at most 63, without `__`, as in [fleets.chat]"
    )]
    FleetName {
        /// Name as it was given.
        name: String,
    },
    /// A key of the gateway inside a fleet.
    #[error("{key}: {shared} is one for all fleets: set it at the top level")]
    SharedByFleets {
        /// Key as it was given.
        key: String,
        /// The same key at the top level.
        shared: String,
    },
    /// A key of one fleet beside several.
    #[error("{key} belongs to one fleet: set it as fleets.{fleet}.{key}, since there are [fleets]")]
    OfOneFleet {
        /// Name of the configuration key.
        key: &'static str,
        /// Name of a fleet.
        fleet: String,
    },
    /// A fleet of which nobody can know the models.
    #[error(
        "health.probe_ms = 0 needs fleet.model in each fleet where there are several: engines are not asked which models they serve"
    )]
    UnknownModels,
    /// A fault of one fleet.
    #[error("in [fleets.{fleet}]: {problem}")]
    InFleet {
        /// Name of the fleet.
        fleet: String,
        /// Description of the fault.
        problem: Box<Problem>,
    },
}

fn of_fleets(one: &str, other: &str) -> String {
    if one == other { format!("[fleets.{one}]") } else { format!("[fleets.{one}] and [fleets.{other}]") }
}
