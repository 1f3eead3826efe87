//! A completions request with several prompts: each goes its own way through both legs, and the
//! client gets one answer.
//!
//! A hand-off covers one prompt. So each prompt becomes a part: a request with a place among the
//! engines, retries and, with `retry.resume`, continuations of its own, under one account, pass and
//! deadline. Nothing goes out before all parts have an answer, or the first event of one: what an
//! engine refuses of one part is the answer to all, as if one engine had had them.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderName, HeaderValue, Response};

use crate::codec::json::{Object, ScanLimits};
use crate::dialect::batch::{self, Batch};
use crate::dialect::{Api, Shape};
use crate::error::{Error, Kind};
use crate::fleet::Role;
use crate::relay::account::Ledger;
use crate::relay::answer::{Answer, AnswerBody, Whole};
use crate::relay::ask::{Ask, ReceivedRequest};
use crate::relay::legs::DecodeEnd;
use crate::relay::merged::Merged;
use crate::relay::source::Source;
use crate::relay::stream::{Stream, StreamReaders};
use crate::relay::vacancy::Passage;
use crate::relay::{Refusal, Relay, in_time, job};

/// Parts of one request on their way to their first event at once, so that it does not take the
/// whole line.
const AT_ONCE: usize = 32;

/// By this header engines, and their logs, know a part.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A part whose answer is here, or has begun.
struct Begun {
    at: usize,
    ask: Arc<Ask>,
    end: DecodeEnd,
    ledger: Ledger,
}

/// A part whose stream has begun.
struct Streaming {
    ask: Arc<Ask>,
    source: Box<Source>,
    ledger: Ledger,
}

/// Answer of all parts together.
enum MergedAnswer {
    /// An engine's refusal of a part, or all of a complete answer.
    Whole(Response<Bytes>),
    /// Streams, in the order of the prompts.
    Streams(http::response::Parts, Vec<Streaming>),
}

type Leaving = Pin<Box<dyn Future<Output = Result<Begun, Error>> + Send>>;

impl Relay {
    /// Takes a request with several prompts through both legs.
    ///
    /// # Errors
    /// As of [`Relay::drive`].
    pub(super) async fn drive_all(
        self: &Arc<Self>,
        ask: ReceivedRequest,
        batch: Batch,
        mut ledger: Ledger,
    ) -> Result<Answer, Box<Refusal>> {
        let (end, http2, choices) = (ask.arrived + self.settings.now().total, ask.http2, batch.choices());
        let begun = in_time(end, pin!(self.all_begin(ask, batch, &mut ledger))).await;
        let together = match begun {
            Ok(together) => together,
            Err(error) => {
                let error = error.of_request(&ledger);
                return Err(Box::new(Refusal { error, ledger }));
            }
        };
        Ok(match together {
            MergedAnswer::Whole(whole) => {
                ledger.whole(whole.status());
                whole.map(|body| AnswerBody::Whole(Whole::of(body, ledger)))
            }
            MergedAnswer::Streams(head, parts) => {
                ledger.streams(head.status);
                let stream = |part: Streaming| {
                    let readers = StreamReaders::of(self, &part.ask);
                    Stream::part(Stream::new(self.clone(), *part.source, part.ledger, readers, end))
                };
                let parts: Vec<Stream> = parts.into_iter().map(stream).collect();
                let merged = Merged::new(parts, choices, http2, ledger);
                Response::from_parts(head, AnswerBody::Merged(Box::new(merged)))
            }
        })
    }

    /// Sends all parts on their way, and waits until each has an answer or the first event of one.
    /// The first that fails, or is refused, ends the others.
    async fn all_begin(
        self: &Arc<Self>,
        request: ReceivedRequest,
        batch: Batch,
        ledger: &mut Ledger,
    ) -> Result<MergedAnswer, Error> {
        let job = Arc::new(job::of(&request, None, None, &self.fleet));
        let ask = request.with_job(job);
        let alone = self.let_all_in(&ask, &batch, ledger).await?;
        let (ask, batch) = (Arc::new(ask), Arc::new(batch));
        let leave = |at| -> Leaving {
            let ledger = ledger.part(batch::part_id(&ask.id, at));
            Box::pin(self.clone().part_begins(ask.clone(), batch.clone(), at, ledger))
        };
        let mut leaving: Vec<Leaving> = (0..batch.prompts()).map(leave).collect();
        // Where one request finds out whether a decoder is back, one part does: the others would be
        // refused beside it.
        let first = if alone { Some(leaving.remove(0).await) } else { None };
        let others = stream::iter(leaving).buffer_unordered(AT_ONCE);
        let mut leaving = pin!(stream::iter(first).chain(others));
        let (mut parts, mut answer_bytes) = (Vec::with_capacity(batch.prompts()), 0);
        while let Some(part) = leaving.next().await {
            let part = part?;
            if let DecodeEnd::Whole(answer) = &part.end {
                answer_bytes += answer.body().len();
                if !answer.status().is_success() {
                    return Ok(MergedAnswer::Whole(answer.clone()));
                }
            }
            if answer_bytes > self.settings.now().answer_bytes {
                let message =
                    "the answers are larger than limit.answer_bytes; streamed, they could be passed on";
                return Err(Error::new(Kind::DecodeFailed, message));
            }
            parts.push(part);
        }
        ledger.takes(Role::Prefill, None);
        parts.sort_by_key(|part| part.at);
        together(parts, batch.choices())
    }

