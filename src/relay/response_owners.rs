//! The decoder that keeps a response that its client may ask for again, stop, or go on from.
//!
//! Engines keep responses in the memory of one process (vLLM's `store`): any other answers 404,
//! which clients take for the last word.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::auth::Digest;
use crate::codec::json::{Object, ScanLimits};
use crate::codec::sse;
use crate::dialect::Api;
use crate::fleet::InstanceId;
use crate::relay::ask::Ask;
use crate::relay::told_owners::{Errands, Others, OwnedResponse, ways};

/// Responses that are remembered, the latest: with ids of 40 bytes some 10 MB. Where keys are asked
/// for, those that are forgotten are nobody's.
const RESPONSES: usize = 65_536;

/// Longer ids are no engine's.
const ID_BYTES: usize = 128;

/// Place where responses are.
#[derive(Debug, Default)]
pub struct Kept {
    latest: Mutex<Latest>,
    /// Other gateways that share the fleet, if any do.
    others: OnceLock<Others>,
}

#[derive(Debug, Default)]
struct Latest {
    keepers: HashMap<Arc<str>, OwnedResponse>,
    /// The oldest first.
    ids: VecDeque<Arc<str>>,
}

/// Names of a model that a client knows by an alias.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasedModel {
    /// The client's name.
    pub name: Arc<str>,
    /// The engine's name.
    pub model: Arc<str>,
}

impl Kept {
    /// Tells other gateways of new responses from now on, and asks them for those that this one
    /// does not know. Returns what is to be told and asked; None if that is done already.
    pub fn share(&self) -> Option<Errands> {
        let (others, errands) = ways();
        self.others.set(others).ok()?;
        Some(errands)
    }

    /// Records that `keeper` has a response by this id, made for the key of this owner. A response
    /// stays its first owner's.
    pub fn note(&self, id: &str, keeper: InstanceId, owner: Option<Digest>) {
        self.record(id, OwnedResponse { keeper, owner, alias: None });
    }

    fn record(&self, id: &str, response: OwnedResponse) {
        if !is_id(id) {
            return;
        }
        let mut latest = self.lock();
        if let Some(known) = latest.keepers.get_mut(id) {
            known.keeper = response.keeper;
            known.owner = known.owner.or(response.owner);
            known.alias = response.alias.or(known.alias.take());
            return;
        }
        let id = Arc::<str>::from(id);
        latest.keepers.insert(id.clone(), response);
        latest.ids.push_back(id);
        if latest.ids.len() > RESPONSES
            && let Some(oldest) = latest.ids.pop_front()
        {
            latest.keepers.remove(&oldest);
        }
    }

    /// The engine that has it, as far as this gateway knows.
    pub fn keeper(&self, id: &str) -> Option<InstanceId> {
        self.lock().keepers.get(id).map(|place| place.keeper)
    }

    /// The names of its model, where they differ and this gateway knows them.
    pub fn alias(&self, id: &str) -> Option<AliasedModel> {
        self.lock().keepers.get(id)?.alias.clone()
    }

    /// The owner for which it was made, as far as this gateway knows.
    pub fn owner(&self, id: &str) -> Option<Digest> {
        self.lock().keepers.get(id)?.owner
    }

    /// Asks other gateways for a response that this one does not know, if there are any: it knows
    /// what they do then.
    pub async fn learn_from_others(&self, id: &str) {
        if let Some(others) = self.others.get()
            && is_id(id)
            && self.keeper(id).is_none()
            && let Some(response) = others.ask(id).await
        {
            self.record(id, response);
        }
    }

