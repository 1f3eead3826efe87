//! The models that are served: `/v1/models`, and one of them by its name.

mod merged;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, Response, StatusCode, header};
use serde_json::Value;

use crate::auth::Caller;
use crate::error::{Error, Kind};
use crate::server::fleets::ServedFleet;
use crate::server::{Gateway, auth, reply};
use crate::tokenization::exchange::{authorized, exchange};

/// The longest list that is read, bytes: some ten thousand models.
const LIST_BYTES: usize = 4 << 20;

/// `GET /v1/models`: those that the caller may use, as the first engine of each fleet that answers
/// lists them.
pub(super) async fn list(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    let caller = auth::caller(&gateway, request.extensions());
    match whole_list(&gateway, request.headers()).await {
        Ok(list) => reply::json(StatusCode::OK, auth::only_allowed(&caller, list)),
        Err(refused) => refused.into_answer(),
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
    match entry(&gateway, &caller, &name, request.headers()).await {
        Ok(model) => reply::json(StatusCode::OK, model.to_string()),
        Err(refused) => refused.into_answer(),
    }
}

async fn entry(
    gateway: &Gateway,
    caller: &Caller,
    name: &str,
    headers: &HeaderMap,
) -> Result<Value, Refused> {
    // Engines are not asked for what the caller may not use: the time of an answer would tell that
    // it exists.
    auth::check_model(caller, Some(name)).map_err(Refused::Ours)?;
    let list = whole_list(gateway, headers).await?;
    named(&list, name).ok_or_else(|| Refused::Ours(auth::no_such_model(name)))
}

/// The entry called `name` of a list of models; None where there is none.
fn named(list: &[u8], name: &str) -> Option<Value> {
    let mut list: Value = serde_json::from_slice(list).ok()?;
    let models = list.get_mut("data")?.as_array_mut()?;
    let place = models.iter().position(|model| model.get("id").and_then(Value::as_str) == Some(name))?;
    Some(models.swap_remove(place))
}

/// The list of the only fleet, with its aliases; of several, one of all, with the fleet of each.
///
/// # Errors
/// Those of [`first_list`]; of several fleets only where none lists anything.
async fn whole_list(gateway: &Gateway, client: &HeaderMap) -> Result<Bytes, Refused> {
    let fleets = gateway.fleets();
    if let Some(fleet) = fleets.single() {
        let list = first_list(fleet, client).await?;
        let aliases = &fleet.access.now().aliases;
        return Ok(if aliases.is_empty() { list } else { merged::with_aliases(list, aliases) });
    }
    let asked = fleets.iter().map(|fleet| async move { (fleet, first_list(fleet, client).await) });
    let (mut list, mut refusal) = (merged::ModelList::default(), None);
    for (fleet, answer) in join_all(asked).await {
        match answer {
            Ok(text) => list.add(fleet, &text, |name| fleets.leads_to(name, fleet)),
            Err(refused) => refusal = refusal.or(Some(refused)),
        }
    }
    refusal.filter(|_| list.is_empty()).map_or_else(|| Ok(list.to_bytes()), Err)
}

/// The list of the first engine of a fleet that answers: prefillers first, as in the reference.
///
/// # Errors
/// `NoPrefiller` when none does; the word of the first that does not know the client's key, which
/// the others would not know, either.
async fn first_list(fleet: &ServedFleet, client: &HeaderMap) -> Result<Bytes, Refused> {
    let access = fleet.access.now();
    let authorization = access.authorization.as_ref().or(client.get(header::AUTHORIZATION));
    let mut engines = fleet.everyone();
    // Those that failed a moment ago are asked last: each may cost the whole time limit.
    engines.sort_by_key(|i| i.health().failures() > 0);
    for engine in engines {
        let request = fleet.control.get(engine.endpoint().url("/v1/models"));
        let asked = exchange(authorized(request, authorization), access.models_time, LIST_BYTES).await;
        match asked {
            Ok((StatusCode::OK, list)) => return Ok(list),
            Ok((status, text)) if is_of_the_key(status) && access.authorization.is_none() => {
                return Err(Refused::Theirs(status, text));
            }
            _ => {}
        }
    }
    Err(Refused::Ours(Error::new(Kind::NoPrefiller, "no engine answers /v1/models")))
}

fn is_of_the_key(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

#[cfg(test)]
mod tests {
    use super::*;

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
