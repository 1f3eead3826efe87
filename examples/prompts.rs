//! Prints the prompts that a model makes of requests, as token ids.
//!
//! `cargo run --example prompts -- MODEL_PATH [RELEASE [YYYY-MM-DD]] < requests`, where each line
//! is a JSON object: `api` (`chat`, `completions`, `messages`, `responses`) and `body`. RELEASE is
//! the engines', 0.32 or 0.33, which is the default, and the date is that which prompts show. Each
//! line of the output is a list of ids, or an object with the `reason` for which not all are known,
//! and the `first` ones that are. Without arguments it does nothing.

use std::io::{BufRead, BufWriter, Write};

use bytes::Bytes;
use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::config::Config;
use pd_proxy::dialect::Api;
use pd_proxy::naming_config;
use pd_proxy::prompt::{Rules, Today};
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

fn today(text: &str) -> Option<Today> {
    let mut numbers = text.splitn(3, '-');
    let year = numbers.next()?.parse().ok()?;
    let month = numbers.next()?.parse().ok()?;
    Some(Today { year, month, day: numbers.next()?.parse().ok()? })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let Some(folder) = arguments.next() else { return Ok(()) };
    let rules = match arguments.next().as_deref() {
        Some("0.32") => Rules::OF_32,
        None | Some("0.33") => Rules::OF_33,
        Some(other) => return Err(format!("release {other:?}: expected 0.32 or 0.33").into()),
    };
    let today = match arguments.next() {
        Some(text) => Some(today(&text).ok_or(format!("date {text:?}: expected YYYY-MM-DD"))?),
        None => None,
    };
    let mut config = Config::default();
    config.prompt.model_path = Some(folder);
    let loaded = naming_config::prompter(&config, 1)?;
    if let Some(why) = &loaded.without {
        eprintln!("no chats: {why}");
    }
    loaded.prompter.set_rules(rules);
    let mut out = BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let question: Question = serde_json::from_str(&line?)?;
        let body = Bytes::copy_from_slice(question.body.get().as_bytes());
        let answer = match Object::scan(body, ScanLimits::default()) {
            Ok(body) => {
                let prompt = loaded.prompter.prompt(api(&question.api)?, &body, today);
                match prompt.reason() {
                    None => json!(*prompt.tokens),
                    Some(reason) => json!({"reason": reason.name(), "first": *prompt.tokens}),
                }
            }
            Err(why) => json!({"reason": why.to_string()}),
        };
        writeln!(out, "{answer}")?;
    }
    Ok(out.flush()?)
}
