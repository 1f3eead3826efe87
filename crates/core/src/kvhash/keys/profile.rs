//! A key profile: everything needed to name the blocks of one pool, checked and bound once.

use std::collections::HashSet;

use super::batch::KeyBatch;
use super::bind::{BlockTexts, Bound, Names, push_hex};
use super::check;
use super::groups::{GroupHash, KvGroup, hashes_per_block};
use super::lmcache::spelling;
use super::preset::{Layout, Preset};
use super::ranks::{KvShape, Place};
use super::refuse::{KeyError, MAX_KEYS_PER_BLOCK, Refusal};
use super::template::{Field, Template};
use super::ucm::backend_of;
use super::yuanrong;

/// Stores of a pool's blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Store {
    /// Mooncake, and any store that takes keys as they are.
    #[default]
    Mooncake,
    /// MemCache: keys of 1 to 256 bytes.
    MemCache,
    /// Yuanrong: some versions rewrite keys.
    Yuanrong,
    /// Files below these directories; UCM spreads blocks over several. Without one, keys are file
    /// names.
    Files {
        /// The directories (`storage_backends`).
        roots: Vec<String>,
    },
    /// Objects of an S3 bucket.
    S3,
}

/// The operator's settings of a pool.
#[derive(Clone, Debug)]
pub struct KeyConfig {
    /// The connector's row.
    pub preset: &'static Preset,
    /// A template in place of the row's.
    pub template: Option<String>,
    /// Way in which layers share objects.
    pub layout: Layout,
    /// The engine's `--model` value.
    pub model: String,
    /// Parallel shape of the engines that fill the pool.
    pub shape: KvShape,
    /// Place where the blocks are.
    pub store: Store,
    /// `cache_prefix`, or empty.
    pub prefix: String,
    /// Store namespace with its leading `@`, or empty.
    pub namespace: String,
    /// Type of the cached values as LMCache writes it, or empty.
    pub dtype: String,
    /// Bytes of a block hash, if not those of the row (16 for xxhash).
    pub hash_bytes: Option<usize>,
    /// The y of the engine's Python 3.y.
    pub python_minor: Option<u8>,
}

/// A prompt as hashes.
#[derive(Clone, Copy, Debug)]
pub struct PromptBlocks<'a, H> {
    /// Hashes of its full hash blocks, in order.
    pub hashes: &'a [H],
    /// Length of the prompt, in tokens.
    pub prompt_tokens: u32,
    /// The request's cache salt, or empty; only LMCache MP writes it.
    pub salt: &'a str,
    /// The request's tags from [`tags`](super::lmcache::tags), or empty.
    pub tags: &'a str,
}

/// The keys to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Every key that exists, block by block.
    Every,
    /// Every key a hit needs: those of groups that keep all blocks.
    Needed,
    /// The engine's own lookup, in its order: predicts the engine.
    Engine,
}

/// A checked profile.
#[derive(Clone, Debug)]
pub struct KeyProfile {
    groups: Vec<Group>,
    hash_bytes: usize,
    group_hash: GroupHash,
    /// Hits are multiples of so many tokens.
    unit_tokens: u32,
    leaves_a_block: bool,
    rewrite_over_chars: Option<usize>,
    roots: Vec<String>,
    max_key_bytes: usize,
}

#[derive(Clone, Debug)]
struct Group {
    block_tokens: u32,
    hashes_per_block: usize,
    keeps_every_block: bool,
    slots: Vec<Slot>,
    /// Indexes of the slots the engine asks for, in its order.
    asked: Vec<usize>,
}

/// The keys of one place: one, or one per layer.
#[derive(Clone, Debug)]
struct Slot {
    keys: Vec<Bound>,
}

impl KeyConfig {
    /// A configuration of this row with nothing else said.
    #[must_use]
    pub fn new(preset: &'static Preset, model: &str, shape: KvShape) -> Self {
        Self {
            preset,
            template: None,
            layout: Layout::Whole,
            model: model.to_owned(),
            shape,
            store: Store::Mooncake,
            prefix: String::new(),
            namespace: String::new(),
            dtype: String::new(),
            hash_bytes: None,
            python_minor: None,
        }
    }
}

impl<'a, H> PromptBlocks<'a, H> {
    /// A prompt without salt and tags.
    #[must_use]
    pub fn new(hashes: &'a [H], prompt_tokens: u32) -> Self {
        Self { hashes, prompt_tokens, salt: "", tags: "" }
    }
}

