//! Keys of a pool that are not those that the gateway asks for, in words: each field that differs,
//! and the settings it is made of. The module is pure.

use crate::kvhash::keys::sample::{Difference, Judgement};
use crate::kvhash::keys::template::Field;
use crate::kvhash::keys::{KeyConfig, Layout};

/// Differences that are told; more of them say no more.
const TOLD: usize = 4;

/// Sentences about the fields in which a pool's keys differ from those of the configuration, with
/// the keys of the configuration to compare; none if they fit.
#[must_use]
pub fn misfits(keys: &KeyConfig, judged: &Judgement) -> Vec<String> {
    if judged.keys == 0 || judged.fits() {
        return Vec::new();
    }
    if !judged.written_by.is_empty() {
        return vec![misspelled(keys, judged)];
    }
    let ours = judged.differences.iter().filter(|one| one.of_ours || judged.fitting == 0);
    let mut told: Vec<String> = ours.take(TOLD).map(|one| differs(one, judged.keys)).collect();
    for (field, value) in judged.absent.iter().take(TOLD) {
        let (name, settings) = (field.name(), settings(*field));
        let text =
            format!("no key in the pool has {name} {value}, which will be asked for: compare {settings}");
        told.push(format!("{text} with the engines that fill the pool"));
    }
    if judged.fitting == 0 && judged.unread > 0 {
        let (count, example) = (judged.unread, judged.example.as_deref().unwrap_or_default());
        let preset = keys.preset.name;
        let text =
            format!("{count} of {} keys are not spelled as {preset} does, such as {example}", judged.keys);
        let advice = "no preset known here writes such keys: see key.preset, key.template and key.store";
        told.push(format!("{text}; {advice}"));
    }
    told
}

fn differs(one: &Difference, keys: usize) -> String {
    let (name, settings) = (one.field.name(), settings(one.field));
    let quoted = |text: &String| if text.is_empty() { "nothing".to_owned() } else { format!("{text:?}") };
    let expected = one.expected.iter().map(quoted).collect::<Vec<_>>().join(" or ");
    let count = format!("{} of {keys} keys", one.keys);
    if one.field == Field::Hash {
        let (found, expected) = (&one.found, one.expected.join(" or "));
        return format!(
            "the hash differs: {count} have {found} hexadecimal digits, the configuration makes {expected}: see {settings}"
        );
    }
    let found = quoted(&one.found);
    format!("{name} differs: {count} have {found}, the configuration makes {expected}: see {settings}")
}

/// The keys are another preset's.
fn misspelled(keys: &KeyConfig, judged: &Judgement) -> String {
    let (preset, layout) = (keys.preset.name, keys.layout);
    let own = if keys.template.is_some() { ", without key.template" } else { "" };
    let same = judged.written_by.iter().any(|(name, _)| *name == preset);
    let names: Vec<String> = judged
        .written_by
        .iter()
        .filter(|(name, _)| !same || *name == preset)
        .map(|(name, found)| match *found == layout {
            true => format!("key.preset = {name:?}"),
            false => format!("key.preset = {name:?} with key.layout = {:?}", layout_word(*found)),
        })
        .collect();
    let example = judged.example.as_deref().unwrap_or_default();
    let text = format!("none of {} keys is spelled as {preset} does here, such as {example}", judged.keys);
    format!("{text}; they are those of {}{own}", names.join(" or "))
}

/// As `key.layout` spells it.
fn layout_word(layout: Layout) -> &'static str {
    match layout {
        Layout::Whole => "whole",
        Layout::Layers => "layers",
        Layout::Gva => "gva",
        Layout::Shared => "shared",
    }
}

/// The keys of the configuration that a field is made of.
fn settings(field: Field) -> &'static str {
    match field {
        Field::Model | Field::FullModel => "key.model",
        Field::World | Field::Rank => "key.tp and key.pp",
        Field::KvRank => "key.tp, key.pp and key.mla",
        Field::Tp | Field::Head | Field::Shard => "key.tp, key.kv_heads, key.mla and key.store_tp",
        Field::Pp => "key.pp",
        Field::Pcp => "key.pcp",
        Field::Dcp => "key.dcp",
        Field::Group | Field::Family | Field::Role => "key.groups",
        Field::Layer => "key.layers and key.layout",
        Field::Hash => "hash.algo, hash.scheme and key.preset",
        Field::Prefix => "key.prefix",
        Field::Namespace => "key.namespace",
        Field::Dtype => "key.dtype",
        Field::Root => "key.roots",
        Field::Salt | Field::Tags => "the requests that were stored",
    }
}
