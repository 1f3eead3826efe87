//! Checks that our tokens are the engine's: fixed small requests are tokenised here and by the
//! engine, and compared.
//!
//! `/tokenize` renders with the engine's chat template even where its chat endpoint does not
//! (gpt-oss is rendered by the Harmony encoder). So equality here is evidence for the files that we
//! read, not for every model's chat endpoint. The engine's release tells what the chat endpoint
//! does before ([`Rules`]).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::exchange::{AskError, Asker};
use super::parity_cases::parity_cases;
use super::tokenize_request::{TokenizeRequest, tokenize_request_under};
use crate::codec::json::Object;
use crate::dialect::Api;
use crate::endpoint::Endpoint;
use crate::prompt::{
    Chat, EffortMap, Exactness, PromptSource, Prompter, Reason, Rules, ShownBy, Today, Topic, Topics,
};

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
    /// Topics that releases read in different ways, as far as this engine was asked about them.
    pub topics: TopicsSeen,
    /// The first request that differs and has such a topic.
    pub topical: Option<Difference>,
}

/// Outcome of the requests with a [`Topic`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopicsSeen {
    /// The engine reads them as it is done here.
    pub same: Topics,
    /// It reads them in another way: the chats that have them are not known, and all others are.
    pub different: Topics,
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
    /// And the engine's answer shows these topics.
    Same {
        shown: Topics,
    },
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
                "token {at} is {} here and {} there; are the tokenizer's files, the chat template and prompt.template_kwargs those of the engine?",
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

/// Compares `prompter` with what `engine` answers to `/tokenize`, or to `/render` beside its chat
/// endpoint where `/tokenize` does not show it. `today` is the engine's date, which some templates
/// print, `None` if it is not known. An engine that takes longer than [`COMPARE_TIME`] for all of
/// it is [`Verdict::Unknown`].
pub async fn compare(
    asker: &Asker,
    engine: ComparedEngine<'_>,
    prompter: &Prompter,
    today: Option<Today>,
) -> Parity {
    let mut parity = Parity::untested();
    let whole = run(asker, engine, prompter, today, &mut parity);
    if tokio::time::timeout(COMPARE_TIME, whole).await.is_err() {
        let seconds = COMPARE_TIME.as_secs();
        parity.verdict = Verdict::Unknown(format!("it was not done with the requests after {seconds} s"));
    }
    parity
}

/// An engine to compare with.
#[derive(Clone, Copy, Debug)]
pub struct ComparedEngine<'a> {
    /// Address of the engine.
    pub engine: &'a Endpoint,
    /// Name to ask under; `None` for the engine's default.
    pub model: Option<&'a str>,
    /// Its rules for chats.
    pub rules: Rules,
}

impl TopicsSeen {
    /// The names of those that differ, for the log.
    pub fn names(&self) -> String {
        self.different.iter().map(Topic::name).collect::<Vec<_>>().join(", ")
    }

    /// Reason why no chat counts although none differs: the engine showed none. Empty where some
    /// did, or where chats are rendered by a template.
    pub fn unseen_chats(&self) -> &'static str {
        match self.different.covers(Topics::NONE.with(Topic::Encoding)) {
            true => {
                "none of its chats could be compared: only its /v1/chat/completions/render shows how it renders them \
                 (vLLM: --enable-scale-out)"
            }
            false => "",
        }
    }

    /// The likely cause of a difference that only a flag of the engine makes; empty if there is
    /// none.
    pub fn likely_cause(&self) -> &'static str {
        match self.different.covers(Topics::NONE.with(Topic::Effort)) {
            true => " Is prompt.reasoning_effort_map the engine's --reasoning-effort-map?",
            false => "",
        }
    }
}

impl Parity {
    /// Nothing was compared yet.
    pub fn untested() -> Self {
        Self {
            verdict: Verdict::Untested,
            compared: 0,
            skipped: BTreeMap::new(),
            topics: TopicsSeen::default(),
            topical: None,
        }
    }
}

