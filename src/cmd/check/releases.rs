//! Checks that prefillers and decoders are of one release, where connectors compare it.
//!
//! vLLM's NIXL connectors refuse the KV of another release. In a rolling upgrade both stand side by
//! side, and a prefiller without a decoder of its release gets no prompts.

use super::visit::{Visit, answered};
use super::{Grade, Report};
use crate::fleet::Role;

/// Names of engines that one line shows.
const NAMES: usize = 3;

/// An engine and the release that it tells.
#[derive(Clone, Debug)]
struct EngineRelease {
    engine: String,
    release: String,
}

/// Reports prefillers and decoders that have no partner. `compared` = a hand-off showed that
/// engines compare releases.
pub(super) fn judge(visits: &[Visit], compared: bool, report: &mut Report) {
    let of = |role| -> Option<Vec<EngineRelease>> {
        let told = answered(visits, role).map(|(engine, told)| {
            let release = told.facts.version.clone()?;
            Some(EngineRelease { engine: engine.to_string(), release })
        });
        told.collect()
    };
    // One that does not tell its release goes with every other.
    if let (true, Some(prefillers), Some(decoders)) = (compared, of(Role::Prefill), of(Role::Decode)) {
        lines(&prefillers, &decoders).into_iter().for_each(|(grade, text)| report.say(grade, text));
    }
}

fn lines(prefillers: &[EngineRelease], decoders: &[EngineRelease]) -> Vec<(Grade, String)> {
    let lack = |of: &[EngineRelease], among: &[EngineRelease]| -> Vec<EngineRelease> {
        let has_partner = |one: &EngineRelease| among.iter().any(|other| other.release == one.release);
        of.iter().filter(|one| !has_partner(one)).cloned().collect()
    };
    if prefillers.is_empty() || decoders.is_empty() {
        return Vec::new();
    }
    let (idle, alone) = (lack(prefillers, decoders), lack(decoders, prefillers));
    if idle.len() == prefillers.len() {
        let text = format!(
            "no prefiller and decoder are of one release ({}; {}), and these engines refuse KV of another: decoders compute all prompts until they are",
            named(prefillers),
            named(decoders)
        );
        return vec![(Grade::Bad, text)];
    }
    let mut found = Vec::new();
    if !idle.is_empty() {
        let text =
            format!("prefillers that no decoder of their release reads get no prompts: {}", named(&idle));
        found.push((Grade::Warn, text));
    }
    if !alone.is_empty() {
        let text =
            format!("decoders without a prefiller of their release get no hand-offs: {}", named(&alone));
        found.push((Grade::Warn, text));
    }
    found
}

/// The first of these engines with their releases.
fn named(all: &[EngineRelease]) -> String {
    let some: Vec<String> =
        all.iter().take(NAMES).map(|one| format!("{} of {}", one.engine, one.release)).collect();
    let more = all.len().saturating_sub(NAMES);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", some.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engines(releases: &[&str]) -> Vec<EngineRelease> {
        let one = |(port, release): (u32, &&str)| EngineRelease {
            engine: format!("e:{port}"),
            release: (*release).to_owned(),
        };
        (1..).zip(releases).map(one).collect()
    }

    fn found(prefillers: &[&str], decoders: &[&str]) -> Vec<(Grade, String)> {
        lines(&engines(prefillers), &engines(decoders))
    }

    #[test]
    fn engines_without_a_partner_of_their_release_are_named() {
        assert!(found(&["a", "a"], &["a"]).is_empty() && found(&["a", "b"], &["b", "a"]).is_empty());
        let idle = found(&["a", "b"], &["a"]);
        assert_eq!((idle.len(), idle[0].0), (1, Grade::Warn));
        assert!(idle[0].1.contains("get no prompts: e:2 of b"), "{idle:?}");
        let both = found(&["a", "b"], &["a", "c"]);
        assert!(both.len() == 2 && both[1].1.contains("get no hand-offs: e:2 of c"), "{both:?}");
        let none = found(&["b", "b", "b", "b"], &["a"]);
        assert_eq!((none.len(), none[0].0), (1, Grade::Bad));
        assert!(none[0].1.contains("and 1 more"), "{none:?}");
    }
}
