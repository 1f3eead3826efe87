//! Who is to be asked: the engines of the configuration, and those that are looked for.

use std::path::Path;

use super::{Grade, Report};
use crate::config::kubernetes::{Kubernetes, Wanted};
use crate::config::{self, Loaded, Origin};
use crate::discovery;
use crate::discovery::kubernetes;
use crate::discovery::names::{Names, System};
use crate::endpoint::Endpoint;

/// What an engine is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Prefiller,
    Decoder,
    Encoder,
}

/// One engine in one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) part: Part,
    pub(super) engine: Endpoint,
    /// Somebody named it; else it is the default.
    pub(super) named: bool,
}

impl Part {
    pub(super) fn name(self) -> &'static str {
        match self {
            Part::Prefiller => "prefiller",
            Part::Decoder => "decoder",
            Part::Encoder => "encoder",
        }
    }

    /// The key that names engines of this part.
    pub(super) fn key(self) -> &'static str {
        match self {
            Part::Prefiller => "fleet.prefill",
            Part::Decoder => "fleet.decode",
            Part::Encoder => "fleet.encode",
        }
    }
}

/// All engines, each once in each part; what can't be looked up is reported.
pub(super) async fn all(loaded: &Loaded, report: &mut Report) -> Vec<Member> {
    let config = &loaded.config;
    let mut members: Vec<Member> = Vec::new();
    for (part, engines) in [
        (Part::Prefiller, config.prefill_endpoints()),
        (Part::Decoder, config.decode_endpoints()),
        (Part::Encoder, config.encode_endpoints()),
    ] {
        let named = !matches!(loaded.origins.of(part.key()), Origin::Default);
        add(&mut members, part, engines, named);
    }
    if let Some(file) = &config.discovery.file {
        match discovery::read(Path::new(file)).await {
            Ok(listed) => {
                add(&mut members, Part::Prefiller, listed.prefill.unwrap_or_default(), true);
                add(&mut members, Part::Decoder, listed.decode.unwrap_or_default(), true);
            }
            Err(why) => report.say(Grade::Bad, format!("{file} (discovery.file): {why}")),
        }
    }
    let discovery = &config.discovery;
    for (part, key, names) in [
        (Part::Prefiller, "discovery.prefill_dns", &discovery.prefill_dns),
        (Part::Decoder, "discovery.decode_dns", &discovery.decode_dns),
    ] {
        let (engines, wrong) = Names::new(config::endpoints(names), System).look().await;
        for why in wrong {
            report
                .say(Grade::Bad, format!("{key}: {why}; is the name right, and has it pods that are ready?"));
        }
        add(&mut members, part, engines, true);
    }
    for (part, wanted) in
        [(Part::Prefiller, discovery.kubernetes.prefill()), (Part::Decoder, discovery.kubernetes.decode())]
    {
        if let Some(wanted) = wanted {
            add(&mut members, part, pods(part, &discovery.kubernetes, &wanted, report).await, true);
        }
    }
    for part in [Part::Prefiller, Part::Decoder] {
        if members.iter().all(|one| one.part != part) {
            let (name, key) = (part.name(), part.key());
            report.say(Grade::Bad, format!("there is no {name}: neither {key} nor [discovery] has one"));
        }
    }
    members
}

/// The engines of a role that the API server knows.
async fn pods(part: Part, settings: &Kubernetes, wanted: &Wanted, report: &mut Report) -> Vec<Endpoint> {
    let (key, name) = (wanted.key, part.name());
    let asked = match kubernetes::ask(settings, wanted).await {
        Ok(asked) => asked,
        Err(why) => {
            report.say(Grade::Bad, format!("{key}: {why}"));
            return Vec::new();
        }
    };
    let (engines, objects) = (asked.engines.len(), asked.objects);
    let place = format!("{objects} {} in namespace {}", asked.resource, asked.namespace);
    for lack in asked.lacks {
        report.say(Grade::Bad, format!("{key}: {lack}"));
    }
    match (engines, objects) {
        (0, 0) => report.say(
            Grade::Bad,
            format!("{key}: no {} match in namespace {}: is it right?", asked.resource, asked.namespace),
        ),
        (0, _) => report.say(Grade::Bad, format!("{key}: no {name} is ready, of {place}")),
        _ => report.say(Grade::Good, format!("{key}: {engines} {name}s ready, of {place}")),
    }
    asked.engines
}

fn add(members: &mut Vec<Member>, part: Part, engines: Vec<Endpoint>, named: bool) {
    for engine in engines {
        if members.iter().all(|one| one.part != part || one.engine != engine) {
            members.push(Member { part, engine, named });
        }
    }
}
