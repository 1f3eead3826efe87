//! Checks that our tokens are the engine's: fixed small requests are tokenised here and by the
//! engine, and compared.
//!
//! `/tokenize` renders with the engine's chat template even where its chat endpoint does not
//! (gpt-oss is rendered by the Harmony encoder). So equality here is evidence for the files that we
//! read, not for every model's chat endpoint. The engine's release tells what the chat endpoint
//! does before ([`Rules`](crate::prompt::Rules)).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::exchange::{AskError, Asker};
use super::parity_cases::parity_cases;
use super::tokenize_request::{TokenizeRequest, tokenize_request};
use crate::dialect::Api;
use crate::endpoint::Endpoint;
use crate::prompt::{Exactness, Prompter, Reason, Today};

/// The longest that one engine's comparison goes on.
pub const COMPARE_TIME: Duration = Duration::from_secs(20);

/// Statuses with which an engine judges a request; with others it says that it can't.
const JUDGEMENTS: [u16; 2] = [400, 422];

/// Result of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parity {
    /// Conclusion of the comparison.
    pub verdict: Verdict,
    /// Requests on which both sides were asked, up to the first difference; refusals in agreement
    /// included.
    pub compared: usize,
    /// Requests that were not compared: how many, by why their tokens are not known here.
    pub skipped: BTreeMap<&'static str, usize>,
}

/// The conclusion of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every request that was compared came out the same, and there was at least one.
    Same,
    /// The tokens computed here are wrong for this engine.
    Different(Difference),
    /// No request could be compared.
    Untested,
    /// The engine could not be asked; in words, why.
    Unknown(String),
}

/// The first request on which the two sides differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the request.
    pub canary: &'static str,
    /// It is a chat. Those come last, so that no text differs.
    pub is_chat: bool,
    /// First difference between them.
    pub found: Comparison,
}

/// Ways in which two tokenisations differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// They have another token at one place.
    Token {
        /// Its place, counted from 0.
        at: usize,
        /// Ours; `None` if ours end before.
        ours: Option<u32>,
        /// The engine's; `None` if its end before.
        theirs: Option<u32>,
    },
    /// We have tokens, and the engine refuses the request with this status.
    Refused(u16),
    /// Our template refuses the conversation, and the engine tokenises it.
    Accepted,
}

/// One request's comparison.
enum Step {
    Same,
    Skipped(Reason),
    Different(Comparison),
}

impl Verdict {
    /// A short stable name for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Verdict::Same => "same",
            Verdict::Different(_) => "different",
            Verdict::Untested => "untested",
            Verdict::Unknown(_) => "unknown",
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the tokens of request \"{}\" differ from the engine's: ", self.canary)?;
        let id = |token: Option<u32>| {
            token.map_or_else(|| "none (the prompt ends)".to_owned(), |id| id.to_string())
        };
        match self.found {
            Comparison::Token { at, ours, theirs } => write!(
                f,
                "token {at} is {} here and {} there; are tokenizer.json, the chat template and prompt.template_kwargs those of the engine?",
                id(ours),
                id(theirs)
            ),
            Comparison::Refused(status) => write!(
                f,
                "the engine refuses it with status {status}, and here it has tokens; is the chat template the one that the engine serves?"
            ),
            Comparison::Accepted => f.write_str(
                "the chat template here refuses it, and the engine has tokens; is it the one that the engine serves?",
            ),
        }
    }
}

/// Compares `prompter` with what `engine` answers to `/tokenize`. `model` is the name to ask under,
/// `None` for the engine's default; `today` is the engine's date, which some templates print,
/// `None` if it is not known. An engine that takes longer than [`COMPARE_TIME`] for all of it is
/// [`Verdict::Unknown`].
pub async fn compare(
    asker: &Asker,
    engine: &Endpoint,
    model: Option<&str>,
    prompter: &Prompter,
    today: Option<Today>,
) -> Parity {
    let mut parity = Parity { verdict: Verdict::Untested, compared: 0, skipped: BTreeMap::new() };
    let whole = run(asker, EngineModel { engine, model }, prompter, today, &mut parity);
    if tokio::time::timeout(COMPARE_TIME, whole).await.is_err() {
        let seconds = COMPARE_TIME.as_secs();
        parity.verdict = Verdict::Unknown(format!("it was not done with the requests after {seconds} s"));
    }
    parity
}

