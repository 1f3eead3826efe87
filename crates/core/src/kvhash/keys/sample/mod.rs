//! Compares a sample of a pool's keys with a profile: finds if they are those that the profile
//! would ask for, and if not, the field that differs. The module is pure.
//!
//! Pools are shared: keys of other models are nobody's fault as long as there are some of ours.

mod read;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

use super::bind::{Names, texts};
use super::lmcache::spelling;
use super::preset::{Layout, Preset};
use super::profile::{KeyConfig, Store, model_name, with_group};
use super::refuse::{MAX_KEYS_PER_BLOCK, Refusal};
use super::template::{Field, Form, Template};
use read::{Expect, Pattern, Reading};

/// Most keys of a sample that are looked at.
pub const MAX_SAMPLE_KEYS: usize = 512;
/// Place where a rank is missing, so many keys for each rank make it certain that it does not
/// write.
const KEYS_PER_RANK: usize = 16;
/// Keys that are read by the templates of all other presets, too.
const MAX_TRIED_KEYS: usize = 16;
/// A key that is not read is worse than any surprise in one that is.
const UNREAD_COST: usize = 100;
/// Values of one field that are listed in a difference.
const LISTED: usize = 4;

/// Judgement on a sample of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Keys that were looked at.
    pub keys: usize,
    /// Those that the profile could have made.
    pub fitting: usize,
    /// Fields in which the others differ, the most frequent first.
    pub differences: Vec<Difference>,
    /// Keys that the profile's template does not read.
    pub unread: usize,
    /// One of these, or of all if there are none, to be shown.
    pub example: Option<String>,
    /// If no key fits: presets and layouts whose templates read the keys better than the profile's;
    /// the best ones.
    pub written_by: Vec<(&'static str, Layout)>,
    /// Ranks that the profile asks for and that write nothing.
    pub absent: Vec<(Field, String)>,
}

/// A field with another value than the profile's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Field that differs.
    pub field: Field,
    /// Values that the profile writes, a few of them; for a hash its digits.
    pub expected: Vec<String>,
    /// Value in the keys; for a hash its digits.
    pub found: String,
    /// In how many keys.
    pub keys: usize,
    /// In keys that are ours but for the shape of the engines that wrote them.
    pub of_ours: bool,
}

/// A profile's template and the values of each place that writes.
struct Reader {
    pattern: Pattern,
    /// One text per value and place.
    places: Vec<Vec<String>>,
}

impl Judgement {
    /// True if what the gateway will ask for is what the pool has.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.fitting > 0 && self.absent.is_empty() && !self.differences.iter().any(|one| one.of_ours)
    }
}

impl Difference {
    /// True if it only says that other models or tenants share the pool.
    #[must_use]
    pub fn is_whose(&self) -> bool {
        is_whose(self.field)
    }
}

/// Compares keys with a profile. `whole`: these are all keys of the pool, or evenly taken from all
/// of them, so that a rank that is missing writes none.
///
/// # Errors
/// [`Refusal`] when the profile can't be.
pub fn judge(config: &KeyConfig, sample: &[String], whole: bool) -> Result<Judgement, Refusal> {
    let template = match &config.template {
        Some(text) => Template::parse(text)?,
        None => Template::parse(config.preset.template(config.layout)?)?,
    };
    let reader = Reader::new(config, config.preset, &template);
    let mut found = Judgement { keys: sample.len().min(MAX_SAMPLE_KEYS), ..Judgement::default() };
    let mut differing: BTreeMap<(usize, String, bool), usize> = BTreeMap::new();
    let (mut ours, mut unread) = (Vec::new(), Vec::new());
    for key in sample.iter().take(MAX_SAMPLE_KEYS) {
        let Some(reading) = reader.pattern.read(key) else {
            unread.push(key);
            continue;
        };
        let other = reader.differing(&reading);
        let of_ours = !other.iter().any(|index| reader.is_whose(*index));
        found.fitting += usize::from(other.is_empty());
        for index in other {
            let value = reader.shown(index, &reading);
            *differing.entry((index, value, of_ours)).or_default() += 1;
        }
        if of_ours {
            ours.push(reading);
        }
    }
    found.differences = reader.differences(differing);
    found.unread = unread.len();
    found.example = unread.first().copied().or(sample.first()).cloned();
    if found.fitting == 0 {
        found.written_by = written_by(config, &reader, &spread(sample));
    }
    if whole {
        found.absent = reader.absent(&ours);
    }
    Ok(found)
}

