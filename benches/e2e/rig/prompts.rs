//! Requests, no two of them with a common beginning, so that no prefix cache helps.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

/// Tokens of an answer that is not streamed.
pub(crate) const WHOLE_TOKENS: u64 = 16;
/// Text that prompts are filled with.
const WORDS: &str = "the quick brown fox jumps over the lazy dog and then it sleeps ";

/// Target of requests, and their common settings.
#[derive(Debug)]
pub(crate) struct Aim {
    /// Address of the proxy.
    pub(crate) to: SocketAddr,
    /// Model that requests name.
    model: String,
    next: AtomicU64,
}

impl Aim {
    /// Builds requests to `to` for `model`.
    pub(crate) fn new(to: SocketAddr, model: &str) -> Aim {
        // Another run must not ask the same of a proxy that is still there.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let next = AtomicU64::new(u64::try_from(since.as_nanos()).unwrap_or_default());
        Aim { to, model: model.to_owned(), next }
    }

    /// Builds a completion request that is not streamed, with a prompt of `prompt_bytes` bytes.
    pub(crate) fn whole(&self, prompt_bytes: usize) -> Vec<u8> {
        let prompt = self.prompt(prompt_bytes);
        let body =
            json!({"model": self.model, "prompt": prompt, "max_tokens": WHOLE_TOKENS, "ignore_eos": true});
        self.request("/v1/completions", &body.to_string())
    }

    /// Builds a streamed chat request, with a prompt of `prompt_bytes` bytes and an answer of
    /// `tokens` tokens.
    pub(crate) fn stream(&self, prompt_bytes: usize, tokens: u64) -> Vec<u8> {
        let messages = json!([{"role": "user", "content": self.prompt(prompt_bytes)}]);
        let body = json!({"model": self.model, "messages": messages, "max_tokens": tokens, "stream": true,
            "ignore_eos": true});
        self.request("/v1/chat/completions", &body.to_string())
    }

    fn request(&self, path: &str, body: &str) -> Vec<u8> {
        let (host, length) = (self.to, body.len());
        format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }

    fn prompt(&self, bytes: usize) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut text = format!("{number:016x} ");
        while text.len() < bytes {
            let left = bytes - text.len();
            text.push_str(WORDS.get(..left.min(WORDS.len())).unwrap_or_default());
        }
        text
    }
}
