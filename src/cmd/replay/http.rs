//! A trace as real load: each request is a streamed completion, sent when the trace says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Client;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use super::measured::{Load, StreamMeasurement, report};
use super::progress::Progress;
use super::{TrialError, prompts};
use crate::cli::ReplayArgs;
use crate::codec::sse::Framer;
use crate::replay::TraceRequest;

/// Most bytes of an incomplete event.
const EVENT_BYTES: usize = 1 << 20;

/// Longest time that is waited for anything, s: a number that clocks can hold.
const WAIT_S_MAX: f64 = 1e9;

/// Sends all requests and reports what their streams were like.
pub(super) fn run(
    args: &ReplayArgs,
    trace: &[TraceRequest],
    (url, model): (&str, &str),
) -> Result<String, TrialError> {
    let authorization = match &args.real.api_key_env {
        None => None,
        Some(name) => {
            let key = std::env::var(name).map_err(|_| TrialError::Key(name.clone()))?;
            let value = HeaderValue::from_str(&format!("Bearer {key}"));
            Some(value.map_err(|_| TrialError::Key(name.clone()))?)
        }
    };
    let sender = Arc::new(Sender {
        client: crate::tls::http().build()?,
        url: format!("{}/v1/completions", url.trim_end_matches('/')),
        model: model.to_owned(),
        authorization,
        give_up: Duration::from_secs_f64(args.real.give_up.min(WAIT_S_MAX)),
    });
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let load = runtime.block_on(send_all(args, trace, sender));
    Ok(report(&load, args.json))
}

struct Sender {
    client: Client,
    url: String,
    model: String,
    authorization: Option<HeaderValue>,
    give_up: Duration,
}

/// Sends each request at its time, or as soon after it as there is room.
async fn send_all(args: &ReplayArgs, trace: &[TraceRequest], sender: Arc<Sender>) -> Load {
    let places = Arc::new(Semaphore::new(args.real.concurrency as usize));
    let progress = Progress::new(trace.len());
    let mut tasks = JoinSet::new();
    let mut load = Load::default();
    let (start, first_ms) = (Instant::now(), trace.first().map_or(0.0, |request| request.timestamp_ms));
    for request in trace {
        let due_s = (request.timestamp_ms - first_ms) / 1e3 / args.real.speed;
        sleep_until((start + Duration::from_secs_f64(due_s.min(WAIT_S_MAX))).into()).await;
        let late = places.available_permits() == 0;
        // Never closed, so there is always a permit in the end.
        let place = places.clone().acquire_owned().await.ok();
        load.late += usize::from(late);
        let (sender, request) = (sender.clone(), request.clone());
        tasks.spawn(async move {
            let seen = sender.send(&request).await;
            drop(place);
            seen
        });
        while let Some(done) = tasks.try_join_next() {
            load.add(done.unwrap_or_default());
            progress.step();
        }
    }
    while let Some(done) = tasks.join_next().await {
        load.add(done.unwrap_or_default());
        progress.step();
    }
    load.seconds = start.elapsed().as_secs_f64();
    load
}

impl Sender {
    async fn send(&self, request: &TraceRequest) -> StreamMeasurement {
        let mut seen =
            StreamMeasurement { asked_tokens: request.output_tokens, ..StreamMeasurement::default() };
        // Measurements from before the abort are kept.
        match timeout(self.give_up, self.stream(request, &mut seen)).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => seen.failure = Some(why),
            Err(_) => seen.failure = Some("given up".to_owned()),
        }
        seen
    }

    async fn stream(&self, request: &TraceRequest, seen: &mut StreamMeasurement) -> Result<(), String> {
        let body = serde_json::json!({
            "model": self.model,
            "prompt": prompts::text(request),
            "max_tokens": request.output_tokens,
            "ignore_eos": true,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        let mut post = self.client.post(&self.url).json(&body);
        if let Some(value) = &self.authorization {
            post = post.header(AUTHORIZATION, value);
        }
        let start = Instant::now();
        let mut response = post.send().await.map_err(|e| kind(&e))?;
        if !response.status().is_success() {
            return Err(format!("status {}", response.status().as_u16()));
        }
        let mut framer = Framer::new(EVENT_BYTES);
        while let Some(chunk) = response.chunk().await.map_err(|e| kind(&e))? {
            if let Some(frames) = framer.push(chunk) {
                seen.frames(&frames, start.elapsed().as_secs_f64())?;
            }
        }
        if framer.ended() { Ok(()) } else { Err("the stream broke off".to_owned()) }
    }
}

/// A failure in a few words, the same for all of its kind.
fn kind(error: &reqwest::Error) -> String {
    let words = match error {
        e if e.is_connect() => "no connection",
        e if e.is_timeout() => "timed out",
        e if e.is_body() || e.is_decode() => "the answer broke off",
        _ => "the exchange failed",
    };
    words.to_owned()
}
