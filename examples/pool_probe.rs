//! Asks a live Mooncake store which leading blocks of a prompt it has, and where.
//!
//! `cargo run --example pool_probe -- MASTER_HOST:PORT MODEL_PATH BLOCK_TOKENS TOKEN_ID…` (engines:
//! vLLM 0.32 with MooncakeStoreConnector, default hash, PYTHONHASHSEED=0, one rank). Without
//! arguments it asks a simulated master that has the first two of four blocks.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use pd_proxy::endpoint::Endpoint;
use pd_proxy::kvhash::keys::{Ask, KeyBatch, KeyConfig, KeyProfile, KvShape, Preset, PromptBlocks};
use pd_proxy::kvhash::{Algo, BlockContext, BlockHasher, HashProfile, Seed};
use pd_proxy::pool::mooncake::{Mooncake, MooncakeConfig, greet};
use pd_proxy::pool::{Keyed, KvPool, Question};
use pd_proxy::sim::mooncake::{Mooncake as Simulated, MooncakeSpec};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (address, model) = (args.next(), args.next().unwrap_or_else(|| "/models/tiny".into()));
    let block_tokens: u32 = args.next().unwrap_or_else(|| "4".into()).parse()?;
    let given = args.map(|id| id.parse()).collect::<Result<Vec<u32>, _>>()?;
    let tokens: Vec<u32> = if given.is_empty() { (0..18).collect() } else { given };

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
    profile.keys_of_prompt(
        &PromptBlocks::new(&hashes, u32::try_from(tokens.len())?),
        Ask::Every,
        &mut keys,
    )?;

    let simulated =
        Simulated::start(MooncakeSpec::default(), SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
    keys.iter().take(2).for_each(|key| simulated.put(key, "10.0.0.1:17000"));
    let address = address.unwrap_or_else(|| simulated.addr().to_string());
    let config = MooncakeConfig { masters: vec![Endpoint::parse(&address)?], ..MooncakeConfig::default() };
    println!("{:?}", greet(config.clone()).await?);

    let client = Mooncake::new(config);
    client.connected().await;
    let question = Question {
        tokens: tokens.into(),
        hashes: hashes.into(),
        keys: Arc::new(keys),
        ..Question::default()
    };
    let found = Keyed::new(client).lookup(&question).await?;
    println!("{} of {} tokens are there: {:?}", found.hit_tokens, question.tokens.len(), found.near);
    Ok(())
}
