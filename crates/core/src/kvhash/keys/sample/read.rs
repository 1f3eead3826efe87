//! Reads a key back into the values of a template's fields. The module is pure.
//!
//! A key can be read in several ways, since a model's name may hold any character and a part may be
//! there or not. The reading that departs least from what is expected is the one that is meant.

use crate::kvhash::keys::template::{Field, Form, Node, Template};

/// Longest key that is read, in bytes.
pub(super) const MAX_KEY_BYTES: usize = 1024;
/// Places looked at for the end of a value, after which a key counts as read as far as it was: real
/// ones take some hundred.
const MAX_STEPS: usize = 50_000;
/// Parts that may be there or not; those beyond are taken to be as they are expected.
const MAX_PARTS: usize = 4;

/// Expectations of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// One of these texts; the empty one for a value whose part is left out.
    OneOf(Vec<String>),
    /// A hash of so many digits, where its form does not say.
    Digits(Vec<usize>),
    /// Any text: it depends on the request or the file system.
    Anything,
}

/// A template, taken apart so that keys can be read by it.
#[derive(Debug)]
pub(super) struct Pattern {
    /// The values, in the order of [`Template::values`].
    pub fields: Vec<(Field, Form)>,
    /// Expectation of each value.
    pub expect: Vec<Expect>,
    /// The template with and without its parts.
    ways: Vec<Vec<Item>>,
}

/// Values in a key; empty where a part is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// Values that are not expected, and what makes them improbable.
    pub cost: usize,
    /// One text per value.
    pub values: Vec<String>,
}

#[derive(Clone, Debug)]
enum Item {
    Text(String),
    Value(usize),
}

impl Pattern {
    /// `end` is what the store writes after each key.
    pub(super) fn new(template: &Template, expect: Vec<Expect>, end: &str) -> Self {
        let parts = template.nodes().iter().filter(|node| matches!(node, Node::Part(_))).count();
        let mut ways: Vec<Vec<Item>> = Vec::new();
        for left_out in 0..1_usize << parts.min(MAX_PARTS) {
            let mut way = flat(template, left_out);
            way.extend((!end.is_empty()).then(|| Item::Text(end.to_owned())));
            ways.push(way);
        }
        Self { fields: template.values().collect(), expect, ways }
    }

    /// The likeliest reading; none if the key is not of this form.
    pub(super) fn read(&self, key: &str) -> Option<Reading> {
        if key.len() > MAX_KEY_BYTES {
            return None;
        }
        let mut reader = Reader { pattern: self, steps: 0, path: Vec::new(), best: None };
        for way in &self.ways {
            reader.go(way, key, 0);
        }
        let (cost, path) = reader.best?;
        let mut values = vec![String::new(); self.fields.len()];
        for (index, text) in path {
            if let Some(value) = values.get_mut(index) {
                text.clone_into(value);
            }
        }
        Some(Reading { cost, values })
    }
}

/// The nodes without the parts whose bit is set.
fn flat(template: &Template, left_out: usize) -> Vec<Item> {
    let (mut items, mut value, mut part) = (Vec::new(), 0, 0_usize);
    let mut push = |node: &Node, kept: bool, items: &mut Vec<Item>| match node {
        Node::Text(text) if kept => items.push(Item::Text(text.clone())),
        Node::Value(..) => {
            items.extend(kept.then_some(Item::Value(value)));
            value += 1;
        }
        Node::Text(_) | Node::Part(_) => {}
    };
    for node in template.nodes() {
        match node {
            Node::Part(inner) => {
                let kept = part >= MAX_PARTS || left_out >> part & 1 == 0;
                inner.iter().for_each(|node| push(node, kept, &mut items));
                part += 1;
            }
            other => push(other, true, &mut items),
        }
    }
    items
}

