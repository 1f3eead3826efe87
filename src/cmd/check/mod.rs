//! `pd-proxy check` asks the engines and the configured pool: are they there, are they what the
//! configuration takes them for, are our tokens the engines', do prefillers hand over what they
//! compute, and are the pool's keys those that the gateway will ask for. The questions leave no
//! trace but one: where there is a pool, each prefiller computes a short prompt, which stays in the
//! pool until it is evicted. What a prefiller hands over is fetched at once.

mod dialect;
pub(super) mod engines;
mod files;
mod generate;
pub(super) mod handoff;
pub mod here;
mod keys;
mod lmcache;
mod lookup;
pub(super) mod members;
mod memcache;
mod mooncake;
mod parity;
mod releases;
mod replacement;
mod share;
pub(super) mod stored;
mod tokens;
pub(super) mod visit;
mod words;

use std::fmt;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Client;
use tokio::time::timeout;

use crate::config::hidden_characters::{is_hidden, is_joiner};
use crate::config::{Config, Loaded, PoolKind};
use crate::endpoint::Endpoint;
use crate::kvhash::keys::sample::MAX_SAMPLE_KEYS;
use crate::naming_config::{FilesError, Published};
use crate::pool::PoolError;
use crate::pool::listing::LIST_BYTES;
use crate::pool::mooncake::Admin;
use crate::tls::{self, ClientError};
use crate::tokenization::Asker;

/// Findings of `pd-proxy check`, line by line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    grade: Grade,
    text: String,
}

/// Severity of a line, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Grade {
    /// Not as the configuration says.
    Bad,
    /// It may do harm, or may not.
    Warn,
    /// Worth knowing, and no fault.
    Note,
    /// As it should be.
    Good,
}

/// Some keys of a pool.
struct Keys {
    sample: Vec<String>,
    /// The sample is taken from all of them.
    whole: bool,
}

/// Clients and limits that every question needs.
pub(super) struct Inquiry<'a> {
    config: &'a Config,
    client: Client,
    /// The longest that one question may take: `timeout.models_ms`.
    limit: Duration,
}

/// Reasons for which no engine was asked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The HTTP client.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The model's files.
    #[error(transparent)]
    Files(#[from] FilesError),
}

/// Does [`run`] for each fleet, one after the other. Where there are several, lines begin with the
/// name of theirs; a line of all is told once.
///
/// # Errors
/// Those of [`run`].
pub async fn run_all(loaded: &Loaded, stores: bool) -> Result<Report, CheckError> {
    let fleets = loaded.fleets();
    let mut reports = Vec::new();
    for fleet in &fleets {
        reports.push(run(&fleet.loaded, stores).await?);
    }
    let mut whole = Report::default();
    let is_of_all = |line: &Line| reports.iter().all(|report| report.lines.contains(line));
    for (fleet, report) in fleets.iter().zip(&reports) {
        for line in &report.lines {
            match is_of_all(line) {
                true if whole.lines.contains(line) => {}
                true => whole.lines.push(line.clone()),
                false => whole.say(line.grade, format!("{}: {}", fleet.name, line.text)),
            }
        }
    }
    Ok(whole)
}

/// Looks at this machine, opens the model's files, and asks all engines and the configured pool.
/// Every question takes `timeout.models_ms` at most; all engines are asked at once. With `stores`
/// prefillers store a prompt in the pool.
///
/// # Errors
/// Faults that keep a gateway from starting. Engines and a pool in trouble are not errors: the
/// report says so.
pub async fn run(loaded: &Loaded, stores: bool) -> Result<Report, CheckError> {
    let config = &loaded.config;
    let tokenizer = tokens::choose(config)?;
    let inquiry = Inquiry::new(config)?;
    let mut report = Report::default();
    here::look(config, &mut report);
    replacement::look(&config.server, &mut report);
    share::ask(config, &mut report).await;
    if config.fleet.remote.is_some() {
        report.say(Grade::Note, "fleet.remote is an API elsewhere: it is not asked, as an answer may cost");
        return Ok(report);
    }
    let published = ask_engines(&inquiry, loaded, tokenizer, stores, &mut report).await?;
    // After the engines: what they have just stored is among the keys.
    let mut of_pool = Report::default();
    let found = ask_pool(&inquiry, &mut of_pool).await;
    report.append(of_pool);
    if config.pool.kind == PoolKind::Off || config.key.preset.is_none() {
        engines::naming(config, &published, &mut report);
    } else {
        keys::compare(config, &published, found.as_ref(), &mut report);
    }
    Ok(report)
}

/// Findings in the configuration alone: that it is valid, what is likely not meant, settings that
/// are experimental. No engine has to be asked for that.
pub fn configuration(loaded: &Loaded) -> Report {
    let mut report = Report::default();
    report.say(Grade::Good, "the configuration is valid (--show prints it)");
    loaded.warnings.iter().for_each(|text| report.say(Grade::Warn, text.as_str()));
    loaded.config.experimental_in_fleets().into_iter().for_each(|text| report.say(Grade::Note, text));
    report
}

