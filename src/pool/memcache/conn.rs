//! One connection to a meta service: questions go out as they come, answers find theirs by number.
//!
//! A question that nobody waits for any more is forgotten here; its answer, should it come, is
//! thrown away.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::wire::{self, Form, Frame, Object, Op, WireError};
use crate::pool::PoolError;

/// A service that owes answers and sends nothing for so long is gone: hosts that vanish close no
/// connections.
const SILENCE: Duration = Duration::from_secs(5);
/// Pause between checks of that silence.
const SILENCE_CHECK: Duration = Duration::from_secs(1);
/// Room to read into, bytes: the answer about 512 keys.
const READ_BYTES: usize = 32 << 10;

/// The asking end. It is of no use any more when its [`Line`] has ended.
#[derive(Debug)]
pub struct Conn {
    frames: mpsc::Sender<Vec<u8>>,
    link: Arc<LinkState>,
    in_flight: usize,
    form: Option<Form>,
}

/// The end with the socket.
#[derive(Debug)]
pub struct Line {
    stream: TcpStream,
    buffer: BytesMut,
    frames: mpsc::Receiver<Vec<u8>>,
    link: Arc<LinkState>,
}

/// State that both ends of a connection share.
#[derive(Debug)]
struct LinkState {
    state: Mutex<State>,
    hang_up: Notify,
}

#[derive(Debug)]
struct State {
    next_seq: u32,
    open: HashMap<u32, Waiting>,
    /// Since when the service owes something and has said nothing.
    unheard: Option<Instant>,
    ended: Option<PoolError>,
}

#[derive(Debug)]
struct Waiting {
    op: i16,
    answer: oneshot::Sender<Bytes>,
}

/// A question's place on the scheduler, given back when nobody waits any more.
struct Ticket<'a> {
    link: &'a LinkState,
    seq: u32,
}

impl Conn {
    /// Both ends of a connection that has been greeted. `buffer` holds what was read beyond the
    /// greeting, `seq` is the first number that was not used, `form` the one that the service
    /// understands.
    pub fn new(
        stream: TcpStream,
        buffer: BytesMut,
        seq: u32,
        form: Option<Form>,
        in_flight: usize,
    ) -> (Self, Line) {
        let (sender, frames) = mpsc::channel(in_flight.max(1));
        let state = State { next_seq: seq, open: HashMap::new(), unheard: None, ended: None };
        let link = Arc::new(LinkState { state: Mutex::new(state), hang_up: Notify::new() });
        (Self { frames: sender, link: link.clone(), in_flight, form }, Line { stream, buffer, frames, link })
    }

    /// Form in which places can be asked for; `None` = they can't.
    pub fn form(&self) -> Option<Form> {
        self.form
    }

    /// The keys that are present.
    ///
    /// # Errors
    /// [`PoolError`]; one of `Protocol` has ended the connection.
    pub async fn exist<'a, K>(&self, keys: K, count: usize) -> Result<Vec<bool>, PoolError>
    where
        K: Iterator<Item = &'a str> + Clone,
    {
        let body = self.ask(Op::Exist, keys).await?;
        wire::exist(&body, count).map_err(|error| self.give_up(&error))
    }

    /// Place where the keys' objects are.
    ///
    /// # Errors
    /// As for [`exist`](Self::exist).
    pub async fn query<'a, K>(&self, form: Form, keys: K, count: usize) -> Result<Vec<Object>, PoolError>
    where
        K: Iterator<Item = &'a str> + Clone,
    {
        let body = self.ask(Op::Query(form), keys).await?;
        wire::query(&body, form, count).map_err(|error| self.give_up(&error))
    }

    async fn ask<'a, K>(&self, op: Op, keys: K) -> Result<Bytes, PoolError>
    where
        K: Iterator<Item = &'a str> + Clone,
    {
        let (ticket, answer) = self.open(op)?;
        let frame =
            wire::request(op, ticket.seq, keys).map_err(|error| PoolError::TooLarge(error.to_string()))?;
        match self.frames.try_send(frame) {
            Ok(()) => self.link.is_owed(ticket.seq),
            Err(mpsc::error::TrySendError::Full(_)) => return Err(PoolError::Busy),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(self.link.why()),
        }
        answer.await.map_err(|_| self.link.why())
    }

    fn open(&self, op: Op) -> Result<(Ticket<'_>, oneshot::Receiver<Bytes>), PoolError> {
        let mut state = self.link.lock();
        if let Some(error) = &state.ended {
            return Err(error.clone());
        }
        if state.open.len() >= self.in_flight {
            return Err(PoolError::Busy);
        }
        // Numbers come round again after 2^32 questions; one that is still open then is left alone.
        while state.open.contains_key(&state.next_seq) {
            state.next_seq = state.next_seq.wrapping_add(1);
        }
        let seq = state.next_seq;
        state.next_seq = seq.wrapping_add(1);
        let (sender, answer) = oneshot::channel();
        state.open.insert(seq, Waiting { op: op.number(), answer: sender });
        Ok((Ticket { link: &self.link, seq }, answer))
    }