/// Fields that tell deployments which share a pool apart.
fn is_whose(field: Field) -> bool {
    use Field::{Dtype, FullModel, Model, Namespace, Prefix, Root, Salt, Tags};
    matches!(field, Model | FullModel | Prefix | Namespace | Dtype | Root | Salt | Tags)
}

impl Reader {
    fn new(config: &KeyConfig, preset: &'static Preset, template: &Template) -> Self {
        let shape = with_group(&KeyConfig { preset, ..config.clone() });
        let (slash, end) = spelling(preset.connector, &config.store);
        let names = Names {
            model: model_name(&config.model),
            full_model: &config.model,
            prefix: &config.prefix,
            namespace: &config.namespace,
            dtype: &config.dtype,
            world: shape.world(preset.ranks),
            slash,
            end,
        };
        let layers = if template.names(Field::Layer) { shape.layers } else { 1 };
        let mut places = HashSet::new();
        for (index, group) in shape.groups.iter().enumerate() {
            let number = u32::try_from(index).unwrap_or(u32::MAX);
            for place in shape.places(preset.ranks, number, group.kind) {
                let first = if preset.global_layers { place.pp.saturating_mul(layers) } else { 0 };
                for layer in first..first.saturating_add(layers) {
                    if places.len() < MAX_KEYS_PER_BLOCK {
                        let at = super::ranks::Place { layer, ..place };
                        places.insert(texts(template, &names, &shape, &at));
                    }
                }
            }
        }
        let mut places: Vec<Vec<String>> = places.into_iter().collect();
        places.sort();
        let fields: Vec<(Field, Form)> = template.values().collect();
        let digits = hash_digits(config, preset);
        let expect =
            (0..fields.len()).map(|index| expect(config, fields.get(index), index, &places, &digits));
        Self { pattern: Pattern::new(template, expect.collect(), end), places }
    }

    /// Cost of the worst reading of these keys, and the number of keys that can be read at all.
    fn cost(&self, keys: &[&String]) -> (usize, usize) {
        let costs: Vec<usize> =
            keys.iter().filter_map(|key| self.pattern.read(key)).map(|reading| reading.cost).collect();
        (costs.iter().sum::<usize>() + (keys.len() - costs.len()) * UNREAD_COST, costs.len())
    }

    fn is_whose(&self, index: usize) -> bool {
        self.pattern.fields.get(index).is_some_and(|(field, _)| is_whose(*field))
    }

    /// The values in which a key differs from the place that is nearest to it.
    fn differing(&self, reading: &Reading) -> Vec<usize> {
        let checked = |index: &usize| matches!(self.pattern.expect.get(*index), Some(Expect::OneOf(_)));
        let of_place = |place: &Vec<String>| -> Vec<usize> {
            let all = 0..self.pattern.fields.len();
            all.filter(|index| match self.pattern.fields.get(*index) {
                Some((Field::Root, _)) => self.departs(*index, reading),
                _ if checked(index) => place.get(*index) != reading.values.get(*index),
                _ => self.departs(*index, reading),
            })
            .collect()
        };
        self.places.iter().map(of_place).min_by_key(Vec::len).unwrap_or_default()
    }

    /// True if a value is none of those that are expected anywhere.
    fn departs(&self, index: usize, reading: &Reading) -> bool {
        let value = reading.values.get(index).map_or("", String::as_str);
        match self.pattern.expect.get(index) {
            Some(Expect::OneOf(texts)) => !texts.iter().any(|text| text == value),
            Some(Expect::Digits(digits)) => !digits.is_empty() && !digits.contains(&value.len()),
            Some(Expect::Anything) | None => false,
        }
    }

    fn shown(&self, index: usize, reading: &Reading) -> String {
        let value = reading.values.get(index).cloned().unwrap_or_default();
        match self.pattern.expect.get(index) {
            Some(Expect::Digits(_)) => value.len().to_string(),
            _ => value,
        }
    }

