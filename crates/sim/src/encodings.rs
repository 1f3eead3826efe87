//! Embeddings of images, sounds and films that encoders keep for prefillers: vLLM's `ec_connector`,
//! as far as a gateway can tell.
//!
//! An item is known by a hash of what vLLM 0.32 makes its hash of. An encoder keeps those of a
//! request when it answers, and says so in `ec_transfer_params`; a prefiller fetches what it is
//! told of and what is there, and computes the rest, or refuses if it has no encoder of its own.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use super::fail::ApiFailure;
use super::hub::lock;
use super::text;

/// An engine's part in encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It computes and keeps them.
    Encodes,
    /// It fetches them before it computes a prompt, or computes them itself.
    Fetches,
    /// It fetches them, and can't do without.
    OnlyFetches,
}

/// The embeddings that are kept, and counts of computed and fetched ones.
#[derive(Debug, Default)]
pub struct Encodings {
    kept: Mutex<HashSet<String>>,
    encoded: AtomicU64,
    fetched: AtomicU64,
    computed: AtomicU64,
}

impl Encodings {
    /// Items that encoders encoded.
    pub fn encoded(&self) -> u64 {
        self.encoded.load(Ordering::Relaxed)
    }

    /// Items that prefillers found.
    pub fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }

    /// Items that prefillers computed themselves.
    pub fn computed(&self) -> u64 {
        self.computed.load(Ordering::Relaxed)
    }

    /// An encoder has answered a request: what it says of its items, null where there are none.
    pub fn keep(&self, body: &Value) -> Value {
        let mut said = Map::new();
        for hash in hashes(body) {
            self.encoded.fetch_add(1, Ordering::Relaxed);
            said.insert(hash.clone(), json!({"item_indices": [said.len()], "metadata": {}}));
            lock(&self.kept).insert(hash);
        }
        if said.is_empty() { Value::Null } else { Value::Object(said) }
    }

    /// A prefiller begins with a request.
    pub fn fetch(&self, part: Part, body: &Value) -> Result<(), ApiFailure> {
        let told = |hash: &str| body.get("ec_transfer_params").is_some_and(|told| told.get(hash).is_some());
        for hash in hashes(body) {
            if told(&hash) && lock(&self.kept).contains(&hash) {
                self.fetched.fetch_add(1, Ordering::Relaxed);
            } else if part == Part::OnlyFetches {
                return Err(ApiFailure::internal());
            } else {
                self.computed.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// The hash of each item of a chat.
fn hashes(body: &Value) -> Vec<String> {
    let messages = body.get("messages").and_then(Value::as_array).into_iter().flatten();
    let parts = messages.filter_map(|message| message.get("content")?.as_array()).flatten();
    let items = parts.filter(|part| {
        let kind = part.get("type").and_then(Value::as_str);
        matches!(kind, Some("image_url" | "audio_url" | "input_audio" | "video_url" | "image"))
    });
    let beside = ["model", "mm_processor_kwargs", "media_io_kwargs"].map(|key| body.get(key));
    let hash = |item: &Value| format!("{:016x}", text::string_print(&format!("{item}{beside:?}")));
    items.map(hash).collect()
}
