//! Going on with a stream that broke: another decoder continues from the very token at which the
//! client's text stands.
//!
//! A decoder that is asked for `return_token_ids` tells the prompt's ids in its first event and the
//! generated ones in each (vLLM since 0.10.2). [`Transcript`] keeps them and takes them out of what
//! the client gets, if it did not ask for them. After a break, prompt and answer so far are a
//! prompt for `/v1/completions`, and the events of that stream are rewritten into those of the
//! first. [`Plan`] says beforehand where that can't be exact, and [`Reason`] why.
//!
//! Exact means: what follows is drawn from the same distribution as it would have been, and is the
//! same where the request is deterministic; and no token is lost, doubled or counted twice. Text
//! that is not complete (a character's first bytes) is held back, so that what the client has
//! always ends where a token's text ends. In chats special tokens are for the engine's parsers to
//! show or not; one that comes after the break ends the stream (`hidden_tokens`).

mod aborted_answer;
mod body;
mod event;
mod event_rewrite;
mod hidden_tokens;
mod plan;
mod text_tail;
mod transcript;

pub use aborted_answer::{AbortSign, only_names_the_role};
pub(in crate::dialect) use plan::BODY_BYTES;
pub use plan::{Plan, Reason, prompt_ids_bytes};
pub use text_tail::Proof;
pub use transcript::{Break, Next, Transcript};

#[cfg(test)]
mod tests;
