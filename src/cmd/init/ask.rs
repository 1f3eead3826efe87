//! Questions to the engines and the pool, and what they found.

use std::path::PathBuf;

use futures_util::{StreamExt, stream};
use http::StatusCode;

use super::described::{self, Description};
use super::draft::{Findings, FoundEngine, GivenKey, SeedTrial};
use crate::cmd::check::handoff::AT_ONCE;
use crate::cmd::check::visit::{self, EngineReport, Visit};
use crate::cmd::check::{self, CheckError, Inquiry, Report, engines, members, stored};
use crate::config::{Config, HashScheme, Loaded, Origin, PoolKind, report};
use crate::dialect::Dialect;
use crate::endpoint::Endpoint;
use crate::fleet::Role;
use crate::tokenization::exchange::{authorized, exchange, url};
use crate::tokenization::{Asker, Facts};

/// Largest description of an engine that is read, bytes: it contains the environment's packages.
const DESCRIPTION_BYTES: usize = 1 << 20;
/// Values of PYTHONHASHSEED that are tried; `None` = unset.
const SEEDS: [Option<&str>; 2] = [None, Some("0")];
/// A file of every directory of a model.
const MODEL_FILE: &str = "config.json";

/// Outcome of asking everybody.
pub(super) struct Asked {
    pub(super) findings: Findings,
    /// A line for each engine, with what it said or why it could not be asked.
    pub(super) lines: Vec<String>,
    visits: Vec<Visit>,
}

/// Asks all engines of the configuration.
pub(super) async fn all(loaded: &Loaded) -> Result<Asked, CheckError> {
    let config = &loaded.config;
    let asker = check::asker(config)?;
    let mut report = Report::default();
    let members = members::all(loaded, &mut report).await;
    let visits = visit::all(config, &asker, members).await;
    let mut lines = report.into_texts();
    lines.extend(visits.iter().map(|visit| told(config, visit)));
    let answered = visits.iter().filter_map(|visit| Some((visit, visit.told.as_ref().ok()?)));
    let serves = |facts: &Facts| !engines::is_stranger(facts) && !engines::lists_nothing(facts);
    let questions: Vec<_> = answered.filter(|(_, told)| serves(&told.facts)).collect();
    let engines = stream::iter(questions)
        .map(|(visit, told)| found(&asker, visit, told))
        .buffered(AT_ONCE)
        .collect::<Vec<FoundEngine>>()
        .await;
    let findings = Findings {
        model_dir: model_dir(&engines),
        engines,
        given: given(loaded),
        has_pool: config.pool.kind != PoolKind::Off,
        seed: SeedTrial::NotMade,
    };
    Ok(Asked { findings, lines, visits })
}

impl Asked {
    /// Has a prefiller store a prompt for each seed, where a pool is given and no seed.
    pub(super) async fn try_seeds(&self, known: &Loaded) -> Result<SeedTrial, CheckError> {
        let config = &known.config;
        let is_vllm = matches!(config.hash.scheme, HashScheme::Auto | HashScheme::Vllm);
        let is_given = *known.origins.of("hash.seed") != Origin::Default;
        if config.pool.kind == PoolKind::Off || is_given || !is_vllm {
            return Ok(SeedTrial::NotMade);
        }
        let asker = check::asker(config)?;
        let mut tried = config.clone();
        for seed in SEEDS {
            tried.hash.seed = seed.map(str::to_owned);
            let inquiry = Inquiry::new(&tried).map_err(CheckError::from)?;
            match stored::is_found(&inquiry, &asker, &self.visits).await {
                Some(true) => return Ok(SeedTrial::Found(seed)),
                Some(false) => {}
                None => return Ok(SeedTrial::NotMade),
            }
        }
        Ok(SeedTrial::NoneFits)
    }
}

fn told(config: &Config, visit: &Visit) -> String {
    let who = visit.member.who();
    match &visit.told {
        Ok(told) if engines::is_stranger(&told.facts) => format!("{who} {}", engines::STRANGER),
        Ok(told) if engines::lists_nothing(&told.facts) => {
            format!("{who} answers /v1/models, and lists no model: is an engine behind this port?")
        }
        Ok(told) if engines::wants_key(&told.facts) => {
            format!("{who} wants a key: set engine.api_key, or the variable OPENAI_API_KEY")
        }
        Ok(told) => {
            let fault = engines::health_fault(config, told).map(|fault| format!("; {fault}"));
            format!("{who}: {}{}", engines::described(&told.facts), fault.unwrap_or_default())
        }
        Err(why) => format!("{who} could not be asked: {why}"),
    }
}

/// Asks one engine for its description. Prompts are not sent: an engine whose connector is not
/// known may end by a hand-off of another one.
async fn found(asker: &Asker, visit: &Visit, told: &EngineReport) -> FoundEngine {
    let dialect = told.signs.as_ref().and_then(|signs| signs.verdict()).map(|it| it.dialect);
    FoundEngine {
        role: visit.member.role,
        facts: told.facts.clone(),
        dialect: dialect.map(Dialect::name),
        description: describe(asker, &visit.member.engine).await,
    }
}

/// Most engines do not describe themselves.
async fn describe(asker: &Asker, engine: &Endpoint) -> Option<Description> {
    let call = authorized(asker.client.get(url(engine, described::PATH)), asker.authorization.as_ref());
    let (status, body) = exchange(call, asker.time, DESCRIPTION_BYTES).await.ok()?;
    if status == StatusCode::OK { described::read(&body) } else { None }
}

/// The directory that an engine loaded its model from, if a model is there on this machine, too.
fn model_dir(engines: &[FoundEngine]) -> Option<PathBuf> {
    let models = engines.iter().flat_map(|engine| &engine.facts.models);
    let roots = models.filter(|model| model.parent.is_none()).filter_map(|model| model.root.as_deref());
    let mut roots = roots.map(PathBuf::from).filter(|root| root.is_absolute());
    roots.find(|root| root.join(MODEL_FILE).is_file())
}

/// Keys that were set. Secrets are masked.
fn given(loaded: &Loaded) -> Vec<GivenKey> {
    let rows = loaded.config.rows();
    let set = rows.iter().filter_map(|row| {
        let value = row.value.json();
        let is_engines = [Role::Prefill, Role::Decode].map(members::key).contains(&row.name);
        let origin = match loaded.origins.of(row.name) {
            Origin::Default if is_engines => "default".to_owned(),
            Origin::Default => return None,
            origin => origin.to_string(),
        };
        let is_secret = row.is_secret();
        (!value.is_null()).then(|| GivenKey {
            key: row.name,
            value: report::in_toml(&value),
            origin,
            is_secret,
        })
    });
    set.collect()
}
