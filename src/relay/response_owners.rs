//! The decoder that keeps a response that its client may ask for again, stop, or go on from.
//!
//! Engines keep responses in the memory of one process (vLLM's `store`): any other answers 404,
//! which clients take for the last word.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use crate::codec::json::{Object, ScanLimits};
use crate::codec::sse;
use crate::dialect::Api;
use crate::fleet::InstanceId;
use crate::relay::ask::Ask;

/// Responses that are remembered, the latest: with ids of 40 bytes some 10 MB. Where keys are asked
/// for, those that are forgotten are nobody's.
const RESPONSES: usize = 65_536;

/// Longer ids are no engine's.
const ID_BYTES: usize = 128;

/// Place where responses are.
#[derive(Debug, Default)]
pub struct Kept(Mutex<Latest>);

#[derive(Debug, Default)]
struct Latest {
    keepers: HashMap<Arc<str>, OwnedResponse>,
    /// The oldest first.
    ids: VecDeque<Arc<str>>,
}

/// Place where a response is, and whose it is.
#[derive(Debug)]
struct OwnedResponse {
    keeper: InstanceId,
    /// The name of the key with which it was asked for; None where none was, or where that is not
    /// known.
    owner: Option<Arc<str>>,
    /// Names of its model, where the client knows it by another than the engine.
    alias: Option<AliasedModel>,
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
    /// Records that `keeper` has a response by this id, made for a key of this name. A response
    /// stays its first owner's.
    pub fn note(&self, id: &str, keeper: InstanceId, owner: Option<&str>) {
        if !is_id(id) {
            return;
        }
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = latest.keepers.get_mut(id) {
            known.keeper = keeper;
            if known.owner.is_none() {
                known.owner = owner.map(Arc::from);
            }
            return;
        }
        let id = Arc::<str>::from(id);
        let response = OwnedResponse { keeper, owner: owner.map(Arc::from), alias: None };
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
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        latest.keepers.get(id).map(|place| place.keeper)
    }

    /// The names of its model, where they differ and this gateway knows them.
    pub fn alias(&self, id: &str) -> Option<AliasedModel> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keepers.get(id)?.alias.clone()
    }

    fn note_alias(&self, id: &str, alias: &AliasedModel) {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(response) = latest.keepers.get_mut(id) {
            response.alias = Some(alias.clone());
        }
    }

    /// The name of the key for which it was made, as far as this gateway knows.
    pub fn owner(&self, id: &str) -> Option<Arc<str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keepers.get(id)?.owner.clone()
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
            self.note(&id, keeper, owner);
            ask.alias.iter().for_each(|alias| self.note_alias(&id, alias));
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
        kept.note("resp_1", a, Some("one"));
        kept.note("resp_2", b, None);
        assert_eq!((kept.keeper("resp_1"), kept.keeper("resp_2")), (Some(a), Some(b)));
        kept.note("resp_1", b, Some("other"));
        kept.note("resp_2", b, Some("other"));
        assert_eq!(["resp_1", "resp_2"].map(|id| kept.owner(id).unwrap().to_string()), ["one", "other"]);
        kept.note(&"x".repeat(ID_BYTES + 1), a, None);
        kept.note("", a, None);
        (0..RESPONSES - 2).for_each(|n| kept.note(&format!("more_{n}"), a, None));
        assert_eq!((kept.keeper("resp_1"), kept.keeper("resp_2")), (Some(b), Some(b)));
        kept.note("last", a, None);
        assert_eq!((kept.keeper("resp_1"), kept.keeper("resp_2"), kept.keeper("")), (None, Some(b), None));
        assert_eq!(kept.0.lock().unwrap().ids.len(), RESPONSES);
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
