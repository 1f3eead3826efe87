//! Models that engines serve, by their own word. Asked in the background, and only while somebody
//! looks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::Instant;

use crate::endpoint::Endpoint;
use crate::fleet::Instance;
use crate::server::fleets::ServedFleet;
use crate::server::page::json::FleetMember;
use crate::server::{Gateway, printable};
use crate::tokenization::exchange::authorized;
use crate::tokenization::facts::{self, ListReply};

/// Models change seldom: an engine is asked again after this time.
const AGAIN: Duration = Duration::from_secs(30);
/// Engines that are asked at once.
const AT_ONCE: usize = 8;
/// Names that are kept of one engine. The first is the model's own; the others are mostly adapters.
const MOST: usize = 4;

/// The models of the engines that are members.
#[derive(Debug, Default)]
pub struct Served(Mutex<HashMap<Endpoint, Answer>>);

#[derive(Debug)]
struct Answer {
    asked: Instant,
    models: Vec<String>,
    /// Number of further models.
    more: usize,
}

impl Served {
    /// The first models of an engine, and how many more it has; none while it has not answered.
    pub(super) fn by(&self, engine: &Endpoint) -> (Vec<String>, usize) {
        self.lock().get(engine).map_or_else(Default::default, |known| (known.models.clone(), known.more))
    }

    /// Those whose turn it is to be asked, which is noted; who has left is forgotten.
    fn due<'a>(&self, members: impl Iterator<Item = &'a Instance> + Clone, now: Instant) -> Vec<Endpoint> {
        let mut all = self.lock();
        all.retain(|known, _| members.clone().any(|member| member.endpoint() == known));
        let mut due = Vec::new();
        for engine in members.map(Instance::endpoint) {
            match all.get_mut(engine) {
                Some(known) if now.saturating_duration_since(known.asked) < AGAIN => continue,
                Some(known) => known.asked = now,
                None => {
                    all.insert(engine.clone(), Answer { asked: now, models: Vec::new(), more: 0 });
                }
            }
            due.push(engine.clone());
        }
        due
    }

    /// An engine has answered. One that has left meanwhile is not known any more.
    fn tell(&self, engine: &Endpoint, mut names: Vec<String>) {
        if let Some(known) = self.lock().get_mut(engine) {
            known.more = names.len().saturating_sub(MOST);
            names.truncate(MOST);
            known.models = names.iter().map(|name| printable(name)).collect();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Endpoint, Answer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks those of `members` whose turn it is, in the background.
pub(super) fn look(gateway: &Arc<Gateway>, members: &[FleetMember]) {
    let due = gateway.served.due(members.iter().map(|member| &*member.instance), Instant::now());
    if due.is_empty() {
        return;
    }
    let fleet = |engine: Endpoint| {
        let member = members.iter().find(|member| *member.instance.endpoint() == engine)?;
        Some((member.fleet.clone(), engine))
    };
    let due: Vec<_> = due.into_iter().filter_map(fleet).collect();
    let asking = gateway.clone();
    gateway.tasks.spawn(async move {
        let gateway = &asking;
        let asked = stream::iter(due).for_each_concurrent(AT_ONCE, |(fleet, engine)| async move {
            if let Some(names) = ask(&fleet, &engine).await {
                gateway.served.tell(&engine, names);
            }
        });
        tokio::select! {
            () = gateway.stop.cancelled() => {}
            () = asked => {}
        }
    });
}

/// The names of an engine's models; None when it does not say.
async fn ask(fleet: &ServedFleet, engine: &Endpoint) -> Option<Vec<String>> {
    let access = fleet.access.now();
    let call = fleet.control.get(engine.url("/v1/models"));
    let call = authorized(call, access.authorization.as_ref());
    match facts::model_names(call, access.models_time).await {
        Ok(ListReply::Names(names)) => Some(names),
        Ok(ListReply::Refused(_)) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Fleet, Role};
    use crate::route::Policy;

    fn members(ports: &[u16]) -> Vec<Arc<Instance>> {
        let fleet = Fleet::new(Policy::LeastWork);
        for port in ports {
            fleet.add(Role::Decode, Endpoint::new("e", *port));
        }
        fleet.members(Role::Decode).to_vec()
    }

    #[test]
    fn engines_are_asked_once_in_a_while_and_forgotten_when_they_leave() {
        let (served, start, at) = (Served::default(), Instant::now(), Endpoint::new("e", 1));
        let due = |ports: &[u16], after_s| {
            served.due(members(ports).iter().map(|it| &**it), start + Duration::from_secs(after_s)).len()
        };
        assert_eq!((due(&[1, 2], 0), due(&[1, 2], 29)), (2, 0));
        served.tell(&at, vec!["m".into()]);
        assert_eq!(served.by(&at).0, ["m"]);
        assert_eq!((due(&[1, 2], 30), due(&[1, 2, 3], 31)), (2, 1));
        assert_eq!(due(&[2], 32), 0);
        served.tell(&at, vec!["late".into()]);
        assert_eq!(served.by(&at), (Vec::new(), 0), "it has left");
    }

    #[test]
    fn long_lists_and_long_names_are_cut() {
        let (served, at) = (Served::default(), Endpoint::new("e", 1));
        served.due(members(&[1]).iter().map(|it| &**it), Instant::now());
        served.tell(&at, (0..10).map(|n| format!("{n}{}", "x".repeat(1 << 16))).collect());
        let (names, more) = served.by(&at);
        assert_eq!((names.len(), more), (4, 6));
        assert!(names.iter().all(|name| name.len() <= 100), "{names:?}");
    }
}
