//! Checks that the prefillers hand over what they compute. Each computes a prompt of one word, and
//! a decoder fetches the KV at once, so that nothing stays.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

use super::visit::{EngineReport, Visit, answered};
use super::{Grade, Report, generate, releases};
use crate::app::settings;
use crate::codec::json::{Edit, Object, ScanLimits};
use crate::config::{Config, DialectName};
use crate::dialect::{self, Api, Dialect, Prefilled, Transfer};
use crate::endpoint::Endpoint;
use crate::fleet::Role;
use crate::tokenization::Asker;
use crate::tokenization::exchange::{authorized, exchange, url};

/// Engines that are asked at once for a prompt of one word.
pub(in crate::cmd) const AT_ONCE: usize = 16;
/// A prompt of one word may stand in an engine's line: so many times as long as another question it
/// may take.
const PROMPT_TIMES: u32 = 5;
/// The largest answer that is read.
const ANSWER_BYTES: usize = 1 << 20;
pub(super) const PATH: &str = "/v1/completions";

/// Outcome of one prefiller's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HandoffAnswer {
    /// There was a hand-off.
    Over {
        /// The engines compare their releases before KV goes from one to the other.
        compares_releases: bool,
    },
    /// There was none.
    Nothing,
    /// It computed nothing: it answered so, or not at all.
    Unknown(Result<StatusCode, String>),
}

/// The request of one check.
pub(super) struct Question<'a> {
    asker: &'a Asker,
    dialect: Dialect,
    /// Engines of some dialects know each other's requests by it.
    id: String,
    body: Object,
}

/// A prefiller to be asked, and the decoder that fetches what it computes.
struct Asked<'a> {
    engine: &'a Endpoint,
    question: Question<'a>,
    decoder: Option<&'a Endpoint>,
}

/// Asks the prefillers that answered, where their dialect hands over.
pub(super) async fn ask(config: &Config, asker: &Asker, visits: &[Visit], report: &mut Report) {
    let configured = settings::protocol(config).dialect;
    let set = config.dialect.name != DialectName::Auto;
    let release = |told: &EngineReport| told.facts.version.clone();
    // KV of another release may be refused, and would stay.
    let decoder = |told: &EngineReport| {
        let mut all = answered(visits, Role::Decode);
        let equal = all.clone().find(|(_, other)| release(other) == release(told));
        equal.or_else(|| all.next()).map(|(engine, _)| engine)
    };
    let asked = answered(visits, Role::Prefill).filter_map(|(engine, told)| {
        let sign = told.signs.as_ref().and_then(|signs| signs.verdict()).map(|it| it.dialect);
        let dialect = if set { configured } else { sign? };
        let question = Question::new(config, asker, dialect, told)?;
        dialect.hands_over().then_some(Asked { engine, question, decoder: decoder(told) })
    });
    let asked: Vec<_> = asked.collect();
    let ends: Vec<(&Endpoint, HandoffAnswer)> = stream::iter(asked)
        .map(|one| async move { (one.engine, one.question.put(one.engine, one.decoder).await) })
        .buffered(AT_ONCE)
        .collect()
        .await;
    let some_do = ends.iter().any(|(_, handed)| matches!(handed, HandoffAnswer::Over { .. }));
    let compared = |handed: &HandoffAnswer| *handed == HandoffAnswer::Over { compares_releases: true };
    releases::judge(visits, ends.iter().any(|(_, handed)| compared(handed)), report);
    for (engine, handed) in ends {
        let (grade, text) = judge(handed, set, some_do);
        report.say(grade, format!("prefiller {engine}: {text}"));
    }
}