/// Texts of a request that its keys have.
#[derive(Clone, Copy, Default)]
struct KeyTexts<'a> {
    salt: &'a str,
    tags: &'a str,
}

impl<'a> KeyTexts<'a> {
    fn of<H>(prompt: &PromptBlocks<'a, H>) -> Self {
        Self { salt: prompt.salt, tags: prompt.tags }
    }
}

impl KeyProfile {
    /// Checks a configuration and binds its templates.
    ///
    /// # Errors
    /// [`Refusal`] when the keys would be wrong or are not known.
    pub fn new(config: &KeyConfig) -> Result<Self, Refusal> {
        let preset = config.preset;
        let hash_bytes = config.hash_bytes.unwrap_or(preset.hash_bytes);
        let template = match &config.template {
            Some(text) => Template::parse(text)?,
            None => Template::parse(preset.template(config.layout)?)?,
        };
        check::config(config, &template, hash_bytes)?;
        let (groups, unit_tokens) = bind_groups(config, &template)?;
        let roots = match &config.store {
            Store::Files { roots } => roots.iter().map(|r| r.trim_end_matches('/').to_owned()).collect(),
            _ => Vec::new(),
        };
        let yuanrong = config.store == Store::Yuanrong;
        let mut profile = Self {
            groups,
            hash_bytes,
            group_hash: preset.group_hash,
            unit_tokens,
            leaves_a_block: preset.leaves_a_block,
            rewrite_over_chars: preset.yuanrong_max_chars.filter(|_| yuanrong),
            roots,
            max_key_bytes: 0,
        };
        profile.max_key_bytes = profile.longest_key();
        match config.store {
            Store::MemCache if profile.max_key_bytes > MEMCACHE_KEY_BYTES => {
                Err(Refusal::MemCacheKeyTooLong { bytes: profile.max_key_bytes })
            }
            _ => Ok(profile),
        }
    }

    /// Keys of one block of the first group.
    #[must_use]
    pub fn keys_per_block(&self) -> usize {
        self.groups.first().map_or(0, |g| g.slots.iter().map(|s| s.keys.len()).sum())
    }

