//! The dialect's part: what the prefillers speak, and whether that is what the configuration says.

use std::time::Duration;

use super::{Grade, Report};
use crate::config::{DialectName, Loaded, Origin};
use crate::dialect::Dialect;
use crate::dialect::signs::Told;
use crate::keys::asker;
use crate::signs::Questions;
use crate::tls::ClientError;
use crate::tuning;

/// Asks the prefillers that are named; nobody is asked where none is.
///
/// # Errors
/// When there is no HTTP client to be had.
pub(super) async fn ask(loaded: &Loaded, report: &mut Report) -> Result<(), ClientError> {
    if matches!(loaded.origins.of("fleet.prefill"), Origin::Default) {
        return Ok(());
    }
    let config = &loaded.config;
    let (asker, speech) = (asker(config)?, tuning::speech(config));
    let time = Duration::from_millis(config.timeout.models_ms);
    let questions = Questions { client: asker.client, authorization: asker.authorization, time };
    for prefiller in config.prefill_endpoints() {
        let signs = questions.ask(&prefiller, &speech.bootstrap(&prefiller)).await;
        let (grade, text) = judge(config.dialect.name, speech.dialect, signs.verdict().as_ref());
        report.say(grade, format!("prefiller {prefiller}: {text}"));
    }
    Ok(())
}

fn judge(name: DialectName, configured: Dialect, told: Option<&Told>) -> (Grade, String) {
    let Some(Told { dialect, why }) = told else {
        return (Grade::Note, format!("it does not say what it speaks; taken for {}", configured.name()));
    };
    if name == DialectName::Auto || *dialect == configured {
        return (Grade::Good, format!("dialect {}: {why}", dialect.name()));
    }
    // What vLLM says of itself fits every connector that has no bootstrap server.
    if *dialect == Dialect::KvTransfer && !configured.asks_bootstrap() && configured != Dialect::Sglang {
        return (Grade::Good, format!("dialect {}, as configured: {why}", configured.name()));
    }
    let (was, is) = (configured.name(), dialect.name());
    (
        Grade::Bad,
        format!("dialect.name = {was}, but {why}: that is {is}; set dialect.name = \"{is}\", or \"auto\""),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grade(name: DialectName, configured: Dialect, told: Dialect) -> Grade {
        judge(name, configured, Some(&Told { dialect: told, why: "so".to_owned() })).0
    }

    #[test]
    fn only_what_can_not_be_is_bad() {
        use Dialect::{KvTransfer, Mooncake, NixlPush, Pool, Sglang};
        for told in Dialect::ALL {
            assert_eq!(grade(DialectName::Auto, KvTransfer, told), Grade::Good);
        }
        for fits in [KvTransfer, Pool, NixlPush] {
            assert_eq!(grade(DialectName::Pool, fits, KvTransfer), Grade::Good);
        }
        for (configured, told) in
            [(Mooncake, KvTransfer), (Sglang, KvTransfer), (KvTransfer, Sglang), (Pool, Mooncake)]
        {
            assert_eq!(grade(DialectName::Pool, configured, told), Grade::Bad, "{configured:?} {told:?}");
        }
        assert_eq!(judge(DialectName::Mooncake, Mooncake, None).0, Grade::Note);
    }
}
