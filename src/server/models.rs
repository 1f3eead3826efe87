//! The models that are served: `/v1/models`, and one of them by its name.

mod merged;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use http::{HeaderMap, Response, StatusCode, header};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::auth::Caller;
use crate::error::{Error, Kind};
use crate::fleet::Instance;
use crate::fleet::health::State as Breaker;
use crate::server::every_engine::FleetQuery;
use crate::server::fleets::ServedFleet;
use crate::server::{Gateway, auth, reply};
use crate::tokenization::exchange::{authorized, exchange};

/// The longest list that is read, bytes: some ten thousand models.
const LIST_BYTES: usize = 4 << 20;

/// Time after which the next engine is asked beside one that has not answered: on a network of its
/// own an engine lists its models in a few milliseconds.
const NEXT_AFTER: Duration = Duration::from_millis(200);

/// Most engines of a fleet that are asked at the same time: each costs one of the engines'
/// requests.
const AT_ONCE: usize = 4;

/// `GET /v1/models`: those that the caller may use, as the first engine of each fleet that answers
/// lists them; of the fleet alone that `?fleet=` names.
pub(super) async fn list(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    let caller = auth::caller(&gateway, request.extensions());
    match whole_list(&gateway, &ListQuestion::of(&request)).await {
        Ok(list) => reply::json(StatusCode::OK, auth::only_allowed(&caller, list)),
        Err(refused) => refused.into_answer(),
    }
}

/// A client's question for a list.
struct ListQuestion<'a> {
    client: &'a HeaderMap,
    query: &'a str,
}

