//! Names of the blocks of a fleet's prompts: tokens → hashes → keys, and the requests for which
//! that can be done.

use crate::kvhash::keys::{KeyConfig, KeyProfile};
use crate::kvhash::scheme::Hasher;
use crate::kvhash::version::Era;
use crate::kvhash::{BlockContext, BlockHash, Lora, VllmVersion};
use crate::prompt::{Prompt, Reason};

/// The naming of one fleet, which serves one model and its adapters.
#[derive(Debug)]
pub struct BlockNaming {
    /// Tokens → block hashes.
    pub hasher: Hasher,
    /// Tokens → the hashes in engines' KV events, where `hasher` makes others for a pool.
    pub engine_hasher: Option<Hasher>,
    /// Block hashes → keys of the pool; None when no pool is configured.
    pub keys: Option<KeyProfile>,
    /// Settings of these keys, to compare them with those that a pool has.
    pub key_config: Option<KeyConfig>,
    /// The engines' release, where it matters.
    pub version: Option<VllmVersion>,
    /// Models by the names that requests carry; None when no engine was asked, and any name is the
    /// model's.
    pub models: Option<Vec<Model>>,
}

/// A model, or an adapter, by the name that requests carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Name of the block.
    pub name: String,
    /// The adapter's path, for LoRA.
    pub adapter_path: Option<String>,
}

impl BlockNaming {
    /// The hashes of a prompt's blocks. `model` and `salt` are the request's members of these
    /// names.
    ///
    /// # Errors
    /// [`Reason::Model`]: a model that no engine has listed, or an adapter whose part of the hash
    /// is known to the engine alone.
    pub fn hashes(
        &self,
        tokens: &[u32],
        model: Option<&str>,
        salt: Option<&str>,
    ) -> Result<Vec<BlockHash>, Reason> {
        self.hashes_by(&self.hasher, tokens, model, salt)
    }

    /// The hashes of a prompt's blocks as far as its tokens are known: blocks that reach beyond
    /// them have none.
    ///
    /// # Errors
    /// Fails as [`hashes`](Self::hashes) does.
    pub fn prompt_hashes(
        &self,
        prompt: &Prompt,
        model: Option<&str>,
        salt: Option<&str>,
    ) -> Result<Vec<BlockHash>, Reason> {
        self.known_hashes(&self.hasher, prompt, model, salt)
    }

    fn known_hashes(
        &self,
        hasher: &Hasher,
        prompt: &Prompt,
        model: Option<&str>,
        salt: Option<&str>,
    ) -> Result<Vec<BlockHash>, Reason> {
        let mut hashes = self.hashes_by(hasher, &prompt.tokens, model, salt)?;
        if !prompt.is_exact() {
            hashes.truncate(hasher.settled_blocks(prompt.tokens.len()));
        }
        Ok(hashes)
    }

    /// The hashes of whole prompts by any hasher of this fleet.
    fn hashes_by(
        &self,
        hasher: &Hasher,
        tokens: &[u32],
        model: Option<&str>,
        salt: Option<&str>,
    ) -> Result<Vec<BlockHash>, Reason> {
        let lora = model.map_or(Ok(None), |model| self.adapter(hasher, model))?;
        Ok(hasher.hashes(tokens, BlockContext { lora, cache_salt: salt, ..BlockContext::default() }))
    }

    /// Hasher of the block hashes that engines publish.
    pub fn engine_hasher(&self) -> &Hasher {
        self.engine_hasher.as_ref().unwrap_or(&self.hasher)
    }

    /// The hashes of a prompt's blocks as engines publish them; `None` when they are those of
    /// [`prompt_hashes`](Self::prompt_hashes).
    ///
    /// # Errors
    /// Fails as [`hashes`](Self::hashes) does.
    pub fn engine_hashes(
        &self,
        prompt: &Prompt,
        model: Option<&str>,
        salt: Option<&str>,
    ) -> Result<Option<Vec<BlockHash>>, Reason> {
        let hasher = self.engine_hasher.as_ref();
        hasher.map(|hasher| self.known_hashes(hasher, prompt, model, salt)).transpose()
    }

    /// The adapter that a request's model is, if it is one.
    fn adapter(&self, hasher: &Hasher, name: &str) -> Result<Option<Lora<'_>>, Reason> {
        let Some(models) = self.models.as_ref().filter(|_| hasher.separates_lora()) else {
            return Ok(None);
        };
        let model = models.iter().find(|model| model.name == name).ok_or(Reason::Model)?;
        let Some(path) = &model.adapter_path else { return Ok(None) };
        // These number adapters as they are loaded.
        if self.version.is_none_or(|version| version.era() == Era::LoraNumber) {
            return Err(Reason::Model);
        }
        Ok(Some(Lora { name: &model.name, int_id: 0, path }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvhash::scheme::Scheme;
    use crate::kvhash::{Algo, BlockHasher, HashProfile, Seed};

    fn naming(version: &str) -> (BlockNaming, BlockHasher) {
        let version: VllmVersion = version.parse().unwrap();
        let profile = HashProfile {
            version,
            algo: Algo::Sha256,
            seed: Seed::Text("0".into()),
            block_tokens: 4,
            lookahead_tokens: 0,
        };
        let model = |name: &str, path: Option<&str>| Model {
            name: name.to_owned(),
            adapter_path: path.map(str::to_owned),
        };
        let naming = BlockNaming {
            hasher: Hasher::new(&Scheme::Vllm(profile.clone())).unwrap(),
            engine_hasher: None,
            keys: None,
            key_config: None,
            version: Some(version),
            models: Some(vec![model("base", None), model("sql", Some("/adapters/sql"))]),
        };
        (naming, BlockHasher::new(&profile).unwrap())
    }

    #[test]
    fn adapters_and_salts_enter_the_hashes_and_unknown_models_have_none() {
        let tokens: Vec<u32> = (0..9).collect();
        let (naming, hasher) = naming("0.32.0");
        let hashes = |model, salt| naming.hashes(&tokens, model, salt);
        let expect = |context| hasher.chain(&tokens, context).collect::<Vec<_>>();
        let plain = expect(BlockContext::default());
        assert_eq!(hashes(None, None), Ok(plain.clone()));
        assert_eq!(hashes(Some("base"), None), Ok(plain));
        let lora = Lora { name: "sql", int_id: 0, path: "/adapters/sql" };
        assert_eq!(
            hashes(Some("sql"), Some("tenant")),
            Ok(expect(BlockContext {
                lora: Some(lora),
                cache_salt: Some("tenant"),
                ..BlockContext::default()
            }))
        );
        assert_eq!(hashes(Some("other"), None), Err(Reason::Model));
    }

    #[test]
    fn releases_that_number_adapters_are_not_guessed() {
        let (naming, _) = naming("0.11.0");
        assert_eq!(naming.hashes(&[1, 2, 3, 4], Some("sql"), None), Err(Reason::Model));
        assert!(naming.hashes(&[1, 2, 3, 4], Some("base"), None).is_ok());
    }
}
