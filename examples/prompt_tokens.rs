//! Prints the token ids of the prompts of chat requests, by the files of a model's directory.
//!
//! `cargo run --example prompt_tokens -- MODEL_PATH RELEASE YYYY-MM-DD < bodies`, where each line is
//! the body of a request to `/v1/chat/completions`. RELEASE is the engines', 0.32 or 0.33, and the
//! date is that which their prompts show. Each line of the output is a list of ids, or an object
//! with `unknown`, the reason why they are not known.

use std::io::{BufRead, BufWriter, Write};

use bytes::Bytes;
use pd_proxy::codec::json::{Object, ScanLimits};
use pd_proxy::config::Config;
use pd_proxy::dialect::Api;
use pd_proxy::naming_config::prompter;
use pd_proxy::prompt::{Rules, Today};
use serde_json::json;

const USAGE: &str = "usage: prompt_tokens MODEL_PATH 0.32|0.33 YYYY-MM-DD < bodies";

fn today(text: &str) -> Option<Today> {
    let mut numbers = text.splitn(3, '-');
    let year = numbers.next()?.parse().ok()?;
    let month = numbers.next()?.parse().ok()?;
    Some(Today { year, month, day: numbers.next()?.parse().ok()? })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, release, date] = arguments.as_slice() else { return Err(USAGE.into()) };
    let rules = match release.as_str() {
        "0.32" => Rules::OF_32,
        "0.33" => Rules::OF_33,
        _ => return Err(USAGE.into()),
    };
    let today = today(date).ok_or(USAGE)?;
    let mut config = Config::default();
    config.prompt.model_path = Some(folder.clone());
    let prompter = prompter(&config, 0)?.prompter;
    let mut out = BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let answer = match Object::scan(Bytes::from(line?), ScanLimits::default()) {
            Err(error) => json!({ "unknown": error.to_string() }),
            Ok(body) => {
                let prompt = prompter.prompt_under(rules, Api::Chat, &body, Some(today));
                match prompt.reason() {
                    None => json!(*prompt.tokens),
                    Some(reason) => json!({ "unknown": reason.name() }),
                }
            }
        };
        writeln!(out, "{answer}")?;
    }
    Ok(out.flush()?)
}