    /// Tokens of one block of the first group.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        self.groups.first().map_or(0, |g| g.block_tokens)
    }

    /// Tokens of one block hash: what the hashes of a prompt have to be made with.
    #[must_use]
    pub fn hash_tokens(&self) -> u32 {
        self.groups
            .first()
            .map_or(0, |g| u32::try_from(g.block_tokens as usize / g.hashes_per_block).unwrap_or(0))
    }

    /// Hits and lookups are multiples of this many tokens.
    #[must_use]
    pub fn unit_tokens(&self) -> u32 {
        self.unit_tokens
    }

    /// Bytes of the longest key, without the request's salt and tags.
    #[must_use]
    pub fn max_key_bytes(&self) -> usize {
        self.max_key_bytes
    }

    /// Adds all keys of the next block of the first group; `hash` is the block's, in bytes.
    ///
    /// # Errors
    /// [`KeyError`] when the hash has another length than the profile's, or the batch is full.
    pub fn keys_of_block(&self, hash: &[u8], out: &mut KeyBatch) -> Result<(), KeyError> {
        let Some(group) = self.groups.first() else { return Ok(()) };
        self.load(&[hash], out)?;
        let start = out.end_tokens();
        out.covers(start.saturating_add(group.block_tokens), self.unit_tokens);
        group.slots.iter().try_for_each(|slot| self.add(slot, start, KeyTexts::default(), out))
    }

    /// Adds the keys of all blocks of one group, block by block; nothing for a group that does not
    /// exist.
    ///
    /// # Errors
    /// [`KeyError`] when a hash has another length than the profile's, hashes are missing, or the
    /// batch is full.
    pub fn keys_of_group<H: AsRef<[u8]>>(
        &self,
        index: usize,
        prompt: &PromptBlocks<'_, H>,
        out: &mut KeyBatch,
    ) -> Result<(), KeyError> {
        let Some(group) = self.groups.get(index) else { return Ok(()) };
        for (start, hashes) in self.blocks(group, prompt)? {
            self.load(hashes, out)?;
            group.slots.iter().try_for_each(|slot| self.add(slot, start, KeyTexts::of(prompt), out))?;
        }
        out.covers(self.aligned(prompt.prompt_tokens), self.unit_tokens);
        Ok(())
    }

    /// Adds the keys of a prompt.
    ///
    /// # Errors
    /// Fails as [`keys_of_group`](Self::keys_of_group) does.
    pub fn keys_of_prompt<H: AsRef<[u8]>>(
        &self,
        prompt: &PromptBlocks<'_, H>,
        ask: Ask,
        out: &mut KeyBatch,
    ) -> Result<(), KeyError> {
        let wanted = |group: &Group| ask == Ask::Every || group.keeps_every_block;
        for (index, group) in self.groups.iter().enumerate().filter(|(_, g)| wanted(g)) {
            if ask == Ask::Engine {
                self.ask_like_the_engine(group, prompt, out)?;
            } else {
                self.keys_of_group(index, prompt, out)?;
            }
        }
        out.covers(self.aligned(prompt.prompt_tokens), self.unit_tokens);
        Ok(())
    }

    /// Tokens the engine will not compute, when `hit_tokens` of a prompt are in the pool.
    #[must_use]
    pub fn usable_tokens(&self, hit_tokens: u32, prompt_tokens: u32) -> u32 {
        let last = prompt_tokens.saturating_sub(1);
        if self.leaves_a_block { hit_tokens.min(self.aligned(last)) } else { hit_tokens.min(last) }
    }

    fn ask_like_the_engine<H: AsRef<[u8]>>(
        &self,
        group: &Group,
        prompt: &PromptBlocks<'_, H>,
        out: &mut KeyBatch,
    ) -> Result<(), KeyError> {
        for slot in group.asked.iter().filter_map(|i| group.slots.get(*i)) {
            for (start, hashes) in self.blocks(group, prompt)? {
                self.load(hashes, out)?;
                self.add(slot, start, KeyTexts::of(prompt), out)?;
            }
        }
        Ok(())
    }

    /// Start of each looked-up block, in tokens, and its hashes.
    fn blocks<'h, H>(
        &self,
        group: &Group,
        prompt: &PromptBlocks<'h, H>,
    ) -> Result<impl Iterator<Item = (u32, &'h [H])> + use<'h, H>, KeyError> {
        let count = self.aligned(prompt.prompt_tokens) / group.block_tokens;
        let wanted = count as usize * group.hashes_per_block;
        let hashes =
            prompt.hashes.get(..wanted).ok_or(KeyError::TooFewHashes { wanted, got: prompt.hashes.len() })?;
        let starts = (0..count).map({
            let block_tokens = group.block_tokens;
            move |i| i * block_tokens
        });
        Ok(starts.zip(hashes.chunks_exact(group.hashes_per_block)))
    }

    /// Makes the hash of one block the one that is written next.
    fn load<H: AsRef<[u8]>>(&self, hashes: &[H], out: &mut KeyBatch) -> Result<(), KeyError> {
        if let Some(other) = hashes.iter().map(|h| h.as_ref().len()).find(|n| *n != self.hash_bytes) {
            return Err(KeyError::HashBytes { wanted: self.hash_bytes, got: other });
        }
        let scratch = &mut out.scratch;
        self.group_hash.write(hashes, &mut scratch.hash);
        scratch.hex.clear();
        push_hex(&mut scratch.hex, &scratch.hash);
        Ok(())
    }

    fn add(
        &self,
        slot: &Slot,
        start_tokens: u32,
        KeyTexts { salt, tags }: KeyTexts<'_>,
        out: &mut KeyBatch,
    ) -> Result<(), KeyError> {
        slot.keys.iter().try_for_each(|key| {
            out.add(start_tokens, |text, scratch| {
                let at = text.len();
                let root = match self.roots.as_slice() {
                    [] => "",
                    [one] => one.as_str(),
                    many => many.get(backend_of(&scratch.hash, many.len())).map_or("", String::as_str),
                };
                let block = BlockTexts { hash: &scratch.hash, hex: &scratch.hex, root, salt, tags };
                key.write(&block, text);
                if let Some(max_chars) = self.rewrite_over_chars {
                    yuanrong::rewrite(text, at, max_chars);
                }
            })
        })
    }

    /// Whole units of a prompt, in tokens.
    fn aligned(&self, prompt_tokens: u32) -> u32 {
        prompt_tokens - prompt_tokens.checked_rem(self.unit_tokens).unwrap_or(0)
    }

    fn longest_key(&self) -> usize {
        let mut longest = 0;
        let mut text = String::new();
        for group in &self.groups {
            let hash = vec![0xff; self.group_hash.bytes(group.hashes_per_block, self.hash_bytes)];
            let mut hex = String::new();
            push_hex(&mut hex, &hash);
            let root = self.roots.iter().max_by_key(|r| r.len()).map_or("", String::as_str);
            let block = BlockTexts { hash: &hash, hex: &hex, root, ..BlockTexts::default() };
            for key in group.slots.iter().flat_map(|s| &s.keys) {
                text.clear();
                key.write(&block, &mut text);
                longest = longest.max(text.len());
            }
        }
        longest
    }
}