/// Asks the engines, and returns the facts that the prefillers publish.
async fn ask_engines(
    inquiry: &Inquiry<'_>,
    loaded: &Loaded,
    tokenizer: Option<tokens::Tokenizer>,
    stores: bool,
    report: &mut Report,
) -> Result<Vec<Published>, ClientError> {
    let config = &loaded.config;
    let asker = asker(config)?;
    let members = members::all(loaded, report).await;
    let visits = visit::all(config, &asker, members).await;
    engines::judge(config, &visits, report);
    dialect::tell(config, &visits, report);
    handoff::ask(config, &asker, &visits, report).await;
    generate::ask(config, &asker, &visits, report).await;
    if stores {
        stored::ask(inquiry, &asker, &visits, report).await;
    }
    if let Some(tokenizer) = tokenizer {
        tokens::ask(&tokens::Asking { config, asker: &asker, visits: &visits }, tokenizer, report).await;
    }
    Ok(engines::published(&visits))
}

/// A client for questions to engines, each of which takes `timeout.models_ms` at most.
pub(super) fn asker(config: &Config) -> Result<Asker, ClientError> {
    let asker = crate::cmd::keys::asker(config)?;
    Ok(Asker { time: Duration::from_millis(config.timeout.models_ms), ..asker })
}

async fn ask_pool(inquiry: &Inquiry<'_>, report: &mut Report) -> Option<Keys> {
    match inquiry.config.pool.kind {
        PoolKind::Off => None,
        PoolKind::Mooncake => mooncake::by_rpc(inquiry, report).await,
        PoolKind::MooncakeHttp => mooncake::by_http(inquiry, report).await,
        PoolKind::Memcache => memcache::binary(inquiry, report).await,
        PoolKind::MemcacheHttp => memcache::by_http(inquiry, report).await,
        PoolKind::Ucm => files::look(inquiry, report).await,
        PoolKind::Ems => lookup::ems(inquiry, report).await,
        PoolKind::LmcacheController | PoolKind::LmcacheCoordinator => lmcache::ask(inquiry, report).await,
    }
}

impl Report {
    /// True if engines and pool are there and as the configuration says.
    pub fn good(&self) -> bool {
        self.lines.iter().all(|line| line.grade != Grade::Bad)
    }

    /// Adds the lines of another report.
    pub fn append(&mut self, mut other: Report) {
        self.lines.append(&mut other.lines);
    }

    /// The texts of its lines, in the order in which they were added.
    pub(super) fn into_texts(self) -> Vec<String> {
        self.lines.into_iter().map(|line| line.text).collect()
    }

    fn say(&mut self, grade: Grade, text: impl Into<String>) {
        self.lines.push(Line { grade, text: text.into() });
    }
}

/// The worst lines first. As comments, so that what `check --show` prints is a configuration.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines: Vec<&Line> = self.lines.iter().collect();
        // Lines of one grade keep their order.
        lines.sort_by_key(|line| line.grade);
        for line in lines {
            let grade = match line.grade {
                Grade::Good => "ok  ",
                Grade::Note => "note",
                Grade::Warn => "warn",
                Grade::Bad => "BAD ",
            };
            // A pool's text is shown in one line, whatever it contains.
            writeln!(f, "# {grade} {}", in_one_line(&line.text))?;
        }
        Ok(())
    }
}

impl<'a> Inquiry<'a> {
    /// For this configuration.
    pub(super) fn new(config: &'a Config) -> Result<Inquiry<'a>, ClientError> {
        let limit = Duration::from_millis(config.timeout.models_ms);
        let client = tls::http().connect_timeout(limit).build()?;
        Ok(Inquiry { config, client, limit })
    }

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

    /// True if an HTTP server listens there, whatever it serves.
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

/// A text whose hidden characters are replaced, so that it can't end the line that it stands in,
/// nor have the rest of it shown in another order. Joiners of letters and emoji stay.
pub(super) fn in_one_line(text: &str) -> String {
    text.replace(|c| is_hidden(c) && !is_joiner(c), "\u{fffd}")
}

/// A count with its noun, as `1 key` or `2 keys`.
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
        assert_eq!(text, "# BAD  nobody there\n# note a key\u{fffd}with a line break\n", "the worst first");
    }

    #[test]
    fn text_of_a_stranger_has_no_control_and_no_order_of_its_own() {
        for c in ['\u{1b}', '\u{85}', '\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}', '\u{200f}', '\u{61c}'] {
            assert_eq!(in_one_line(&format!("0.32{c}.0")), "0.32\u{fffd}.0", "{}", c.escape_unicode());
        }
        // A joiner of emoji and letters of any script are shown.
        assert_eq!(in_one_line("模型 نموذج 👩\u{200d}💻"), "模型 نموذج 👩\u{200d}💻");
    }
}
