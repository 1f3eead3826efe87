//! The demo's own load: a few clients with conversations, so that page, metrics and board have
//! something to show.

use std::time::Duration;

use reqwest::Client;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::tls::{self, ClientError};
use crate::util::rng;

/// Clients that ask at the same time, which bounds the load: each has one request under way.
const CLIENTS: u64 = 6;
/// Turns of a conversation before a client begins another one.
const TURNS: u64 = 5;
/// Pause of a client between an answer and its next question, in ms: least and most.
const THINK_MS: [u64; 2] = [300, 2_000];
/// Tokens of an answer: least and most.
const ANSWER_TOKENS: [u64; 2] = [8, 96];
/// Words of a question: least and most. With the system prompt some hundred tokens.
const QUESTION_WORDS: [u64; 2] = [8, 120];
/// One request in so many is left by its client before its end, and as many name no such model.
const ODD_ONE_IN: u64 = 40;
/// Longest time for one request. Answers of the demo's engines take some seconds.
const REQUEST_TIME: Duration = Duration::from_secs(60);

/// Words of questions; a conversation begins with others each time.
const WORDS: [&str; 16] = [
    "cache", "block", "prefix", "decode", "token", "queue", "engine", "batch", "layer", "lease", "pool",
    "route", "hash", "prompt", "answer", "tier",
];
/// Text with which all conversations begin, as those of one application do.
const SYSTEM: &str = "You are the assistant of a team that runs language models. Answer in few words, name numbers with their \
     units, and say when you do not know. The team has two prefillers, two decoders and one pool of blocks.";

/// Starts the clients. They ask until the set is dropped.
///
/// # Errors
/// [`ClientError`] if there can be no HTTP client.
pub(super) fn start(gateway: &str) -> Result<JoinSet<()>, ClientError> {
    let client = tls::http().timeout(REQUEST_TIME).build()?;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(converse(client.clone(), format!("{gateway}/v1/chat/completions")));
    }
    Ok(clients)
}

/// Holds one conversation after another.
async fn converse(client: Client, url: String) {
    loop {
        let mut messages = vec![json!({"role": "system", "content": SYSTEM})];
        for _ in 0..TURNS {
            tokio::time::sleep(Duration::from_millis(between(THINK_MS))).await;
            messages.push(json!({"role": "user", "content": question()}));
            ask(&client, &url, &messages).await;
            messages.push(json!({"role": "assistant", "content": "Noted."}));
        }
    }
}

/// Asks, and reads the answer or leaves. What becomes of it the gateway's own signals show.
async fn ask(client: &Client, url: &str, messages: &[Value]) {
    let is_odd = rng::random().is_multiple_of(ODD_ONE_IN);
    let leaves = rng::random().is_multiple_of(ODD_ONE_IN);
    let body = json!({
        "model": if is_odd { "no-such-model" } else { "sim" },
        "messages": messages,
        "max_tokens": between(ANSWER_TOKENS),
        "stream": !rng::random().is_multiple_of(4),
    });
    let Ok(mut answer) = client.post(url).json(&body).send().await else { return };
    while let Ok(Some(_)) = answer.chunk().await {
        if leaves {
            return;
        }
    }
}

fn question() -> String {
    let words = (0..between(QUESTION_WORDS)).map(|_| {
        let at = usize::try_from(rng::random()).unwrap_or(0) % WORDS.len();
        WORDS.get(at).copied().unwrap_or_default()
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A random number from the least to the most.
fn between([least, most]: [u64; 2]) -> u64 {
    least + rng::random() % (most - least + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_bounds() {
        let many: Vec<u64> = (0..10_000).map(|_| between(ANSWER_TOKENS)).collect();
        assert_eq!((many.iter().min(), many.iter().max()), (Some(&8), Some(&96)));
        let words = (0..1_000).map(|_| question().split(' ').count() as u64);
        assert!(words.into_iter().all(|count| (8..=120).contains(&count)));
    }
}
