//! Mooncake's masters: which of them answers, which leads, and what they hold.

use std::collections::BTreeSet;

use super::{Grade, Inquiry, Keys, Report, all, counted, endpoints};
use crate::endpoint::Endpoint;
use crate::pool::PoolError;
use crate::pool::mooncake::wire::Form;
use crate::pool::mooncake::{Health, MasterGreeting, MooncakeConfig, greet};

const RPC: &str = "pool.addresses";
const ADMIN: &str = "pool.admins";

/// Over RPC, and what the HTTP ports add.
pub(super) async fn by_rpc(inquiry: &Inquiry<'_>, report: &mut Report) -> Option<Keys> {
    let masters = inquiry.addresses();
    let admins = endpoints(&inquiry.config.pool.admins);
    let states = states(inquiry, &admins, ADMIN).await;
    let mut asked = masters.clone();
    // A leader that only a standby names is asked too, as the gateway does.
    let leaders = states.iter().filter_map(|state| leader(state.health.as_ref()?));
    for leader in leaders.collect::<BTreeSet<_>>() {
        if !asked.contains(&leader) {
            asked.push(leader);
        }
    }
    let greeted = all(&asked, |master| async move { hello(inquiry, &master).await }).await;
    let answered = greeted.iter().any(|(_, greeting)| greeting.is_ok());
    for (master, greeting) in greeted {
        tell_greeting(inquiry, &master, greeting, answered, report).await;
    }
    if admins.is_empty() {
        let why = "who leads and how keys are spelled can't be asked over RPC";
        report.say(
            Grade::Note,
            format!("{why}: name the masters' HTTP ports (--metrics_port, 9003) in {ADMIN}"),
        );
        return None;
    }
    let serving = tell_states(states, report);
    held(inquiry, &serving, ADMIN, report).await
}

/// Over the HTTP ports alone.
pub(super) async fn by_http(inquiry: &Inquiry<'_>, report: &mut Report) -> Option<Keys> {
    let admins = inquiry.addresses();
    let states = states(inquiry, &admins, RPC).await;
    let only_standbys = !states.is_empty() && states.iter().all(MasterState::is_standby);
    let serving = tell_states(states, report);
    if only_standbys {
        let why = "no master that is listed leads: over HTTP no leader is followed, list all masters";
        report.say(Grade::Bad, format!("{RPC}: {why}"));
    }
    for admin in &serving {
        match inquiry.admin(admin).grants_leases().await {
            Ok(false) => {}
            Ok(true) => {
                let why = "is a master before 0.3.12, which grants a lease to every key it is asked about over HTTP";
                report.say(
                    Grade::Bad,
                    format!("{admin} ({RPC}) {why}: use pool.kind = \"mooncake\" and its RPC port"),
                );
            }
            Err(why) => report.say(
                Grade::Note,
                format!("{admin} ({RPC}): whether asking grants a lease is not known: {why}"),
            ),
        }
    }
    held(inquiry, &serving, RPC, report).await
}

async fn hello(inquiry: &Inquiry<'_>, master: &Endpoint) -> Result<MasterGreeting, PoolError> {
    let config = MooncakeConfig {
        masters: vec![master.clone()],
        connections: 1,
        tenant: inquiry.config.pool.tenant.clone(),
        connect_time: inquiry.limit,
        patience: inquiry.limit,
        ..MooncakeConfig::default()
    };
    greet(config).await
}

async fn tell_greeting(
    inquiry: &Inquiry<'_>,
    master: &Endpoint,
    greeting: Result<MasterGreeting, PoolError>,
    answered: bool,
    report: &mut Report,
) {
    let why = match greeting {
        Ok(greeting) => {
            let form = match greeting.form {
                Form::Tenant => "takes keys and a tenant (0.3.12 and later)",
                Form::Plain => "takes keys alone (0.3.7 to 0.3.11)",
            };
            let service =
                if greeting.service.is_empty() { "without a number" } else { greeting.service.as_str() };
            return report.say(
                Grade::Good,
                format!("Mooncake master {master} answers: its RPC {form}, service {service}"),
            );
        }
        Err(why) => why,
    };
    let grade = if answered { Grade::Note } else { Grade::Bad };
    let what = format!("Mooncake master {master} ({RPC}): {why}");
    let advice = if inquiry.speaks_http(master).await {
        "; an HTTP server listens there: pool.addresses takes the RPC port (--rpc_port, 50051), and HTTP ports belong into pool.admins"
    } else if answered {
        "; a standby refuses connections until it leads"
    } else {
        "; is a master running there, and is this its RPC port (--rpc_port, 50051)? A standby refuses, too: name all masters"
    };
    report.say(grade, format!("{what}{advice}"));
}

