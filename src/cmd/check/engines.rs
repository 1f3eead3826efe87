//! Reports on the engines: each by itself, and compared with each other.

use std::collections::BTreeSet;

use http::StatusCode;

use super::visit::{EngineReport, Visit};
use super::{Grade, Report, counted, members, words};
use crate::config::{Config, PoolKind, Tokens};
use crate::control::health_probe::{is_bad_answer, is_elsewhere};
use crate::dialect::facts::{CacheFacts, ModelFact};
use crate::endpoint;
use crate::fleet::Role;
use crate::naming_config::{self, Published};
use crate::tokenization::Facts;
use crate::tokenization::facts::Gap;

/// Clocks that differ by no more do no harm.
const CLOCK_S: i64 = 5;
/// A question without an answer in time, in the words of the visits.
const SILENT: &str = "answer within";
/// Names of models that are told.
const NAMES: usize = 8;
/// Words about a server that is no engine, after its name.
pub(in crate::cmd) const STRANGER: &str =
    "answers, but has none of an engine's /version, /v1/models and /metrics: is an engine behind this port?";

/// Everything about the engines but their dialect and tokens.
pub(super) fn judge(config: &Config, visits: &[Visit], report: &mut Report) {
    for visit in visits {
        match &visit.told {
            Ok(told) => answered(config, visit, told, report),
            Err(why) => away(visit, why, report),
        }
    }
    together(config, visits, report);
}

/// Facts that the prefillers publish of how they name blocks.
pub(super) fn published(visits: &[Visit]) -> Vec<Published> {
    let prefillers = visits.iter().filter(|visit| visit.member.role == Role::Prefill);
    prefillers
        .filter_map(|visit| {
            let facts = visit.told.as_ref().ok()?.facts.clone();
            Some(Published { engine: visit.member.engine.clone(), facts })
        })
        .collect()
}

/// Reports whether blocks can be named from `[hash]` and the prefillers' facts, if a pool or KV
/// events are to be asked for them.
pub(super) fn naming(config: &Config, published: &[Published], report: &mut Report) {
    if config.tokens() == Tokens::Off || published.is_empty() {
        return;
    }
    let used = config.pool.kind != PoolKind::Off || config.events.listen;
    match naming_config::naming(config, published) {
        Ok(naming) => {
            let tokens = naming.hasher.block_tokens();
            report.say(Grade::Good, format!("blocks can be named: {tokens} tokens each"));
        }
        Err(trouble) if trouble.is_configured() => {
            report.say(Grade::Bad, format!("{trouble}; a gateway does not start beside this engine"));
        }
        Err(trouble) => {
            let grade = if used && !trouble.may_pass() { Grade::Bad } else { Grade::Warn };
            report.say(grade, format!("blocks can't be named, so prompts are routed by load: {trouble}"));
        }
    }
}

fn away(visit: &Visit, why: &str, report: &mut Report) {
    let (member, took) = (&visit.member, visit.took.as_millis());
    let (who, key) = (member.who(), members::key(member.role));
    let advice = words::advice(&member.engine, why);
    // Something listens at the default address, and does not answer.
    let is_silent = why.contains(SILENT);
    if member.named || is_silent {
        return report.say(Grade::Bad, format!("{who} can't be asked: {why} (after {took} ms); {advice}"));
    }
    let text = format!("{who} is the default, since {key} names none, and can't be asked: {why}");
    report.say(Grade::Warn, text);
}

fn answered(config: &Config, visit: &Visit, told: &EngineReport, report: &mut Report) {
    let who = visit.member.who();
    let facts = &told.facts;
    if is_stranger(facts) {
        return report.say(Grade::Bad, format!("{who} {STRANGER}"));
    }
    report.say(Grade::Good, format!("{who}: {} ({} ms)", described(facts), visit.took.as_millis()));
    if let Some(fault) = health_fault(config, told) {
        report.say(Grade::Bad, format!("{who}: {fault}"));
    }
    if let Some(ahead_s) = told.ahead_s.filter(|ahead_s| ahead_s.abs() > CLOCK_S) {
        let way = if ahead_s > 0 { "ahead of" } else { "behind" };
        let why = "certificates, leases and logs go by it: set both by NTP";
        report.say(Grade::Warn, format!("{who}: its clock is {} s {way} ours; {why}", ahead_s.abs()));
    }
    served(config, &who, facts, report);
    cached(config, visit, &who, facts, report);
}

/// Fault of an engine whose answer to `health.probe_path` is a bad one for the gateway, too.
pub(in crate::cmd) fn health_fault(config: &Config, told: &EngineReport) -> Option<String> {
    let why = match is_elsewhere(told.health) {
        // The gateway asks nothing, and finds out by requests.
        true if config.health.probe_ms == 0 => return None,
        true => "the gateway takes it for another service; correct its address, or health.probe_path",
        false => "the gateway lets such an engine rest; look into the engine's log",
    };
    let (path, status) = (&config.health.probe_path, told.health.as_u16());
    let is_bad = is_bad_answer(told.health, false);
    is_bad.then(|| format!("GET {path} is answered with status {status}: {why}"))
}

