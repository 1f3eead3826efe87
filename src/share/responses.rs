//! Stored responses in the store: which engine has one, and whose it is. New ones are written in
//! the background; a request looks here only for one that its gateway does not know. Beside them is
//! the mark of prefillers that can't begin a forced call, which each gateway would find out with a
//! prefill that nobody fetches.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use prost::Message as _;
use redis::aio::MultiplexedConnection;
use tokio::time::{MissedTickBehavior, interval};

use super::retry::{Retry, in_time};
use super::wire::StoredResponse;
use super::{IN_FLIGHT, LinkSettings, ShareError};
use crate::auth::Digest;
use crate::fleet::InstanceId;
use crate::relay::Relay;
use crate::relay::forced_tool_calls::REMEMBERED;
use crate::relay::response_owners::AliasedModel;
use crate::relay::told_owners::{Errands, NewResponse, OwnedResponse, Question};

/// Time for which the store knows a response. Some 300 bytes each: a hundred new ones in a second
/// are about 100 MB.
const KNOWN: Duration = Duration::from_secs(3_600);
/// Time between two looks at the mark, and so at whether the store is still there.
const LOOK: Duration = Duration::from_secs(1);
/// Time for which a mark is believed: it is looked at again before.
const BELIEVED: Duration = Duration::from_secs(3);
/// New responses that are written at once.
const TOGETHER: usize = 64;
/// Most bytes of a value: what is larger was not written by a gateway.
const VALUE_BYTES: usize = 4_096;
/// Most bytes of both names of a model; longer ones are not told.
const ALIAS_BYTES: usize = 2_048;

/// A fleet's way to the responses that other gateways know.
#[derive(Debug)]
pub struct ResponseLink {
    settings: LinkSettings,
    relay: Arc<Relay>,
}

/// A command that is under way.
type Command = BoxFuture<'static, Result<(), ShareError>>;

impl ResponseLink {
    /// The way for a fleet.
    pub fn new(settings: LinkSettings, relay: Arc<Relay>) -> ResponseLink {
        ResponseLink { settings, relay }
    }

    /// Takes news and questions to the store, and never returns. Without the store nothing is told,
    /// and nobody waits.
    pub async fn run(self, mut errands: Errands) {
        let mut retry = Retry::new();
        loop {
            let error = match drop_until(self.connect(), &mut errands).await {
                Ok(store) => {
                    retry.reached();
                    self.serve(&store, &mut errands).await
                }
                Err(error) => error,
            };
            if retry.is_news() {
                let share = &self.settings.prefix;
                tracing::warn!(%share, %error, "stored responses can't be shared: this gateway knows its own");
            }
            drop_until(retry.wait(), &mut errands).await;
        }
    }

    /// Connects to the store, and writes: one that is full is none.
    async fn connect(&self) -> Result<MultiplexedConnection, ShareError> {
        in_time(async {
            let mut store = self.settings.store.connect().await?.commands;
            let mut command = redis::cmd("SET");
            command.arg(self.name_of("")).arg("").arg("PX").arg(1);
            command.query_async::<()>(&mut store).await?;
            Ok(store)
        })
        .await
    }

    /// Writes and looks until something fails, and says what.
    async fn serve(&self, store: &MultiplexedConnection, errands: &mut Errands) -> ShareError {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut writing, mut looking) = (FuturesUnordered::new(), FuturesUnordered::new());
        let mut news = Vec::new();
        loop {
            let ended = tokio::select! {
                count = errands.news.recv_many(&mut news, TOGETHER), if writing.is_empty() => {
                    if count == 0 {
                        return ShareError::Closed;
                    }
                    writing.push(self.write(store.clone(), std::mem::take(&mut news)));
                    continue;
                }
                Some(question) = errands.questions.recv(), if looking.len() < IN_FLIGHT => {
                    looking.push(self.answer(store.clone(), question));
                    continue;
                }
                _ = looks.tick(), if looking.is_empty() => {
                    looking.push(self.look(store.clone()));
                    continue;
                }
                Some(written) = writing.next(), if !writing.is_empty() => written,
                Some(looked) = looking.next(), if !looking.is_empty() => looked,
            };
            if let Err(error) = ended {
                return error;
            }
        }
    }

    /// Writes new responses. One that was made for a key stays its first owner's.
    fn write(&self, mut store: MultiplexedConnection, news: Vec<NewResponse>) -> Command {
        let mut pipeline = redis::pipe();
        for NewResponse { id, response } in news {
            // One that left meanwhile has it no more.
            let Some(decoder) = self.relay.fleet.decoder_name(response.keeper) else { continue };
            let command = pipeline.cmd("SET").arg(self.name_of(&id)).arg(encode(decoder, &response));
            command.arg("PX").arg(KNOWN.as_secs() * 1_000);
            if response.owner.is_some() {
                command.arg("NX");
            }
            command.ignore();
        }
        async move {
            if pipeline.is_empty() {
                return Ok(());
            }
            Ok(pipeline.query_async::<()>(&mut store).await?)
        }
        .boxed()
    }

    /// Looks for a response. A decoder that is none of this fleet has nothing that could be asked
    /// for here.
    fn answer(&self, mut store: MultiplexedConnection, question: Question) -> Command {
        let (name, fleet) = (self.name_of(&question.id), self.relay.fleet.clone());
        async move {
            let value: Option<Vec<u8>> = redis::cmd("GET").arg(name).query_async(&mut store).await?;
            let stored = value.and_then(|value| decode(&value, |name| fleet.decoder_named(name)));
            // Who asked may be gone.
            stored.map(|response| question.answer.send(response));
            Ok(())
        }
        .boxed()
    }

    /// Tells others that prefillers fail with forced calls, or hears it of them.
    fn look(&self, mut store: MultiplexedConnection) -> Command {
        let (name, relay) = (format!("{}:forced:1", self.settings.prefix), self.relay.clone());
        async move {
            if relay.forced.take_news() {
                let mut command = redis::cmd("SET");
                command.arg(&name).arg(1).arg("PX").arg(REMEMBERED.as_secs() * 1_000);
                command.query_async::<()>(&mut store).await?;
            }
            let marked: Option<Vec<u8>> = redis::cmd("GET").arg(name).query_async(&mut store).await?;
            marked.iter().for_each(|_| relay.hear_forced(BELIEVED));
            Ok(())
        }
        .boxed()
    }

    /// Name of a response in the store; the number is the version of its value. Whoever has an id
    /// may be shown the response, so ids are hashed.
    fn name_of(&self, id: &str) -> String {
        key_name(&self.settings.prefix, id)
    }
}

