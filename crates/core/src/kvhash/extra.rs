//! Parts of a request other than tokens that enter its block hashes: vLLM's "extra keys".
//!
//! In this order: LoRA adapter, media, salt (first block only), prompt embeddings. Their spelling
//! depends on the [`Era`].

use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;

use super::encode::{Encode, Identity};
use super::version::Era;

/// The number of the literal `"mm"`, which is one object in the engine's code.
const MM: Identity = Identity::Object(0);
/// Most tokens behind a block that are hashed with it: multi-module MTP speculates less far.
pub(super) const MAX_LOOKAHEAD_TOKENS: usize = 64;

/// Parts of a request other than tokens. The default is a plain text request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockContext<'a> {
    /// The adapter, if any.
    pub lora: Option<Lora<'a>>,
    /// Images and the like, in any order.
    pub media: &'a [Media<'a>],
    /// The request's `cache_salt`; empty counts as none.
    pub cache_salt: Option<&'a str>,
    /// `prompt_embeds`, instead of token ids.
    pub prompt_embeds: Option<Embeds<'a>>,
}

/// A LoRA adapter as the engine knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lora<'a> {
    /// The name under which it is served.
    pub name: &'a str,
    /// The number the engine gave it; matters up to 0.11.0.
    pub int_id: i64,
    /// The path the engine was given (`root` in `/v1/models`); matters from 0.31.
    pub path: &'a str,
}

/// One image, video or sound, which stands for a run of placeholder tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Media<'a> {
    /// Hash of its content, made by the API server, or the client's `uuid`.
    pub identifier: &'a str,
    /// Its first placeholder in the prompt.
    pub offset_tokens: usize,
    /// Number of placeholder tokens.
    pub length_tokens: usize,
    /// Items with the same number share one Python string. Engines behind an API server have none
    /// such.
    pub object: Option<u16>,
}

/// Prompt embeddings, row by row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Embeds<'a> {
    /// All rows, as the tensor has them in memory.
    pub bytes: &'a [u8],
    /// Length of one row.
    pub bytes_per_token: usize,
}

/// A block's place: its tokens and those behind it that are hashed with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
}

/// The extra keys of all blocks of one request.
#[derive(Debug, Clone)]
pub(super) struct Extras<'a> {
    era: Era,
    context: BlockContext<'a>,
    /// Media items by offset.
    media: SmallVec<[Media<'a>; 4]>,
    /// No block has any: most requests.
    plain: bool,
}

