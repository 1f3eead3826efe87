//! Wiring of `[trace]`: the tracer, and the task that posts spans to a collector.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::tls::{self, ClientError};
use crate::trace::{Attribute, Collector, Ids, Tracer};
use crate::util::rng;

/// Limit for connecting to the collector.
const CONNECT_TIME: Duration = Duration::from_secs(3);

/// Limit for posting the last spans at a shutdown.
const FLUSH_TIME: Duration = Duration::from_secs(3);

/// The tracer of requests, where tracing is configured, and the task that posts the spans.
#[derive(Debug)]
pub struct Traces {
    tracer: Arc<Tracer>,
    posting: JoinSet<()>,
    stop: CancellationToken,
}

impl Traces {
    /// Starts tracing as configured.
    ///
    /// # Errors
    /// The HTTP client can't be made.
    pub fn start(config: &Config) -> Result<Traces, ClientError> {
        let (mut posting, stop) = (JoinSet::new(), CancellationToken::new());
        let ids = Ids { trace: || uuid::Uuid::new_v4().into_bytes(), span: rng::random };
        let Some(url) = config.trace.url() else {
            return Ok(Traces { tracer: Tracer::without_collector(ids), posting, stop });
        };
        let client = tls::http().connect_timeout(CONNECT_TIME).build()?;
        let collector = Collector { url, headers: config.trace.header_map(), client };
        let fact = |key, value: String| Attribute { key, value: value.into() };
        let resource = vec![
            fact("service.name", config.trace.service_name.clone()),
            fact("service.version", env!("CARGO_PKG_VERSION").to_owned()),
            fact("service.instance.id", uuid::Uuid::new_v4().to_string()),
        ];
        let ratio = config.trace.sample_ratio;
        let (tracer, exporter) = Tracer::new(ratio, ids, collector, resource, stop.clone());
        posting.spawn(exporter.run());
        Ok(Traces { tracer, posting, stop })
    }

    /// The tracer that begins a request's trace.
    pub fn tracer(&self) -> Arc<Tracer> {
        self.tracer.clone()
    }

    /// Posts what is left, within 3 s.
    pub async fn flush(mut self) {
        self.stop.cancel();
        // Dropping the set ends the task at any point.
        let _ = tokio::time::timeout(FLUSH_TIME, self.posting.join_next()).await;
    }
}
