//! What the API server is asked for by `pd-proxy check`.

use crate::endpoint::Endpoint;

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