    /// Gives the connection up: a service that is not understood once will not be the next time
    /// either. Another connection may meet another version.
    fn give_up(&self, error: &WireError) -> PoolError {
        let error = PoolError::Protocol(error.to_string());
        self.link.end(error.clone());
        self.link.hang_up.notify_one();
        error
    }
}

impl Line {
    /// Carries questions and answers until the connection ends, and tells those who wait. Dropping
    /// the future ends it.
    pub async fn run(mut self) -> PoolError {
        let (mut from, mut to) = self.stream.split();
        let error = tokio::select! {
            error = read(&mut from, &mut self.buffer, &self.link) => error,
            error = write(&mut to, &mut self.frames) => error,
            error = self.link.silence() => error,
            () = self.link.hang_up.notified() => self.link.why(),
        };
        self.link.end(error);
        self.link.why()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.link.end(PoolError::Unreachable("the connection was closed".to_owned()));
    }
}

impl LinkState {
    /// A panic elsewhere leaves the state whole: every change is one statement.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first reason stays.
    fn end(&self, error: PoolError) {
        let mut state = self.lock();
        state.ended.get_or_insert(error);
        state.open.clear();
    }

    fn why(&self) -> PoolError {
        let ended = self.lock().ended.clone();
        ended.unwrap_or_else(|| PoolError::Unreachable("the connection ended".to_owned()))
    }

    /// Gives an answer to the one who waits for it, if anyone does.
    fn deliver(&self, frame: Frame) {
        let mut state = self.lock();
        // The service may send requests of its own, with numbers of its own.
        let ours = state.open.get(&frame.seq).is_some_and(|waiting| waiting.op == frame.op);
        if ours && let Some(waiting) = state.open.remove(&frame.seq) {
            // An error here says that the one who asked has just left.
            let _ = waiting.answer.send(frame.body);
        }
        state.unheard = (!state.open.is_empty()).then(Instant::now);
    }

    /// A question has been queued: the service owes an answer, unless it has already given it.
    fn is_owed(&self, seq: u32) {
        let mut state = self.lock();
        if state.open.contains_key(&seq) {
            state.unheard.get_or_insert_with(Instant::now);
        }
    }

    async fn silence(&self) -> PoolError {
        loop {
            tokio::time::sleep(SILENCE_CHECK).await;
            let unheard = self.lock().unheard;
            if unheard.is_some_and(|since| since.elapsed() >= SILENCE) {
                return PoolError::Unreachable(format!("no answer for {} s", SILENCE.as_secs()));
            }
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.link.lock().open.remove(&self.seq);
    }
}

async fn read(from: &mut ReadHalf<'_>, buffer: &mut BytesMut, link: &LinkState) -> PoolError {
    loop {
        match next_frame(from, buffer).await {
            Ok(frame) => link.deliver(frame),
            Err(error) => return error,
        }
    }
}

async fn write(to: &mut WriteHalf<'_>, frames: &mut mpsc::Receiver<Vec<u8>>) -> PoolError {
    while let Some(frame) = frames.recv().await {
        if let Err(error) = to.write_all(&frame).await {
            return lost(&error);
        }
    }
    PoolError::Unreachable("nobody asks any more".to_owned())
}

/// The next whole frame. May be dropped and called again: what was read stays in `buffer`.
pub(super) async fn next_frame(
    from: &mut (impl AsyncReadExt + Unpin),
    buffer: &mut BytesMut,
) -> Result<Frame, PoolError> {
    loop {
        match wire::take_frame(buffer) {
            Ok(Some(frame)) => return Ok(frame),
            Ok(None) => {}
            Err(error) => return Err(PoolError::Protocol(error.to_string())),
        }
        // By what may come at once, never by what a header announces.
        buffer.reserve(READ_BYTES);
        match from.read_buf(buffer).await {
            Ok(0) => return Err(PoolError::Unreachable("the service closed the connection".to_owned())),
            Ok(_) => {}
            Err(error) => return Err(lost(&error)),
        }
    }
}

pub(super) fn lost(error: &io::Error) -> PoolError {
    PoolError::Unreachable(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test]
    async fn a_question_that_does_not_leave_is_not_owed_an_answer() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        // Nobody runs the line: what is queued stays there.
        let (conn, _line) = Conn::new(stream, BytesMut::new(), 1, None, 1);
        let key = || std::iter::once("key");
        {
            let mut asked = Box::pin(conn.exist(key(), 1));
            assert!(asked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert!(conn.link.lock().unheard.is_some());
        }
        conn.link.lock().unheard = None;
        assert_eq!(conn.exist(key(), 1).await, Err(PoolError::Busy), "the queue is full");
        assert_eq!(conn.link.lock().unheard, None);
    }
}
