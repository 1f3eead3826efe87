//! UCM (unified-cache-management): an MD5 chain in a namespace of model, parallelism and data type.
//!
//! `meta(r) = "{model}:{tp}:{dtype}:{r}" + suffix`, `h_r(x) = MD5(meta(r), x)`, and a block's id is
//! `h_0(pickle((parent id, tokens[, extra keys])))`. `PYTHONHASHSEED` does not matter. The
//! scheduler looks up the ids of rank 0; other ranks store under ids of their own.

use std::fmt::Write as _;
use std::num::NonZeroUsize;

use md5::{Digest as _, Md5};

use super::encode::{CanonicalValue, Encode, Format};
use super::extra::{Extras, Span};
use super::version::Era;
use super::{BlockContext, BlockHash, Known, ProfileError, VllmVersion};

/// Text whose hash is the parent of the first block.
const SEED: &str = "UCM_HASH_SEED";

/// Releases that differ in their ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Generation {
    /// Sources of April 2026, 0.2 to 0.4: the whole model path, no suffix.
    V0_4,
    /// 0.7.0: the model's last path component, speculation and 8-bit settings.
    V0_7,
    /// 0.8.0: also vLLM's extra keys.
    V0_8,
    /// 0.8.1: also decode context parallelism and a digest of the layout classes.
    V0_8_1,
}

/// Settings that UCM's ids depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UcmProfile {
    /// Release of UCM.
    pub generation: Generation,
    /// vLLM's release, for its extra keys.
    pub version: VllmVersion,
    /// The `--model` value.
    pub model: Box<str>,
    /// `torch.bfloat16` or `torch.float16`.
    pub dtype: Box<str>,
    /// Tensor parallel size; with the context-parallel connector and GQA, divided by `dcp`.
    pub tp: u32,
    /// Multi-head latent attention: all ranks share the ids of rank 0.
    pub mla: bool,
    /// Engine's setting `--block-size`.
    pub block_tokens: usize,
    /// Speculation's method and number of tokens.
    pub speculative: Option<(Box<str>, u32)>,
    /// `enable_sparse_sfa_c8` of the additional config; the namespace calls it `sfa_c8`.
    pub sfa_c8: bool,
    /// Setting that the namespace calls `li_c8`.
    pub li_c8: bool,
    /// From 0.8.1 on.
    pub layout: Option<Layout>,
}

/// Facts that 0.8.1 adds to the namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Decode context parallel size.
    pub dcp: u32,
    /// 16 hex digits that depend on the UCM build and the Python release; have the engine's
    /// container print `ucm.integration.vllm.request_hasher._layout_source_digest()`.
    pub digest: Box<str>,
}

/// Computes UCM's ids.
#[derive(Debug, Clone)]
pub struct UcmHasher {
    meta: Meta,
    /// MD5 having taken `meta(0)`.
    rank0: Md5,
    start: BlockHash,
    /// None before 0.8, which leaves extra keys out.
    era: Option<Era>,
    block_tokens: NonZeroUsize,
    mla: bool,
}

/// The namespace of a rank: these with the rank between.
#[derive(Debug, Clone)]
struct Meta {
    head: String,
    tail: String,
    tp: u32,
}

impl UcmHasher {
    /// Refuses a layout before 0.8.1, and its absence from there on.
    pub fn new(profile: &UcmProfile) -> Result<Self, ProfileError> {
        let block_tokens = NonZeroUsize::new(profile.block_tokens).ok_or(ProfileError::BlockSizeZero)?;
        if profile.tp == 0 {
            return Err(ProfileError::ParallelSizeZero);
        }
        match (&profile.layout, profile.generation) {
            (None, Generation::V0_8_1) => return Err(ProfileError::Ucm("UCM 0.8.1 needs its layout digest")),
            (Some(_), Generation::V0_4 | Generation::V0_7 | Generation::V0_8) => {
                return Err(ProfileError::Ucm("UCM has a layout digest from 0.8.1 on only"));
            }
            _ => {}
        }
        let meta = Meta::new(profile);
        let rank0 = Md5::new_with_prefix(meta.of(0));
        let start = finish(rank0.clone(), &Format::Pickle.of_text(SEED));
        let era = (profile.generation >= Generation::V0_8).then(|| profile.version.era());
        Ok(Self { meta, rank0, start, era, block_tokens, mla: profile.mla })
    }

    /// The namespace of a rank of the tensor parallel group.
    pub fn meta(&self, rank: u32) -> String {
        self.meta.of(rank)
    }

    /// The parent of the first block.
    pub fn seed(&self) -> BlockHash {
        self.start
    }

