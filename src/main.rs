//! The `pd-proxy` program: the allocator, and the subcommands of [`pd_proxy::cmd`].

use std::process::ExitCode;

/// A small request allocates a hundred times: this one is quicker at it, and keeps less of what
/// streams have let go.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    pd_proxy::cmd::run(std::env::args_os())
}
