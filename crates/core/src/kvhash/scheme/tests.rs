use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::codec::pyhash::StrHash;
use crate::kvhash::lmcache::{EngineAlgo, Release, media_tokens};
use crate::kvhash::ucm::Generation;
use crate::kvhash::{Algo, BlockContext, BlockHash, Lora, Media, ProfileError, Seed, VllmVersion};

const VERSION: VllmVersion = VllmVersion::new(0, 33, 0);
const BLOCK: usize = 4;
const MEDIA: &[Media<'_>] = &[
    Media { identifier: "ab", offset_tokens: 3, length_tokens: 5, object: None },
    Media { identifier: "cd", offset_tokens: 11, length_tokens: 30, object: None },
];
const LORA: Lora<'_> = Lora { name: "a", int_id: 3, path: "/a" };

fn seed() -> Seed {
    Seed::Text("0".into())
}

fn vllm(algo: Algo, lookahead_tokens: usize) -> Scheme {
    Scheme::Vllm(HashProfile { version: VERSION, algo, seed: seed(), block_tokens: BLOCK, lookahead_tokens })
}

fn ucm(generation: Generation) -> Scheme {
    Scheme::Ucm(UcmProfile {
        generation,
        version: VERSION,
        model: "/models/m".into(),
        dtype: "torch.bfloat16".into(),
        tp: 2,
        mla: false,
        block_tokens: BLOCK,
        speculative: None,
        sfa_c8: false,
        li_c8: false,
        layout: None,
    })
}

fn lmcache(algo: EngineAlgo, partial_chunk: bool) -> Scheme {
    Scheme::LmcacheEngine(EngineProfile {
        release: Release::V0_4,
        algo,
        version: VERSION,
        seed: seed(),
        chunk_tokens: BLOCK,
        partial_chunk,
    })
}

/// Each scheme, in each of its kinds that differ in how a chain goes on.
fn schemes() -> Vec<Scheme> {
    let cbor = ServerAlgo::Sha256Cbor { version: VERSION, seed: seed() };
    vec![
        vllm(Algo::Sha256, 0),
        vllm(Algo::XxhashCbor, 3),
        ucm(Generation::V0_7),
        ucm(Generation::V0_8),
        lmcache(EngineAlgo::Builtin(StrHash::Sip13), false),
        lmcache(EngineAlgo::Builtin(StrHash::Sip24), true),
        lmcache(EngineAlgo::Sha256, true),
        lmcache(EngineAlgo::Sha256Cbor, false),
        Scheme::LmcacheServer { algo: ServerAlgo::Blake3, chunk_tokens: BLOCK },
        Scheme::LmcacheServer { algo: cbor, chunk_tokens: BLOCK },
        Scheme::Ems { block_tokens: BLOCK },
        Scheme::Ascend011 { block_tokens: BLOCK },
    ]
}

fn stores_partial(scheme: &Scheme) -> bool {
    match scheme {
        Scheme::LmcacheEngine(profile) => profile.partial_chunk,
        Scheme::Ascend011 { .. } => true,
        _ => false,
    }
}

fn full() -> BlockContext<'static> {
    BlockContext { lora: Some(LORA), media: MEDIA, cache_salt: Some("a"), prompt_embeds: None }
}

proptest! {
    #[test]
    fn chains_are_prefix_chains_and_extend_to_the_whole(
        tokens in vec(any::<u32>(), 0..60),
        cut in 0..60_usize,
        plain: bool,
    ) {
        let context = if plain { BlockContext::default() } else { full() };
        let cut = cut.min(tokens.len());
        for scheme in schemes() {
            let hasher = Hasher::new(&scheme).unwrap();
            let whole = hasher.hashes(&tokens, context);
            let partial = stores_partial(&scheme) && tokens.len() % BLOCK > 0;
            prop_assert_eq!(whole.len(), hasher.settled_blocks(tokens.len()) + usize::from(partial));
            prop_assert!(whole.iter().all(|hash| hash.as_bytes().len() == hasher.hash_bytes()));

            let head = hasher.hashes(&tokens[..cut], context);
            let shared = hasher.settled_blocks(cut);
            prop_assert_eq!(&head[..shared], &whole[..shared], "{:?}", scheme);
            prop_assert_eq!(&hasher.extend(&head[..shared], &tokens, context), &whole, "{:?}", scheme);
            prop_assert_eq!(&hasher.extend(&whole, &tokens, context), &whole, "{:?}", scheme);
            let known = &whole[..hasher.settled_blocks(tokens.len())];
            prop_assert_eq!(&hasher.extend(known, &tokens[..cut], context), &head, "{:?}", scheme);
        }
    }
}

#[test]
fn known_hashes_are_not_computed_again() {
    let tokens: Vec<u32> = (0..17).collect();
    for scheme in schemes() {
        let hasher = Hasher::new(&scheme).unwrap();
        let whole = hasher.hashes(&tokens, BlockContext::default());
        let made_up = BlockHash::from_slice(&vec![7; hasher.hash_bytes()]).unwrap();
        let found = hasher.extend(&[whole[0], made_up], &tokens, BlockContext::default());
        assert_eq!(found[..2], [whole[0], made_up], "{scheme:?}");
        assert_eq!(found.len(), whole.len());
        assert!(found[2..].iter().zip(&whole[2..]).all(|(a, b)| a != b), "{scheme:?}: it goes on from there");
    }
}

#[test]
fn a_hasher_says_what_it_does_not_look_at() {
    let tokens: Vec<u32> = (0..17).collect();
    let mut separating = 0;
    for scheme in schemes() {
        let hasher = Hasher::new(&scheme).unwrap();
        let differs = |context| {
            hasher.hashes(&tokens, context)[0] != hasher.hashes(&tokens, BlockContext::default())[0]
        };
        let salted = BlockContext { cache_salt: Some("s"), ..BlockContext::default() };
        let adapted = BlockContext { lora: Some(LORA), ..BlockContext::default() };
        assert_eq!(differs(salted), hasher.separates_salt(), "{scheme:?}");
        assert_eq!(differs(adapted), hasher.separates_lora(), "{scheme:?}");
        separating += usize::from(hasher.separates_salt());
    }
    assert_eq!(separating, 3, "both of vLLM, and UCM 0.8");
}

#[test]
fn lmcache_hashes_media_in_the_place_of_their_tokens() {
    let tokens: Vec<u32> = (0..17).collect();
    let mut written = tokens.clone();
    written[3..8].iter_mut().zip(media_tokens("ab")).for_each(|(place, token)| *place = token);
    written[11..].iter_mut().zip(media_tokens("cd")).for_each(|(place, token)| *place = token);
    let media = BlockContext { media: MEDIA, ..BlockContext::default() };
    for scheme in schemes() {
        let hasher = Hasher::new(&scheme).unwrap();
        let same = hasher.hashes(&tokens, media) == hasher.hashes(&written, BlockContext::default());
        let lmcache = matches!(scheme, Scheme::LmcacheEngine(_) | Scheme::LmcacheServer { .. });
        assert_eq!(same, lmcache, "{scheme:?}");
    }
}

#[test]
fn blocks_of_nothing_are_refused() {
    let none = [
        Scheme::Ems { block_tokens: 0 },
        Scheme::Ascend011 { block_tokens: 0 },
        Scheme::LmcacheServer { algo: ServerAlgo::Blake3, chunk_tokens: 0 },
    ];
    for scheme in none {
        assert_eq!(Hasher::new(&scheme).err(), Some(ProfileError::BlockSizeZero), "{scheme:?}");
    }
}
