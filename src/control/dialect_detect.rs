//! Detects the engines' dialect if the configuration leaves it open (`dialect.name = "auto"`).
//!
//! A prefiller is asked a few questions before the gateway serves, and again while none has
//! answered. Signs that appear only in answers to prefills are read by the relay.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderValue, StatusCode};

use crate::dialect::signs::{DetectedDialect, SERVER_INFO_PATH, Signs, sglang_port};
use crate::dialect::{facts, mooncake};
use crate::endpoint::Endpoint;
use crate::fleet::{Fleet, LiveProtocol, Role};
use crate::tokenization::exchange::{authorized, exchange, url};

/// Pause between two rounds of questions, while no prefiller has answered.
const ROUND_PAUSE: Duration = Duration::from_secs(2);
/// The largest answer that is read, in bytes: SGLang sends its whole configuration.
const ANSWER_BYTES: usize = 1 << 20;
/// Rounds after the first answer: a bootstrap server may come later than its engine.
const PROVISIONAL_ROUNDS: usize = 15;
/// Prefillers that are asked in one round.
const PREFILLERS_PER_ROUND: usize = 4;

/// Client and limits for questions to engines.
#[derive(Clone, Debug)]
pub struct SignClient {
    /// The client for control calls.
    pub client: reqwest::Client,
    /// `Authorization` header for engines.
    pub authorization: Option<HeaderValue>,
    /// Limit for one question.
    pub time: Duration,
}

impl SignClient {
    /// Asks a prefiller with this bootstrap server for signs of its dialect.
    pub async fn fetch_signs(&self, prefiller: &Endpoint, bootstrap: &Endpoint) -> Signs {
        let (info, query, version) = tokio::join!(
            self.get(prefiller, SERVER_INFO_PATH, true),
            self.get(bootstrap, mooncake::QUERY_PATH, false),
            self.get(prefiller, "/version", true),
        );
        let peer = query.and_then(|body| mooncake::read_query(body, String::new()));
        Signs {
            sglang_port: info.and_then(sglang_port),
            mooncake_ranks: peer.map(|peer| peer.ranks()),
            vllm: version.and_then(|body| facts::version(&body)),
        }
    }

    /// A bootstrap server is no engine, and gets no key.
    async fn get(&self, at: &Endpoint, path: &str, is_engine: bool) -> Option<bytes::Bytes> {
        let authorization = self.authorization.as_ref().filter(|_| is_engine);
        let call = authorized(self.client.get(url(at, path)), authorization);
        let (status, body) = exchange(call, self.time, ANSWER_BYTES).await.ok()?;
        (status == StatusCode::OK).then_some(body)
    }
}

/// The loop that asks until a prefiller has answered.
#[derive(Debug)]
pub struct Detector {
    /// Prefillers that are asked.
    pub fleet: Arc<Fleet>,
    /// The protocol that is to be found out.
    pub protocol: Arc<LiveProtocol>,
    /// Client and limits of the questions.
    pub client: SignClient,
    /// True once a prefiller has answered.
    pub has_verdict: AtomicBool,
}

impl Detector {
    /// Asks one round of prefillers, beginning with the `first` member. True if no further question
    /// is needed.
    pub async fn ask_round(&self, first: usize) -> bool {
        let protocol = self.protocol.now();
        let members = self.fleet.members(Role::Prefill);
        let first = first % members.len().max(1);
        for prefiller in members.iter().cycle().skip(first).take(PREFILLERS_PER_ROUND.min(members.len())) {
            let signs = self
                .client
                .fetch_signs(prefiller.endpoint(), &protocol.bootstrap(prefiller.endpoint()))
                .await;
            let Some(told) = signs.verdict() else { continue };
            self.apply_verdict(prefiller.endpoint(), &told, signs.sglang_port);
            return !self.protocol.now().open;
        }
        false
    }

    /// Logs a warning if no prefiller has answered: the gateway is ready, and requests would fail.
    pub fn warn_of_silence(&self) {
        let members = self.fleet.members(Role::Prefill);
        if self.has_verdict.load(Ordering::Relaxed) || members.is_empty() {
            return;
        }
        let asked: Vec<String> =
            members.iter().take(PREFILLERS_PER_ROUND).map(|member| member.endpoint().to_string()).collect();
        tracing::warn!(
            asked = asked.join(" "),
            "no prefiller says yet what it is: are they up, and are these their ports? `pd-proxy check` asks every engine"
        );
    }

    /// Asks until the dialect is known. After a first answer it goes on for a while, as an engine
    /// may have started before its bootstrap server.
    pub async fn run(self) {
        let mut answered = 0;
        for round in 1_usize.. {
            tokio::time::sleep(ROUND_PAUSE).await;
            if self.ask_round(round).await || answered == PROVISIONAL_ROUNDS {
                return;
            }
            answered += usize::from(self.has_verdict.load(Ordering::Relaxed));
        }
    }

    fn apply_verdict(&self, prefiller: &Endpoint, told: &DetectedDialect, bootstrap_port: Option<u16>) {
        let before = self.protocol.now().dialect;
        if self.has_verdict.swap(true, Ordering::Relaxed) && before == told.dialect {
            return;
        }
        tracing::info!(dialect = told.dialect.name(), engine = %prefiller, role = Role::Prefill.name(), "dialect: {}", told.why);
        self.protocol.turn_to(told.dialect, bootstrap_port);
    }
}
