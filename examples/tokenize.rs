//! Prints the token ids of texts by the tokenizer of a model's directory.
//!
//! `cargo run --example tokenize -- MODEL_PATH < texts`, where each line is a JSON object: `text`,
//! `special` (begin of sequence and the like are added), `plain` (special tokens in the text are
//! text). Each line of the output is a list of ids, or an object with `error`. Without arguments it
//! tokenises two texts with a small tokenizer of its own.

use std::io::{BufRead, BufWriter, Write};
use std::path::Path;

use pd_proxy::naming_config::load_tokenizer;
use pd_proxy::prompt::{Local, Tokenize, TokenizerError};
use serde::Deserialize;
use serde_json::json;

/// A line of the input.
#[derive(Deserialize)]
struct Question {
    text: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    plain: bool,
}

const SMALL: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
  "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": false},
  "post_processor": null, "decoder": null,
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
    "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": {"a": 0, "b": 1, "ab": 2, " ": 3}, "merges": [["a", "b"]]}}"#;

fn ids(tokenizer: &dyn Tokenize, question: &Question) -> Result<Vec<u32>, TokenizerError> {
    let mut ids = Vec::new();
    match question.plain {
        true => tokenizer.encode_plain_into(&question.text, &mut ids)?,
        false => tokenizer.encode_into(&question.text, question.special, &mut ids)?,
    }
    Ok(ids)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(folder) = std::env::args().nth(1) else {
        let small = Local::from_json(SMALL)?;
        for text in ["ab ba", "abab"] {
            let question = Question { text: text.to_owned(), special: false, plain: false };
            println!("{:?}", ids(&small, &question)?);
        }
        return Ok(());
    };
    let loaded = load_tokenizer(Path::new(&folder))?;
    eprintln!("{}: {}", loaded.form.name(), loaded.path.display());
    let mut out = BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let question: Question = serde_json::from_str(&line?)?;
        let answer = match ids(&*loaded.tokenizer, &question) {
            Ok(ids) => json!(ids),
            Err(error) => json!({"error": error.to_string()}),
        };
        writeln!(out, "{answer}")?;
    }
    Ok(out.flush()?)
}
