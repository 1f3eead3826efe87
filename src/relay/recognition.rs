//! Sends legs, and looks first at an engine whose process may be another one than before.
//!
//! A process that comes back at the same address may have been started with another model, and
//! answer requests with it. Probes notice one that was away for as long as the pause between two of
//! them; a restart may take less. But the connections to a process end with it. So when one breaks,
//! or all that waited were closed, others are preferred to the engine until it has listed its
//! models ([`crate::fleet::Fleet::doubt_process`]), and a leg that goes to it all the same asks for
//! them before it is sent.

use std::borrow::Cow;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Response, header};
use tokio::time::timeout;

use crate::codec::json::Parts;
use crate::dialect::facts;
use crate::fleet::Instance;
use crate::relay::Relay;
use crate::relay::failure::{Failure, FailureKind};
use crate::upstream::{Leg, Reply, SendError, Written, collect};

/// Longest time that a leg waits for the list: an engine that lives answers within milliseconds.
const LIST_TIME: Duration = Duration::from_secs(1);
/// The largest list that is read.
const LIST_BYTES: usize = 1 << 20;
const MODELS_PATH: &str = "/v1/models";

impl Relay {
    /// Sends a leg, to the process that is known. `headers` are those of its request, with the key
    /// for the engine.
    ///
    /// # Errors
    /// A failure when no head of an answer arrived, or the engine serves another model by now.
    pub async fn send(
        &self,
        leg: Leg<'_>,
        headers: &HeaderMap,
        written: &Written,
    ) -> Result<Response<Reply>, Failure> {
        let instance = leg.instance;
        let sending = self.upstream.send(leg, written);
        if instance.health().take_lost_connections() {
            self.fleet.doubt_process(instance);
        }
        if instance.health().is_doubted() || instance.health().serves_other_model() {
            Box::pin(self.recognise(instance, headers)).await?;
        }
        sending.await.map_err(|error| failure(&error, written))
    }

    /// Asks an engine for its models. One that does not say is sent the leg.
    async fn recognise(&self, instance: &Instance, headers: &HeaderMap) -> Result<(), Failure> {
        let roles = self.fleet.roles_of(instance);
        roles.iter().for_each(|it| it.health().identity().models_asked());
        let listed = match timeout(LIST_TIME, self.list_models(instance, headers)).await {
            Ok(Err(error)) if error.connect => return Err(failure(&error, &Written::default())),
            Ok(listed) => listed.ok().flatten(),
            Err(_) => None,
        };
        for role in &roles {
            match &listed {
                Some(names) => self.fleet.record_models(role, names.clone()),
                None => self.fleet.models_unanswered(role),
            }
        }
        if !instance.health().serves_other_model() {
            return Ok(());
        }
        let models = instance.models().join(", ");
        let detail = format!("it serves another model than the fleet: {models}");
        Err(Failure::new(FailureKind::Connect, false, detail))
    }

    /// Names of the models that an engine lists; `None` if it does not answer in full. One that
    /// refuses lists none.
    async fn list_models(
        &self,
        instance: &Instance,
        headers: &HeaderMap,
    ) -> Result<Option<Vec<String>>, SendError> {
        let key = headers.get(header::AUTHORIZATION).map(|key| (header::AUTHORIZATION, key.clone()));
        let leg = Leg {
            instance,
            method: Method::GET,
            target: &PathAndQuery::from_static(MODELS_PATH),
            headers: Cow::Owned(key.into_iter().collect()),
            body: Parts::default(),
        };
        let response = self.upstream.send(leg, &Written::default()).await?;
        let is_list = response.status().is_success();
        let Ok(body) = collect(response.into_body(), LIST_BYTES).await else { return Ok(None) };
        let models = if is_list { facts::models(&body) } else { Vec::new() };
        Ok(Some(models.into_iter().map(|model| model.id).collect()))
    }
}

fn failure(error: &SendError, written: &Written) -> Failure {
    let why = if error.connect { FailureKind::Connect } else { FailureKind::Broken };
    Failure::new(why, written.get(), error.causes())
}
