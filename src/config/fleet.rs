//! `[fleet]`: the engines.

use super::Problem;
use super::bounds::{attempts, ms, ranks};
use super::ranks::rank_count_fault;
use super::remote::url_fault;
use super::table::{Rule, section};

section! {
    /// `[fleet]`: the engines, and how one is probed before it is used.
    Fleet = "fleet" {
        /// Prefillers, each `host:port`, `http://host:port` or `https://host:port`.
        prefill: Vec<String> = vec!["localhost:8001".to_owned()], AtOnce;
        /// Decoders, written the same way.
        decode: Vec<String> = vec!["localhost:8002".to_owned()], AtOnce;
        /// Encoders of images, sounds and films, written the same way; none = prefillers encode.
        encode: Vec<String> = Vec::new(), AtOnce;
        /// Data-parallel ranks inside each prefiller among which the gateway chooses
        /// (`X-data-parallel-rank`), until the prefiller tells another number; 0 = as many as it
        /// tells, 1 = the engine chooses, or has only one.
        // Ranks are set when an engine joins.
        prefill_ranks: u32 = 1, AfterRestart, ranks(0);
        /// The same inside each decoder.
        decode_ranks: u32 = 1, AfterRestart, ranks(0);
        /// Engines with another number of ranks than the others, each `engine=number`.
        ranks: Vec<String> = Vec::new(), AfterRestart, Rule::Judged(rank_count_fault);
        /// The served model name that requests must carry, of a path its last part; None = any.
        model: Option<String> = None, AtOnce, Rule::NotEmpty;
        /// Further names by which clients may ask for a model of the fleet, each `alias=model`:
        /// engines get the model's own name, and answers have the alias.
        aliases: Vec<String> = Vec::new(), AtOnce, Rule::Judged(alias_fault);
        /// Base URL of an OpenAI-compatible API elsewhere, in place of engines: the fleet is then a
        /// fall-back for others (`models.fallback`). None = it has engines.
        remote: Option<String> = None, AfterRestart, Rule::Judged(url_fault);
        /// Probes of an instance being added before it is given up.
        probe_attempts: u32 = 3, AtOnce, attempts(1);
        /// Pause between those probes, ms.
        probe_interval_ms: u64 = 10_000, AtOnce, ms(1);
        /// Longest time that one probe may take, ms.
        probe_timeout_ms: u64 = 5_000, AtOnce, ms(1);
        /// Time for which requests wait when a role has just lost its last engine, as in a rollout,
        /// or has had none since the start, ms; 0 = they are refused at once.
        empty_wait_ms: u64 = 1_000, AtOnce, ms(0);
    }
}

/// Longest name of a model, bytes.
const MAX_MODEL_BYTES: usize = 256;

/// A name by which clients may ask for a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// Name in requests and answers.
    pub name: String,
    /// Name that engines know.
    pub model: String,
}

impl Fleet {
    /// The aliases; entries that can't be read are left out.
    pub fn aliases(&self) -> Vec<Alias> {
        self.aliases.iter().filter_map(|text| Alias::parse(text)).collect()
    }

    /// Names that the configuration gives to this fleet: its model and its aliases.
    pub fn claimed_names(&self) -> Vec<String> {
        self.model.iter().cloned().chain(self.aliases().into_iter().map(|alias| alias.name)).collect()
    }
}

impl Alias {
    fn parse(text: &str) -> Option<Alias> {
        let (name, model) = text.split_once('=')?;
        let (name, model) = (name.trim(), model.trim());
        let is_name = |name: &str| {
            (1..=MAX_MODEL_BYTES).contains(&name.len())
                && !name.chars().any(|letter| letter.is_control() || letter == '=')
        };
        (is_name(name) && is_name(model) && name != model)
            .then(|| Alias { name: name.to_owned(), model: model.to_owned() })
    }
}

/// Finds fault with an entry that is no alias.
fn alias_fault(_: &'static str, text: &str) -> Option<Problem> {
    Alias::parse(text).is_none().then(|| Problem::NotAnAlias { text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alias_is_read_with_its_model() {
        let alias = Alias::parse("gpt-4o = Qwen/Qwen3-8B").unwrap();
        assert_eq!((alias.name.as_str(), alias.model.as_str()), ("gpt-4o", "Qwen/Qwen3-8B"));
        for bad in ["", "a", "=a", "a=", "a=a", "a\u{1}b=c", "b=X=Y"] {
            let found = alias_fault("fleet.aliases", bad).map(|problem| problem.to_string());
            assert!(found.is_some_and(|text| text.contains("alias=model")), "{bad:?}");
        }
    }
}
