//! Turns a request into its tokens and the names of its blocks. It asks engines what must be asked:
//! what they are, which tokens a prompt has for them, and whether ours are the same.

mod answers;
pub mod canary;
pub mod engine;
pub mod exchange;
pub mod facts;
mod naming;
mod prompts;
mod question;
mod requests;

pub use canary::{Comparison, Difference, Parity, Verdict, compare};
pub use engine::{EngineLimits, EngineStats, EngineTokenizer};
pub use exchange::{AskError, Asker};
pub use facts::{Facts, FactsError, Gap};
pub use naming::{Model, Naming};
pub use prompts::{Prompts, Source, Trust};
pub use question::{Question, question};
