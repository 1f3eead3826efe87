//! Dropping and setting members of a scanned object without touching the rest of its text.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;

use super::{Object, text};

/// A set value up to this size is copied next to its key instead of becoming a part of its own.
const INLINE_VALUE_BYTES: usize = 256;

/// Changes to an object, by names of members, never by positions.
///
/// Drops concern the text that is edited, sets are what it gains. So their order does not matter,
/// and a key that is both dropped and set ends up set, once.
#[derive(Clone, Default)]
pub struct Edit {
    drop: SmallVec<[&'static str; 16]>,
    drop_prefix: SmallVec<[&'static str; 2]>,
    set: SmallVec<[SetMember; 8]>,
}

/// A member that an edit sets.
#[derive(Clone)]
struct SetMember {
    key: &'static str,
    value: Bytes,
}

/// The edited text in pieces: shared slices of the original and the added text between them, in
/// order.
#[derive(Default, Clone)]
pub struct Parts(SmallVec<[Bytes; 8]>);

impl Edit {
    /// An edit that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes every occurrence of these keys, and every member whose key starts with one of
    /// `prefixes`.
    pub fn dropping(keys: &[&'static str], prefixes: &[&'static str]) -> Self {
        Self {
            drop: SmallVec::from_slice(keys),
            drop_prefix: SmallVec::from_slice(prefixes),
            ..Self::default()
        }
    }

    /// Removes every occurrence of `key`.
    #[must_use]
    pub fn drop(mut self, key: &'static str) -> Self {
        self.drop.push(key);
        self
    }

    /// Removes every occurrence of `key` and appends it with `value`, which must be one valid JSON
    /// value: it is written as it is. Setting a key again replaces the value and keeps its place.
    #[must_use]
    pub fn set(mut self, key: &'static str, value: Bytes) -> Self {
        match self.set.iter_mut().find(|member| member.key == key) {
            Some(member) => member.value = value,
            None => self.set.push(SetMember { key, value }),
        }
        self
    }

    /// The value that it sets for `key`, if any.
    pub fn value(&self, key: &str) -> Option<&Bytes> {
        self.set.iter().find(|member| member.key == key).map(|member| &member.value)
    }

    fn removes(&self, key: &[u8]) -> bool {
        self.drop.iter().any(|name| name.as_bytes() == key)
            || self.set.iter().any(|member| member.key.as_bytes() == key)
            || self.drop_prefix.iter().any(|prefix| key.starts_with(prefix.as_bytes()))
    }
}

impl Object {
    /// The text after `edit`. Dropped and set keys are gone wherever and however they were spelled.
    /// Set ones follow the last member, in the order they were set, and all other bytes stay as
    /// they are.
    pub fn splice(&self, edit: &Edit) -> Parts {
        let head_end = self.members.first().map_or(self.inside, |first| first.key.start());
        let tail = self.members.last().map_or(self.inside, |last| last.value.end());
        let mut cut = Cut { source: self.bytes(), pending: 0..head_end, parts: SmallVec::new() };
        let mut kept_any = false;
        let mut previous_end = head_end;
        for member in &self.members {
            if !edit.removes(&self.key(member)) {
                // With a member before it, a member brings along the comma (and white space) that
                // led to it.
                let start = if kept_any { previous_end } else { member.key.start() };
                cut.keep(start..member.value.end());
                kept_any = true;
            }
            previous_end = member.value.end();
        }
        cut.add(&edit.set, kept_any);
        cut.keep(tail..self.bytes().len());
        cut.finish()
    }
}

/// Parts under construction; what is kept is collected in `pending` as long as it is contiguous.
struct Cut<'a> {
    source: &'a Bytes,
    pending: Range<usize>,
    parts: SmallVec<[Bytes; 8]>,
}

impl Cut<'_> {
    fn keep(&mut self, range: Range<usize>) {
        if self.pending.end == range.start {
            self.pending.end = range.end;
        } else {
            self.flush();
            self.pending = range;
        }
    }

    fn add(&mut self, members: &[SetMember], mut comma: bool) {
        if members.is_empty() {
            return;
        }
        // The members that follow are contiguous with those kept only in the source, not in the
        // result.
        self.flush();
        // Quotes, a colon and a comma; keys with escapes are rare.
        let bytes =
            |SetMember { key, value }: &SetMember| key.len() + value.len().min(INLINE_VALUE_BYTES) + 4;
        let mut glue = Vec::with_capacity(members.iter().map(bytes).sum());
        for SetMember { key, value } in members {
            if comma {
                glue.push(b',');
            }
            comma = true;
            text::push_quoted(&mut glue, key);
            glue.push(b':');
            if value.len() <= INLINE_VALUE_BYTES {
                glue.extend_from_slice(value);
            } else {
                self.parts.push(Bytes::from(std::mem::take(&mut glue)));
                self.parts.push(value.clone());
            }
        }
        if !glue.is_empty() {
            self.parts.push(Bytes::from(glue));
        }
    }

    fn flush(&mut self) {
        let range = std::mem::take(&mut self.pending);
        if !range.is_empty() {
            self.parts.push(self.source.slice(range));
        }
    }

    fn finish(mut self) -> Parts {
        self.flush();
        Parts(self.parts)
    }
}

impl Parts {
    /// Length of the whole text: the `content-length` of a body sent from these parts.
    pub fn len_bytes(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// The whole text in one piece; copies unless it already is one.
    pub fn to_bytes(&self) -> Bytes {
        match self.0.as_slice() {
            [only] => only.clone(),
            parts => Bytes::from(parts.concat()),
        }
    }

    /// The pieces in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Bytes> {
        self.0.iter()
    }
}

/// A text that goes on as it came.
impl From<Bytes> for Parts {
    fn from(whole: Bytes) -> Parts {
        Parts(SmallVec::from_iter([whole]))
    }
}

impl IntoIterator for Parts {
    type Item = Bytes;
    type IntoIter = smallvec::IntoIter<[Bytes; 8]>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Parts {
    type Item = &'a Bytes;
    type IntoIter = std::slice::Iter<'a, Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Names only: a set value may be somebody's prompt.
impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Edit")
            .field("drop", &self.drop)
            .field("drop_prefix", &self.drop_prefix)
            .field("set", &self.set.iter().map(|member| member.key).collect::<Vec<_>>())
            .finish()
    }
}

/// Sizes only, for the same reason.
impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Parts").field(&self.iter().map(Bytes::len).collect::<Vec<_>>()).finish()
    }
}
