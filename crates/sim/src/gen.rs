//! One request on its way through the engine: prompt computed or pulled, then written token by
//! token.

use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Notify;

use super::ask::{Api, Ask};
use super::core::{Computed, JobId, KeptBack, Progress, Prompt};
use super::fail::ApiFailure;
use super::handoff::{Handoff, Source};
use super::hub::{Chore, Hub};
use super::layerwise;
use super::ledger::Release;
use super::meet;
use super::readback;
use super::side;
use super::spec::Connector;
use super::text::{Stops, Writer};
use super::tokens;

/// A hand-off this engine was given; unless it is paid, dropping it tells the prefiller to free the
/// blocks.
#[derive(Debug)]
pub struct ReceivedHandoff {
    hub: Arc<Hub>,
    source: Option<Source>,
    /// True if KV to be fetched must be asked for first, by name.
    named: bool,
}

impl ReceivedHandoff {
    /// The debt in a request's `kv_transfer_params`, if there is one.
    #[must_use]
    pub fn of(hub: &Arc<Hub>, handoff: &Handoff) -> ReceivedHandoff {
        let source = match handoff {
            Handoff::Pull(source) if hub.spec.connector.hands_over() => Some(source.clone()),
            Handoff::Meet(source) => Some(source.clone()),
            _ => None,
        };
        ReceivedHandoff { hub: hub.clone(), source, named: matches!(handoff, Handoff::Meet(_)) }
    }

    fn paid(&mut self) {
        self.source = None;
    }
}

impl Drop for ReceivedHandoff {
    fn drop(&mut self) {
        if let Some(source) = self.source.take() {
            self.hub.chore(Chore::Release(source, Release::Unread));
        }
    }
}

/// A job in the engine; dropping it frees what it holds.
#[derive(Debug)]
pub struct JobGuard {
    hub: Arc<Hub>,
    id: JobId,
}

impl JobGuard {
    /// Ends the job when it is dropped.
    pub(super) fn new(hub: Arc<Hub>, id: JobId) -> JobGuard {
        JobGuard { hub, id }
    }
}

impl Drop for JobGuard {
    fn drop(&mut self) {
        self.hub.end(self.id);
    }
}

/// Reasons why a choice ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The answer has `max_tokens` tokens.
    Length,
    /// This stop string came.
    Stop(String),
    /// The answer ended by itself, as at an end-of-sequence token.
    End,
}

/// One output token of one choice.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Index of the choice.
    pub choice: usize,
    /// Id of the token.
    pub token: u32,
    /// The text that may be shown now; it can be empty.
    pub text: String,
    /// Set on the last token of the choice.
    pub finish: Option<Finish>,
}

/// Token counts of a request, as `usage` reports them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Prompt tokens, of all prompts.
    pub prompt: usize,
    /// Output tokens so far, of all choices.
    pub output: usize,
    /// Prompt tokens that were in a cache.
    pub cached: usize,
    /// Tokens in blocks new to the cache.
    pub created: usize,
}

/// A request that is being written.
#[derive(Debug)]
pub struct Gen {
    /// The request that is answered.
    pub ask: Arc<Ask>,
    /// Counts of its tokens.
    pub counts: Counts,
    hub: Arc<Hub>,
    lives: Vec<JobGuard>,
    choices: Vec<Choice>,
    cut_by_stop: bool,
    /// Of the first choice.
    tokens: Vec<u32>,
}

#[derive(Debug)]
struct Choice {
    writer: Writer,
    skips_special: bool,
    stops: Stops,
    written: usize,
    open: bool,
}