/// An engine, and the model to ask for there; `None` for the engine's default.
#[derive(Clone, Copy)]
struct EngineModel<'a> {
    engine: &'a Endpoint,
    model: Option<&'a str>,
}

/// Goes through the requests up to the first difference.
async fn run(
    asker: &Asker,
    EngineModel { engine, model }: EngineModel<'_>,
    prompter: &Prompter,
    today: Option<Today>,
    parity: &mut Parity,
) {
    for (name, api, body) in parity_cases(model, &prompter.added_tokens()) {
        let prompt = prompter.prompt(api, &body, today);
        let ours = match prompt.exactness {
            Exactness::Exact => Ok(&prompt.tokens[..]),
            Exactness::Inexact(reason) => Err(reason),
        };
        match step(asker, engine, ours, tokenize_request(api, &body)).await {
            Ok(Step::Same) => parity.compared += 1,
            Ok(Step::Skipped(reason)) => *parity.skipped.entry(reason.name()).or_default() += 1,
            Ok(Step::Different(found)) => {
                parity.compared += 1;
                parity.verdict =
                    Verdict::Different(Difference { canary: name, is_chat: api == Api::Chat, found });
                return;
            }
            Err(why) => {
                parity.verdict = Verdict::Unknown(words(&why));
                return;
            }
        }
    }
    if parity.compared > 0 {
        parity.verdict = Verdict::Same;
    }
}

async fn step(
    asker: &Asker,
    engine: &Endpoint,
    ours: Result<&[u32], Reason>,
    question: Result<TokenizeRequest, Reason>,
) -> Result<Step, AskError> {
    let body = match (ours, question) {
        (Err(reason), _) if reason != Reason::Rejected => return Ok(Step::Skipped(reason)),
        (_, Err(reason)) => return Ok(Step::Skipped(reason)),
        (_, Ok(TokenizeRequest::Known(_))) => return Ok(Step::Same),
        (_, Ok(TokenizeRequest::Ask(body))) => body,
    };
    match (ours, asker.ask(engine, body).await) {
        (Ok(ours), Ok(theirs)) => Ok(first_difference(ours, &theirs).map_or(Step::Same, Step::Different)),
        (Ok(_), Err(AskError::Refused(status))) if JUDGEMENTS.contains(&status) => {
            Ok(Step::Different(Comparison::Refused(status)))
        }
        (Err(_), Err(AskError::Refused(status))) if JUDGEMENTS.contains(&status) => Ok(Step::Same),
        (Err(_), Ok(_)) => Ok(Step::Different(Comparison::Accepted)),
        (_, Err(error)) => Err(error),
    }
}

/// Reason why an engine could not be asked, for the log.
fn words(error: &AskError) -> String {
    match error {
        AskError::Refused(404) => {
            "it answered with status 404: it has no /tokenize, or no model of this name".to_owned()
        }
        other => other.to_string(),
    }
}

fn first_difference(ours: &[u32], theirs: &[u32]) -> Option<Comparison> {
    let at = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    let (ours, theirs) = (ours.get(at).copied(), theirs.get(at).copied());
    (ours != theirs).then_some(Comparison::Token { at, ours, theirs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_the_place_and_both_sides() {
        assert_eq!(first_difference(&[1, 2], &[1, 2]), None);
        let found = first_difference(&[1, 2, 3], &[1, 2]).unwrap();
        assert_eq!(found, Comparison::Token { at: 2, ours: Some(3), theirs: None });
        assert_eq!(
            Difference { canary: "emoji", is_chat: false, found }.to_string(),
            "the tokens of request \"emoji\" differ from the engine's: token 2 is 3 here and none (the prompt ends) \
             there; are tokenizer.json, the chat template and prompt.template_kwargs those of the engine?"
        );
        assert!(words(&AskError::Refused(404)).contains("no model of this name"));
        let refused =
            Difference { canary: "tools", is_chat: true, found: Comparison::Refused(400) }.to_string();
        assert!(refused.contains("refuses it with status 400"), "{refused}");
    }
}
