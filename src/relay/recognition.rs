//! Sends legs, and looks first at an engine whose process may be another one than before.
//!
//! A process that comes back at the same address may have been started with another model, and
//! answer requests with it, or be of another release. Probes notice one that was away for as long
//! as the pause between two of them; a restart may take less. But the connections to a process end
//! with it. So when one breaks, or all that waited were closed, others are preferred to the engine
//! until it has listed its models ([`crate::fleet::Fleet::doubt_process`]), and a leg that goes to
//! it all the same asks for them before it is sent.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Response, StatusCode, header};
use tokio::time::timeout;

use crate::codec::json::Parts;
use crate::dialect::facts;
use crate::fleet::Instance;
use crate::relay::Relay;
use crate::relay::failure::{Failure, FailureKind};
use crate::upstream::{Leg, Reply, SendError, Written, collect};

/// Longest time that a leg waits for the list: an engine that lives answers within milliseconds.
const LIST_TIME: Duration = Duration::from_secs(1);
/// The largest answer that is read.
const ANSWER_BYTES: usize = 1 << 20;
const MODELS_PATH: &str = "/v1/models";
const VERSION_PATH: &str = "/version";

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

    /// Asks an engine for its models and its release. One that does not say is sent the leg.
    ///
    /// # Errors
    /// A failure when it can't be reached, serves another model, or is of another release than
    /// before where releases are compared: its partner was chosen by the one before.
    async fn recognise(&self, instance: &Instance, headers: &HeaderMap) -> Result<(), Failure> {
        let before = instance.release();
        let roles = self.fleet.roles_of(instance);
        roles.iter().for_each(|it| it.health().identity().models_asked());
        let (listed, release) = tokio::join!(
            timeout(LIST_TIME, self.list_models(instance, headers)),
            timeout(LIST_TIME, self.ask_release(instance, headers)),
        );
        let listed = match listed {
            Ok(Err(error)) if error.connect => return Err(failure(&error, &Written::default())),
            Ok(listed) => listed.ok().flatten(),
            Err(_) => None,
        };
        let release = release.ok().flatten();
        for role in &roles {
            self.fleet.record_release(role, release.as_deref());
            match &listed {
                Some(names) => self.fleet.record_models(role, names.clone()),
                None => self.fleet.models_unanswered(role),
            }
        }
        let (why, detail) = if instance.health().serves_other_model() {
            let models = instance.models().join(", ");
            (FailureKind::Connect, format!("it serves another model than the fleet: {models}"))
        } else if self.fleet.compares_releases() && before.is_some() && before != instance.release() {
            let release = instance.release().unwrap_or_default();
            (FailureKind::OtherRelease, format!("its release is another one now: {release}"))
        } else {
            return Ok(());
        };
        Err(Failure::new(why, false, detail))
    }

    /// Names of the models that an engine lists; `None` if it does not answer in full. One that
    /// refuses lists none.
    async fn list_models(
        &self,
        instance: &Instance,
        headers: &HeaderMap,
    ) -> Result<Option<Vec<String>>, SendError> {
        let (status, body) = match self.look(instance, headers, MODELS_PATH).await? {
            Some(answer) => answer,
            None => return Ok(None),
        };
        let models = if status.is_success() { facts::models(&body) } else { Vec::new() };
        Ok(Some(models.into_iter().map(|model| model.id).collect()))
    }

    /// Release that an engine tells; `None` if it does not.
    async fn ask_release(&self, instance: &Instance, headers: &HeaderMap) -> Option<String> {
        let (status, body) = self.look(instance, headers, VERSION_PATH).await.ok().flatten()?;
        if status.is_success() { facts::version(&body) } else { None }
    }

    /// Asks an engine for `path` with the key of `headers`; `None` if it does not answer in full.
    async fn look(
        &self,
        instance: &Instance,
        headers: &HeaderMap,
        path: &'static str,
    ) -> Result<Option<(StatusCode, Bytes)>, SendError> {
        let key = headers.get(header::AUTHORIZATION).map(|key| (header::AUTHORIZATION, key.clone()));
        let leg = Leg {
            instance,
            method: Method::GET,
            target: &PathAndQuery::from_static(path),
            headers: Cow::Owned(key.into_iter().collect()),
            body: Parts::default(),
        };
        let response = self.upstream.send(leg, &Written::default()).await?;
        let status = response.status();
        Ok(collect(response.into_body(), ANSWER_BYTES).await.ok().map(|body| (status, body)))
    }
}

fn failure(error: &SendError, written: &Written) -> Failure {
    let why = if error.connect { FailureKind::Connect } else { FailureKind::Broken };
    Failure::new(why, written.get(), error.causes())
}