impl Gen {
    /// Gets the KV of every prompt, for the answer of this id; ready to write when it returns.
    pub async fn begin(
        hub: Arc<Hub>,
        ask: Arc<Ask>,
        answer_id: String,
        mut debt: ReceivedHandoff,
    ) -> Result<Gen, ApiFailure> {
        match &ask.handoff {
            Handoff::Broken(reason) if hub.spec.connector != Connector::Pool => {
                hub.die(reason);
                return Err(ApiFailure::dead());
            }
            Handoff::Never => std::future::pending().await,
            _ => {}
        }
        let mut generation = Gen {
            ask: ask.clone(),
            counts: Counts::default(),
            hub: hub.clone(),
            lives: Vec::new(),
            choices: Vec::new(),
            cut_by_stop: false,
            tokens: Vec::new(),
        };
        if let Handoff::Call(url) = &ask.handoff {
            let received = layerwise::receive(&hub, &ask, &answer_id, url.as_deref()).await?;
            for (tokens, (live, computed)) in ask.prompts.iter().zip(received) {
                generation.add(live, tokens.len(), computed);
            }
            return Ok(generation);
        }
        for (place, tokens) in ask.prompts.iter().enumerate() {
            let fetched = match &ask.handoff {
                Handoff::KeepFrom(source, offered) => {
                    readback::fetch(&hub, source, *offered, tokens, ask.salt).await?
                }
                _ => 0,
            };
            let remote = debt.source.is_some();
            let prompt = Prompt { tokens: tokens.clone(), salt: ask.salt, remote, fetched };
            let (live, computed) = compute(&hub, prompt, &mut debt).await?;
            if let Handoff::Write(targets) = &ask.handoff {
                let name = layerwise::name(ask.api, &answer_id, place);
                let Some(target) = targets.of(&name) else {
                    hub.die("the batch does not contain the request");
                    return Err(ApiFailure::dead());
                };
                let contents = hub.with(|core, _| core.contents(live.id));
                layerwise::write(&hub, target, &name, &contents).await;
            }
            generation.add(live, tokens.len(), computed);
        }
        Ok(generation)
    }

    /// The next token of every open choice; empty when all are done, or the time to come back.
    pub fn step(&mut self) -> Result<Vec<Piece>, u64> {
        if self.done() {
            return Ok(Vec::new());
        }
        if let Some(live) = self.lives.first() {
            self.hub.with(|core, now_us| core.token_due(now_us, live.id))?;
        }
        let (least, most, mean) = (self.ask.min_tokens, self.ask.max_tokens, self.hub.spec.answer_tokens);
        let mut pieces = Vec::with_capacity(self.choices.len());
        for (index, choice) in self.choices.iter_mut().enumerate().filter(|(_, choice)| choice.open) {
            let piece = choice.write(index, least..most, mean);
            self.cut_by_stop |= matches!(piece.finish, Some(Finish::Stop(_) | Finish::End));
            if index == 0 {
                self.tokens.push(piece.token);
            }
            pieces.push(piece);
        }
        self.counts.output += pieces.len();
        if pieces.iter().any(|piece| piece.choice == 0 && piece.finish.is_some()) {
            self.cache_answer();
        }
        Ok(pieces)
    }

    /// Like [`Gen::step`], waiting until the tokens are due.
    pub async fn next(&mut self) -> Vec<Piece> {
        loop {
            match self.step() {
                Ok(pieces) => return pieces,
                Err(until_us) => self.hub.sleep_until_us(until_us).await,
            }
        }
    }

    /// A sleep until `us` on the engine's clock.
    pub fn sleep_until_us(&self, us: u64) -> tokio::time::Sleep {
        self.hub.sleep_until_us(us)
    }

    /// True if every choice has ended.
    #[must_use]
    pub fn done(&self) -> bool {
        self.choices.iter().all(|choice| !choice.open)
    }

    /// Pins what a decoder is to read, under names made of the response id `id`; gives the member
    /// to answer with. As in vLLM every choice pins its own, and only the last one is answered; a
    /// choice cut by a stop string pins nothing.
    pub fn settle(&mut self, id: &str) -> Value {
        if let Handoff::KeepAs(name) = &self.ask.handoff {
            return self.keep(name.clone(), id);
        }
        if matches!(self.ask.handoff, Handoff::Pull(_)) {
            return self.keep_back(id);
        }
        if !matches!(self.ask.handoff, Handoff::Keep | Handoff::KeepFrom(..))
            || !self.hub.spec.connector.hands_over()
            || self.cut_by_stop
        {
            return Value::Null;
        }
        let mut answer = Value::Null;
        for (i, live) in self.lives.iter().enumerate() {
            let prompt_tokens = self.ask.prompts.get(i).map_or(0, |prompt| prompt.len());
            for choice in 0..self.ask.n {
                let source = self.pin(live, id, i, choice);
                answer = source.answer(prompt_tokens, self.counts.cached);
            }
        }
        answer
    }

