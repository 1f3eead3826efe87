//! Flags of `pd-proxy api-key`.

use clap::{Args, Subcommand};

/// Subcommands of `pd-proxy api-key`.
#[derive(Clone, Debug, Subcommand)]
pub enum ApiKeyCommand {
    /// Make a key: its entry goes to standard output, the key itself to standard error
    New(ApiKeyArgs),
    /// Read a key from standard input and print its entry
    Hash(ApiKeyArgs),
}

/// Flags of `api-key`.
#[derive(Args, Clone, Debug)]
pub struct ApiKeyArgs {
    /// Name of the key in logs and metrics
    #[arg(long, default_value = "client-1")]
    pub name: String,
}