impl<'a> ListQuestion<'a> {
    fn of(request: &'a Request) -> ListQuestion<'a> {
        ListQuestion { client: request.headers(), query: request.uri().query().unwrap_or_default() }
    }
}

/// Reasons why there is no list.
enum Refused {
    /// Refused by the gateway.
    Ours(Error),
    /// An engine does not know the client's key.
    Theirs(StatusCode, Bytes),
}

impl Refused {
    fn into_answer(self) -> Response<Body> {
        match self {
            Refused::Ours(error) => reply::error(&error),
            Refused::Theirs(status, text) => reply::json(status, text),
        }
    }
}

/// `GET /v1/models/{name}`: the entry of that list. Engines have no such route; OpenAI's clients
/// ask it before they ask more.
pub(super) async fn one(
    State(gateway): State<Arc<Gateway>>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response<Body> {
    let Ok(Path(name)) = name else {
        // No UTF-8, which no model is called.
        return reply::error(&auth::no_such_model(request.uri().path().trim_start_matches("/v1/models/")));
    };
    let caller = auth::caller(&gateway, request.extensions());
    match entry(&gateway, &caller, &name, &ListQuestion::of(&request)).await {
        Ok(model) => reply::json(StatusCode::OK, model.to_string()),
        Err(refused) => refused.into_answer(),
    }
}

async fn entry(
    gateway: &Gateway,
    caller: &Caller,
    name: &str,
    question: &ListQuestion<'_>,
) -> Result<Value, Refused> {
    // Engines are not asked for what the caller may not use: the time of an answer would tell that
    // it exists.
    auth::check_model(caller, Some(name)).map_err(Refused::Ours)?;
    let list = whole_list(gateway, question).await?;
    named(&list, name).ok_or_else(|| Refused::Ours(auth::no_such_model(name)))
}

/// The entry called `name` of a list of models; None where there is none.
fn named(list: &[u8], name: &str) -> Option<Value> {
    let mut list: Value = serde_json::from_slice(list).ok()?;
    let models = list.get_mut("data")?.as_array_mut()?;
    let place = models.iter().position(|model| model.get("id").and_then(Value::as_str) == Some(name))?;
    Some(models.swap_remove(place))
}

/// The list of the only fleet, with its aliases; of several, one of all, with the fleet of each. A
/// fleet that does not answer is listed as it was before, or with its configured names.
///
/// # Errors
/// Those of [`first_list`]; of several fleets only where none lists anything, and `InvalidField`
/// where the query names none of them, or several.
async fn whole_list(gateway: &Gateway, question: &ListQuestion<'_>) -> Result<Bytes, Refused> {
    let (fleets, client) = (gateway.fleets(), question.client);
    if let Some(fleet) = fleets.single() {
        let list = first_list(fleet, fleet.everyone(), client).await?;
        let aliases = fleets.listed_aliases(fleet);
        return Ok(if aliases.is_empty() { list } else { merged::with_aliases(list, &aliases) });
    }
    let only = match FleetQuery::read(question.query).map_err(Refused::Ours)?.fleet {
        Some(name) => Some(gateway.fleet_for_operator(Some(&name)).map_err(Refused::Ours)?),
        None => None,
    };
    let wanted = fleets.iter().filter(|fleet| only.as_ref().is_none_or(|only| Arc::ptr_eq(only, fleet)));
    let asked = wanted.map(|fleet| async move { (fleet, first_list(fleet, ready(fleet), client).await) });
    let (mut list, mut refusal) = (merged::ModelList::default(), None);
    for (fleet, answer) in join_all(asked).await {
        let aliases = fleets.listed_aliases(fleet);
        let text = match answer {
            Ok(text) => {
                if knows_the_key(fleet, client) {
                    fleet.last_models.set(Some(text.clone()));
                }
                Some(text)
            }
            Err(Refused::Theirs(status, text)) => {
                refusal = refusal.or(Some(Refused::Theirs(status, text)));
                continue;
            }
            Err(refused) => {
                refusal = refusal.or(Some(refused));
                Option::clone(&fleet.last_models.now())
            }
        };
        let comes_here = |name: &str| only.is_some() || fleets.leads_to(name, fleet);
        list.add(fleet, text.as_ref(), &aliases, comes_here);
    }
    refusal.filter(|_| list.is_empty()).map_or_else(|| Ok(list.to_bytes()), Err)
}

/// True if an answer of the fleet's engines is one for everybody, whose key they were shown.
fn knows_the_key(fleet: &ServedFleet, client: &HeaderMap) -> bool {
    fleet.access.now().authorization.is_some() || !client.contains_key(header::AUTHORIZATION)
}

/// Engines that are not known to be down.
fn ready(fleet: &ServedFleet) -> Vec<Arc<Instance>> {
    let now_ms = fleet.relay.fleet.now_ms();
    let mut engines = fleet.everyone();
    engines.retain(|engine| engine.health().state(now_ms) != Breaker::Open);
    engines
}

/// The list of the first of these engines that answers: prefillers first, as in the reference. One
/// that takes long is not waited for: the next one is asked beside it.
///
/// # Errors
/// `NoPrefiller` when none does; the word of the first that does not know the client's key, which
/// the others would not know, either.
async fn first_list(
    fleet: &ServedFleet,
    mut engines: Vec<Arc<Instance>>,
    client: &HeaderMap,
) -> Result<Bytes, Refused> {
    let access = fleet.access.now();
    let authorization = access.authorization.as_ref().or(client.get(header::AUTHORIZATION));
    // Those that failed a moment ago are asked last: each may cost the whole time limit.
    engines.sort_by_key(|i| i.health().failures() > 0);
    let mut left = engines.iter();
    let mut asked = FuturesUnordered::new();
    loop {
        if asked.len() < AT_ONCE
            && let Some(engine) = left.next()
        {
            let request = fleet.control.get(engine.endpoint().url("/v1/models"));
            let request = authorized(request, authorization);
            asked.push(exchange(request, access.models_time, LIST_BYTES));
        }
        let answer = match left.len() {
            0 => asked.next().await,
            _ if asked.len() >= AT_ONCE => asked.next().await,
            _ => match timeout(NEXT_AFTER, asked.next()).await {
                Ok(answer) => answer,
                Err(_) => continue,
            },
        };
        match answer {
            Some(Ok((StatusCode::OK, list))) if is_list(&list) => return Ok(list),
            Some(Ok((status, text))) if is_of_the_key(status) && access.authorization.is_none() => {
                return Err(Refused::Theirs(status, text));
            }
            Some(_) => {}
            None => return Err(Refused::Ours(Error::new(Kind::NoPrefiller, "no engine answers /v1/models"))),
        }
    }
}

/// True for a list of models. Other servers, and balancers without an engine, answer 200 as well.
fn is_list(text: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct List {
        #[serde(rename = "data")]
        _data: Vec<Map<String, Value>>,
    }
    serde_json::from_slice::<List>(text).is_ok()
}

fn is_of_the_key(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_models_has_objects_as_its_data() {
        for list in [r#"{"object":"list","data":[{"id":"a"}]}"#, r#"{"data":[]}"#] {
            assert!(is_list(list.as_bytes()), "{list}");
        }
        for other in ["", "[]", "{}", r#"{"data":{}}"#, r#"{"data":["a"]}"#, "<html></html>"] {
            assert!(!is_list(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_model_is_found_by_its_whole_name() {
        let list =
            br#"{"object":"list","data":[{"object":"model"},{"id":"a/b","owned_by":"vllm"},{"id":"a"}]}"#;
        let owner = |name| named(list, name).map(|model| model["owned_by"].clone());
        assert_eq!((owner("a/b"), owner("a")), (Some("vllm".into()), Some(Value::Null)));
        assert_eq!((owner("b"), owner(""), owner("A")), (None, None, None));
        for odd in ["", "[]", r#"{"data":{}}"#, r#"{"data":["a"]}"#] {
            assert_eq!(named(odd.as_bytes(), "a"), None, "{odd}");
        }
    }
}
