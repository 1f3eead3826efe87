//! Reads rank files and `tekken.json`, and tokenises text with what is read: the bytes that ids
//! stand for are the text's.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use pd_proxy::prompt::{KimiFiles, RankTokenizer, Tokenize, kimi, qwen};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const CONFIG: &str = r#"{"added_tokens_decoder": {"300": {"content": "<|im_end|>"}}}"#;

fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let bits =
            part.iter().chain([0, 0].iter()).take(3).fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        for digit in 0..4 {
            let known = digit <= part.len();
            text.push(if known {
                char::from(ALPHABET[(bits >> (18 - 6 * digit) & 63) as usize])
            } else {
                '='
            });
        }
    }
    text
}

/// The bytes of every id that a tokenizer may give.
type Known = BTreeMap<u32, Vec<u8>>;

fn check(tokenizer: &RankTokenizer, known: &Known, text: &str) {
    let mut ids = Vec::new();
    if tokenizer.encode_plain_into(text, &mut ids).is_ok() {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| &known[id]).copied().collect();
        assert_eq!(bytes, text.as_bytes());
    }
    let mut ids = Vec::new();
    if tokenizer.encode_into(text, true, &mut ids).is_ok() {
        assert!(ids.len() <= text.len() + 1);
    }
}

// The first byte says how many tokens follow, each with its length in front. The rest is the text,
// and is read as a file, too.
fuzz_target!(|input: &[u8]| {
    let Some((&count, mut rest)) = input.split_first() else { return };
    let mut tokens: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    for _ in 0..count {
        let Some((&len, more)) = rest.split_first() else { break };
        let (token, more) = more.split_at(usize::from(len).min(more.len()));
        if token.len() > 1 && !tokens.iter().any(|known| known == token) {
            tokens.push(token.to_vec());
        }
        rest = more;
    }
    let known: Known = tokens.iter().enumerate().map(|(id, token)| (id as u32, token.clone())).collect();
    let file: String =
        tokens.iter().enumerate().map(|(rank, token)| format!("{} {rank}\n", base64(token))).collect();
    let text = String::from_utf8_lossy(rest);
    for damaged in [rest.to_vec(), [file.as_bytes(), rest].concat()] {
        let _ = kimi(KimiFiles { ranks: &damaged, config: CONFIG, class: None });
        let _ = kimi(KimiFiles { ranks: file.as_bytes(), config: &text, class: Some(&text) });
        let _ = qwen(&damaged);
        let _ = RankTokenizer::from_tekken(&text);
    }
    let tokenizer = kimi(KimiFiles { ranks: file.as_bytes(), config: CONFIG, class: None }).unwrap();
    check(&tokenizer, &known, &text);
    let entries = tokens.iter().enumerate().map(
        |(rank, token)| serde_json::json!({"rank": rank, "token_bytes": base64(token), "token_str": null}),
    );
    let tekken = serde_json::json!({
        "config": {"pattern": r"\p{L}+|\s+(?!\S)|\s+|[^\s\p{L}]+", "default_vocab_size": tokens.len() + 3, "default_num_special_tokens": 3},
        "vocab": entries.collect::<Vec<_>>(),
        "special_tokens": [],
    });
    let tokenizer = RankTokenizer::from_tekken(&tekken.to_string()).unwrap();
    let known = known.into_iter().map(|(id, token)| (id + 3, token)).collect();
    check(&tokenizer, &known, &text);
});
