//! Gateways that share a fleet, through Redis or Valkey: messages by publish and subscribe, the
//! lease that says which gateway leads, the budgets and places of clients' keys, and the engines
//! that keep stored responses.
//!
//! A message is for one gateway, or for all, the sender included, which learns by its own beats how
//! long a message takes, and that the store is still there. What the messages mean is
//! [`crate::route::shared`].

pub mod budgets;
pub mod cluster;
pub mod codec;
pub mod lease;
pub mod link;
pub mod places;
pub mod probe;
pub mod responses;
mod retry;
pub mod slices;
pub mod store;
pub mod wire;

use std::time::Duration;

pub use budgets::BudgetLink;
pub use link::{Link, LinkSettings};
pub use probe::Findings;
pub use responses::ResponseLink;
pub use store::Store;

/// Limit for connecting to the store, and for subscribing.
pub const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Limit for an answer of the store. One that takes longer is as good as away.
pub const ANSWER_TIME: Duration = Duration::from_millis(500);
/// Pause before the store is tried again, which doubles up to [`RETRY_MAX`].
pub const RETRY_MIN: Duration = Duration::from_millis(100);
/// Longest pause before the store is tried again: a gateway is whole again within a second or two.
pub const RETRY_MAX: Duration = Duration::from_secs(1);
/// Commands that are under way at once. What comes meanwhile goes out together.
pub const IN_FLIGHT: usize = 64;
/// Time for which messages wait for the answer to those before them: what comes meanwhile goes out
/// together. A store that is near has answered by then.
pub const TOGETHER: Duration = Duration::from_millis(1);
/// Largest message that is read, bytes: some hundred requests with long prompts. What is larger was
/// not written by a gateway.
pub const LARGEST_BYTES: usize = 1 << 20;

/// Reasons for which the store can't be used at the moment.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    /// The store can't be reached, or refuses a command.
    #[error("{0}")]
    Store(#[from] redis::RedisError),
    /// The store did not take or accept something in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Slow(Duration),
    /// The connection on which messages come was closed.
    #[error("the connection was closed")]
    Closed,
    /// Messages are sent and none come, not even one's own.
    #[error("its own messages have not come back for {} ms", .0.as_millis())]
    Silent(Duration),
    /// More was to be said than the store took.
    #[error("it takes messages more slowly than they are made")]
    Overflow,
}
