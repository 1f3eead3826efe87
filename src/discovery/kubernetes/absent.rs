//! What stands for the Kubernetes API in a build without it: a configuration that asks for it is refused before.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::config::Config;
use crate::config::kubernetes::{Kubernetes, Wanted};
use crate::endpoint::Endpoint;
use crate::relay::Relay;

/// What one question brought.
#[derive(Debug)]
pub struct Asked {
    /// The engines.
    pub engines: Vec<Endpoint>,
    /// Pods or endpoint slices that match.
    pub objects: usize,
    /// What they are called.
    pub resource: &'static str,
    /// Where they were looked for.
    pub namespace: String,
    /// What is lacking in some of them.
    pub lacks: Vec<String>,
}

/// Nothing is watched.
pub async fn start(_: &Config, _: &Arc<Relay>, _: &mut JoinSet<()>) {}

/// Nobody is asked.
///
/// # Errors
/// Always.
pub async fn ask(_: &Kubernetes, _: &Wanted) -> Result<Asked, String> {
    Err("this program was built without the feature `kubernetes`".to_owned())
}
