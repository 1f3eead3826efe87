//! The tokenizer of prompts: what of the model's files is missing, and what it costs to ask engines
//! instead.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::visit::{Visit, answered};
use super::{Grade, Report, parity};
use crate::config::{Config, Tokens};
use crate::fleet::Role;
use crate::naming_config::{self, FilesError, LocalPrompter};
use crate::tokenization::Asker;

/// Text of the question whose time is told, bytes: that of a chat of some turns.
const TEXT_BYTES: usize = 8 << 10;
/// Times that it is asked; the quickest answer counts.
const TIMES: usize = 3;

/// The tokenizer that a gateway of this configuration begins with.
pub(super) enum Tokenizer {
    /// The gateway's own; `asks_engines` for what it can't do.
    Local {
        /// Made of the model's files.
        local: Box<LocalPrompter>,
        /// True if engines tokenise what is not known here.
        asks_engines: bool,
    },
    /// That of an engine, for this reason; `None` if the configuration says so.
    Engine(Option<FilesError>),
}

/// Configuration, client and engines that a question needs.
pub(super) struct Asking<'a> {
    pub(super) config: &'a Config,
    pub(super) asker: &'a Asker,
    pub(super) visits: &'a [Visit],
}

/// Chooses as a gateway does when it starts; `None` where no prompts are read.
///
/// # Errors
/// The model's files, where they are asked for by name.
pub(super) fn choose(config: &Config) -> Result<Option<Tokenizer>, FilesError> {
    let local = |asks_engines| -> Result<Tokenizer, FilesError> {
        let local = naming_config::prompter(config, 0)?;
        Ok(Tokenizer::Local { local: Box::new(local), asks_engines })
    };
    Ok(match config.tokens() {
        Tokens::Off => None,
        Tokens::Engine => Some(Tokenizer::Engine(None)),
        Tokens::Local => Some(local(false)?),
        Tokens::Auto => Some(local(true).unwrap_or_else(|why| Tokenizer::Engine(Some(why)))),
    })
}

/// Compares our tokens with the prefillers', or tells what it costs that there are none.
pub(super) async fn ask(asking: &Asking<'_>, tokenizer: Tokenizer, report: &mut Report) {
    match tokenizer {
        Tokenizer::Local { local, asks_engines } => {
            let LocalPrompter { prompter, without, form } = *local;
            if asks_engines {
                report.say(Grade::Good, format!("prompts are tokenised here ({})", form.name()));
            }
            match without {
                Some(why) if asks_engines => {
                    let cost = cost(asking).await;
                    report.say(Grade::Warn, format!("chats are tokenised by engines{cost}: {why}"));
                }
                Some(why) => report.say(Grade::Warn, format!("chats are routed by load: {why}")),
                None => {}
            }
            let Asking { config, asker, visits } = *asking;
            parity::ask(config, asker, prompter, visits, report).await;
        }
        Tokenizer::Engine(Some(why)) => {
            let grade = if matches!(why, FilesError::NoPath) { Grade::Note } else { Grade::Warn };
            let cost = cost(asking).await;
            report.say(grade, format!("prompts are tokenised by engines{cost}: {why}"));
        }
        Tokenizer::Engine(None) => {}
    }
}

/// The time of a round trip to the first prefiller that answers it, in words.
async fn cost(asking: &Asking<'_>) -> String {
    let body = format!(r#"{{"prompt": "{}"}}"#, "word ".repeat(TEXT_BYTES / 5));
    for (engine, _) in answered(asking.visits, Role::Prefill) {
        let mut quickest: Option<(Duration, usize)> = None;
        for _ in 0..TIMES {
            let begun = Instant::now();
            let Ok(tokens) = asking.asker.ask(engine, Bytes::from(body.clone())).await else { break };
            let took = (begun.elapsed(), tokens.len());
            quickest = Some(quickest.map_or(took, |before| before.min(took)));
        }
        if let Some((took, tokens)) = quickest {
            let took = took.as_secs_f64() * 1e3;
            return format!(", a round trip of {took:.1} ms for {tokens} tokens at {engine}");
        }
    }
    ", a round trip each".to_owned()
}