/// True if answers show that the server is no engine: every engine that is known lists its models.
/// A web server says that it has no such page or another place for it, or shows the same one at
/// every path.
pub(in crate::cmd) fn is_stranger(facts: &Facts) -> bool {
    const ASKED: usize = 3;
    facts.gaps.iter().filter(|gap| tells_nothing(gap)).count() == ASKED
}

/// True if a server answered a question with nothing that is an engine's.
fn tells_nothing(gap: &Gap) -> bool {
    !gap.is_unanswered && gap.status.is_none_or(is_elsewhere)
}

/// True if a server answers the question for its models, and has none.
pub(in crate::cmd) fn lists_nothing(facts: &Facts) -> bool {
    let gap = facts.gaps.iter().find(|gap| gap.path == "/v1/models");
    gap.is_some_and(|gap| gap.status.is_none() && !gap.is_unanswered)
}

/// True if an engine refused its list of models for want of a key, or of another one.
pub(in crate::cmd) fn wants_key(facts: &Facts) -> bool {
    let gap = facts.gaps.iter().find(|gap| gap.path == "/v1/models");
    gap.is_some_and(|gap| matches!(gap.status, Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)))
}

/// The model, and whether we may ask for it.
fn served(config: &Config, who: &str, facts: &Facts, report: &mut Report) {
    let gap = facts.gaps.iter().find(|gap| gap.path == "/v1/models");
    if let Some(gap) = gap {
        let (grade, advice) = match (wants_key(facts), config.engine.api_key.is_some()) {
            (true, true) => (Grade::Bad, "it does not take engine.api_key: is that its --api-key?"),
            (true, false) if config.auth.keys_file.is_some() => {
                (Grade::Bad, "it wants a key, and clients' keys end at the gateway: set engine.api_key")
            }
            (true, false) => {
                (Grade::Warn, "it wants a key: set engine.api_key, or clients must send the engine's own")
            }
            (false, _) if gap.is_unanswered => {
                (Grade::Bad, "every client asks for that: look into the engine's log")
            }
            (false, _) => (Grade::Warn, "which models it serves is not known"),
        };
        return report.say(grade, format!("{who}: {gap}; {advice}"));
    }
    if let Some(model) = &config.fleet.model
        && !facts.models.iter().any(|one| endpoint::same_model(&one.id, model))
    {
        let served = names(facts.models.iter().map(|one| one.id.as_str()));
        let advice = "set fleet.model to a name that all engines serve, or the engine's --served-model-name";
        report.say(Grade::Bad, format!("{who}: fleet.model = {model:?}, but it serves {served}: {advice}"));
    }
}

/// Prefix caching and ranks.
fn cached(config: &Config, visit: &Visit, who: &str, facts: &Facts, report: &mut Report) {
    let cache = match &facts.cache {
        Ok(Some(cache)) => cache,
        Ok(None) => return,
        Err(ranks) => return report.say(Grade::Bad, format!("{who}: {ranks}: start all its ranks alike")),
    };
    let prefiller = visit.member.role == Role::Prefill;
    if prefiller && cache.prefix_caching == Some(false) {
        let what = "it has prefix caching off";
        let (grade, text) = if config.events.listen {
            (
                Grade::Bad,
                "and publishes no KV events, which events.listen waits for: start it without --no-enable-prefix-caching",
            )
        } else {
            (
                Grade::Warn,
                "and computes a prompt again that it had: start it without --no-enable-prefix-caching",
            )
        };
        report.say(grade, format!("{who}: {what}, {text}"));
    }
    let (key, ranks) = match visit.member.role {
        Role::Prefill => ("fleet.prefill_ranks", config.fleet.prefill_ranks),
        Role::Decode => ("fleet.decode_ranks", config.fleet.decode_ranks),
        Role::Encode => return,
    };
    let named = config.fleet.ranks().into_iter().find(|(engine, _)| *engine == visit.member.engine);
    match named {
        Some((_, named)) if usize::from(named) > cache.ranks => {
            let told = counted(cache.ranks, "data-parallel rank");
            let why = "requests for ranks that it has not are refused";
            report.say(
                Grade::Warn,
                format!("{who}: fleet.ranks gives it {named}, but it tells of {told}: {why}"),
            );
        }
        None if usize::try_from(ranks).is_ok_and(|ranks| ranks > cache.ranks) && ranks > 1 => {
            let told = counted(cache.ranks, "data-parallel rank");
            let why = match config.health.probe_ms {
                0 => {
                    "requests for ranks that it has not are refused, since health.probe_ms is 0 and it is not asked"
                }
                _ => "the gateway goes by what it tells",
            };
            report.say(Grade::Warn, format!("{who}: {key} = {ranks}, but it tells of {told}: {why}"));
        }
        None if cache.ranks > 1 && ranks == 1 => {
            let (told, is) = (counted(cache.ranks, "data-parallel rank"), cache.ranks);
            let why = "it chooses among them by itself";
            report.say(Grade::Note, format!("{who}: {told}, and {why} while {key} is not 0 or {is}"));
        }
        _ => {}
    }
}