/// A master's state by its HTTP port.
struct MasterState {
    admin: Endpoint,
    /// Its health; None if it can't be asked.
    health: Option<Health>,
    /// Its name in the report, or the error with advice.
    text: String,
}

impl MasterState {
    fn is_standby(&self) -> bool {
        self.health.as_ref().is_some_and(|health| health.role.as_deref() == Some("standby"))
    }
}

/// The states of all masters, asked at the same time.
async fn states(inquiry: &Inquiry<'_>, admins: &[Endpoint], key: &'static str) -> Vec<MasterState> {
    let states = all(admins, |admin| async move { state(inquiry, admin, key).await }).await;
    states.into_iter().map(|(_, state)| state).collect()
}

/// State of the master behind an HTTP port; with the error text, if it may be the RPC port.
async fn state(inquiry: &Inquiry<'_>, admin: Endpoint, key: &'static str) -> MasterState {
    match inquiry.admin(&admin).health().await {
        Ok(health) => {
            let text = format!("{admin} ({key})");
            MasterState { admin, health: Some(health), text }
        }
        Err(why) => {
            let rpc = matches!(why, PoolError::Unreachable(_)) && hello(inquiry, &admin).await.is_ok();
            let advice = match (rpc, key) {
                (true, ADMIN) => "this is a master's RPC port, which belongs into pool.addresses",
                (true, _) => "this is a master's RPC port: use pool.kind = \"mooncake\", or its HTTP port",
                (false, _) => "is this a master's HTTP port (--metrics_port, 9003)?",
            };
            let text = format!("{admin} ({key}): {why}; {advice}");
            MasterState { admin, health: None, text }
        }
    }
}

/// Reports the leader, and returns the masters that may be asked for keys.
fn tell_states(states: Vec<MasterState>, report: &mut Report) -> Vec<Endpoint> {
    let mut serving = Vec::new();
    let any = states.iter().any(|state| state.health.is_some() && !state.is_standby());
    for MasterState { admin, health, text } in states {
        let Some(health) = health else {
            report.say(if any { Grade::Note } else { Grade::Bad }, text);
            continue;
        };
        let state = health.ha_state.as_deref().map_or_else(String::new, |state| format!(", {state}"));
        match health.role.as_deref() {
            Some("standby") => {
                let leader = health.leader_address.as_deref().filter(|leader| !leader.is_empty());
                let whom = leader.map_or("it names no leader".to_owned(), |leader| format!("{leader} leads"));
                let grade = if any || leader.is_some() { Grade::Note } else { Grade::Bad };
                report.say(grade, format!("{text} is a standby{state}: {whom}"));
            }
            _ if health.service_ready == Some(false) => {
                report.say(
                    Grade::Bad,
                    format!("{text} leads{state}, but does not answer about keys yet: try again"),
                );
            }
            role => {
                let word = role.map_or(
                    "answers; before 0.3.10.post2 a master does not say whether it leads",
                    |_| "leads",
                );
                report.say(Grade::Good, format!("{text} {word}{state}"));
                serving.push(admin);
            }
        }
    }
    serving
}

async fn held(inquiry: &Inquiry<'_>, admins: &[Endpoint], key: &str, report: &mut Report) -> Option<Keys> {
    if let Some(admin) = admins.first()
        && let Ok(Some(segments)) = inquiry.admin(admin).segments().await
        && !segments.is_empty()
    {
        let hosts: BTreeSet<&str> = segments.iter().map(|one| host(&one.endpoint)).collect();
        let hosts = hosts.into_iter().take(8).collect::<Vec<_>>().join(", ");
        report
            .say(Grade::Good, format!("{admin} ({key}): {} on {hosts}", counted(segments.len(), "segment")));
    }
    inquiry.list(admins, key, report).await
}

fn host(endpoint: &str) -> &str {
    endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host)
}

fn leader(health: &Health) -> Option<Endpoint> {
    Endpoint::parse(health.leader_address.as_deref()?).ok()
}
