//! Turns a request into its tokens and the names of its blocks. It asks engines what must be asked:
//! what they are, which tokens a prompt has for them, and whether ours are the same.

mod answers;
mod block_naming;
pub mod engine;
pub mod exchange;
pub mod facts;
pub mod parity;
mod parity_cases;
mod prompts;
mod source;
mod tokenize_request;

pub use block_naming::{BlockNaming, Model};
pub use engine::{EngineLimits, EngineStats, EngineTokenizer};
pub use exchange::{AskError, Asker};
pub use facts::{EngineRules, Facts, FactsError, Gap};
pub use parity::{
    ComparedEngine, Comparison, Difference, Parity, TopicsSeen, Verdict, compare, compare_routes,
};
pub use prompts::Prompts;
pub use source::{BaseModels, Source, Trust};
pub use tokenize_request::{TokenizeRequest, tokenize_request};
