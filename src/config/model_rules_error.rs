//! Faults of `[models]`.

use thiserror::Error;

/// Description of a fault; reads after the origin and a colon.
#[derive(Debug, Error)]
pub enum ModelsProblem {
    /// An entry of `models.targets` that can't be read.
    #[error(
        "models.targets: `{text}`: expected model=fleet:weight fleet:weight, as in gpt-4o=chat:95 canary:5"
    )]
    NotTargets {
        /// Entry as it was given.
        text: String,
    },
    /// An entry of `models.fallback` that can't be read.
    #[error("models.fallback: `{text}`: expected model=fleet fleet, as in gpt-4o=spare cloud")]
    NotAFallback {
        /// Entry as it was given.
        text: String,
    },
    /// A weight that is no number, or a negative one.
    #[error(
        "models.targets: the weight `{weight}` of the fleet {fleet} for `{model}` is no number from 0 up"
    )]
    Weight {
        /// Name of the model.
        model: String,
        /// Name of the fleet.
        fleet: String,
        /// Weight as it was given.
        weight: String,
    },
    /// No fleet that requests could go to.
    #[error("models.targets: all weights are 0 for `{model}`: give at least one fleet a weight above 0")]
    NoWeight {
        /// Name of the model.
        model: String,
    },
    /// Two entries for one model.
    #[error("{key}: the model `{model}` has two entries: write its fleets into one")]
    ModelTwice {
        /// Name of the configuration key.
        key: &'static str,
        /// Name of the model.
        model: String,
    },
    /// A fleet that one entry names twice.
    #[error("{key}: the entry for `{model}` names the fleet {fleet} twice")]
    FleetTwice {
        /// Name of the configuration key.
        key: &'static str,
        /// Name of the model.
        model: String,
        /// Name of the fleet.
        fleet: String,
    },
    /// A fleet that is not there.
    #[error(
        "{key}: the entry for `{model}` names the fleet {fleet}, and there is no [fleets.{fleet}]{}",
        of_known(known)
    )]
    UnknownFleet {
        /// Name of the configuration key.
        key: &'static str,
        /// Name of the model.
        model: String,
        /// Name of the fleet.
        fleet: String,
        /// Names of the fleets that are there.
        known: String,
    },
    /// A share of the requests for somebody else's API.
    #[error(
        "models.targets: {fleet} (for `{model}`) has fleet.remote, and can only be a fall-back: models.fallback"
    )]
    RemoteTarget {
        /// Name of the model.
        model: String,
        /// Name of the fleet.
        fleet: String,
    },
    /// A fall-back to the fleet that needs one.
    #[error(
        "models.fallback: requests for `{model}` go to the fleet {fleet} already: it can't be its own fall-back"
    )]
    FallbackToItself {
        /// Name of the model.
        model: String,
        /// Name of the fleet.
        fleet: String,
    },
    /// An API elsewhere with keys of engines beside it.
    #[error(
        "fleet.remote with {key}: a fleet that is an API elsewhere has fleet.model, [engine], [health], [timeout], [stream] and [retry] alone"
    )]
    RemoteWithEngines {
        /// Key that such a fleet can't have.
        key: String,
    },
    /// An API elsewhere without the name that it knows the model by.
    #[error("fleet.remote needs fleet.model: the name by which {remote} knows the model")]
    RemoteWithoutModel {
        /// URL without a password.
        remote: String,
    },
    /// An API elsewhere as the only fleet.
    #[error("fleet.remote is for a fleet among [fleets] that others fall back to (models.fallback)")]
    RemoteAlone,
    /// A URL that is none.
    #[error("fleet.remote: `{text}` {why}: expected a URL, as in https://api.example.com/v1")]
    NotARemote {
        /// URL as it was given.
        text: String,
        /// Reason why it is none.
        why: String,
    },
    /// A file with a key that can't be read.
    #[error("engine.api_key_file: `{path}` {why}")]
    KeyFile {
        /// Path as it was given.
        path: String,
        /// Reason why not.
        why: String,
    },
    /// A key in two places.
    #[error("engine.api_key and engine.api_key_file are both set: give the key in one place")]
    TwoKeys,
}

fn of_known(known: &str) -> String {
    if known.is_empty() { String::new() } else { format!("; there are {known}") }
}
