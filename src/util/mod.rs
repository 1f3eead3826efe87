//! Small tools without knowledge of gateways or engines.

pub mod boot_clock;
pub mod disk;
pub mod media_type;
pub mod rng;
pub mod single_flight;
pub mod splitmix;
pub mod swap;
