//! Our tokens beside those of the prefillers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::visit::{Visit, answered};
use super::{Grade, Report};
use crate::config::Config;
use crate::fleet::Role;
use crate::prompt::Prompter;
use crate::tokenization::{Asker, ComparedEngine, Parity, Prompts, Source, Verdict, compare};

/// The longest that comparing goes on.
const COMPARE_TIME: Duration = Duration::from_secs(5);
/// Prefillers that are compared; more of them say no more.
const COMPARED: usize = 16;

/// Compares our tokens with those of the first prefillers that answered.
pub(super) async fn ask(
    config: &Config,
    asker: &Asker,
    prompter: Prompter,
    visits: &[Visit],
    report: &mut Report,
) {
    let prompts = Prompts::new(Source::Local(Arc::new(prompter)), config.prompt.utc_offset_s());
    let Some(prompter) = prompts.local() else { return };
    let today = prompts.today();
    let all = answered(visits, Role::Prefill).take(COMPARED).map(|(engine, told)| async move {
        let model = told.facts.models.first().map(|model| model.id.as_str());
        let compared = ComparedEngine { engine, model, rules: told.facts.rules().compared() };
        let comparing = compare(asker, compared, prompter, today);
        (engine, tokio::time::timeout(COMPARE_TIME, comparing).await.ok())
    });
    for (engine, parity) in join_all(all).await {
        let (grade, text) = judge(parity.as_ref());
        report.say(grade, format!("prefiller {engine}: {text}"));
        if let Some(text) = parity.as_ref().and_then(doubt) {
            report.say(Grade::Warn, format!("prefiller {engine}: {text}"));
        }
    }
}

/// Chats that the engine reads in another way than it is done here.
fn doubt(parity: &Parity) -> Option<String> {
    let unseen = parity.topics.unseen_chats();
    let Some(difference) = parity.topical.as_ref() else {
        return (!unseen.is_empty()).then(|| format!("chats are routed by load: {unseen}"));
    };
    let (names, cause) = (parity.topics.names(), parity.topics.likely_cause());
    Some(format!("chats with {names} are routed by load: {difference}{cause}"))
}

fn judge(parity: Option<&Parity>) -> (Grade, String) {
    let late = || {
        let seconds = COMPARE_TIME.as_secs();
        (Grade::Note, format!("our tokens were not compared with its own within {seconds} s"))
    };
    let Some(parity) = parity else { return late() };
    match &parity.verdict {
        Verdict::Same => {
            (Grade::Good, format!("our tokens are its own ({} requests compared)", parity.compared))
        }
        Verdict::Different(difference) => (Grade::Bad, difference.to_string()),
        Verdict::Untested => (
            Grade::Note,
            "our tokens can't be compared with its own: none of the requests is known here".to_owned(),
        ),
        Verdict::Unknown(why) => (Grade::Warn, format!("our tokens were not compared with its own: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::{Topic, Topics};
    use crate::tokenization::{Comparison, Difference, TopicsSeen};

    #[test]
    fn only_a_difference_is_bad() {
        let grade = |verdict| judge(Some(&Parity { verdict, compared: 3, ..Parity::untested() })).0;
        assert_eq!(grade(Verdict::Same), Grade::Good);
        assert_eq!(grade(Verdict::Untested), Grade::Note);
        assert_eq!(grade(Verdict::Unknown("away".to_owned())), Grade::Warn);
        assert_eq!(judge(None).0, Grade::Note);
    }

    #[test]
    fn a_difference_in_efforts_names_the_key() {
        let found = Comparison::Token { at: 6, ours: Some(1), theirs: Some(2) };
        let topical = Some(Difference { canary: "effort minimal", is_chat: true, found });
        let of = |topic| {
            let topics = TopicsSeen { different: Topics::NONE.with(topic), ..TopicsSeen::default() };
            doubt(&Parity { topical, topics, ..Parity::untested() }).unwrap()
        };
        let efforts = of(Topic::Effort);
        assert!(efforts.starts_with("chats with reasoning_effort are routed by load: "), "{efforts}");
        assert!(efforts.ends_with("Is prompt.reasoning_effort_map the engine's --reasoning-effort-map?"));
        assert!(!of(Topic::Developer).contains("effort_map"));
        assert_eq!(doubt(&Parity::untested()), None);
    }
}