    /// Leaves the first choice in the prefix cache behind its prompt. Blocks that are handed over
    /// stay as the prompt left them.
    fn cache_answer(&self) {
        let hands_over = matches!(
            self.ask.handoff,
            Handoff::Keep | Handoff::KeepFrom(..) | Handoff::KeepAs(_) | Handoff::Write(_)
        );
        if hands_over {
            return;
        }
        let (Some(live), Some(prompt)) = (self.lives.first(), self.ask.prompts.first()) else { return };
        let tokens = self.computed_tokens(prompt);
        self.hub.with(|core, _| core.cache_answer(live.id, &tokens));
    }

    /// Tokens of the first prompt and its answer. The last one was chosen, and never computed.
    fn computed_tokens(&self, prompt: &[u32]) -> Vec<u32> {
        let mut tokens = [prompt, &self.tokens].concat();
        tokens.pop();
        tokens
    }

    /// Keeps what a decoder wrote, as vLLM's NIXL pull connector does where it is told to.
    fn keep_back(&self, id: &str) -> Value {
        let spec = &self.hub.spec;
        let (Some(live), Some(prompt)) = (self.lives.first(), self.ask.prompts.first()) else {
            return Value::Null;
        };
        if !spec.bidirectional || spec.connector != Connector::Handoff || self.cut_by_stop {
            return Value::Null;
        }
        let tokens = self.computed_tokens(prompt);
        let request_id = format!("{id}-back");
        let lease_us = spec.kept_back_ms.saturating_mul(1000);
        let kept = KeptBack { request_id: &request_id, lease_us };
        let block_ids = self.hub.with(|core, now_us| core.keep_back(now_us, live.id, &kept));
        let mut answer = self.source(block_ids, request_id).answer(tokens.len(), 0);
        (answer["do_remote_prefill"], answer["do_remote_decode"]) = (false.into(), true.into());
        answer["remote_blocks_expiry_time"] = 1.0.into();
        if let Some(answer) = answer.as_object_mut() {
            answer.remove("remote_prefill_cached_tokens");
        }
        answer
    }

    /// Keeps the KV of the only prompt under a name. An answer that ended by itself leaves nothing.
    fn keep(&self, name: String, id: &str) -> Value {
        let Some(live) = self.lives.first().filter(|_| !self.cut_by_stop) else { return Value::Null };
        let block_ids = self.hub.with(|core, now_us| core.pin(now_us, live.id, &name));
        if self.hub.spec.connector != Connector::Push {
            return Value::Null;
        }
        let mut answer = self.source(block_ids, id.to_owned()).answer(self.counts.prompt, self.counts.cached);
        answer["transfer_mode"] = "push".into();
        if let Some(answer) = answer.as_object_mut() {
            answer.remove("remote_blocks_expiry_time");
        }
        answer
    }

    fn pin(&self, live: &JobGuard, id: &str, prompt: usize, choice: usize) -> Source {
        let place = if self.ask.api == Api::Completions { format!("-{prompt}") } else { String::new() };
        let which = if self.ask.n > 1 { format!("{choice}_") } else { String::new() };
        let suffix = uuid::Uuid::new_v4().simple().to_string();
        let request_id = format!("{which}{id}{place}-{}", suffix.get(..8).unwrap_or(""));
        let block_ids = self.hub.with(|core, now_us| core.pin(now_us, live.id, &request_id));
        self.source(block_ids, request_id)
    }

