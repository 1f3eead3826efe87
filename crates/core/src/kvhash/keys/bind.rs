//! Templates bound to one place: all values but those of the block and the request are text
//! already, so that writing a key is a few copies.

use std::fmt::Write as _;

use super::groups::KvGroup;
use super::lmcache::kv_rank;
use super::ranks::{KvShape, Place};
use super::template::{Field, Form, Node, Template};

/// Texts that are the same for all keys of a profile.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// Last path component of the model.
    pub model: &'a str,
    /// The model as given.
    pub full_model: &'a str,
    /// Cache prefix, or empty.
    pub prefix: &'a str,
    /// Store namespace, or empty.
    pub namespace: &'a str,
    /// Type of the cached values, or empty.
    pub dtype: &'a str,
    /// World size, in ranks.
    pub world: u32,
    /// Text that the store writes for a `/` in names.
    pub slash: &'a str,
    /// Text that the store writes after each key.
    pub end: &'a str,
}

/// Texts of one block and its request.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockTexts<'a> {
    /// The hash of the block, in bytes.
    pub hash: &'a [u8],
    /// The hash in lower-case hexadecimal.
    pub hex: &'a str,
    /// Directory of the file store.
    pub root: &'a str,
    /// The request's cache salt, or empty.
    pub salt: &'a str,
    /// The request's tags, each with its leading `@`, or empty.
    pub tags: &'a str,
}

/// A template bound to one place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bound {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Piece {
    Text(String),
    Hash(HashForm),
    Late(Late),
    /// Left out when the text is empty.
    Part(Late, Vec<Self>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Late {
    Root,
    Salt,
    Tags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum HashForm {
    Hex,
    I64,
    U64,
    First(u8),
    Word(u8),
}

impl Bound {
    /// Binds a template to a place of a shape.
    #[must_use]
    pub fn new(template: &Template, names: &Names<'_>, shape: &KvShape, at: &Place) -> Self {
        let binder = Binder { names, shape, at };
        let mut pieces = Vec::new();
        for node in template.nodes() {
            binder.node(node, &mut pieces);
        }
        push_text(&mut pieces, names.end);
        Self { pieces }
    }

    /// Appends the key of a block.
    pub fn write(&self, block: &BlockTexts<'_>, out: &mut String) {
        write_pieces(&self.pieces, block, out);
    }
}

/// The texts of a template's values at a place, in the order of [`Template::values`]. They are
/// empty for values of a part that is left out, for the hash, and for what comes with the request.
pub(super) fn texts(template: &Template, names: &Names<'_>, shape: &KvShape, at: &Place) -> Vec<String> {
    let binder = Binder { names, shape, at };
    let mut texts = Vec::new();
    for node in template.nodes() {
        let (nodes, kept) = match node {
            Node::Part(inner) => {
                let first = inner.iter().find_map(|node| match node {
                    Node::Value(field, _) => Some(*field),
                    _ => None,
                });
                (inner.as_slice(), first.is_some_and(|field| !binder.is_idle(field)))
            }
            other => (std::slice::from_ref(other), true),
        };
        texts.extend(nodes.iter().filter_map(|node| match node {
            Node::Value(field, form) if kept => Some(binder.written(*field, *form)),
            Node::Value(..) => Some(String::new()),
            Node::Text(_) | Node::Part(_) => None,
        }));
    }
    texts
}

struct Binder<'a> {
    names: &'a Names<'a>,
    shape: &'a KvShape,
    at: &'a Place,
}

impl Binder<'_> {
    fn node(&self, node: &Node, out: &mut Vec<Piece>) {
        match node {
            Node::Text(text) => push_text(out, text),
            Node::Value(field, form) => self.value(*field, *form, out),
            Node::Part(inner) => {
                let first = inner.iter().find_map(|n| match n {
                    Node::Value(field, _) => Some(*field),
                    _ => None,
                });
                match first.map(|field| (late(field), self.is_idle(field))) {
                    Some((Some(late), _)) => {
                        let mut pieces = Vec::new();
                        inner.iter().for_each(|n| self.node(n, &mut pieces));
                        out.push(Piece::Part(late, pieces));
                    }
                    Some((None, false)) => inner.iter().for_each(|n| self.node(n, out)),
                    _ => {}
                }
            }
        }
    }

    fn value(&self, field: Field, form: Form, out: &mut Vec<Piece>) {
        if field == Field::Hash {
            out.push(Piece::Hash(match form {
                Form::Plain | Form::Hex(_) => HashForm::Hex,
                Form::I64 => HashForm::I64,
                Form::U64 => HashForm::U64,
                Form::First(digits) => HashForm::First(digits),
                Form::Word(index) => HashForm::Word(index),
            }));
        } else if let Some(late) = late(field) {
            out.push(Piece::Late(late));
        } else {
            push_text(out, &self.written(field, form));
        }
    }

    fn written(&self, field: Field, form: Form) -> String {
        self.number(field).map_or_else(|| self.text(field), |number| written(number, form))
    }

    fn text(&self, field: Field) -> String {
        let names = self.names;
        match field {
            Field::Model => names.model.replace('/', names.slash),
            Field::FullModel => names.full_model.replace('/', names.slash),
            Field::Prefix => names.prefix.to_owned(),
            Field::Namespace => names.namespace.to_owned(),
            Field::Dtype => names.dtype.to_owned(),
            Field::Family => self.group().map_or("default", |g| g.family.as_str()).to_owned(),
            Field::Role => self.group().map_or("kv", |g| g.role).to_owned(),
            _ => String::new(),
        }
    }

    fn group(&self) -> Option<&KvGroup> {
        self.shape.groups.get(self.at.group as usize)
    }

    fn number(&self, field: Field) -> Option<u32> {
        let at = self.at;
        Some(match field {
            Field::World => self.names.world,
            Field::Rank => at.rank,
            Field::Tp => at.tp,
            Field::Pp => at.pp,
            Field::Pcp => at.pcp,
            Field::Dcp => at.dcp,
            Field::Head | Field::Shard => at.head,
            Field::KvRank => kv_rank(self.names.world, at.rank),
            Field::Group => at.group,
            Field::Layer => at.layer,
            _ => return None,
        })
    }

    fn is_idle(&self, field: Field) -> bool {
        let shape = self.shape;
        match field {
            Field::Group => shape.groups.len() <= 1,
            Field::Pp => shape.pp <= 1,
            Field::Pcp => shape.pcp <= 1,
            Field::Dcp => shape.dcp <= 1,
            Field::Layer => shape.layers <= 1,
            Field::Hash => false,
            other => !other.is_number() && self.text(other).is_empty(),
        }
    }
}

