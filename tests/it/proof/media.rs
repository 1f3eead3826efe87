//! Chats with images: exact up to the first one, where engines show that their prompts begin so.

use std::sync::Arc;

use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::dialect::Api;
use pd_proxy::prompt::{Exactness, Prompter};
use pd_proxy::sim::Tokenizing;

use super::*;

/// A token that stands for a part of an image.
const PAD: u32 = 7;
/// Tokens of each prompt with images after its beginning.
const IMAGE_TOKENS: usize = 64;

/// The tokens that an engine makes of a prompt with images, from those before the first; `None`
/// refuses it.
type WithImages = fn(Vec<u32>) -> Option<Vec<u32>>;

/// Engines of a model for images put their tokens in place of what the template writes.
fn in_place(mut tokens: Vec<u32>) -> Option<Vec<u32>> {
    tokens.extend([PAD; IMAGE_TOKENS]);
    Some(tokens)
}

/// Those of others put them in front of the whole prompt (vLLM: BLIP-2, PaliGemma).
fn in_front(tokens: Vec<u32>) -> Option<Vec<u32>> {
    Some([PAD; IMAGE_TOKENS].into_iter().chain(tokens).collect())
}

/// Engines of a model for text answer with status 400.
fn refused(_: Vec<u32>) -> Option<Vec<u32>> {
    None
}

fn spec_of(prompter: Prompter, images: WithImages) -> EngineSpec {
    let tokenize = move |body: &[u8]| {
        let body = Object::scan(body.to_vec().into(), ScanLimits::default()).ok()?;
        let api = if body.contains("messages") { Api::Chat } else { Api::Completions };
        let prompt = prompter.prompt(api, &body, TODAY);
        match prompt.exactness {
            Exactness::Exact => Some(prompt.tokens.to_vec()),
            Exactness::Prefix { .. } => images(prompt.tokens.to_vec()),
            Exactness::Inexact(_) => None,
        }
    };
    EngineSpec { tokenize: Some(Tokenizing(Arc::new(tokenize))), ..fast() }
}

/// A chat with a long system message and an image.
fn chat_with_image() -> String {
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
    json!({
        "model": "sim",
        "messages": [
            {"role": "system", "content": "Describe what is to be seen in one sentence. ".repeat(20)},
            {"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]},
        ],
        "max_tokens": 4,
    })
    .to_string()
}

/// Outcomes of a chat with an image and of one without, and the answer of `/debug/route` to the
/// first.
async fn outcomes(images: WithImages) -> (Vec<(String, f64)>, Value) {
    let dir = model::directory(TEMPLATE);
    let spec = spec_of(model::prompter_of(dir.path()), images);
    let (prefill, decode) = (prefiller(spec).await, decoder().await);
    let (_process, address) = gateway(&prefill, &decode, &local(&dir));
    becomes(address, PROVEN, 1.0).await;
    let raw = client::send(address, &post(CHAT, &chat_with_image())).await;
    assert_eq!(raw.status, 200, "{}", raw.text());
    chat(address).await;
    let counted = prompts(address).await;
    let route = client::send(address, &post("/debug/route", &chat_with_image())).await;
    (counted, serde_json::from_str(&route.text()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_chat_with_an_image_is_known_up_to_it() {
    let (counted, route) = outcomes(in_place).await;
    assert_eq!(counted, counts(&[("exact/none", 1.0), ("prefix/media", 1.0)]));
    let number = |name: &str| route["request"][name].as_u64().unwrap();
    let (exact, blocks) = (number("exact_tokens"), number("blocks"));
    assert!(exact > 150, "{route}");
    assert!(number("prompt_tokens") > exact, "{route}");
    assert_eq!(blocks, exact / number("block_tokens"), "only known blocks are named: {route}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn chats_with_images_are_unknown_where_no_engine_shows_how_they_begin() {
    for images in [in_front as WithImages, refused] {
        let (counted, route) = outcomes(images).await;
        assert_eq!(counted, counts(&[("exact/none", 1.0), ("unknown/media", 1.0)]));
        assert_eq!(route["request"]["exact_tokens"], 0, "{route}");
    }
}
