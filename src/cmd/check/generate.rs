//! Checks that the decoders generate: each is asked for one token of a prompt of one word.

use futures_util::{StreamExt, stream};
use http::StatusCode;

use super::handoff::{AT_ONCE, PATH, Question};
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
    let ends: Vec<(&Endpoint, Result<StatusCode, String>)> = stream::iter(asked)
        .map(|(engine, question)| async move {
            (engine, question.send(engine, &Edit::new()).await.map(|(status, _)| status))
        })
        .buffered(AT_ONCE)
        .collect()
        .await;
    let fails = |answered: &Result<StatusCode, String>| !answered.as_ref().is_ok_and(StatusCode::is_success);
    for (engine, answered) in ends.into_iter().filter(|(_, answered)| fails(answered)) {
        let (grade, text) = judge(answered);
        report.say(grade, format!("decoder {engine}: {text}"));
    }
}

/// Judges an engine that did not answer a prompt of one word as it should: by its status, or the
/// reason for which there is none.
pub(super) fn judge(answered: Result<StatusCode, String>) -> (Grade, String) {
    let status = match answered {
        Ok(status) => status,
        Err(why) => {
            let text = format!("a prompt of one word (POST {PATH}) was not answered: {why}");
            return (Grade::Bad, text);
        }
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
        let grade = |status| judge(Ok(StatusCode::from_u16(status).unwrap())).0;
        assert_eq!([401, 403, 500, 503].map(grade), [Grade::Bad; 4]);
        assert_eq!([400, 404, 429].map(grade), [Grade::Warn; 3]);
        let (grade, text) = judge(Err("no whole answer within 15000 ms".to_owned()));
        assert_eq!(grade, Grade::Bad);
        assert!(text.contains("/v1/completions") && text.contains("15000 ms"), "{text}");
    }
}
