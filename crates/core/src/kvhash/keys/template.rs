//! Key templates: how one connector version spells a key, as one line of text.
//!
//! `{field}` or `{field:form}` stands for a value, `[…]` for a part that is left out when its first
//! field is idle. Idle are an empty text, `group` with one group, and `pp`, `pcp`, `dcp` or `layer`
//! with one of them. `{{`, `}}`, `[[`, `]]` are the characters. Forms of numbers: `x`
//! (hexadecimal), `08x` (padded). Forms of `hash`: none (lower-case hexadecimal), `i64` and `u64`
//! (8 bytes, big-endian, hexadecimal without padding), `first3` (so many digits), `le0`, `le1` (the
//! 8-byte words of an id, little-endian, 16 digits).

use thiserror::Error;

/// Longest template accepted, in bytes.
pub const MAX_TEMPLATE_BYTES: usize = 1024;

/// Fields that a template can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Last path component of the engine's `--model` value.
    Model,
    /// The `--model` value as given.
    FullModel,
    /// World size, in ranks.
    World,
    /// Global rank (LMCache: worker).
    Rank,
    /// Rank of tensor parallelism.
    Tp,
    /// Index of the pipeline stage.
    Pp,
    /// Rank of prefill context parallelism.
    Pcp,
    /// Rank of decode context parallelism.
    Dcp,
    /// `head_or_tp_rank`: which share of the KV heads.
    Head,
    /// Replica rank of a shared store; the same number as `head`.
    Shard,
    /// LMCache MP's packed world and rank.
    KvRank,
    /// Index of the KV-cache group.
    Group,
    /// Family of the group (`default`, `c128`, …).
    Family,
    /// Role of the group (`kv`, `state`).
    Role,
    /// Layer, in layer-wise stores.
    Layer,
    /// The block's hash.
    Hash,
    /// Operator's cache prefix.
    Prefix,
    /// Store namespace, with its leading `@`.
    Namespace,
    /// Type of the cached values.
    Dtype,
    /// Directory of a file store, without a trailing `/`.
    Root,
    /// The request's cache salt.
    Salt,
    /// The request's tags, each with its leading `@`.
    Tags,
}

/// Ways in which a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Numbers in decimal, hashes in hexadecimal, texts as they are.
    Plain,
    /// A number in hexadecimal, padded with zeros to so many digits (0: not at all).
    Hex(u8),
    /// An 8-byte hash as a signed number in hexadecimal.
    I64,
    /// An 8-byte hash as an unsigned number in hexadecimal.
    U64,
    /// The first so many hexadecimal digits of a hash.
    First(u8),
    /// The n-th 8-byte word of a hash, little-endian, 16 digits.
    Word(u8),
}

/// One element of a parsed template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// Text as it stands.
    Text(String),
    /// A value in its form.
    Value(Field, Form),
    /// A part that is left out when its first field is idle.
    Part(Vec<Node>),
}

/// A parsed template. Shape: texts, values and one level of parts; `hash` occurs at least once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    nodes: Vec<Node>,
}

/// Reasons why a template was not understood; `at` is the byte where it goes wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TemplateError {
    /// No such field.
    #[error("byte {at}: `{name}` is not a field")]
    UnknownField {
        /// Offset in bytes.
        at: usize,
        /// Name as it was written.
        name: String,
    },
    /// The field can't be written like this.
    #[error("byte {at}: `{field}` has no form `{form}`")]
    BadForm {
        /// Offset in bytes.
        at: usize,
        /// Name of the field.
        field: String,
        /// Form as it was written.
        form: String,
    },
    /// A brace or bracket without its partner.
    #[error("byte {at}: `{what}` has no partner (write it twice to mean the character)")]
    Unpaired {
        /// Offset in bytes.
        at: usize,
        /// The character that was found.
        what: char,
    },
    /// A part inside a part.
    #[error("byte {at}: a part inside a part")]
    Nested {
        /// Offset in bytes.
        at: usize,
    },
    /// A part that can never be left out.
    #[error("byte {at}: a part without a field")]
    PartWithoutField {
        /// Offset in bytes.
        at: usize,
    },
    /// All blocks would have the same key.
    #[error("the template does not name `hash`")]
    NoHash,
    /// Longer than [`MAX_TEMPLATE_BYTES`].
    #[error("the template has {bytes} bytes, at most {MAX_TEMPLATE_BYTES} are read")]
    TooLong {
        /// Length in bytes.
        bytes: usize,
    },
}

