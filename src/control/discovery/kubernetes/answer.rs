//! Questions of `pd-proxy check` to the API server, and their answers.

use crate::endpoint::Endpoint;

/// Answer to one question.
#[derive(Debug)]
pub struct SourceAnswer {
    /// The engines that were found.
    pub engines: Vec<Endpoint>,
    /// Pods or endpoint slices that match.
    pub objects: usize,
    /// Name of the resource.
    pub resource: &'static str,
    /// Namespace that was queried.
    pub namespace: String,
    /// Faults of those that are no engines.
    pub lacks: Vec<String>,
}
