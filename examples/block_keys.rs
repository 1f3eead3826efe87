//! Names the objects of a Mooncake store that hold the KV of a prompt, without an engine; the core
//! alone.
//!
//! `cargo run -p pd-proxy-core --example block_keys -- MODEL_PATH BLOCK_TOKENS TOKEN_ID…`
//! (engines: vLLM 0.32 with MooncakeStoreConnector, default hash, PYTHONHASHSEED=0, one rank)

use pd_proxy_core::kvhash::keys::{Ask, KeyBatch, KeyConfig, KeyProfile, KvShape, Preset, PromptBlocks};
use pd_proxy_core::kvhash::{Algo, BlockContext, BlockHasher, HashProfile, Seed};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let model = args.next().unwrap_or_else(|| "/models/tiny".into());
    let block_tokens: u32 = args.next().unwrap_or_else(|| "4".into()).parse()?;
    let given = args.map(|id| id.parse()).collect::<Result<Vec<u32>, _>>()?;
    let tokens = if given.is_empty() { (0..10).collect() } else { given };

    let hasher = BlockHasher::new(&HashProfile {
        version: "0.32.0".parse()?,
        algo: Algo::Sha256,
        seed: Seed::Text("0".into()),
        block_tokens: block_tokens as usize,
        lookahead_tokens: 0,
    })?;
    let hashes: Vec<_> = hasher.chain(&tokens, BlockContext::default()).collect();

    let shape = KvShape { block_tokens, ..KvShape::default() };
    let profile = KeyProfile::new(&KeyConfig::new(Preset::named("mooncake-store-0.30")?, &model, shape))?;
    let mut keys = KeyBatch::default();
    let prompt = PromptBlocks::new(&hashes, u32::try_from(tokens.len())?);
    profile.keys_of_prompt(&prompt, Ask::Every, &mut keys)?;
    keys.iter().for_each(|key| println!("{key}"));
    Ok(())
}