/// Longest key of MemCache, in bytes.
const MEMCACHE_KEY_BYTES: usize = 256;

fn bind_groups(config: &KeyConfig, template: &Template) -> Result<(Vec<Group>, u32), Refusal> {
    let shape = with_group(config);
    let scale = config.preset.scale.factor(&shape);
    let together = config.preset.unit.factor(&shape);
    let key_block = |group: &KvGroup| {
        let ratio = if config.preset.family_scales { group.compress_ratio() } else { 1 };
        u64::from(group.block_tokens).saturating_mul(u64::from(ratio)).saturating_mul(scale)
    };
    let mut groups = Vec::new();
    let mut unit: u64 = 1;
    let mut keys = 0;
    for (index, group) in shape.groups.iter().enumerate() {
        let refuse = |error| Refusal::Group { group: index, error };
        let tokens = key_block(group);
        let default = u32::try_from(tokens).unwrap_or(u32::MAX);
        let hashes_per_block =
            hashes_per_block(tokens, shape.hash_tokens.unwrap_or(default)).map_err(refuse)?;
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        let places = shape.places(config.preset.ranks, number, group.kind);
        let (slots, asked) = bind_places(config, template, &shape, &places);
        keys += slots.iter().map(|s| s.keys.len()).sum::<usize>();
        unit = lcm(unit, tokens.saturating_mul(together));
        groups.push(Group {
            block_tokens: default,
            hashes_per_block: hashes_per_block as usize,
            keeps_every_block: group.keeps_every_block(),
            slots,
            asked,
        });
    }
    if keys > MAX_KEYS_PER_BLOCK {
        return Err(Refusal::TooManyKeys(keys));
    }
    // A unit that no prompt reaches means that nothing is ever looked up.
    Ok((groups, u32::try_from(unit).unwrap_or(u32::MAX)))
}

/// The shape with its one group spelled out, and without what this version does not look at.
pub(super) fn with_group(config: &KeyConfig) -> KvShape {
    let mut shape = config.shape.clone();
    if shape.groups.is_empty() {
        shape.groups.push(KvGroup { block_tokens: shape.block_tokens, ..KvGroup::default() });
    }
    if !config.preset.peer_tp {
        shape.peer_tp = None;
    }
    if shape.mla && shape.groups.len() == 1 {
        shape.groups.iter_mut().for_each(|g| g.kind = super::groups::GroupKind::Mla);
    }
    shape
}

/// Binds the keys of all places, each key once, and finds the order in which the engine asks.
fn bind_places(
    config: &KeyConfig,
    template: &Template,
    shape: &KvShape,
    places: &[Place],
) -> (Vec<Slot>, Vec<usize>) {
    let model = model_name(&config.model);
    let (slash, end) = spelling(config.preset.connector, &config.store);
    let names = Names {
        model,
        full_model: &config.model,
        prefix: &config.prefix,
        namespace: &config.namespace,
        dtype: &config.dtype,
        world: shape.world(config.preset.ranks),
        slash,
        end,
    };
    let layers = if template.names(Field::Layer) { shape.layers } else { 1 };
    let mut seen = HashSet::new();
    let mut slots = Vec::new();
    let mut kept = Vec::new();
    for place in places {
        let first = if config.preset.global_layers { place.pp * layers } else { 0 };
        let at = |layer| Place { layer, ..*place };
        let keys = (first..first + layers).map(|layer| Bound::new(template, &names, shape, &at(layer)));
        let keys: Vec<Bound> = keys.filter(|key| seen.insert(key.clone())).collect();
        if !keys.is_empty() {
            slots.push(Slot { keys });
            kept.push(*place);
        }
    }
    let asks = config.preset.asks;
    let mut asked: Vec<usize> =
        (0..kept.len()).filter(|i| kept.get(*i).is_some_and(|p| asks.asks(p))).collect();
    asked.sort_by_key(|i| kept.get(*i).map(|p| asks.order(p)));
    (slots, asked)
}

/// `M`: the last path component of the engine's `--model` value.
#[must_use]
pub fn model_name(model: &str) -> &str {
    model.trim_end_matches('/').rsplit('/').next().unwrap_or("")
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1)).saturating_mul(b)
}

#[cfg(test)]
mod tests;