/// Goes through the requests up to the first difference.
async fn run(
    asker: &Asker,
    ComparedEngine { engine, model, rules }: ComparedEngine<'_>,
    prompter: &Prompter,
    today: Option<Today>,
    parity: &mut Parity,
) {
    for (name, api, body) in parity_cases(model, &prompter.added_tokens()) {
        let prompt = prompter.prompt_under(rules, api, &body, today);
        let ours = match prompt.exactness {
            Exactness::Exact => Ok(Ours { tokens: &prompt.tokens, are_all: true }),
            Exactness::Prefix { .. } => Ok(Ours { tokens: &prompt.tokens, are_all: false }),
            Exactness::Inexact(reason) => Err(reason),
        };
        let chat = chat(api, &body);
        let topics = chat.as_deref().map_or(Topics::NONE, Chat::needs);
        let shown_by = chat.map_or(ShownBy::Tokenize, |chat| prompter.shown_by(&chat, rules.editions));
        let questions = questions(api, &body, prompter.efforts(), Hidden { topics, shown_by }, rules);
        match step(asker, engine, ours, questions).await {
            Ok(Step::Same { shown }) => {
                parity.compared += 1;
                if api == Api::Chat && ours.is_ok() {
                    parity.topics.same = parity.topics.same.or(prompter.needs());
                }
                parity.topics.same = parity.topics.same.or(topics.shared_with(shown));
            }
            Ok(Step::Skipped(reason)) => *parity.skipped.entry(reason.name()).or_default() += 1,
            Ok(Step::Different(found)) if !topics.is_empty() => {
                parity.compared += 1;
                parity.topics.different = parity.topics.different.or(topics);
                parity.topical.get_or_insert(Difference { canary: name, is_chat: true, found });
            }
            Ok(Step::Different(found)) => {
                parity.compared += 1;
                parity.verdict =
                    Verdict::Different(Difference { canary: name, is_chat: api != Api::Completions, found });
                return;
            }
            Err(why) => {
                parity.verdict = Verdict::Unknown(words(&why));
                return;
            }
        }
    }
    // Chats by code count once one of them was the same.
    let unseen = prompter.needs().without(parity.topics.same);
    parity.topics.different = parity.topics.different.or(unseen);
    if parity.compared > 0 {
        parity.verdict = Verdict::Same;
    }
}

/// Compares what `engine` answers to `/tokenize` with what it answers to `/render`, for a gateway
/// that has no tokenizer of its own and asks the first: topics on which both answer the same can be
/// asked about. `None` if the engine is away, or takes longer than [`COMPARE_TIME`].
pub async fn compare_routes(
    asker: &Asker,
    engine: ComparedEngine<'_>,
    efforts: &EffortMap,
) -> Option<TopicsSeen> {
    tokio::time::timeout(COMPARE_TIME, run_routes(asker, engine, efforts)).await.ok()?.ok()
}

async fn run_routes(
    asker: &Asker,
    ComparedEngine { engine, model, rules }: ComparedEngine<'_>,
    efforts: &EffortMap,
) -> Result<TopicsSeen, AskError> {
    let mut seen = TopicsSeen::default();
    for (_, api, body) in parity_cases(model, &[]) {
        let topics = chat(api, &body).as_deref().map_or(Topics::NONE, Chat::needs);
        let question = tokenize_request_under(api, &body, rules, efforts);
        let (false, Ok(TokenizeRequest::Ask(question))) = (topics.is_empty(), question) else { continue };
        match (asker.render(engine, api, body.bytes().clone()).await, asker.ask(engine, question).await) {
            (Ok(rendered), Ok(tokens)) if rendered == tokens => seen.same = seen.same.or(topics),
            (Ok(_), Ok(_)) => seen.different = seen.different.or(topics),
            (Err(error @ AskError::Unreachable(_)), _) | (_, Err(error @ AskError::Unreachable(_))) => {
                return Err(error);
            }
            // It has no such route, or refuses the request: nothing is shown.
            _ => {}
        }
    }
    Ok(seen)
}

/// The chat that a request is, if it is one.
fn chat(api: Api, body: &Object) -> Option<Box<Chat>> {
    match PromptSource::read(api, body) {
        Ok(PromptSource::Messages(chat)) => Some(chat),
        _ => None,
    }
}

/// Questions about one request, the first of which an engine may not know.
struct Questions {
    render: Option<RenderRequest>,
    /// An error if the other route's answer would show nothing.
    tokenize: Result<TokenizeRequest, Reason>,
    /// It brings an image, which engines of models for text refuse.
    has_media: bool,
}

/// A question to the `/render` of an API.
struct RenderRequest {
    api: Api,
    body: Bytes,
}

/// The tokens that are known here of a request.
#[derive(Clone, Copy)]
struct Ours<'a> {
    tokens: &'a [u32],
    /// False if others come after them.
    are_all: bool,
}