fn judge(handed: HandoffAnswer, set: bool, some_do: bool) -> (Grade, String) {
    const NOTHING: &str = "it hands over nothing of what it computes (no kv_transfer_params in its answer)";
    const FIX: &str = "decoders compute its prompts again; start it with --kv-transfer-config, as the others";
    match handed {
        HandoffAnswer::Over { .. } => (Grade::Good, "it hands over what it computes".to_owned()),
        HandoffAnswer::Nothing if some_do => (Grade::Bad, format!("{NOTHING}, and others do: {FIX}")),
        HandoffAnswer::Nothing if set => (
            Grade::Bad,
            format!(
                "{NOTHING}, and dialect.name says that it does: {FIX}, or set dialect.name = \"pool\" if one carries the KV"
            ),
        ),
        HandoffAnswer::Nothing => (
            Grade::Note,
            format!("{NOTHING}: right if a pool carries the KV, else it lacks --kv-transfer-config"),
        ),
        HandoffAnswer::Unknown(answered) => {
            let (grade, text) = generate::judge(answered);
            (grade, format!("it is not known if it hands over: {text}"))
        }
    }
}

impl<'a> Question<'a> {
    /// The question to an engine that has told this; `None` if the model's name is not known.
    pub(super) fn new(
        config: &Config,
        asker: &'a Asker,
        dialect: Dialect,
        told: &EngineReport,
    ) -> Option<Question<'a>> {
        Question::about(config, asker, dialect, told, &json!("Hello"))
    }

    /// The same with this prompt.
    pub(super) fn about(
        config: &Config,
        asker: &'a Asker,
        dialect: Dialect,
        told: &EngineReport,
        prompt: &serde_json::Value,
    ) -> Option<Question<'a>> {
        let first = told.facts.models.first().map(|it| it.id.as_str());
        let model = config.fleet.model.as_deref().or(first)?;
        let body = json!({"model": model, "prompt": prompt, "max_tokens": 1}).to_string();
        let body = Object::scan(body.into(), ScanLimits::default()).ok()?;
        Some(Question { asker, dialect, id: uuid::Uuid::new_v4().to_string(), body })
    }

    /// Has `prefiller` compute the prompt and `decoder` fetch it.
    pub(super) async fn put(&self, prefiller: &Endpoint, decoder: Option<&Endpoint>) -> HandoffAnswer {
        let transfer = Transfer { id: uuid::Uuid::new_v4().as_u128(), ..Transfer::default() };
        let edit = self.dialect.prefill_edit(Api::Completions, &self.body, &transfer);
        let (status, answer) = match self.send(prefiller, &edit).await {
            Ok(answered) => answered,
            Err(why) => return HandoffAnswer::Unknown(Err(why)),
        };
        if status != StatusCode::OK {
            return HandoffAnswer::Unknown(Ok(status));
        }
        let read = self.dialect.read_prefill(Api::Completions, answer, &transfer);
        let Ok(Prefilled { handoff: Some(handoff), said }) = read else { return HandoffAnswer::Nothing };
        if let Some(decoder) = decoder {
            let edit = dialect::release_edit(Api::Completions, &self.body, &handoff, None);
            // One that does not take it leaves it to its lease.
            let _ = self.send(decoder, &edit).await;
        }
        HandoffAnswer::Over { compares_releases: self.dialect.compares_releases(&said) }
    }

    /// Sends the prompt; the error says in words why there is no answer.
    pub(super) async fn send(&self, engine: &Endpoint, edit: &Edit) -> Result<(StatusCode, Bytes), String> {
        let call = self.asker.client.post(url(engine, PATH)).body(self.body.splice(edit).to_bytes());
        let call = call.header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let call = authorized(call.header("x-request-id", &self.id), self.asker.authorization.as_ref());
        exchange(call, self.asker.time.saturating_mul(PROMPT_TIMES), ANSWER_BYTES).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_handoff_is_bad_where_others_hand_over_or_all_must() {
        let grade = |set, some_do| judge(HandoffAnswer::Nothing, set, some_do).0;
        assert_eq!([grade(false, true), grade(true, false), grade(true, true)], [Grade::Bad; 3]);
        assert_eq!(grade(false, false), Grade::Note);
        assert_eq!(judge(HandoffAnswer::Over { compares_releases: false }, true, true).0, Grade::Good);
        let late = HandoffAnswer::Unknown(Err("no whole answer within 15000 ms".to_owned()));
        assert_eq!(judge(late, true, true).0, Grade::Bad);
        let refused = HandoffAnswer::Unknown(Ok(StatusCode::UNAUTHORIZED));
        assert_eq!(judge(refused, true, true).0, Grade::Bad);
    }
}
