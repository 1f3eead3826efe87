//! `[models]`: models that several fleets serve, by weight or one after another. The module is
//! pure.

use std::collections::BTreeSet;

use super::model_rules_error::ModelsProblem;
use super::named_fleets::Fault;
use super::table::{Rule, section};
use super::{Config, Problem};

section! {
    /// `[models]`: models that several fleets serve.
    Models = "models" {
        /// Fleets among which requests for a model are shared out, each
        /// `model=fleet:weight fleet:weight`: by request, and by session where a request has one.
        targets: Vec<String> = Vec::new(), AtOnce, Rule::Judged(targets_fault);
        /// Fleets that are asked one after another where the model's own has no engine, is
        /// overloaded or failed, each `model=fleet fleet`. Never after an answer has begun.
        fallback: Vec<String> = Vec::new(), AtOnce, Rule::Judged(fallback_fault);
    }
}

/// Fleets that one model may name.
const MAX_FLEETS: usize = 16;

/// Longest name of a model, bytes.
const MAX_MODEL_BYTES: usize = 256;

/// A model that several fleets serve.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoutedModel {
    /// Name in requests.
    pub name: String,
    /// Fleets with their weights; empty where the model's name alone says the fleet.
    pub targets: Vec<Target>,
    /// Fleets that are asked where that fails, in their order.
    pub fallback: Vec<String>,
}

/// A fleet and its share of the requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Name of the fleet.
    pub fleet: String,
    /// Share of the requests, relative to the other weights; finite, 0 or more.
    pub weight: f64,
}

impl Models {
    /// Models with targets or fall-backs, in the order in which they are first named. Entries that
    /// can't be read are left out.
    pub fn routed(&self) -> Vec<RoutedModel> {
        let mut models: Vec<RoutedModel> = Vec::new();
        let mut at = |name: &str| match models.iter().position(|model| model.name == name) {
            Some(at) => at,
            None => {
                models.push(RoutedModel { name: name.to_owned(), ..RoutedModel::default() });
                models.len() - 1
            }
        };
        let targets: Vec<_> = self
            .targets
            .iter()
            .filter_map(|text| parse_targets(text).ok())
            .map(|(n, l)| (at(n), l))
            .collect();
        let fallbacks: Vec<_> = self
            .fallback
            .iter()
            .filter_map(|text| parse_fallback(text).ok())
            .map(|(n, l)| (at(n), l))
            .collect();
        for (at, targets) in targets {
            models[at].targets.extend(targets);
        }
        for (at, fallback) in fallbacks {
            models[at].fallback.extend(fallback);
        }
        models
    }
}

/// The model's name and the fleets after it.
fn parse(text: &str) -> Option<(&str, Vec<&str>)> {
    let (name, list) = text.split_once('=')?;
    let name = name.trim();
    let is_name =
        (1..=MAX_MODEL_BYTES).contains(&name.len()) && !name.chars().any(|letter| letter.is_control());
    let list: Vec<&str> = list.split_whitespace().collect();
    let is_list = (1..=MAX_FLEETS).contains(&list.len()) && !list.iter().any(|one| one.contains('='));
    (is_name && is_list).then_some((name, list))
}

fn parse_targets(text: &str) -> Result<(&str, Vec<Target>), ModelsProblem> {
    let syntax = || ModelsProblem::NotTargets { text: text.to_owned() };
    let (name, list) = parse(text).ok_or_else(syntax)?;
    let target = |one: &str| {
        let (fleet, weight) =
            one.split_once(':').filter(|(fleet, _)| !fleet.is_empty()).ok_or_else(syntax)?;
        let is_weight = |weight: &f64| weight.is_finite() && *weight >= 0.0;
        let weight = weight.parse().ok().filter(is_weight).ok_or_else(|| ModelsProblem::Weight {
            model: name.to_owned(),
            fleet: fleet.to_owned(),
            weight: weight.to_owned(),
        })?;
        Ok(Target { fleet: fleet.to_owned(), weight })
    };
    let targets: Vec<Target> = list.into_iter().map(target).collect::<Result<_, _>>()?;
    if targets.iter().all(|target| target.weight == 0.0) {
        return Err(ModelsProblem::NoWeight { model: name.to_owned() });
    }
    Ok((name, targets))
}

fn parse_fallback(text: &str) -> Result<(&str, Vec<String>), ModelsProblem> {
    let (name, list) = parse(text).ok_or_else(|| ModelsProblem::NotAFallback { text: text.to_owned() })?;
    Ok((name, list.into_iter().map(str::to_owned).collect()))
}

/// Finds fault with an entry of `models.targets`.
fn targets_fault(_: &'static str, text: &str) -> Option<Problem> {
    parse_targets(text).err().map(Problem::from)
}

/// Finds fault with an entry of `models.fallback`.
fn fallback_fault(_: &'static str, text: &str) -> Option<Problem> {
    parse_fallback(text).err().map(Problem::from)
}

