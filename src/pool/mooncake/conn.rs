//! One connection to a master: questions go out in one stream, answers are matched by their
//! sequence number.
//!
//! A question whose asker went away is still written whole and its answer thrown away, so the
//! connection stays usable. Any other fault ends the connection: half a question, an answer that
//! nobody asked for, a master that is silent for too long.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::wire::{ANSWER_HEAD_BYTES, AnswerHead, Call, Form, Function, MAX_BODY_BYTES, write_request};
use crate::kvhash::keys::KeyBatch;
use crate::pool::PoolError;

/// Questions not yet written, in bytes; beyond it the master is not reading.
const MAX_UNWRITTEN_BYTES: usize = 16 << 20;
/// Limit for the part of a write buffer that is kept between questions.
const KEPT_BYTES: usize = 1 << 20;
/// Size of one read, in bytes.
const READ_BYTES: usize = 64 << 10;
/// Longest answer to a question: so much, and so much per key. A replica takes some 60 bytes, a
/// path a few hundred.
const ANSWER_BYTES: usize = 64 << 10;
const ANSWER_BYTES_PER_KEY: usize = 8 << 10;
/// Looks at the oldest open question in the time that it may take.
const LOOKS: u32 = 4;

/// An open connection; dropping it closes it.
#[derive(Debug)]
pub(super) struct Conn {
    shared: Arc<Shared>,
    _task: JoinSet<()>,
}

/// Bounds of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most open questions, those whose asker went away included.
    pub in_flight: usize,
    /// The longest that a question may be open.
    pub patience: Duration,
}

/// A question on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    pub function: Function,
    pub form: Form,
    pub tenant: &'a str,
    pub keys: &'a KeyBatch,
    pub indexes: &'a [u32],
}

/// An answer from the master.
#[derive(Debug)]
pub(super) struct Reply {
    /// 0, or the error that the body tells of.
    pub error: u8,
    pub body: Vec<u8>,
}

/// The answer to come.
#[derive(Debug)]
pub(super) struct PendingReply(oneshot::Receiver<Reply>, Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    to_write: Notify,
    /// Reason why it ended.
    over: watch::Sender<Option<PoolError>>,
    limits: Limits,
}

#[derive(Debug, Default)]
struct State {
    /// Written questions that have not left yet.
    out: Vec<u8>,
    open: HashMap<u32, Open>,
    next: u32,
}

/// An open question.
#[derive(Debug)]
struct Open {
    reply: oneshot::Sender<Reply>,
    limit_bytes: usize,
    since: Instant,
}

impl Conn {
    /// Over any stream; must be called inside a tokio runtime.
    pub(super) fn over(stream: impl AsyncRead + AsyncWrite + Send + 'static, limits: Limits) -> Conn {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            to_write: Notify::new(),
            over: watch::Sender::new(None),
            limits,
        });
        let mut task = JoinSet::new();
        task.spawn(drive(shared.clone(), stream));
        Conn { shared, _task: task }
    }

    /// Sends a question. It is on its way when this returns.
    ///
    /// # Errors
    /// [`PoolError::Busy`] at a limit, [`PoolError::Unreachable`] when the connection is over, or
    /// why the question can't be written.
    pub(super) fn ask(&self, ask: Ask<'_>) -> Result<PendingReply, PoolError> {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        // Looked at under the lock: what is added after the end would wait for ever.
        if let Some(why) = &*self.shared.over.borrow() {
            return Err(why.clone());
        }
        if state.open.len() >= self.shared.limits.in_flight || state.out.len() > MAX_UNWRITTEN_BYTES {
            return Err(PoolError::Busy);
        }
        let Ask { function, form, tenant, keys, indexes } = ask;
        // After four thousand million questions an old one may still be open.
        while state.open.contains_key(&state.next) {
            state.next = state.next.wrapping_add(1);
        }
        let call = Call { function, form, tenant, sequence: state.next, literal: false };
        write_request(&mut state.out, call, keys, indexes)?;
        let (reply, coming) = oneshot::channel();
        let limit_bytes = indexes
            .len()
            .saturating_mul(ANSWER_BYTES_PER_KEY)
            .saturating_add(ANSWER_BYTES)
            .min(MAX_BODY_BYTES);
        state.open.insert(state.next, Open { reply, limit_bytes, since: Instant::now() });
        state.next = state.next.wrapping_add(1);
        drop(guard);
        self.shared.to_write.notify_one();
        Ok(PendingReply(coming, self.shared.clone()))
    }

    /// Number of open questions.
    pub(super) fn open(&self) -> usize {
        self.shared.lock().open.len()
    }

    /// Ends the connection.
    pub(super) fn close(&self, why: PoolError) {
        self.shared.end(why);
    }

    /// Reason why it ended, once it did.
    pub(super) async fn closed(&self) -> PoolError {
        self.shared.closed().await
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.shared.end(PoolError::Unreachable("the connection was dropped".into()));
    }
}

