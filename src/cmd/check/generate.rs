//! Checks that the decoders generate: each is asked for one token of a prompt of one word.

use futures_util::{StreamExt, stream};
use http::StatusCode;

use super::handoff::{AT_ONCE, Question};
use super::visit::{Visit, answered};
use super::{Grade, Report};
use crate::app::settings;
use crate::codec::json::Edit;
use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::fleet::Role;
use crate::tokenization::Asker;

/// Asks the decoders that answered other questions, where a decoder may be asked alone. Those that
/// generate are not mentioned.
pub(super) async fn ask(config: &Config, asker: &Asker, visits: &[Visit], report: &mut Report) {
    let dialect = settings::protocol(config).dialect;
    if !dialect.decodes_alone() {
        return;
    }
    let question = |told| Question::new(config, asker, dialect, told);
    let asked: Vec<_> =
        answered(visits, Role::Decode).filter_map(|(engine, told)| Some((engine, question(told)?))).collect();
    let ends: Vec<(&Endpoint, Option<StatusCode>)> = stream::iter(asked)
        .map(|(engine, question)| async move {
            (engine, question.send(engine, &Edit::new()).await.map(|(status, _)| status))
        })
        .buffered(AT_ONCE)
        .collect()
        .await;
    for (engine, status) in ends.into_iter().filter(|(_, status)| !status.is_some_and(|it| it.is_success())) {
        let (grade, text) = judge(status);
        report.say(grade, format!("decoder {engine}: {text}"));
    }
}

/// Judges an engine that did not answer a prompt of one word as it should. `None` = not in time.
pub(super) fn judge(status: Option<StatusCode>) -> (Grade, String) {
    let Some(status) = status else {
        return (Grade::Warn, "a prompt of one word was not answered in time".to_owned());
    };
    let grade = match status.as_u16() {
        401 | 403 | 407 | 500.. => Grade::Bad,
        _ => Grade::Warn,
    };
    (grade, format!("a prompt of one word was answered with status {}", status.as_u16()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_fails_or_asks_for_another_key_is_bad() {
        let grade = |status| judge(Some(StatusCode::from_u16(status).unwrap())).0;
        assert_eq!([401, 403, 500, 503].map(grade), [Grade::Bad; 4]);
        assert_eq!([400, 404, 429].map(grade), [Grade::Warn; 3]);
        assert_eq!(judge(None).0, Grade::Warn);
    }
}