fn key_name(prefix: &str, id: &str) -> String {
    format!("{prefix}:response:1:{}", Digest::of(format!("pd-proxy response {id}").as_bytes()))
}

/// The outcome of `work`; news and questions that come meanwhile are dropped.
async fn drop_until<T>(work: impl Future<Output = T>, errands: &mut Errands) -> T {
    tokio::pin!(work);
    loop {
        tokio::select! {
            outcome = &mut work => return outcome,
            Some(_) = errands.news.recv() => {}
            Some(_) = errands.questions.recv() => {}
        }
    }
}

fn encode(decoder: u64, response: &OwnedResponse) -> Vec<u8> {
    let owner = response.owner.map_or(Vec::new(), |owner| owner.bytes().to_vec());
    let told = response.alias.as_ref().filter(|it| it.name.len() + it.model.len() <= ALIAS_BYTES);
    let (alias, model) = told.map_or_else(Default::default, |it| (it.name.to_string(), it.model.to_string()));
    StoredResponse { decoder, owner, alias, model }.encode_to_vec()
}

/// The response of a value; None where it is of no known form, or its decoder has no place here.
fn decode(value: &[u8], find: impl Fn(u64) -> Option<InstanceId>) -> Option<OwnedResponse> {
    let known = Some(value).filter(|value| value.len() <= VALUE_BYTES);
    let StoredResponse { decoder, owner, alias, model } = StoredResponse::decode(known?).ok()?;
    let keeper = find(decoder)?;
    // An owner that can't be read must not become nobody.
    let owner = if owner.is_empty() { None } else { Some(Digest::of_bytes(&owner)?) };
    let alias = (!alias.is_empty()).then(|| AliasedModel { name: alias.into(), model: model.into() });
    Some(OwnedResponse { keeper, owner, alias })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::relay::response_owners::owner_named;

    fn at(name: u64) -> Option<InstanceId> {
        (name == 7).then_some(InstanceId(3))
    }

    #[test]
    fn a_response_comes_back_as_it_was_told() {
        let alias = Some(AliasedModel { name: "chat".into(), model: "org/model".into() });
        for (owner, alias) in [(None, None), (Some(owner_named("one")), None), (None, alias)] {
            let response = OwnedResponse { keeper: InstanceId(3), owner, alias };
            assert_eq!(decode(&encode(7, &response), at), Some(response));
        }
    }

    #[test]
    fn a_decoder_of_another_fleet_and_an_owner_that_is_none_are_no_answer() {
        let response = OwnedResponse { keeper: InstanceId(3), owner: Some(owner_named("one")), alias: None };
        assert_eq!(decode(&encode(8, &response), at), None);
        let stored = StoredResponse { decoder: 7, owner: vec![1; 31], ..StoredResponse::default() };
        assert_eq!(decode(&stored.encode_to_vec(), at), None);
        let long = AliasedModel { name: "a".repeat(ALIAS_BYTES).into(), model: "b".into() };
        let response = OwnedResponse { owner: None, alias: Some(long), ..response };
        assert_eq!(decode(&encode(7, &response), at), Some(OwnedResponse { alias: None, ..response }));
    }

    /// By `printf 'pd-proxy response resp_1' | sha256sum`.
    #[test]
    fn responses_have_the_hash_of_their_id() {
        let hash = "046d34234d12b881b212de4765c129965b8247fe3abd95363c01fd8e39dae924";
        assert_eq!(key_name("pd-proxy:fleet", "resp_1"), format!("pd-proxy:fleet:response:1:{hash}"));
    }

    proptest! {
        #[test]
        fn any_value_is_read_or_refused(value in proptest::collection::vec(any::<u8>(), 0..64)) {
            let read = decode(&value, at);
            prop_assert!(read.is_none_or(|it| it.keeper == InstanceId(3)));
        }
    }
}
