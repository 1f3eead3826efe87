//! Small tools that know nothing of gateways.

pub mod single_flight;
pub mod swap;