impl Config {
    /// Faults of `[models]` beyond the form of its entries: models and fleets that are named twice,
    /// fleets that are not there, fall-backs to the fleet that is to be helped.
    pub(super) fn model_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut find = |key, problem: ModelsProblem| {
            faults.push(Fault { fleet: None, key, problem: problem.into() });
        };
        let named = |list: &[String]| -> Vec<String> {
            list.iter().filter_map(|text| Some(parse(text)?.0.to_owned())).collect()
        };
        for (key, list) in
            [("models.targets", &self.models.targets), ("models.fallback", &self.models.fallback)]
        {
            for model in repeated(named(list)) {
                find(key, ModelsProblem::ModelTwice { key, model });
            }
        }
        for RoutedModel { name: model, targets, fallback } in self.models.routed() {
            let targets: Vec<String> = targets.into_iter().map(|target| target.fleet).collect();
            for (key, fleets) in [("models.targets", &targets), ("models.fallback", &fallback)] {
                for fleet in repeated(fleets.clone()) {
                    find(key, ModelsProblem::FleetTwice { key, model: model.clone(), fleet });
                }
                for fleet in fleets.iter().filter(|fleet| !self.has_fleet(fleet)) {
                    let known: Vec<&str> = self.fleets.iter().map(|it| it.name.as_str()).collect();
                    let known = known.join(", ");
                    let (model, fleet) = (model.clone(), fleet.clone());
                    find(key, ModelsProblem::UnknownFleet { key, model, fleet, known });
                }
            }
            for fleet in targets.iter().filter(|fleet| self.is_remote(fleet)) {
                find(
                    "models.targets",
                    ModelsProblem::RemoteTarget { model: model.clone(), fleet: fleet.clone() },
                );
            }
            let own = match &targets[..] {
                [] => self.fleet_that_claims(&model),
                [only] => Some(only.as_str()),
                _ => None,
            };
            for fleet in fallback.iter().filter(|fleet| own == Some(fleet.as_str())) {
                find(
                    "models.fallback",
                    ModelsProblem::FallbackToItself { model: model.clone(), fleet: fleet.clone() },
                );
            }
        }
        faults
    }

    fn has_fleet(&self, name: &str) -> bool {
        self.fleets.iter().any(|fleet| fleet.name == name)
    }

    fn is_remote(&self, name: &str) -> bool {
        self.fleets.iter().any(|fleet| fleet.name == name && fleet.config.fleet.remote.is_some())
    }

    /// The fleet with engines whose model, or alias, has this name.
    fn fleet_that_claims(&self, model: &str) -> Option<&str> {
        let claims = |config: &Config| {
            config.fleet.remote.is_none() && config.fleet.claimed_names().iter().any(|name| name == model)
        };
        self.fleets.iter().find(|fleet| claims(&fleet.config)).map(|fleet| fleet.name.as_str())
    }
}

/// The entries that come more than once, each once.
fn repeated(entries: Vec<String>) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    entries.into_iter().filter(|entry| !seen.insert(entry.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_with_their_weights() {
        let models = Models {
            targets: vec!["gpt-4o = chat:95 canary:0.5".to_owned()],
            fallback: vec!["gpt-4o=spare cloud".to_owned(), "Qwen/Qwen3=cloud".to_owned()],
        };
        let [gpt, qwen] = &models.routed()[..] else { panic!("two models") };
        let target = |fleet: &str, weight| Target { fleet: fleet.to_owned(), weight };
        assert_eq!(gpt.targets, [target("chat", 95.0), target("canary", 0.5)]);
        assert_eq!((gpt.name.as_str(), &gpt.fallback[..]), ("gpt-4o", &["spare".into(), "cloud".into()][..]));
        assert_eq!((qwen.targets.len(), &qwen.fallback[..]), (0, &["cloud".to_owned()][..]));
    }

    #[test]
    fn bad_entries_are_told_with_what_is_wrong() {
        let fault = |text: &str| targets_fault("models.targets", text).map(|problem| problem.to_string());
        for (text, words) in [
            ("m", "expected model=fleet:weight"),
            ("m=", "expected model=fleet:weight"),
            ("m=chat", "expected model=fleet:weight"),
            ("m=x=chat:1", "expected model=fleet:weight"),
            ("m=chat:many", "weight `many` of the fleet chat"),
            ("m=chat:-1", "weight `-1` of the fleet chat"),
            ("m=chat:inf", "weight `inf` of the fleet chat"),
            ("m=chat:NaN", "weight `NaN` of the fleet chat"),
            ("m=chat:0 canary:0", "all weights are 0"),
        ] {
            assert!(fault(text).is_some_and(|fault| fault.contains(words)), "{text}: {:?}", fault(text));
        }
        assert_eq!(fault("m=chat:1 canary:0"), None);
        assert!(fallback_fault("models.fallback", "m=").is_some());
        assert!(fallback_fault("models.fallback", "m=spare").is_none());
    }
}