const FIELDS: [(&str, Field); 22] = [
    ("model", Field::Model),
    ("full_model", Field::FullModel),
    ("world", Field::World),
    ("rank", Field::Rank),
    ("tp", Field::Tp),
    ("pp", Field::Pp),
    ("pcp", Field::Pcp),
    ("dcp", Field::Dcp),
    ("head", Field::Head),
    ("shard", Field::Shard),
    ("kv_rank", Field::KvRank),
    ("group", Field::Group),
    ("family", Field::Family),
    ("role", Field::Role),
    ("layer", Field::Layer),
    ("hash", Field::Hash),
    ("prefix", Field::Prefix),
    ("namespace", Field::Namespace),
    ("dtype", Field::Dtype),
    ("root", Field::Root),
    ("salt", Field::Salt),
    ("tags", Field::Tags),
];

impl Field {
    /// Its name in templates.
    #[must_use]
    pub fn name(self) -> &'static str {
        FIELDS.iter().find(|(_, field)| *field == self).map_or("", |(name, _)| name)
    }

    /// True if the value is a number.
    #[must_use]
    pub fn is_number(self) -> bool {
        use Field::{Dcp, Group, Head, KvRank, Layer, Pcp, Pp, Rank, Shard, Tp, World};
        matches!(self, World | Rank | Tp | Pp | Pcp | Dcp | Head | Shard | KvRank | Group | Layer)
    }
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// [`TemplateError`] names the bad field and its position.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        if text.len() > MAX_TEMPLATE_BYTES {
            return Err(TemplateError::TooLong { bytes: text.len() });
        }
        let nodes = Reader { text, at: 0 }.whole()?;
        let template = Self { nodes };
        if template.values().any(|(field, _)| field == Field::Hash) {
            Ok(template)
        } else {
            Err(TemplateError::NoHash)
        }
    }

    /// The elements, in order.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// True if the template names this field.
    #[must_use]
    pub fn names(&self, field: Field) -> bool {
        self.values().any(|(f, _)| f == field)
    }

    /// All values, those in parts too.
    pub fn values(&self) -> impl Iterator<Item = (Field, Form)> + '_ {
        self.nodes
            .iter()
            .flat_map(|node| match node {
                Node::Part(inner) => inner.as_slice(),
                other => std::slice::from_ref(other),
            })
            .filter_map(|node| match node {
                Node::Value(field, form) => Some((*field, *form)),
                Node::Text(_) | Node::Part(_) => None,
            })
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn whole(&mut self) -> Result<Vec<Node>, TemplateError> {
        let mut nodes = Vec::new();
        // The offset of the open part and what stood before it.
        let mut open: Option<(usize, Vec<Node>)> = None;
        while let Some(c) = self.text[self.at..].chars().next() {
            let at = self.at;
            self.at += c.len_utf8();
            if "{}[]".contains(c) && self.text[self.at..].starts_with(c) {
                self.at += 1;
                push_char(&mut nodes, c);
                continue;
            }
            match c {
                '{' => nodes.push(self.value(at)?),
                '}' => return Err(TemplateError::Unpaired { at, what: c }),
                '[' if open.is_some() => return Err(TemplateError::Nested { at }),
                '[' => open = Some((at, std::mem::take(&mut nodes))),
                ']' => {
                    let (start, before) = open.take().ok_or(TemplateError::Unpaired { at, what: c })?;
                    let part = std::mem::replace(&mut nodes, before);
                    if !part.iter().any(|n| matches!(n, Node::Value(..))) {
                        return Err(TemplateError::PartWithoutField { at: start });
                    }
                    nodes.push(Node::Part(part));
                }
                other => push_char(&mut nodes, other),
            }
        }
        match open {
            Some((at, _)) => Err(TemplateError::Unpaired { at, what: '[' }),
            None => Ok(nodes),
        }
    }

    /// Reads a value whose `{` was at `open`.
    fn value(&mut self, open: usize) -> Result<Node, TemplateError> {
        let rest = &self.text[self.at..];
        let end = rest.find('}').ok_or(TemplateError::Unpaired { at: open, what: '{' })?;
        let inner = &rest[..end];
        let at = self.at;
        self.at += end + 1;
        let (name, form) = inner.split_once(':').unwrap_or((inner, ""));
        let Some((_, field)) = FIELDS.iter().find(|(n, _)| *n == name) else {
            return Err(TemplateError::UnknownField { at, name: name.to_owned() });
        };
        match form_of(*field, form) {
            Some(form) => Ok(Node::Value(*field, form)),
            None => Err(TemplateError::BadForm {
                at: at + name.len() + 1,
                field: name.to_owned(),
                form: form.to_owned(),
            }),
        }
    }
}