impl Ours<'_> {
    fn difference_from(self, theirs: &[u32]) -> Option<Comparison> {
        match theirs.get(..self.tokens.len()) {
            // Something must come after them.
            Some(first) if !self.are_all && first.len() < theirs.len() => {
                first_difference(self.tokens, first)
            }
            _ => first_difference(self.tokens, theirs),
        }
    }
}

/// Parts of a request that `/tokenize` may not show.
#[derive(Clone, Copy, Debug)]
struct Hidden {
    /// Topics of the request.
    topics: Topics,
    /// Routes that show the model's chats.
    shown_by: ShownBy,
}

/// `/render` is asked only about what `/tokenize` does not show: it refuses chats with tools where
/// the engine has no parser for them.
fn questions(api: Api, body: &Object, efforts: &EffortMap, hidden: Hidden, rules: Rules) -> Questions {
    let Hidden { topics, shown_by } = hidden;
    let is_hidden = shown_by != ShownBy::Tokenize || topics.iter().any(|topic| !topic.is_shown_by_tokenize());
    let has_media = topics.covers(Topics::NONE.with(Topic::Media));
    let tokenize = match has_media {
        // No client's request is asked about with its images. This one is small.
        true => Ok(TokenizeRequest::Ask(body.bytes().clone())),
        false => tokenize_request_under(api, body, rules, efforts),
    };
    Questions {
        render: is_hidden.then(|| RenderRequest { api, body: body.bytes().clone() }),
        tokenize: match shown_by {
            ShownBy::Render => Err(Reason::Release),
            ShownBy::Tokenize | ShownBy::Either => tokenize,
        },
        has_media,
    }
}

/// The answer of an engine, and the topics that it shows.
struct EngineAnswer {
    tokens: Result<Vec<u32>, AskError>,
    shown: Topics,
}

/// The answer of the first route that gives one; `None` if the only one that shows the prompt does
/// not.
async fn answer(
    asker: &Asker,
    engine: &Endpoint,
    render: Option<RenderRequest>,
    tokenize: Option<Bytes>,
) -> Option<EngineAnswer> {
    if let Some(RenderRequest { api, body }) = render {
        let tokens = asker.render(engine, api, body).await;
        let is_answer = match &tokens {
            Ok(_) => true,
            Err(AskError::Refused(status)) => JUDGEMENTS.contains(status),
            Err(_) => false,
        };
        if is_answer {
            return Some(EngineAnswer { tokens, shown: Topics::ALL });
        }
    }
    let body = tokenize?;
    let shown = Topic::ALL.into_iter().filter(|topic| topic.is_shown_by_tokenize());
    let shown = shown.fold(Topics::NONE, Topics::with);
    Some(EngineAnswer { tokens: asker.ask(engine, body).await, shown })
}

async fn step(
    asker: &Asker,
    engine: &Endpoint,
    ours: Result<Ours<'_>, Reason>,
    questions: Questions,
) -> Result<Step, AskError> {
    let tokenize = match (ours, questions.tokenize) {
        (Err(reason), _) if reason != Reason::Rejected => return Ok(Step::Skipped(reason)),
        (_, Err(reason)) if questions.render.is_none() => return Ok(Step::Skipped(reason)),
        (_, Ok(TokenizeRequest::Known(_))) => return Ok(Step::Same { shown: Topics::NONE }),
        (_, Ok(TokenizeRequest::Ask(body))) => Some(body),
        (_, Err(_)) => None,
    };
    let answer = answer(asker, engine, questions.render, tokenize).await;
    let Some(EngineAnswer { tokens, shown }) = answer else { return Ok(Step::Skipped(Reason::Release)) };
    let same = Step::Same { shown };
    match (ours, tokens) {
        (_, Err(AskError::Refused(_))) if questions.has_media => Ok(Step::Skipped(Reason::Media)),
        (Ok(ours), Ok(theirs)) => Ok(ours.difference_from(&theirs).map_or(same, Step::Different)),
        (Ok(_), Err(AskError::Refused(status))) if JUDGEMENTS.contains(&status) => {
            Ok(Step::Different(Comparison::Refused(status)))
        }
        (Err(_), Err(AskError::Refused(status))) if JUDGEMENTS.contains(&status) => Ok(same),
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
             there; are the tokenizer's files, the chat template and prompt.template_kwargs those of the engine?"
        );
        assert!(words(&AskError::Refused(404)).contains("no model of this name"));
        let refused =
            Difference { canary: "tools", is_chat: true, found: Comparison::Refused(400) }.to_string();
        assert!(refused.contains("refuses it with status 400"), "{refused}");
    }
}
