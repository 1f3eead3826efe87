//! Conversations, and the template and tokenizer that read them.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::dialect::Api;
use pd_proxy::prompt::{ChatTemplate, Local, PromptSource, TemplateFiles, Today};
use serde_json::{Value, json};

/// Date that a template is given.
pub(crate) const TODAY: Today = Today { year: 2026, month: 3, day: 7 };

fn golden(name: &str) -> Option<String> {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)).ok()
}

/// A chat template.
pub(crate) fn template() -> Option<ChatTemplate> {
    let source = golden("templates/qwen3.jinja")?;
    ChatTemplate::new(TemplateFiles { chat_template: Some(&source), ..Default::default() }).ok()
}

/// A tokenizer of 2 000 tokens.
pub(crate) fn tokenizer() -> Option<Arc<Local>> {
    Local::from_json(&golden("tokenizer.json")?).ok().map(Arc::new)
}

/// Turns of prose that differ by conversation, about `len_bytes` long.
pub(crate) fn messages(len_bytes: usize, conversation: usize) -> Vec<Value> {
    let turn = |at: usize| {
        let words = (0..150)
            .map(|w| format!("word{} of-{}, ", (w * 7919 + at * 104_729 + conversation) % 9973, at * w));
        let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
        json!({"role": role, "content": words.collect::<String>()})
    };
    let one = turn(0).to_string().len();
    (0..(len_bytes / one) | 1).map(turn).collect()
}

/// A chat request.
pub(crate) fn object(messages: &[Value]) -> Option<Object> {
    let body = json!({"model": "m", "messages": messages}).to_string();
    Object::scan(Bytes::from(body), ScanLimits::default()).ok()
}

/// Renders the prompt of a chat request.
pub(crate) fn text(template: &ChatTemplate, body: &Object) -> Option<String> {
    match PromptSource::read(Api::Chat, body).ok()? {
        PromptSource::Messages(chat) => template.render(*chat, TODAY).ok(),
        _ => None,
    }
}