fn push_char(nodes: &mut Vec<Node>, c: char) {
    if let Some(Node::Text(text)) = nodes.last_mut() {
        text.push(c);
    } else {
        nodes.push(Node::Text(c.to_string()));
    }
}

fn form_of(field: Field, form: &str) -> Option<Form> {
    if form.is_empty() {
        return Some(Form::Plain);
    }
    if field.is_number() {
        let digits = form.strip_suffix('x')?;
        return match digits.strip_prefix('0') {
            Some(width) => width.parse().ok().filter(|w| (1..=16).contains(w)).map(Form::Hex),
            None => digits.is_empty().then_some(Form::Hex(0)),
        };
    }
    match (field, form) {
        (Field::Hash, "i64") => Some(Form::I64),
        (Field::Hash, "u64") => Some(Form::U64),
        (Field::Hash, "le0") => Some(Form::Word(0)),
        (Field::Hash, "le1") => Some(Form::Word(1)),
        (Field::Hash, _) => {
            let digits = form.strip_prefix("first")?.parse().ok()?;
            (1..=32).contains(&digits).then_some(Form::First(digits))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> TemplateError {
        Template::parse(text).unwrap_err()
    }

    #[test]
    fn errors_name_the_bad_field_and_the_position() {
        assert_eq!(
            error("{model}@{heads}@{hash}"),
            TemplateError::UnknownField { at: 9, name: "heads".into() }
        );
        assert_eq!(error("é{}{hash}"), TemplateError::UnknownField { at: 3, name: String::new() });
        let bad = |at, field: &str, form: &str| TemplateError::BadForm {
            at,
            field: field.into(),
            form: form.into(),
        };
        assert_eq!(error("{model:x}{hash}"), bad(7, "model", "x"));
        assert_eq!(error("{hash:first0}"), bad(6, "hash", "first0"));
        assert_eq!(error("{hash:first33}"), bad(6, "hash", "first33"));
        assert_eq!(error("{rank:8x}{hash}"), bad(6, "rank", "8x"));
        assert_eq!(error("{rank:i64}{hash}"), bad(6, "rank", "i64"));
        assert_eq!(error("{hash}{rank:0x}"), bad(12, "rank", "0x"));
    }

    #[test]
    fn pairs_must_match() {
        assert_eq!(error("a{hash"), TemplateError::Unpaired { at: 1, what: '{' });
        assert_eq!(error("a}{hash}"), TemplateError::Unpaired { at: 1, what: '}' });
        assert_eq!(error("{hash}[{salt}"), TemplateError::Unpaired { at: 6, what: '[' });
        assert_eq!(error("{hash}]"), TemplateError::Unpaired { at: 6, what: ']' });
        assert_eq!(error("[{salt}[{tags}]]{hash}"), TemplateError::Nested { at: 7 });
        assert_eq!(error("{hash}[@]"), TemplateError::PartWithoutField { at: 6 });
    }

    #[test]
    fn a_key_must_depend_on_the_block_and_be_of_reasonable_length() {
        assert_eq!(error("{model}@{rank}"), TemplateError::NoHash);
        assert_eq!(error(&"x".repeat(1025)), TemplateError::TooLong { bytes: 1025 });
    }

    #[test]
    fn doubled_brackets_are_characters() {
        let template = Template::parse("{{[[{hash:first3}]]}}[@{salt}]").unwrap();
        let expected = [
            Node::Text("{[".into()),
            Node::Value(Field::Hash, Form::First(3)),
            Node::Text("]}".into()),
            Node::Part(vec![Node::Text("@".into()), Node::Value(Field::Salt, Form::Plain)]),
        ];
        assert_eq!(template.nodes(), expected);
        assert!(template.names(Field::Salt) && !template.names(Field::Rank));
    }
}
