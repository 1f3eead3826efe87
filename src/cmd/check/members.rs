//! Lists the engines to ask: those of the configuration, and those that discovery finds.

use std::path::Path;

use super::{Grade, Report};
use crate::config::kubernetes::{Kubernetes, Wanted};
use crate::config::{self, Loaded, Origin};
use crate::control::discovery;
use crate::control::discovery::kubernetes;
use crate::control::discovery::names::{DnsNames, SystemResolver};
use crate::endpoint::Endpoint;
use crate::fleet::Role;
use crate::util::disk::Disk;

/// One engine in one role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cmd) struct Member {
    pub(in crate::cmd) role: Role,
    pub(in crate::cmd) engine: Endpoint,
    /// True if the engine was named; otherwise it is the default.
    pub(in crate::cmd) named: bool,
}

impl Member {
    /// As in `prefiller 10.0.0.1:8100`.
    pub(in crate::cmd) fn who(&self) -> String {
        format!("{} {}", self.role.who(), self.engine)
    }
}

/// The key that lists engines of this role.
pub(in crate::cmd) fn key(role: Role) -> &'static str {
    match role {
        Role::Prefill => "fleet.prefill",
        Role::Decode => "fleet.decode",
        Role::Encode => "fleet.encode",
    }
}

/// All engines, each once in each role; what can't be looked up is reported.
pub(in crate::cmd) async fn all(loaded: &Loaded, report: &mut Report) -> Vec<Member> {
    let config = &loaded.config;
    let mut members: Vec<Member> = Vec::new();
    for (role, engines) in [
        (Role::Prefill, config.prefill_endpoints()),
        (Role::Decode, config.decode_endpoints()),
        (Role::Encode, config.encode_endpoints()),
    ] {
        let named = !matches!(loaded.origins.of(key(role)), Origin::Default);
        add(&mut members, role, engines, named);
    }
    if let Some(file) = &config.discovery.file {
        match discovery::read(&Disk::default(), Path::new(file)).await {
            Ok(listed) => {
                add(&mut members, Role::Prefill, listed.prefill.unwrap_or_default(), true);
                add(&mut members, Role::Decode, listed.decode.unwrap_or_default(), true);
            }
            Err(why) => report.say(Grade::Bad, format!("{file} (discovery.file): {why}")),
        }
    }
    let discovery = &config.discovery;
    for (role, key, names) in [
        (Role::Prefill, "discovery.prefill_dns", &discovery.prefill_dns),
        (Role::Decode, "discovery.decode_dns", &discovery.decode_dns),
    ] {
        let (engines, wrong) = DnsNames::new(config::endpoints(names), SystemResolver).look().await;
        for why in wrong {
            report
                .say(Grade::Bad, format!("{key}: {why}; is the name right, and has it pods that are ready?"));
        }
        add(&mut members, role, engines, true);
    }
    for (role, wanted) in
        [(Role::Prefill, discovery.kubernetes.prefill()), (Role::Decode, discovery.kubernetes.decode())]
    {
        if let Some(wanted) = wanted {
            add(&mut members, role, pods(role, &discovery.kubernetes, &wanted, report).await, true);
        }
    }
    for role in [Role::Prefill, Role::Decode] {
        if members.iter().all(|one| one.role != role) {
            let (name, listed) = (role.who(), key(role));
            report.say(Grade::Bad, format!("there is no {name}: neither {listed} nor [discovery] has one"));
        }
    }
    members
}

/// The engines of a role that the API server knows.
async fn pods(role: Role, settings: &Kubernetes, wanted: &Wanted, report: &mut Report) -> Vec<Endpoint> {
    let (key, name) = (wanted.key, role.who());
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

fn add(members: &mut Vec<Member>, role: Role, engines: Vec<Endpoint>, named: bool) {
    for engine in engines {
        if members.iter().all(|one| one.role != role || one.engine != engine) {
            members.push(Member { role, engine, named });
        }
    }
}
