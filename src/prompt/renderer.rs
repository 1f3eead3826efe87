//! Rendering of a chat to the text, or the pieces, that its model is shown.

use std::ops::Range;

use super::Reason;
use super::allowance::Stop;
use super::chat::Chat;
use super::rules::{Edition, Editions};
use super::strftime::Today;
use super::topics::Topics;

/// Facts of the engines and of the moment for which a chat is rendered.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// Edition of the engines.
    pub edition: Edition,
    /// The engines' date; `None` if it is not known.
    pub today: Option<Today>,
    /// Tells when nobody waits for the text any more.
    pub stop: &'a Stop,
}

/// One stretch of a prompt that is tokenised by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A special token, by its text.
    Special(&'static str),
    /// A text in which no special token is looked for.
    Plain(String),
}

impl Piece {
    /// Bytes of its text.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Special(token) => token.len(),
            Self::Plain(text) => text.len(),
        }
    }
}

/// A chat as it is tokenised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendered {
    /// One text, in which special tokens are found by their texts.
    Text(String),
    /// Pieces that are tokenised one by one, without a framing token.
    Pieces(Vec<Piece>),
    /// The pieces of a chat up to the message with its first item, where code renders it.
    Beginning {
        /// Pieces that are tokenised one by one, without a framing token.
        pieces: Vec<Piece>,
        /// Bytes of the texts that follow them.
        rest_bytes: usize,
    },
}

/// Routes of an engine that show the prompt of its chat endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownBy {
    /// `/tokenize`, which renders as the chat endpoint does.
    Tokenize,
    /// `/render` beside the chat endpoint, and `/tokenize` where that is missing.
    Either,
    /// `/render` alone: `/tokenize` renders otherwise, or fails.
    Render,
}

/// A way from a chat to its prompt: a template, or what engines do by code.
pub trait ChatRenderer: Send + Sync {
    /// The prompt of a conversation. When it is told to stop before it is done, it comes to
    /// [`Reason::Limit`].
    ///
    /// # Errors
    /// The [`Reason`] for which the prompt is not known.
    fn render(&self, chat: Chat, moment: Moment<'_>) -> Result<Rendered, Reason>;

    /// Topics that an engine must read as it is done here, whatever the chat.
    fn needs(&self) -> Topics;

    /// Routes of an engine of these editions that show its prompt of a chat.
    fn shown_by(&self, chat: &Chat, editions: Editions) -> ShownBy;

    /// True if engines of every edition render a chat alike.
    fn is_of_every_edition(&self) -> bool;

    /// True if engines take the template for one that refuses system messages after others; `None`
    /// if that is not known.
    fn refuses_inline_system(&self) -> Option<bool>;
}

/// Pieces as one text.
pub(super) struct Joined {
    pub(super) text: String,
    /// Byte ranges of the special tokens.
    pub(super) specials: Vec<Range<usize>>,
    /// True if no two plain pieces stand side by side.
    pub(super) is_separable: bool,
}

/// One text of all pieces.
pub(super) fn joined(pieces: &[Piece]) -> Joined {
    let mut joined = Joined { text: String::new(), specials: Vec::new(), is_separable: true };
    let mut after_plain = false;
    for piece in pieces {
        let from = joined.text.len();
        match piece {
            Piece::Plain(text) => {
                joined.text.push_str(text);
                joined.is_separable &= !after_plain;
            }
            Piece::Special(token) => {
                joined.text.push_str(token);
                joined.specials.push(from..joined.text.len());
            }
        }
        after_plain = matches!(piece, Piece::Plain(_));
    }
    joined
}