/// The facts that an engine published, and its name in the report.
struct EngineFacts<'a> {
    engine: String,
    facts: &'a Facts,
}

/// One fact of an engine in words.
struct Statement<'a> {
    engine: &'a str,
    value: String,
}

/// Reports facts in which engines must agree, and do not.
fn together(config: &Config, visits: &[Visit], report: &mut Report) {
    let all: Vec<EngineFacts<'_>> = visits
        .iter()
        .filter_map(|visit| {
            Some(EngineFacts { engine: visit.member.who(), facts: &visit.told.as_ref().ok()?.facts })
        })
        .collect();
    same_model(config.fleet.model.as_deref(), &all, report);
    let said = |read: fn(&Facts) -> Option<String>| {
        all.iter().filter_map(move |one| Some(Statement { engine: &one.engine, value: read(one.facts)? }))
    };
    let version = said(|facts| facts.version.clone());
    if let Some(text) = differing(version, "is of release") {
        report.say(Grade::Warn, format!("{text}: KV of one release may not be readable by another"));
    }
    let block = said(|facts| cache(facts)?.block_tokens.map(|tokens| tokens.to_string()));
    if let Some(text) = differing(block, "has blocks of tokens:") {
        report.say(Grade::Warn, format!("{text}: most connectors want one --block-size on both sides"));
    }
}

/// A request names one model, to both its engines. With fleet.model each was compared with that,
/// and its name may be a path's last part.
fn same_model(model: Option<&str>, all: &[EngineFacts<'_>], report: &mut Report) {
    let counts = |one: &ModelFact| match model {
        Some(model) => endpoint::same_model(&one.id, model),
        None => one.parent.is_none(),
    };
    let named = |facts: &Facts| -> BTreeSet<String> {
        facts.models.iter().filter(|one| counts(one)).map(|one| one.id.clone()).collect()
    };
    let mut served =
        all.iter().map(|one| (&one.engine, named(one.facts))).filter(|(_, names)| !names.is_empty());
    let Some((first, ours)) = served.next() else { return };
    for (who, theirs) in served {
        if ours.is_disjoint(&theirs) {
            let (ours, theirs) = (listed(&ours), listed(&theirs));
            let advice =
                "a request names one model for both its engines: start all with the same --served-model-name";
            report.say(Grade::Bad, format!("{who} serves {theirs}, but {first} serves {ours}: {advice}"));
        }
    }
}

fn listed(models: &BTreeSet<String>) -> String {
    names(models.iter().map(String::as_str))
}

/// The first two that say different things, in words.
fn differing<'a>(mut statements: impl Iterator<Item = Statement<'a>>, verb: &str) -> Option<String> {
    let first = statements.next()?;
    let other = statements.find(|other| other.value != first.value)?;
    Some(format!("{} {verb} {}, and {} {verb} {}", other.engine, other.value, first.engine, first.value))
}

fn cache(facts: &Facts) -> Option<&CacheFacts> {
    facts.cache.as_ref().ok().and_then(Option::as_ref)
}

/// The engine's release, model, names, blocks and ranks in one line.
pub(in crate::cmd) fn described(facts: &Facts) -> String {
    let version = facts.version.as_deref();
    let version =
        version.map_or("an engine that does not tell its release".to_owned(), |it| format!("vLLM {it}"));
    let base: Vec<&ModelFact> = facts.models.iter().filter(|model| model.parent.is_none()).collect();
    let root = base.first().and_then(|model| model.root.as_deref());
    let model = base.first().map(|first| format!(", model {}", root.unwrap_or(&first.id)));
    let names = (!base.is_empty()).then(|| names(base.iter().map(|model| model.id.as_str())));
    let names = names.map(|names| format!(", served as {names}"));
    let cache = cache(facts);
    let block =
        cache.and_then(|cache| cache.block_tokens).map(|tokens| format!(", blocks of {tokens} tokens"));
    let algo = cache.and_then(|cache| cache.hash_algo.as_deref()).map(|algo| format!(", hash {algo}"));
    let ranks = cache.map(|cache| cache.ranks).filter(|ranks| *ranks > 1);
    let ranks = ranks.map(|ranks| format!(", {ranks} data-parallel ranks"));
    let parts = [model, names, block, algo, ranks].into_iter().flatten().collect::<String>();
    format!("{version}{parts}")
}

fn names<'a>(all: impl Iterator<Item = &'a str>) -> String {
    let some: Vec<&str> = all.take(NAMES).collect();
    if some.is_empty() { "nothing".to_owned() } else { some.join(" and ") }
}
