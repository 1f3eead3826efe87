//! Parts of a fleet that a configuration may not allow. The start makes them, and so does
//! `pd-proxy check`, so that what passes there starts.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Version, header};

use super::{StartError, limits, load_engine_tls, load_listener_tls, ms, pool, settings, share};
use crate::config::{Config, Tokens};
use crate::naming_config::{self, LocalPrompter};
use crate::pool::Gate;
use crate::server::Via;
use crate::server::fleets::EngineAccess;
use crate::tls::{ClientError, EngineTls};
use crate::tokenization::{Asker, EngineLimits, EngineTokenizer, Prompts, Source, exchange};
use crate::upstream;
use crate::util::rng;

/// The longest that an engine may take over a control call: resetting a cache, listing models.
const CONTROL_TIME: Duration = Duration::from_secs(30);

/// Parts of one fleet.
pub(super) struct FleetParts {
    pub(super) engine_tls: EngineTls,
    pub(super) control: reqwest::Client,
    pub(super) access: EngineAccess,
    pub(super) prompts: Option<Arc<Prompts>>,
    pub(super) pool: Option<Gate>,
    pub(super) store: share::ShareStore,
}

impl FleetParts {
    /// Makes the parts of a fleet with this configuration.
    ///
    /// # Errors
    /// [`StartError`] names the setting at fault.
    pub(super) fn make(config: &Config, via: &Via) -> Result<FleetParts, StartError> {
        let engine_tls = load_engine_tls(config)?;
        let (control, access) = (control(config, &engine_tls, via)?, settings::engine_access(config)?);
        let prompts = prompts(config, &asker_with(&control, &access))?;
        let pool = pool::gate(config, &control)?;
        let store = share::store(config).map_err(StartError::Share)?;
        Ok(FleetParts { engine_tls, control, access, prompts, pool, store })
    }
}

/// Makes all that the start makes before it listens and asks engines, and lets go of it. To be
/// called in a runtime.
///
/// # Errors
/// The error for which a gateway with this configuration would not start.
pub fn check_start(config: &Config) -> Result<(), StartError> {
    limits::check_keys(&config.auth)?;
    load_listener_tls(config)?;
    let via = Via::new(rng::random());
    for (name, fleet) in config.served_fleets() {
        FleetParts::make(fleet, &via)
            .map(drop)
            .map_err(|error| error.in_fleet(name, !config.fleets.is_empty()))?;
    }
    Ok(())
}

/// The client for control calls. Engines are on the cluster's own network: `HTTP_PROXY` is for what
/// leaves it, and the legs ignore it too.
fn control(config: &Config, tls: &EngineTls, via: &Via) -> Result<reqwest::Client, ClientError> {
    let via = (header::VIA, via.line(Version::HTTP_11).clone());
    let client = tls
        .http()
        .default_headers(HeaderMap::from_iter([via]))
        .pool_idle_timeout(upstream::POOL_IDLE)
        .connect_timeout(ms(config.timeout.connect_ms))
        .timeout(CONTROL_TIME)
        .build()?;
    Ok(client)
}

pub(super) fn asker_with(control: &reqwest::Client, access: &EngineAccess) -> Asker {
    Asker {
        client: control.clone(),
        authorization: access.authorization.clone(),
        time: exchange::ASK_TIME,
        answer_bytes: exchange::ANSWER_BYTES,
    }
}

/// The reader of prompts; `None` with `prompt.tokens = "off"`.
fn prompts(config: &Config, asker: &Asker) -> Result<Option<Arc<Prompts>>, StartError> {
    naming_config::refuse_early(config)?;
    let engine = || {
        let limits = EngineLimits {
            budget: ms(config.prompt.budget_ms),
            in_flight: config.limit.tokenize_inflight,
            cache_tokens: config.limit.prompt_cache_tokens,
            ..EngineLimits::default()
        };
        EngineTokenizer::new(asker.clone(), limits, rng::random())
    };
    let source = match config.tokens() {
        Tokens::Off => return Ok(None),
        Tokens::Engine => Source::Engine(engine()),
        Tokens::Local => {
            let LocalPrompter { prompter, without, .. } = naming_config::prompter(config, rng::random())?;
            if let Some(why) = without {
                tracing::warn!("chats are routed by load: {why}");
            }
            Source::Local(Arc::new(prompter))
        }
        Tokens::Auto => match naming_config::prompter(config, rng::random()) {
            Ok(LocalPrompter { prompter, without, form }) => {
                tracing::info!(tokenizer = form.name(), "prompts are tokenised here once that is proven");
                if let Some(why) = without {
                    tracing::warn!("chats are tokenised by engines, a round trip each: {why}");
                }
                Source::Either { local: Arc::new(prompter), engine: engine() }
            }
            Err(why) => {
                tracing::warn!("prompts are tokenised by engines, a round trip each: {why}");
                Source::Engine(engine())
            }
        },
    };
    let prompts = Prompts::new(source, config.prompt.utc_offset_s()).with_efforts(config.prompt.efforts());
    Ok(Some(Arc::new(prompts)))
}
