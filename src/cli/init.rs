//! `pd-proxy init`: its flags.

use std::path::PathBuf;

use clap::Args;

use super::ServeArgs;

/// Flags of `init`.
#[derive(Args, Clone, Debug)]
#[command(args_override_self = true)]
pub struct InitArgs {
    /// File to write; one that exists is left as it is
    #[arg(long, value_name = "FILE", default_value = "pd-proxy.toml", help_heading = "Configuration")]
    pub output: PathBuf,
    /// Print the configuration, and write no file
    #[arg(long, help_heading = "Configuration")]
    pub dry_run: bool,
    /// Have no prefiller store a prompt of its own in the pool, by which the hash seed is found
    #[arg(long, help_heading = "Configuration")]
    pub no_store: bool,
    /// Options of a gateway: the engines, and everything else that is already known
    #[command(flatten)]
    pub serve: ServeArgs,
}