fn late(field: Field) -> Option<Late> {
    match field {
        Field::Root => Some(Late::Root),
        Field::Salt => Some(Late::Salt),
        Field::Tags => Some(Late::Tags),
        _ => None,
    }
}

fn written(number: u32, form: Form) -> String {
    match form {
        Form::Hex(width) => format!("{number:0width$x}", width = usize::from(width)),
        _ => number.to_string(),
    }
}

fn push_text(out: &mut Vec<Piece>, text: &str) {
    if let Some(Piece::Text(last)) = out.last_mut() {
        last.push_str(text);
    } else if !text.is_empty() {
        out.push(Piece::Text(text.to_owned()));
    }
}

fn write_pieces(pieces: &[Piece], block: &BlockTexts<'_>, out: &mut String) {
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Hash(form) => write_hash(*form, block, out),
            Piece::Late(late) => out.push_str(block.late(*late)),
            Piece::Part(late, _) if block.late(*late).is_empty() => {}
            Piece::Part(_, inner) => write_pieces(inner, block, out),
        }
    }
}

fn write_hash(form: HashForm, block: &BlockTexts<'_>, out: &mut String) {
    let word = |index: u8| block.hash.as_chunks::<8>().0.get(usize::from(index)).copied().unwrap_or_default();
    // Writing to a String can't fail.
    let _ = match form {
        HashForm::Hex => out.write_str(block.hex),
        HashForm::First(digits) => out.write_str(block.hex.get(..usize::from(digits)).unwrap_or(block.hex)),
        HashForm::U64 => write!(out, "{:x}", u64::from_be_bytes(word(0))),
        HashForm::I64 => {
            let number = i64::from_be_bytes(word(0));
            write!(out, "{}{:x}", if number < 0 { "-" } else { "" }, number.unsigned_abs())
        }
        HashForm::Word(index) => write!(out, "{:016x}", u64::from_le_bytes(word(index))),
    };
}

impl<'a> BlockTexts<'a> {
    fn late(&self, late: Late) -> &'a str {
        match late {
            Late::Root => self.root,
            Late::Salt => self.salt,
            Late::Tags => self.tags,
        }
    }
}

/// Appends bytes in lower-case hexadecimal.
pub(super) fn push_hex(out: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.reserve(bytes.len() * 2);
    for byte in bytes {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Names<'_> = Names {
        model: "M",
        full_model: "a/M",
        prefix: "",
        namespace: "",
        dtype: "half",
        world: 3,
        slash: "/",
        end: "",
    };

    fn key(template: &str, shape: &KvShape, at: Place, block: &BlockTexts<'_>) -> String {
        let mut out = String::new();
        Bound::new(&Template::parse(template).unwrap(), &NAMES, shape, &at).write(block, &mut out);
        out
    }

    #[test]
    fn a_part_follows_its_first_field() {
        let one = KvShape::default();
        let two = KvShape { pp: 2, groups: vec![KvGroup::default(); 2], ..KvShape::default() };
        let at = Place { group: 1, pp: 1, ..Place::default() };
        let text = "{model}[@g{group}][@pp{pp}{dtype}][{prefix}@]{hash}[@{salt}]";
        let block = BlockTexts { hex: "ab", ..BlockTexts::default() };
        assert_eq!(key(text, &one, at, &block), "Mab");
        assert_eq!(key(text, &two, at, &BlockTexts { salt: "s", ..block }), "M@g1@pp1halfab@s");
    }

    #[test]
    fn hashes_have_all_their_forms() {
        let form = |form: &str, hash: &[u8]| {
            let mut hex = String::new();
            push_hex(&mut hex, hash);
            let block = BlockTexts { hash, hex: &hex, ..BlockTexts::default() };
            key(&format!("{{hash:{form}}}"), &KvShape::default(), Place::default(), &block)
        };
        assert_eq!(form("i64", &(-255_i64).to_be_bytes()), "-ff");
        assert_eq!(form("i64", &i64::MIN.to_be_bytes()), "-8000000000000000");
        assert_eq!(form("u64", &u64::MAX.to_be_bytes()), "ffffffffffffffff");
        assert_eq!(form("u64", &255_u64.to_be_bytes()), "ff");
        let id: Vec<u8> = (0..16).collect();
        assert_eq!(form("le1", &id), "0f0e0d0c0b0a0908");
        assert_eq!(form("first3", &id), "000");
    }

    #[test]
    fn numbers_are_padded_as_asked() {
        let at = Place { rank: 17, ..Place::default() };
        let block = BlockTexts::default();
        let text = "{rank}|{rank:x}|{rank:04x}|{kv_rank:08x}|{world}{hash}";
        assert_eq!(key(text, &KvShape::default(), at, &block), "17|11|0011|03110311|3");
    }
}
