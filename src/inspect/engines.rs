//! The prefillers' part: what names the keys, where the configuration leaves it out.

use super::{Grade, Report};
use crate::config::{Loaded, Origin};
use crate::keys::{asker, published};
use crate::profile::Published;
use crate::tls::ClientError;

/// What the prefillers say that the configuration names; nobody is asked where it names none.
///
/// # Errors
/// When there is no HTTP client to be had.
pub(super) async fn ask(loaded: &Loaded, report: &mut Report) -> Result<Vec<Published>, ClientError> {
    if matches!(loaded.origins.of("fleet.prefill"), Origin::Default) {
        return Ok(Vec::new());
    }
    let mut asker = asker(&loaded.config)?;
    asker.time = std::time::Duration::from_millis(loaded.config.timeout.models_ms);
    let (told, away) = published(&asker, &loaded.config.prefill_endpoints()).await;
    for one in &told {
        report.say(Grade::Good, format!("prefiller {}: {}", one.engine, described(one)));
    }
    for why in away {
        report.say(Grade::Note, format!("a prefiller (fleet.prefill) can't be asked: {why}"));
    }
    Ok(told)
}

fn described(one: &Published) -> String {
    let facts = &one.facts;
    let version = facts.version.as_deref().unwrap_or("of an unknown release");
    let model = facts.models.first().map(|model| model.root.as_deref().unwrap_or(&model.id));
    let cache = facts.cache.as_ref().ok().and_then(Option::as_ref);
    let block =
        cache.and_then(|cache| cache.block_tokens).map(|tokens| format!(", blocks of {tokens} tokens"));
    let algo = cache.and_then(|cache| cache.hash_algo.as_deref()).map(|algo| format!(", hash {algo}"));
    let model = model.map(|model| format!(", model {model}"));
    let parts = [model, block, algo].into_iter().flatten().collect::<String>();
    format!("vLLM {version}{parts}")
}
