//! `pd-proxy init`: its flags.

use std::path::{Path, PathBuf};

use clap::Args;

use super::ServeArgs;

/// Name of the file that is written unless another one is named.
const FILE: &str = "pd-proxy.toml";

/// Flags of `init`.
#[derive(Args, Clone, Debug)]
#[command(args_override_self = true)]
pub struct InitArgs {
    /// File to write, or - to print as with --dry-run; one that exists is left as it is
    #[arg(long, value_name = "FILE", default_value = FILE, help_heading = "Configuration")]
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

impl InitArgs {
    /// True if the configuration goes to standard output, and no file is written.
    #[must_use]
    pub fn is_printed(&self) -> bool {
        self.dry_run || self.output == Path::new("-")
    }

    /// File that commands in the configuration name.
    #[must_use]
    pub fn named_file(&self) -> &Path {
        if self.output == Path::new("-") { Path::new(FILE) } else { &self.output }
    }
}
