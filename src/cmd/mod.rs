//! The subcommands of the program, one module for each.

pub mod check;
#[cfg(feature = "sim")]
pub mod demo;
pub mod health;
pub mod keys;
pub mod keys_report;
pub mod reference;
pub mod replay;