    fn differences(&self, counted: BTreeMap<(usize, String, bool), usize>) -> Vec<Difference> {
        let difference = |((index, found, of_ours), keys): ((usize, String, bool), usize)| {
            let (field, _) = *self.pattern.fields.get(index)?;
            let expected = match self.pattern.expect.get(index)? {
                Expect::OneOf(texts) => texts.iter().take(LISTED).cloned().collect(),
                Expect::Digits(digits) => digits.iter().take(LISTED).map(usize::to_string).collect(),
                Expect::Anything => Vec::new(),
            };
            Some(Difference { field, expected, found, keys, of_ours })
        };
        let mut all: Vec<Difference> = counted.into_iter().filter_map(difference).collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.keys));
        all
    }

    /// Ranks of the profile that none of the keys has.
    fn absent(&self, ours: &[Reading]) -> Vec<(Field, String)> {
        use Field::{Dcp, Head, KvRank, Layer, Pcp, Pp, Rank, Shard, Tp};
        let mut absent = Vec::new();
        for (index, (field, _)) in self.pattern.fields.iter().enumerate() {
            let Some(Expect::OneOf(texts)) = self.pattern.expect.get(index) else { continue };
            let is_rank = matches!(field, Layer | Tp | Head | Shard | Rank | KvRank | Pp | Pcp | Dcp);
            if !is_rank || ours.len() < KEYS_PER_RANK * texts.len() {
                continue;
            }
            let there = |text: &String| ours.iter().any(|one| one.values.get(index) == Some(text));
            absent.extend(texts.iter().filter(|text| !there(text)).map(|text| (*field, text.clone())));
        }
        absent
    }
}

fn expect(
    config: &KeyConfig,
    field: Option<&(Field, Form)>,
    index: usize,
    places: &[Vec<String>],
    digits: &[usize],
) -> Expect {
    match field {
        Some((Field::Hash, Form::Plain)) => Expect::Digits(digits.to_vec()),
        Some((Field::Root, _)) => match &config.store {
            Store::Files { roots } => {
                Expect::OneOf(roots.iter().map(|root| root.trim_end_matches('/').to_owned()).collect())
            }
            _ => Expect::Anything,
        },
        Some((Field::Hash | Field::Salt | Field::Tags, _)) | None => Expect::Anything,
        Some(_) => {
            let mut known: Vec<String> = Vec::new();
            let mut seen = HashSet::new();
            for text in places.iter().filter_map(|place| place.get(index)) {
                if seen.insert(text) {
                    known.push(text.clone());
                }
            }
            known.sort_by_key(|text| (text.len(), text.clone()));
            Expect::OneOf(known)
        }
    }
}

/// Digits of the hashes in keys, by group.
fn hash_digits(config: &KeyConfig, preset: &Preset) -> Vec<usize> {
    let bytes = config.hash_bytes.unwrap_or(preset.hash_bytes);
    let fine = config.shape.hash_tokens.unwrap_or(u32::MAX);
    let mut digits = vec![2 * bytes];
    for group in &config.shape.groups {
        let count = group.block_tokens.checked_div(fine).unwrap_or(1).max(1) as usize;
        let coarse = 2 * preset.group_hash.bytes(count, bytes);
        if !digits.contains(&coarse) {
            digits.push(coarse);
        }
    }
    digits
}

/// A few of many, evenly taken.
fn spread(sample: &[String]) -> Vec<&String> {
    sample.iter().step_by(sample.len().div_ceil(MAX_TRIED_KEYS).max(1)).collect()
}

/// The presets whose templates read these keys with the fewest surprises; none where the profile's
/// own reads them as well, or no other reads most of them.
fn written_by(config: &KeyConfig, own: &Reader, keys: &[&String]) -> Vec<(&'static str, Layout)> {
    let layouts = [Layout::Whole, Layout::Layers, Layout::Gva, Layout::Shared];
    let rows = Preset::all().iter().flat_map(|row| layouts.map(|layout| (*row, layout)));
    let mut best: (usize, Vec<(&'static str, Layout)>) = (own.cost(keys).0, Vec::new());
    for (row, layout) in rows {
        let Some(template) = row.template(layout).ok().and_then(|text| Template::parse(text).ok()) else {
            continue;
        };
        let (cost, read) = Reader::new(config, row, &template).cost(keys);
        if read * 2 <= keys.len() || cost > best.0 {
            continue;
        }
        if cost < best.0 {
            best = (cost, Vec::new());
        } else if best.1.is_empty() {
            // As good as the profile's own.
            continue;
        }
        best.1.push((row.name, layout));
    }
    best.1
}