impl PendingReply {
    /// Waits for the answer.
    pub(super) async fn reply(self) -> Result<Reply, PoolError> {
        let PendingReply(coming, shared) = self;
        match coming.await {
            Ok(reply) => Ok(reply),
            Err(_) => Err(shared.why()),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves at most a question that is answered to nobody.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn why(&self) -> PoolError {
        self.over
            .borrow()
            .clone()
            .unwrap_or_else(|| PoolError::Unreachable("the connection was dropped".into()))
    }

    async fn closed(&self) -> PoolError {
        let mut over = self.over.subscribe();
        // The sender is ours.
        let _ = over.wait_for(Option::is_some).await;
        self.why()
    }

    /// Ends the connection, unless it has ended, and tells whoever waits.
    fn end(&self, why: PoolError) {
        self.over.send_if_modified(|over| {
            let first = over.is_none();
            over.get_or_insert(why);
            first
        });
        self.lock().open.clear();
    }

    /// Longest time that an answer may be, and whether somebody waits for it; none if nobody ever
    /// asked.
    fn expected(&self, sequence: u32) -> Option<(usize, bool)> {
        let state = self.lock();
        state.open.get(&sequence).map(|open| (open.limit_bytes, !open.reply.is_closed()))
    }

    fn settle(&self, sequence: u32, reply: Reply) {
        let open = self.lock().open.remove(&sequence);
        if let Some(open) = open {
            // Nobody may be waiting any more.
            let _ = open.reply.send(reply);
        }
    }
}

/// Reads, writes and watches until one of them can't go on.
async fn drive(shared: Arc<Shared>, stream: impl AsyncRead + AsyncWrite) {
    let (from, to) = tokio::io::split(stream);
    let why = tokio::select! {
        why = shared.closed() => why,
        Err(why) = read(&shared, from) => why,
        Err(why) = write(&shared, to) => broken(&why),
        () = watch(&shared) => PoolError::Unreachable("the master does not answer".into()),
        else => PoolError::Unreachable("the connection ended".into()),
    };
    shared.end(why);
}

async fn write(shared: &Shared, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut leaving = Vec::new();
    loop {
        shared.to_write.notified().await;
        std::mem::swap(&mut leaving, &mut shared.lock().out);
        to.write_all(&leaving).await?;
        leaving.clear();
        leaving.shrink_to(KEPT_BYTES);
    }
}

async fn read(shared: &Shared, from: impl AsyncRead + Unpin) -> Result<(), PoolError> {
    let mut from = BufReader::with_capacity(READ_BYTES, from);
    loop {
        let mut head = [0; ANSWER_HEAD_BYTES];
        from.read_exact(&mut head).await.map_err(|e| broken(&e))?;
        let head = AnswerHead::read(&head)?;
        let Some((limit_bytes, wanted)) = shared.expected(head.sequence) else {
            return Err(PoolError::Protocol("an answer to a question that was not asked".into()));
        };
        if head.body_bytes > limit_bytes {
            return Err(PoolError::Protocol(format!("an answer of more than {limit_bytes} bytes")));
        }
        let mut body = Vec::new();
        if wanted {
            // Grows with what arrives, not with what was announced.
            let read = (&mut from).take(head.body_bytes as u64).read_to_end(&mut body).await;
            let whole = read.map_err(|e| broken(&e))? == head.body_bytes;
            whole.then_some(()).ok_or_else(|| broken(&io::ErrorKind::UnexpectedEof.into()))?;
        } else {
            discard(&mut from, head.body_bytes).await?;
        }
        discard(&mut from, head.attachment_bytes).await?;
        shared.settle(head.sequence, Reply { error: head.error, body });
    }
}

async fn discard(from: &mut (impl AsyncRead + Unpin), bytes: usize) -> Result<(), PoolError> {
    let copied = tokio::io::copy(&mut from.take(bytes as u64), &mut tokio::io::sink()).await;
    let whole = copied.map_err(|e| broken(&e))? == bytes as u64;
    whole.then_some(()).ok_or_else(|| broken(&io::ErrorKind::UnexpectedEof.into()))
}

/// Ends when a question has been open for too long.
async fn watch(shared: &Shared) {
    let patience = shared.limits.patience;
    loop {
        tokio::time::sleep(patience / LOOKS).await;
        let oldest = shared.lock().open.values().map(|open| open.since).min();
        if oldest.is_some_and(|since| since.elapsed() >= patience) {
            return;
        }
    }
}

fn broken(error: &io::Error) -> PoolError {
    PoolError::Unreachable(match error.kind() {
        io::ErrorKind::UnexpectedEof => "the master closed the connection".to_owned(),
        _ => error.to_string(),
    })
}
