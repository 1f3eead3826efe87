//! Prints the prompts that a model makes of requests, as token ids.
//!
//! `cargo run --example prompts -- MODEL_PATH < requests`, where each line is a JSON object: `api`
//! (`chat`, `completions`, `messages`, `responses`) and `body`. Each line of the output is a list of
//! ids, or an object with the `reason` for which they are not known. Engines are taken to be vLLM
//! 0.33. Without arguments it does nothing.

use std::io::{BufRead, BufWriter, Write};

use bytes::Bytes;
use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::config::Config;
use pd_proxy::dialect::Api;
use pd_proxy::naming_config;
use pd_proxy::prompt::{Exactness, Rules};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

/// A line of the input.
#[derive(Deserialize)]
struct Question {
    api: String,
    body: Box<RawValue>,
}

fn api(name: &str) -> Result<Api, String> {
    match name {
        "chat" => Ok(Api::Chat),
        "completions" => Ok(Api::Completions),
        "messages" => Ok(Api::Messages),
        "responses" => Ok(Api::Responses),
        _ => Err(format!("api {name:?}: expected chat, completions, messages or responses")),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(folder) = std::env::args().nth(1) else { return Ok(()) };
    let mut config = Config::default();
    config.prompt.model_path = Some(folder);
    let loaded = naming_config::prompter(&config, 1)?;
    if let Some(why) = &loaded.without {
        eprintln!("no chats: {why}");
    }
    loaded.prompter.set_rules(Rules::OF_33);
    let mut out = BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let question: Question = serde_json::from_str(&line?)?;
        let body = Bytes::copy_from_slice(question.body.get().as_bytes());
        let answer = match Object::scan(body, ScanLimits::default()) {
            Ok(body) => {
                let prompt = loaded.prompter.prompt(api(&question.api)?, &body, None);
                match prompt.exactness {
                    Exactness::Exact => json!(prompt.tokens),
                    Exactness::Inexact(reason) => json!({"reason": reason.name()}),
                }
            }
            Err(why) => json!({"reason": why.to_string()}),
        };
        writeln!(out, "{answer}")?;
    }
    Ok(out.flush()?)
}
