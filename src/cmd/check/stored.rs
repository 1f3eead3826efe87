//! Has each prefiller store a short prompt, and looks it up in the pool by its own names: keys may
//! be spelled as ours and still be of other hashes.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::handoff::{AT_ONCE, HandoffAnswer, Question};
use super::visit::{EngineReport, Visit, answered};
use super::{Grade, Inquiry, Report, engines};
use crate::app::{pool, settings};
use crate::config::{Config, DialectName, PoolKind};
use crate::endpoint::Endpoint;
use crate::fleet::Role;
use crate::kvhash::keys::{Ask, KeyBatch, PromptBlocks};
use crate::naming_config;
use crate::pool::{self as pools, Gate};
use crate::tokenization::{Asker, BlockNaming};

/// Token ids that every model has, and that stand for text.
const TOKEN_IDS: std::ops::Range<u32> = 300..940;
/// The longest prompt: of models with larger blocks nothing is stored here.
const MOST_TOKENS: usize = 16 << 10;
/// The longest that a prompt may take on its way into the pool.
const STORED_TIME: Duration = Duration::from_secs(3);
/// Pause between two lookups.
const PAUSE: Duration = Duration::from_millis(100);

/// Outcome for one prefiller.
enum Stored {
    Found,
    /// The pool has some keys of its blocks, and of no block all.
    InPart,
    /// The pool has answered, and had nothing of it.
    Missing,
    /// The prompt was not computed, or the pool did not answer.
    Unknown(&'static str),
}

/// Asks the prefillers that answered, where a pool can be asked for their blocks by name.
pub(super) async fn ask(inquiry: &Inquiry<'_>, asker: &Asker, visits: &[Visit], report: &mut Report) {
    let Some(means) = Means::new(inquiry, visits) else { return };
    let visitor = means.visitor(inquiry.config, asker, visits);
    let all: Vec<_> = answered(visits, Role::Prefill).collect();
    let ends: Vec<(&Endpoint, Stored)> = stream::iter(all)
        .map(|(engine, told)| async move { (engine, visitor.store(engine, told).await) })
        .buffered(AT_ONCE)
        .collect()
        .await;
    let listed = match pool::listing(inquiry.config, &inquiry.client) {
        Some(listing) => listing.sample().await.map(|sample| sample.seen),
        None => None,
    };
    for (engine, end) in ends {
        let (grade, text) = judge(&end, listed);
        report.say(grade, format!("prefiller {engine}: {text}"));
    }
}

/// Has the first prefiller that answered store a prompt: true if it is found in the pool by our
/// names, false if the pool has nothing of it or only a part; `None` if that can't be known.
pub(in crate::cmd) async fn is_found(inquiry: &Inquiry<'_>, asker: &Asker, visits: &[Visit]) -> Option<bool> {
    let means = Means::new(inquiry, visits)?;
    let (engine, told) = answered(visits, Role::Prefill).next()?;
    match means.visitor(inquiry.config, asker, visits).store(engine, told).await {
        Stored::Found => Some(true),
        Stored::InPart | Stored::Missing => Some(false),
        Stored::Unknown(_) => None,
    }
}

fn judge(end: &Stored, listed: Option<usize>) -> (Grade, String) {
    match (end, listed) {
        (Stored::Found, _) => (Grade::Good, "what it stores is found in the pool by our names".to_owned()),
        (Stored::Missing, Some(0)) => (
            Grade::Warn,
            "it computed a prompt, and the pool is empty all the same: does its connector store (kv_role), and there?"
                .to_owned(),
        ),
        (Stored::Missing, _) => (
            Grade::Bad,
            "it stored a prompt that is not found in the pool by our names. Where no other line names a field of the keys, the hashes \
             differ: most likely hash.seed is not its PYTHONHASHSEED; else hash.algo"
                .to_owned(),
        ),
        (Stored::InPart, _) => (
            Grade::Bad,
            "of the blocks that it stored the pool has some of the keys that will be asked for, and of none all: key.tp, key.kv_heads, \
             key.pp or key.layers are larger than its own"
                .to_owned(),
        ),
        (Stored::Unknown(why), _) => (Grade::Note, format!("whether what it stores is found is not known: {why}")),
    }
}

/// Names of blocks, and the way to the pool.
struct Means {
    naming: BlockNaming,
    gate: Gate,
}

impl Means {
    /// `None` where there is no pool, no prefiller that answered, or no names: what is wrong with
    /// those is told where keys are compared.
    fn new(inquiry: &Inquiry<'_>, visits: &[Visit]) -> Option<Means> {
        let config = inquiry.config;
        if config.pool.kind == PoolKind::Off {
            return None;
        }
        let naming = naming_config::naming(config, &engines::published(visits)).ok()?;
        answered(visits, Role::Prefill).next()?;
        let mut patient = config.clone();
        patient.pool.deadline_ms = u64::try_from(inquiry.limit.as_millis()).unwrap_or(u64::MAX);
        let gate = pool::gate(&patient, &inquiry.client).ok().flatten()?;
        Some(Means { naming, gate })
    }