    /// Lets the request in, or turns it away, as a whole: by its size, and where both sides have
    /// room for one more request. True if its first part must go alone.
    async fn let_all_in(&self, ask: &Ask, batch: &Batch, ledger: &mut Ledger) -> Result<bool, Error> {
        self.has_decoder().await?;
        self.take_place(Role::Decode, ledger)?;
        if self.bypass(&part_of(ask, batch, 0)?.with_job(Arc::default())).is_none() {
            self.in_time(ask, ledger)?;
            self.take_place(Role::Prefill, ledger)?;
            let passage = self.vacancy(Role::Decode, ask.arrived).await?;
            let alone = passage.as_ref().is_some_and(Passage::is_trial);
            // Each part asks for itself.
            passage.into_iter().for_each(Passage::forgo);
            return Ok(alone);
        }
        Ok(false)
    }

    async fn part_begins(
        self: Arc<Self>,
        whole: Arc<Ask>,
        batch: Arc<Batch>,
        at: usize,
        mut ledger: Ledger,
    ) -> Result<Begun, Error> {
        let ask = part_of(&whole, &batch, at)?;
        let (end, ask) = self.run(ask, &mut ledger).await?;
        Ok(Begun { at, ask, end, ledger })
    }
}

/// The request for one of the prompts.
fn part_of(whole: &ReceivedRequest, batch: &Batch, at: usize) -> Result<ReceivedRequest, Error> {
    let unreadable = |e: crate::codec::json::JsonError| {
        Error::new(Kind::InvalidJson, format!("a prompt can't be asked by itself: {e}"))
    };
    let body = batch.body(&whole.body, at).map_err(unreadable)?;
    let id = batch::part_id(&whole.id, at);
    let name = whole.name.as_ref().map_or(&*whole.id, |name| name.id());
    let mut headers = whole.headers.clone();
    if let Ok(id) = HeaderValue::from_str(&batch::part_id(name, at)) {
        headers.insert(REQUEST_ID, id);
    }
    Ok(ReceivedRequest {
        api: Api::Completions,
        id,
        name: whole.name.clone(),
        target: whole.target.clone(),
        headers,
        shape: Shape::read(Api::Completions, &body),
        body,
        alias: None,
        resume: None,
        encodings: None,
        http2: whole.http2,
        arrived: whole.arrived,
        ttft_slo: whole.ttft_slo,
        trace: whole.trace.as_ref().map(|scope| scope.part(at)),
    })
}

/// Joins the answers of all parts.
fn together(parts: Vec<Begun>, choices: u64) -> Result<MergedAnswer, Error> {
    let (mut head, mut streams, mut answers) = (None, Vec::new(), Vec::new());
    for Begun { ask, end, ledger, .. } in parts {
        let (part_head, end) = match end {
            DecodeEnd::Whole(answer) => {
                let (head, body) = answer.into_parts();
                (head, Err(body))
            }
            DecodeEnd::Stream { head, source } => (head, Ok(source)),
        };
        head.get_or_insert(part_head);
        match end {
            Ok(source) => streams.push(Streaming { ask, source, ledger }),
            Err(body) => answers.extend(Object::scan(body, ScanLimits::default())),
        }
    }
    let unlike = || Error::new(Kind::DecodeFailed, "the answers to the prompts can't be put together");
    let head = head.ok_or_else(unlike)?;
    match (streams.is_empty(), answers.is_empty()) {
        (false, true) => Ok(MergedAnswer::Streams(head, streams)),
        (true, false) => {
            let body = batch::merge(&answers, choices).ok_or_else(unlike)?;
            Ok(MergedAnswer::Whole(Response::from_parts(head, body)))
        }
        _ => Err(unlike()),
    }
}