    /// A panic elsewhere leaves the table usable.
    fn lock(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine that has the response that a request goes on from.
    pub fn keeper_for(&self, ask: &Ask) -> Option<InstanceId> {
        self.keeper(&before(ask.api, &ask.body)?)
    }

    /// True if nobody is left who has the response that a request goes on from. `tried`: who
    /// failed.
    pub fn is_out_of_reach(&self, ask: &Ask, tried: &[InstanceId]) -> bool {
        self.keeper_for(ask).is_some_and(|keeper| tried.contains(&keeper))
    }

    /// An answer to `ask` has begun, asked for with the key of this name: what there is of it may
    /// name a response that is kept.
    pub fn learn(&self, ask: &Ask, begun: Beginning<'_>, keeper: InstanceId, owner: Option<&str>) {
        let kept = || ask.body.get("store").is_none_or(|store| store.raw() != b"false");
        if ask.api == Api::Responses
            && kept()
            && let Some(id) = begun.id()
        {
            let alias = ask.alias.clone();
            let response = OwnedResponse { keeper, owner: owner.map(owner_named), alias };
            if let Some(others) = self.others.get() {
                others.tell(&id, response.clone());
            }
            self.record(&id, response);
        }
    }
}

/// The part of an answer that is here.
pub enum Beginning<'a> {
    /// All of it.
    Whole(&'a Object),
    /// Its first events.
    Events(&'a [u8]),
}

impl Beginning<'_> {
    fn id(&self) -> Option<String> {
        let of = |response: &Object| Some(response.get("id")?.as_str()?.into_owned());
        match self {
            Beginning::Whole(answer) => of(answer),
            Beginning::Events(events) => sse::frames(events).find_map(|event| {
                let data = Object::scan(event.data().into_owned().into(), ScanLimits::default()).ok()?;
                of(&data.get("response")?.object().ok()?)
            }),
        }
    }
}

/// The owner of responses that are made for the key of this name.
pub fn owner_named(key: &str) -> Digest {
    Digest::of(format!("pd-proxy response owner {key}").as_bytes())
}

/// True if an engine may have called a response so, by its length.
pub fn is_id(id: &str) -> bool {
    (1..=ID_BYTES).contains(&id.len())
}

/// The id of the response that a request goes on from.
pub fn before(api: Api, body: &Object) -> Option<Cow<'_, str>> {
    body.get("previous_response_id").filter(|_| api == Api::Responses)?.as_str()
}

/// The id of the response in a path (`/v1/responses/{id}`, and what may be behind it).
pub fn id_in(path: &str) -> Option<&str> {
    path.strip_prefix("/v1/responses/")?.split('/').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_responses_are_remembered_and_no_more() {
        let (kept, [a, b]) = (Kept::default(), [InstanceId(1), InstanceId(2)]);
        kept.note("resp_1", a, Some(owner_named("one")));
        kept.note("resp_2", b, None);
        assert_eq!((kept.keeper("resp_1"), kept.keeper("resp_2")), (Some(a), Some(b)));
        kept.note("resp_1", b, Some(owner_named("other")));
        kept.note("resp_2", b, Some(owner_named("other")));
        assert_eq!(["resp_1", "resp_2"].map(|id| kept.owner(id).unwrap()), ["one", "other"].map(owner_named));
        kept.note(&"x".repeat(ID_BYTES + 1), a, None);
        kept.note("", a, None);
        (0..RESPONSES - 2).for_each(|n| kept.note(&format!("more_{n}"), a, None));
        assert_eq!((kept.keeper("resp_1"), kept.keeper("resp_2")), (Some(b), Some(b)));
        kept.note("last", a, None);
        assert_eq!((kept.keeper("resp_1"), kept.keeper("resp_2"), kept.keeper("")), (None, Some(b), None));
        assert_eq!(kept.lock().ids.len(), RESPONSES);
    }

    #[tokio::test(start_paused = true)]
    async fn others_are_asked_for_what_is_not_known_here() {
        let kept = Kept::default();
        kept.learn_from_others("resp_1").await;
        let mut errands = kept.share().unwrap();
        assert!(kept.share().is_none());
        let alias = Some(AliasedModel { name: "a".into(), model: "b".into() });
        let told = OwnedResponse { keeper: InstanceId(3), owner: Some(owner_named("one")), alias };
        let asked = async {
            kept.learn_from_others("resp_1").await;
            kept.learn_from_others("resp_1").await;
            kept.learn_from_others("").await;
        };
        let answered = async { errands.questions.recv().await.unwrap().answer.send(told.clone()).unwrap() };
        tokio::join!(asked, answered);
        assert_eq!((kept.keeper("resp_1"), kept.owner("resp_1")), (Some(told.keeper), told.owner));
        assert_eq!(kept.alias("resp_1"), told.alias);
        assert!(errands.questions.try_recv().is_err(), "it is known now");
    }

    #[test]
    fn a_response_is_called_so_in_its_answer_its_events_and_its_path() {
        let answer = br#"{"id":"resp_1","object":"response","output":[{"id":"msg_2"}]}"#;
        let answer = Object::scan(answer.to_vec().into(), ScanLimits::default()).unwrap();
        assert_eq!(Beginning::Whole(&answer).id().as_deref(), Some("resp_1"));
        let events = b": hi\n\nevent: response.created\ndata: {\"response\":{\"id\":\"resp_1\"}}\n\n";
        assert_eq!(Beginning::Events(events).id().as_deref(), Some("resp_1"));
        assert_eq!(Beginning::Events(b"data: {\"id\":\"x\"}\n\n").id(), None);
        let ids = ["/v1/responses/resp_1", "/v1/responses/resp_1/cancel", "/v1/responses", "/v1/models/x"];
        assert_eq!(ids.map(id_in), [Some("resp_1"), Some("resp_1"), None, None]);
    }
}