/// One extra key.
enum Key<'a> {
    Lora(Lora<'a>),
    /// And where the item begins, relative to the block.
    Media(Media<'a>, i64),
    Salt(&'a str),
    Embeds(&'a [u8]),
}

impl<'a> Extras<'a> {
    pub(super) fn new(era: Era, context: BlockContext<'a>) -> Self {
        let mut media: SmallVec<[Media<'a>; 4]> = SmallVec::from_slice(context.media);
        media.sort_by_key(|item| item.offset_tokens);
        let BlockContext { lora, cache_salt, prompt_embeds, .. } = context;
        let plain = media.is_empty() && lora.is_none() && cache_salt.is_none() && prompt_embeds.is_none();
        Self { era, context, media, plain }
    }

    /// True if no block of the request has any.
    pub(super) fn are_none(&self) -> bool {
        self.plain
    }

    /// Writes the extra keys of one block: `None`, or a tuple. With lookahead, both are the first
    /// item of a tuple that goes on with the tokens ahead.
    pub(super) fn write(&self, out: &mut impl Encode, span: Span, ahead: &[u32]) {
        if ahead.is_empty() {
            return self.write_keys(out, span);
        }
        out.open(1 + ahead.len());
        self.write_keys(out, span);
        out.tokens(ahead);
        out.close(1 + ahead.len());
    }

    fn write_keys(&self, out: &mut impl Encode, span: Span) {
        if self.plain {
            return out.none();
        }
        let keys = self.keys(span);
        if keys.is_empty() {
            return out.none();
        }
        out.open(keys.len());
        keys.iter().for_each(|key| self.write_key(out, key));
        out.close(keys.len());
    }

    fn keys(&self, span: Span) -> SmallVec<[Key<'a>; 6]> {
        let mut keys: SmallVec<[Key<'a>; 6]> = self.context.lora.map(Key::Lora).into_iter().collect();
        keys.extend(self.media_keys(span));
        let salt = self.context.cache_salt.filter(|salt| span.start == 0 && !salt.is_empty());
        keys.extend(salt.map(Key::Salt));
        let embeds = self.context.prompt_embeds.filter(|_| self.era > Era::LoraNumber);
        keys.extend(embeds.map(|embeds| Key::Embeds(embeds.rows(span))));
        keys
    }

    /// Items that touch the block: from the first that has not ended, up to the first that goes on
    /// behind the block.
    ///
    /// (Up to 0.18, a block that is hashed in a later pass, while tokens are generated, also counts
    /// the prompt's last item if that ends where the block begins. Prompts are hashed in one pass.)
    fn media_keys(&self, span: Span) -> impl Iterator<Item = Key<'a>> {
        let ended =
            move |item: &Media<'_>| item.offset_tokens.saturating_add(item.length_tokens) <= span.start;
        let mut goes_on = false;
        let begun = self.media.iter().filter(move |item| !ended(item)).take_while(move |item| {
            let fits = !goes_on && item.offset_tokens < span.end;
            goes_on = item.offset_tokens.saturating_add(item.length_tokens) > span.end;
            fits
        });
        begun.map(move |item| Key::Media(*item, signed(item.offset_tokens) - signed(span.start)))
    }

    fn write_key(&self, out: &mut impl Encode, key: &Key<'_>) {
        let tagged = self.era == Era::Tagged;
        match key {
            Key::Lora(lora) if tagged => texts(out, &["lora", lora.name, lora.path]),
            Key::Lora(lora) if self.era == Era::LoraNumber => out.int(lora.int_id),
            Key::Lora(lora) => out.text(lora.name, Identity::Fresh),
            Key::Media(item, _) if self.era < Era::MediaOffsets => out.text(item.identifier, item.identity()),
            Key::Media(item, offset) => {
                out.open(2 + usize::from(tagged));
                if tagged {
                    out.text("mm", MM);
                }
                out.text(item.identifier, item.identity());
                out.int(*offset);
                out.close(2 + usize::from(tagged));
            }
            Key::Salt(salt) if tagged => texts(out, &["cache_salt", salt]),
            Key::Salt(salt) => out.text(salt, Identity::Fresh),
            Key::Embeds(rows) if self.era == Era::RawEmbeds => out.bytes(rows),
            Key::Embeds(rows) if tagged => {
                out.open(2);
                out.text("prompt_embeds", Identity::Fresh);
                out.bytes(&Sha256::digest(rows));
                out.close(2);
            }
            Key::Embeds(rows) => out.bytes(&Sha256::digest(rows)),
        }
    }
}

impl Media<'_> {
    fn identity(&self) -> Identity {
        self.object.map_or(Identity::Fresh, |number| Identity::Object(1 + u32::from(number)))
    }
}

impl<'a> Embeds<'a> {
    /// The rows of a span, as Python slices: as far as there are any.
    fn rows(&self, span: Span) -> &'a [u8] {
        let at = |token: usize| token.saturating_mul(self.bytes_per_token).min(self.bytes.len());
        self.bytes.get(at(span.start)..at(span.end)).unwrap_or_default()
    }
}

fn texts(out: &mut impl Encode, texts: &[&str]) {
    out.open(texts.len());
    texts.iter().for_each(|text| out.text(text, Identity::Fresh));
    out.close(texts.len());
}

fn signed(tokens: usize) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}