    /// The ids, for rank 0, of a prompt's full blocks.
    pub fn chain<'a>(
        &'a self,
        tokens: &'a [u32],
        context: BlockContext<'a>,
    ) -> impl Iterator<Item = BlockHash> + 'a {
        self.chain_from(Known { hash: self.start, blocks: 0 }, tokens, context)
    }

    /// The ids, for rank 0, of the full blocks in `tokens`, which follow the known blocks.
    pub fn chain_from<'a>(
        &'a self,
        known: Known,
        tokens: &'a [u32],
        context: BlockContext<'a>,
    ) -> impl Iterator<Item = BlockHash> + 'a {
        let extras = self.era.map(|era| Extras::new(era, context));
        let mut spelled = Vec::new();
        let mut start = known.blocks.saturating_mul(self.block_tokens.get());
        tokens.chunks_exact(self.block_tokens.get()).scan(known.hash, move |parent, block| {
            let span = Span { start, end: start.saturating_add(block.len()) };
            spelled.clear();
            Format::Pickle.append(&mut spelled, &BlockTuple { parent, block, extras: extras.as_ref(), span });
            *parent = finish(self.rank0.clone(), &spelled);
            start = span.end;
            Some(*parent)
        })
    }

    /// The id under which a rank, counted over all pipeline stages, stores the block with this id
    /// of rank 0.
    pub fn of_rank(&self, id: BlockHash, global_rank: u32) -> BlockHash {
        if self.mla || global_rank == 0 {
            return id;
        }
        finish(Md5::new_with_prefix(self.meta.of(global_rank % self.meta.tp)), id.as_bytes())
    }
}

/// Hash input of one block.
struct BlockTuple<'a, 'r> {
    parent: &'a BlockHash,
    block: &'a [u32],
    extras: Option<&'a Extras<'r>>,
    span: Span,
}

impl CanonicalValue for BlockTuple<'_, '_> {
    fn spell(&self, out: &mut impl Encode) {
        let items = 2 + usize::from(self.extras.is_some());
        out.open(items);
        out.bytes(self.parent.as_bytes());
        out.open(self.block.len());
        out.tokens(self.block);
        out.close(self.block.len());
        if let Some(extras) = self.extras {
            extras.write(out, self.span, &[]);
        }
        out.close(items);
    }
}

impl Meta {
    fn new(profile: &UcmProfile) -> Self {
        let whole = &*profile.model;
        let old = profile.generation == Generation::V0_4;
        let model = if old { whole } else { whole.trim_end_matches('/').rsplit('/').next().unwrap_or(whole) };
        let head = format!("{model}:{}:{}:", profile.tp, profile.dtype);
        let mut tail = String::new();
        if !old {
            if let Some((method, tokens)) = &profile.speculative {
                let _ = write!(tail, ":{method}:{tokens}");
            }
            let _ = write!(tail, ":sfa_c8={}:li_c8={}", u8::from(profile.sfa_c8), u8::from(profile.li_c8));
        }
        if let Some(Layout { dcp, digest }) = &profile.layout {
            let _ = write!(tail, ":dcp={dcp}:layout={digest}");
        }
        Self { head, tail, tp: profile.tp }
    }

    fn of(&self, rank: u32) -> String {
        format!("{}{rank}{}", self.head, self.tail)
    }
}

fn finish(mut md5: Md5, bytes: &[u8]) -> BlockHash {
    md5.update(bytes);
    BlockHash::from(<[u8; 16]>::from(md5.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> UcmProfile {
        UcmProfile {
            generation: Generation::V0_8,
            version: VllmVersion::new(0, 32, 0),
            model: "/models/m".into(),
            dtype: "torch.bfloat16".into(),
            tp: 2,
            mla: false,
            block_tokens: 4,
            speculative: None,
            sfa_c8: false,
            li_c8: false,
            layout: None,
        }
    }

    #[test]
    fn a_chain_resumes() {
        let hasher = UcmHasher::new(&profile()).unwrap();
        let tokens: Vec<u32> = (0..19).collect();
        let context = BlockContext { cache_salt: Some("s"), ..BlockContext::default() };
        let whole: Vec<_> = hasher.chain(&tokens, context).collect();
        assert_eq!(whole.len(), 4);
        let known = Known { hash: whole[1], blocks: 2 };
        assert_eq!(hasher.chain_from(known, &tokens[8..], context).collect::<Vec<_>>(), whole[2..]);
        assert_eq!(hasher.chain(&tokens[..8], context).collect::<Vec<_>>(), whole[..2]);
    }

    #[test]
    fn the_layout_digest_belongs_to_0_8_1() {
        let layout = Some(Layout { dcp: 1, digest: "0123456789abcdef".into() });
        let newer = UcmProfile { generation: Generation::V0_8_1, ..profile() };
        assert!(UcmHasher::new(&newer).is_err());
        assert!(UcmHasher::new(&UcmProfile { layout: layout.clone(), ..profile() }).is_err());
        assert!(UcmHasher::new(&UcmProfile { layout, ..newer }).is_ok());
        assert_eq!(
            UcmHasher::new(&UcmProfile { tp: 0, ..profile() }).err(),
            Some(ProfileError::ParallelSizeZero)
        );
    }
}
