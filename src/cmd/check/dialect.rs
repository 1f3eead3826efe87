//! The dialect's part: what the prefillers speak, and whether that is what the configuration says.

use super::visit::Visit;
use super::{Grade, Report};
use crate::app::settings;
use crate::config::{Config, DialectName};
use crate::dialect::Dialect;
use crate::dialect::signs::{self, DetectedDialect};

/// Reports which dialect the prefillers that answered speak.
pub(super) fn tell(config: &Config, visits: &[Visit], report: &mut Report) {
    let configured = settings::protocol(config).dialect;
    for visit in visits {
        let Some(signs) = visit.told.as_ref().ok().and_then(|told| told.signs.as_ref()) else { continue };
        let (grade, text) = judge(config.dialect.name, configured, signs.verdict().as_ref());
        report.say(grade, format!("prefiller {}: {text}", visit.member.engine));
    }
}

fn judge(name: DialectName, configured: Dialect, told: Option<&DetectedDialect>) -> (Grade, String) {
    let Some(DetectedDialect { dialect, why }) = told else {
        return (Grade::Note, format!("it does not say what it speaks; taken for {}", configured.name()));
    };
    if name == DialectName::Auto || *dialect == configured {
        return (Grade::Good, format!("dialect {}: {why}", dialect.name()));
    }
    if !signs::contradicts(*dialect, configured) {
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
        judge(name, configured, Some(&DetectedDialect { dialect: told, why: "so".to_owned() })).0
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