struct Reader<'p, 'k> {
    pattern: &'p Pattern,
    steps: usize,
    path: Vec<(usize, &'k str)>,
    best: Option<(usize, Vec<(usize, &'k str)>)>,
}

impl<'k> Reader<'_, 'k> {
    fn go(&mut self, items: &[Item], rest: &'k str, cost: usize) {
        if self.steps > MAX_STEPS || self.best.as_ref().is_some_and(|(best, _)| *best <= cost) {
            return;
        }
        match items.split_first() {
            None if rest.is_empty() => self.best = Some((cost, self.path.clone())),
            None => {}
            Some((Item::Text(text), after)) => {
                if let Some(rest) = rest.strip_prefix(text.as_str()) {
                    self.go(after, rest, cost);
                }
            }
            Some((Item::Value(index), after)) => self.value(*index, after, rest, cost),
        }
    }

    fn value(&mut self, index: usize, after: &[Item], rest: &'k str, cost: usize) {
        let Some((field, form)) = self.pattern.fields.get(index).copied() else { return };
        let (least, most) = lengths(field, form, rest);
        self.steps += (most + 1).saturating_sub(least);
        let goes_on = |at: &usize| match (rest.get(*at..), after.first()) {
            (None, _) => false,
            (Some(left), Some(Item::Text(next))) => left.starts_with(next.as_str()),
            (Some(_), Some(Item::Value(_))) => true,
            (Some(left), None) => left.is_empty(),
        };
        let mut lengths: Vec<usize> = (least..=most).rev().filter(goes_on).collect();
        // Tries the lengths of expected texts first: a path that costs more than the best is not
        // looked into.
        if let Some(Expect::OneOf(texts)) = self.pattern.expect.get(index) {
            lengths.sort_by_key(|at| !texts.iter().any(|text| rest.get(..*at) == Some(text)));
        }
        for at in lengths {
            let (text, left) = rest.split_at(at);
            if fits(field, text) {
                let more = self.pattern.expect.get(index).map_or(0, |expect| price(expect, field, text));
                self.path.push((index, text));
                self.go(after, left, cost + more);
                self.path.pop();
            }
        }
    }
}

/// The fewest and the most bytes that a value can have at the beginning of `rest`; none can if the
/// first is more.
fn lengths(field: Field, form: Form, rest: &str) -> (usize, usize) {
    let run = |good: fn(&u8) -> bool| rest.bytes().take_while(good).count();
    let hex: fn(&u8) -> bool = |byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    match (field, form) {
        (Field::Hash, Form::First(digits)) => exactly(usize::from(digits), run(hex)),
        (Field::Hash, Form::Word(_)) => exactly(16, run(hex)),
        (Field::Hash, Form::U64) => (1, run(hex).min(16)),
        (Field::Hash, Form::I64) => {
            let sign = usize::from(rest.starts_with('-'));
            let digits = rest.bytes().skip(sign).take_while(hex).count();
            (1 + sign, sign + digits.min(16))
        }
        (Field::Hash, _) => (1, run(hex)),
        (_, Form::Hex(width)) => (usize::from(width).max(1), run(hex).min(16)),
        _ if field.is_number() => (1, run(u8::is_ascii_digit)),
        (Field::Namespace | Field::Tags | Field::Salt, _) => (0, rest.len()),
        _ => (1, rest.len()),
    }
}

fn exactly(wanted: usize, there: usize) -> (usize, usize) {
    (wanted, if there < wanted { 0 } else { wanted })
}

/// True if a text can be a value of this field at all.
fn fits(field: Field, text: &str) -> bool {
    match field {
        Field::Namespace | Field::Tags => text.is_empty() || text.starts_with('@'),
        _ => true,
    }
}

/// Improbability of a text. Connectors put `@` between fields, so one within is most likely another
/// field's.
fn price(expect: &Expect, field: Field, text: &str) -> usize {
    match expect {
        Expect::OneOf(texts) if texts.iter().any(|known| known == text) => 0,
        Expect::Digits(digits) => usize::from(!digits.is_empty() && !digits.contains(&text.len())),
        Expect::Anything => 0,
        Expect::OneOf(_) => {
            let leading = usize::from(field == Field::Namespace && text.starts_with('@'));
            1 + text.matches('@').count() - leading
        }
    }
}
