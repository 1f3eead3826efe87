//! The store of `[share]`, as `pd-proxy check` asks it.

use super::Report;
use crate::config::Config;

/// Says if the store can be used, where one is configured.
#[cfg(feature = "share")]
pub(super) async fn ask(config: &Config, report: &mut Report) {
    use std::time::Duration;

    use super::Grade;
    use crate::route::shared::FAR_S;
    use crate::route::shared::message::ReplicaId;
    use crate::share::cluster::is_elsewhere;
    use crate::share::{Findings, Store, probe};

    /// Advice for a store that refuses.
    const ADVICE: &str = "gateways would each decide alone: see `Two or more gateways` in the documents for what its user needs";
    /// Advice for a server that does not keep the names of gateways, or may not write them.
    const ELSEWHERE: &str = "this server leaves that to another: begin the URL of a cluster with redis+cluster://, and name the master where there are replicas";
    let Ok(Some(url)) = config.share.store() else { return };
    let prefix = config.share.prefix_in_store();
    let looked = match Store::new(&url, &prefix) {
        Ok(store) => probe::look(&store, &prefix, ReplicaId(crate::util::rng::random())).await,
        Err(error) => Err(error),
    };
    let Findings { server, delay, evicts } = match looked {
        Ok(found) => found,
        Err(error) => {
            let advice = if is_elsewhere(&error) { ELSEWHERE } else { ADVICE };
            return report.say(Grade::Bad, format!("share.url: {error}; {advice}"));
        }
    };
    let ms = delay.as_secs_f64() * 1e3;
    report.say(Grade::Good, format!("share.url: {server}, a message takes {ms:.1} ms"));
    if delay > Duration::from_secs_f64(FAR_S / 2.0) {
        let most_ms = FAR_S / 2.0 * 1e3;
        report.say(
            Grade::Warn,
            format!(
                "share.url: with more than {most_ms:.0} ms for a message each gateway decides for itself"
            ),
        );
    }
    if evicts == Some(true) {
        report.say(
            Grade::Note,
            "share.url: its memory policy may drop the lease of the leader, which is then taken anew within 1.5 s",
        );
    }
}

/// Says nothing: no configuration asks for a store that this program has no client of.
#[cfg(not(feature = "share"))]
pub(super) async fn ask(_: &Config, _: &mut Report) {}
