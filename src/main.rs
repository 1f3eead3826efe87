//! The `pd-proxy` command.
fn main() {}
