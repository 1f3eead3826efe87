//! `pd-proxy check` asks the prefillers what they speak, and the configured pool: is it there, is it what the configuration takes
//! it for, and are its keys those that the gateway will ask for. Only questions that leave no trace are put.

mod dialect;
mod engines;
mod files;
mod keys;
mod lmcache;
mod lookup;
mod memcache;
mod mooncake;

use std::fmt;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Client;
use tokio::time::timeout;

use crate::config::{Config, Loaded, PoolKind};
use crate::endpoint::Endpoint;
use crate::kvhash::keys::sample::MAX_SAMPLE_KEYS;
use crate::pool::PoolError;
use crate::pool::mooncake::Admin;
use crate::tls::{self, ClientError};

/// As much of a list of keys is read: some ten thousand.
const LIST_BYTES: usize = 4 << 20;

/// What was found, line by line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    grade: Grade,
    text: String,
}

/// What a line means for the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grade {
    /// As it should be.
    Good,
    /// Worth knowing.
    Note,
    /// The pool will be of no use.
    Bad,
}

/// Some keys of a pool.
struct Keys {
    sample: Vec<String>,
    /// The sample is taken from all of them.
    whole: bool,
}

/// What every question needs.
struct Inquiry<'a> {
    config: &'a Config,
    client: Client,
    /// The longest that one question may take: `timeout.models_ms`.
    limit: Duration,
}

/// Asks the configured pool, and for what names its keys the prefillers that are named. Every question takes
/// `timeout.models_ms` at most.
///
/// # Errors
/// When there is no HTTP client to be had. A pool in trouble is not an error: the report says so.
pub async fn run(loaded: &Loaded) -> Result<Report, ClientError> {
    let config = &loaded.config;
    let mut report = Report::default();
    dialect::ask(loaded, &mut report).await?;
    let limit = Duration::from_millis(config.timeout.models_ms);
    let client = tls::http().connect_timeout(limit).build()?;
    let inquiry = Inquiry { config, client, limit };
    let found = match config.pool.kind {
        PoolKind::Off => return Ok(report),
        PoolKind::Mooncake => mooncake::by_rpc(&inquiry, &mut report).await,
        PoolKind::MooncakeHttp => mooncake::by_http(&inquiry, &mut report).await,
        PoolKind::Memcache => memcache::binary(&inquiry, &mut report).await,
        PoolKind::MemcacheHttp => memcache::by_http(&inquiry, &mut report).await,
        PoolKind::Ucm => files::look(&inquiry, &mut report).await,
        PoolKind::Ems => lookup::ems(&inquiry, &mut report).await,
        PoolKind::LmcacheController | PoolKind::LmcacheCoordinator => {
            lmcache::ask(&inquiry, &mut report).await
        }
    };
    if config.key.preset.is_some() {
        let published = engines::ask(loaded, &mut report).await?;
        keys::compare(config, &published, found.as_ref(), &mut report);
    }
    Ok(report)
}

impl Report {
    /// Whether the pool is there and as the configuration says.
    pub fn good(&self) -> bool {
        self.lines.iter().all(|line| line.grade != Grade::Bad)
    }

    fn say(&mut self, grade: Grade, text: impl Into<String>) {
        self.lines.push(Line { grade, text: text.into() });
    }
}

/// As comments, so that what `check` prints stays a configuration.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            let grade = match line.grade {
                Grade::Good => "ok  ",
                Grade::Note => "note",
                Grade::Bad => "BAD ",
            };
            // What a pool says is shown in one line, whatever it says.
            let text: String = line
                .text
                .chars()
                .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
                .collect();
            writeln!(f, "# {grade} {text}")?;
        }
        Ok(())
    }
}

impl Inquiry<'_> {
    fn addresses(&self) -> Vec<Endpoint> {
        endpoints(&self.config.pool.addresses)
    }

    fn admin(&self, endpoint: &Endpoint) -> Admin {
        Admin { client: self.client.clone(), endpoint: endpoint.clone(), time: self.limit }
    }

    /// The answer within the limit.
    async fn within<T>(&self, question: impl Future<Output = Result<T, PoolError>>) -> Result<T, PoolError> {
        let late = || PoolError::Unreachable(format!("no answer in {} ms", self.limit.as_millis()));
        timeout(self.limit, question).await.unwrap_or_else(|_| Err(late()))
    }

    /// Whether an HTTP server listens there, whatever it serves.
    async fn speaks_http(&self, endpoint: &Endpoint) -> bool {
        !matches!(self.admin(endpoint).health().await, Err(PoolError::Unreachable(_)))
    }

    /// The keys that the first of these HTTP ports lists.
    async fn list(&self, ports: &[Endpoint], key: &str, report: &mut Report) -> Option<Keys> {
        for port in ports {
            match self.admin(port).sample_keys(MAX_SAMPLE_KEYS, LIST_BYTES).await {
                Ok(found) => {
                    let more = if found.more { "more than " } else { "" };
                    let some: Vec<&str> = found.keys.iter().take(2).map(String::as_str).collect();
                    let such = if some.is_empty() {
                        String::new()
                    } else {
                        format!(", such as {}", some.join(" and "))
                    };
                    report.say(
                        Grade::Good,
                        format!("{port} ({key}) lists {more}{}{such}", counted(found.seen, "key")),
                    );
                    return Some(Keys { sample: found.keys, whole: !found.more });
                }
                Err(why) => report.say(Grade::Note, format!("{port} ({key}) does not list its keys: {why}")),
            }
        }
        None
    }
}

/// `1 key`, `2 keys`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Entries that are no endpoint, which a loaded configuration cannot hold, are left out.
fn endpoints(texts: &[String]) -> Vec<Endpoint> {
    texts.iter().filter_map(|text| Endpoint::parse(text).ok()).collect()
}

/// Asks all at once; answers in the order of the questions.
async fn all<T, F: Future<Output = T>>(of: &[Endpoint], ask: impl Fn(Endpoint) -> F) -> Vec<(Endpoint, T)> {
    let answers = join_all(of.iter().cloned().map(ask)).await;
    of.iter().cloned().zip(answers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_good_until_one_line_is_not_and_every_line_is_a_comment() {
        let mut report = Report::default();
        assert!(report.good() && report.to_string().is_empty());
        report.say(Grade::Note, "a key\nwith a line break");
        assert!(report.good());
        report.say(Grade::Bad, "nobody there");
        assert!(!report.good());
        let text = report.to_string();
        assert_eq!(text, "# note a key\u{fffd}with a line break\n# BAD  nobody there\n");
    }
}
