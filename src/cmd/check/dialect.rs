//! The dialect's part: what the prefillers speak, and whether that is what the configuration says.

use super::visit::Visit;
use super::{Grade, Report};
use crate::app::settings;
use crate::config::{Config, DialectName};
use crate::dialect::Dialect;
use crate::dialect::signs::{self, DetectedDialect};
use crate::endpoint::Endpoint;
use crate::fleet::EngineProtocol;

/// Reports which dialect the prefillers that answered speak.
pub(super) fn tell(config: &Config, visits: &[Visit], report: &mut Report) {
    let configured = settings::protocol(config).dialect;
    for visit in visits {
        let Some(signs) = visit.told.as_ref().ok().and_then(|told| told.signs.as_ref()) else { continue };
        let (grade, text) = judge(config.dialect.name, configured, signs.verdict().as_ref());
        report.say(grade, format!("prefiller {}: {text}", visit.member.engine));
    }
    let protocol = settings::protocol(config);
    let ports = visits.iter().filter_map(|visit| {
        let port = visit.told.as_ref().ok()?.signs.as_ref()?.sglang_port?;
        Some(ToldPort { prefiller: &visit.member.engine, port })
    });
    let is_sglang = protocol.open || configured == Dialect::Sglang;
    let ports: Vec<_> = ports.filter(|_| is_sglang).collect();
    unlike_ports(&protocol, &ports).into_iter().for_each(|text| report.say(Grade::Warn, text));
}

/// Bootstrap port that an SGLang server tells of itself.
struct ToldPort<'a> {
    prefiller: &'a Endpoint,
    port: u16,
}

/// Prefillers that tell another bootstrap port than requests name. Where the dialect is found out,
/// that of the first prefiller that tells one is named for all.
fn unlike_ports(protocol: &EngineProtocol, told: &[ToldPort<'_>]) -> Vec<String> {
    let first = told.first().filter(|_| protocol.open).map(|first| first.port);
    let bootstrap_port = first.unwrap_or(protocol.bootstrap_port);
    let named = EngineProtocol { bootstrap_port, ..protocol.clone() };
    let has_own = |it: &ToldPort<'_>| protocol.bootstraps.iter().any(|(of, _)| of == it.prefiller);
    let differs = |it: &&ToldPort<'_>| !has_own(it) && named.bootstrap(it.prefiller).port != it.port;
    told.iter()
        .filter(differs)
        .map(|ToldPort { prefiller, port }| {
            let at = Endpoint::new(prefiller.host.clone(), *port);
            format!(
                "prefiller {prefiller}: its bootstrap port is {port}, but requests name {bootstrap_port}, where decoders \
                 would wait for its KV: add \"{prefiller}={at}\" to dialect.bootstraps"
            )
        })
        .collect()
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
    fn prefillers_with_another_bootstrap_port_than_requests_name_are_told() {
        let hosts = ["a", "b", "c"].map(|host| Endpoint::new(host, 30000));
        let [a, b, c] = &hosts;
        let told = [8998, 9001, 9002].into_iter().zip([a, b, c]);
        let told: Vec<_> = told.map(|(port, prefiller)| ToldPort { prefiller, port }).collect();
        let protocol = |open, bootstrap_port| EngineProtocol {
            open,
            bootstrap_port,
            bootstraps: vec![(c.clone(), Endpoint::new("c", 9002))],
            ..EngineProtocol::default()
        };
        let texts = unlike_ports(&protocol(true, 1), &told);
        let [text] = &texts[..] else { panic!("{texts:?}") };
        for part in ["prefiller b:30000", "is 9001, but requests name 8998", "\"b:30000=b:9001\""] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(unlike_ports(&protocol(false, 9001), &told).len(), 1, "that of a is another one");
        assert!(unlike_ports(&protocol(true, 1), &told[..1]).is_empty());
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