    fn source(&self, block_ids: Vec<u32>, request_id: String) -> Source {
        Source {
            block_ids,
            engine_id: self.hub.engine_id.clone(),
            request_id,
            host: self.hub.gate.addr().ip().to_string(),
            port: self.hub.gate.addr().port(),
        }
    }

    fn add(&mut self, live: JobGuard, prompt_tokens: usize, computed: Computed) {
        for choice in 0..self.ask.n {
            self.choices.push(Choice {
                writer: Writer::new(computed.print, choice).with_special_tokens(self.hub.spec.special_every),
                skips_special: self.ask.skip_special_tokens,
                stops: Stops::new(self.ask.stop.clone(), self.ask.include_stop),
                written: 0,
                open: true,
            });
        }
        self.lives.push(live);
        self.counts.prompt += prompt_tokens;
        self.counts.cached += computed.cached_tokens;
        self.counts.created += computed.created_tokens;
    }
}

impl Choice {
    /// Answers of `mean` tokens end by themselves, once there are more than the first of `lengths`;
    /// all end at the last.
    fn write(&mut self, index: usize, lengths: Range<usize>, mean: u32) -> Piece {
        let token = self.writer.next_token();
        self.written += 1;
        let shown = if token == tokens::NOTE && self.skips_special { Vec::new() } else { vec![token] };
        let (mut text, stop) = self.stops.push(&tokens::decode(&shown));
        let finish = match stop {
            Some(stop) => Some(Finish::Stop(stop)),
            None if self.written > lengths.start && self.writer.ends(mean) => Some(Finish::End),
            None => (self.written >= lengths.end).then_some(Finish::Length),
        };
        if matches!(finish, Some(Finish::Length | Finish::End)) {
            text.push_str(&self.stops.flush());
        }
        self.open = finish.is_none();
        Piece { choice: index, token, text, finish }
    }
}

async fn compute(
    hub: &Arc<Hub>,
    prompt: Prompt,
    debt: &mut ReceivedHandoff,
) -> Result<(JobGuard, Computed), ApiFailure> {
    if hub.with(|core, _| core.fails_to_load(&prompt)) {
        return Err(ApiFailure::internal());
    }
    let (id, bell) = hub.submit(prompt);
    let live = JobGuard { hub: hub.clone(), id };
    loop {
        match hub.poll(id) {
            Progress::Ready(computed) => return Ok((live, computed)),
            Progress::Wait(until_us) => wait(hub, &bell, until_us).await,
            Progress::Pull { blocks } => {
                let contents = pull(hub, debt, blocks).await?;
                hub.with(|core, now_us| core.received(now_us, id, &contents));
            }
        }
    }
}

pub(super) async fn wait(hub: &Hub, bell: &Notify, until_us: Option<u64>) {
    match until_us {
        None => bell.notified().await,
        Some(us) => tokio::select! {
            () = bell.notified() => {}
            () = hub.sleep_until_us(us) => {}
        },
    }
}

/// Reads the last `blocks` blocks of the hand-off from its prefiller.
async fn pull(hub: &Arc<Hub>, debt: &mut ReceivedHandoff, blocks: usize) -> Result<Vec<u64>, ApiFailure> {
    let Some(mut source) = debt.source.clone() else { return Err(ApiFailure::internal()) };
    if debt.named {
        source.block_ids = meet::find(hub, &source).await?;
    }
    let first = source.block_ids.len().checked_sub(blocks);
    let Some(ids) = first.and_then(|first| source.block_ids.get(first..)) else {
        debt.paid();
        hub.die("assert num_decode_blocks <= len(prefill_group)");
        return Err(ApiFailure::dead());
    };
    let takes = hub.transfer_time(&source, ids.len() * hub.spec.block_tokens);
    if !takes.is_zero() {
        tokio::time::sleep(takes).await;
    }
    let contents = side::pull(hub.kv_reader(), &source, ids).await;
    if contents.is_ok() {
        debt.paid();
    }
    contents.map_err(|_| ApiFailure::internal())
}
