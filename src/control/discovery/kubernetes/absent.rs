//! Substitute for the Kubernetes API in a build without it. A configuration that asks for the API
//! is refused before.

mod answer;

use tokio::task::JoinSet;

use crate::config::Config;
use crate::config::kubernetes::{Kubernetes, Wanted};
use crate::control::FleetHandles;
pub use answer::SourceAnswer;

/// Nothing is watched.
pub async fn start(_: &Config, _: &FleetHandles, _: &mut JoinSet<()>) {}

/// Nobody is asked.
///
/// # Errors
/// Always.
pub async fn ask(_: &Kubernetes, _: &Wanted) -> Result<SourceAnswer, String> {
    Err("this program was built without the feature `kubernetes`".to_owned())
}