    fn visitor<'a>(&'a self, config: &'a Config, asker: &'a Asker, visits: &'a [Visit]) -> Visitor<'a> {
        let decoder = answered(visits, Role::Decode).next().map(|(engine, _)| engine);
        Visitor { config, asker, naming: &self.naming, gate: &self.gate, decoder }
    }
}

/// Parts that each question needs.
#[derive(Clone, Copy)]
struct Visitor<'a> {
    config: &'a Config,
    asker: &'a Asker,
    naming: &'a BlockNaming,
    gate: &'a Gate,
    decoder: Option<&'a Endpoint>,
}

impl Visitor<'_> {
    async fn store(&self, engine: &Endpoint, told: &EngineReport) -> Stored {
        let sign = told.signs.as_ref().and_then(|signs| signs.verdict()).map(|it| it.dialect);
        let is_set = self.config.dialect.name != DialectName::Auto;
        let dialect = if is_set { Some(settings::protocol(self.config).dialect) } else { sign };
        // With others a prefiller computes nothing by itself.
        let Some(dialect) = dialect.filter(|dialect| !dialect.binds_pairs() && !dialect.calls_back()) else {
            return Stored::Unknown("its connector does not prefill alone");
        };
        let Some(tokens) = self.prompt() else {
            return Stored::Unknown("its blocks are too large for a short prompt");
        };
        let Some(question) = Question::about(self.config, self.asker, dialect, told, &json!(tokens)) else {
            return Stored::Unknown("it lists no model");
        };
        let model =
            self.config.fleet.model.clone().or_else(|| told.facts.models.first().map(|it| it.id.clone()));
        let Some(asked) = self.question(&tokens, model.as_deref()) else {
            return Stored::Unknown("its blocks have no names here");
        };
        if let HandoffAnswer::Unknown(_) = question.put(engine, self.decoder).await {
            return Stored::Unknown("it did not compute a short prompt of token ids");
        }
        self.look_up(&asked).await
    }

    /// A prompt that nobody has asked for before, of two units and a token.
    fn prompt(&self) -> Option<Vec<u32>> {
        let block = self.naming.hasher.block_tokens().get();
        let unit = self.naming.keys.as_ref().map_or(0, |keys| keys.unit_tokens() as usize).max(block);
        let least = self.config.pool.least_tokens as usize;
        let count = (2 * unit).max(least.next_multiple_of(unit)) + 1;
        let span = TOKEN_IDS.end - TOKEN_IDS.start;
        let random = std::iter::repeat_with(|| uuid::Uuid::new_v4().into_bytes()).flatten();
        let ids = random.map(|byte| TOKEN_IDS.start + u32::from(byte) * 2 % span);
        (count <= MOST_TOKENS).then(|| ids.take(count).collect())
    }

    fn question(&self, tokens: &[u32], model: Option<&str>) -> Option<pools::Question> {
        let hashes = self.naming.hashes(tokens, model, None).ok()?;
        let mut keys = KeyBatch::default();
        if let Some(profile) = &self.naming.keys {
            let prompt_tokens = u32::try_from(tokens.len()).ok()?;
            let blocks = PromptBlocks::new(&hashes, prompt_tokens);
            profile.keys_of_prompt(&blocks, Ask::Needed, &mut keys).ok()?;
        }
        let (tokens, hashes, keys) = (tokens.into(), hashes.into(), keys.into());
        Some(pools::Question { tokens, hashes, keys, ..pools::Question::default() })
    }

    /// Looks until the prompt is there: engines store beside their work.
    async fn look_up(&self, question: &pools::Question) -> Stored {
        let end = Instant::now() + STORED_TIME;
        let mut end_of = Stored::Unknown("the pool does not answer");
        while Instant::now() < end {
            sleep(PAUSE).await;
            let lookup = self.gate.ask_anew(pools::Inquiry::formed(question.clone())).await;
            if lookup.verdict.is_answer() {
                if lookup.presence.has_any() {
                    return Stored::Found;
                }
                let in_part = lookup.presence.remnant == pools::Remnant::Keys;
                end_of = if in_part { Stored::InPart } else { Stored::Missing };
            }
        }
        end_of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_that_is_missing_is_bad_unless_the_pool_keeps_nothing() {
        let grade = |end: Stored, listed| judge(&end, listed).0;
        assert_eq!(grade(Stored::Found, None), Grade::Good);
        assert_eq!(grade(Stored::InPart, Some(3)), Grade::Bad);
        assert_eq!([Some(3), None].map(|listed| grade(Stored::Missing, listed)), [Grade::Bad; 2]);
        assert_eq!(grade(Stored::Missing, Some(0)), Grade::Warn);
        assert_eq!(grade(Stored::Unknown("it was away"), None), Grade::Note);
    }
}
