//! The admin port of a master: who leads, which segments and keys there are. Nothing here has an
//! effect on the objects.

use std::time::Duration;

use bytes::BytesMut;
use reqwest::{Client, StatusCode};
use serde::Deserialize;

use crate::endpoint::Endpoint;
use crate::pool::PoolError;

/// Good for [`Admin::time`]: these are questions of a person or of a reconnect, not of a request.
pub const ADMIN_TIME: Duration = Duration::from_secs(2);
/// Longest answer about a master or its segments.
const ANSWER_BYTES: usize = 8 << 20;

/// The admin port of one master (`--metrics_port`, 9003 unless told otherwise).
#[derive(Clone, Debug)]
pub struct Admin {
    /// Must not follow redirects nor use a proxy.
    pub client: Client,
    /// Place where it listens.
    pub endpoint: Endpoint,
    /// The longest that one exchange may take.
    pub time: Duration,
}

/// A master's report about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Health {
    /// `leader` or `standby`; none before 0.3.10.post2.
    pub role: Option<String>,
    /// `serving`, `leader_warmup`, …
    pub ha_state: Option<String>,
    /// It answers about keys; none before 0.3.10.post2.
    pub service_ready: Option<bool>,
    /// RPC address of the leader, with high availability.
    pub leader_address: Option<String>,
}

/// A part of the pool: memory that one client lends.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Segment {
    /// As the client named it.
    #[serde(rename = "segment_name")]
    pub name: String,
    /// `host:port` as it stands in the replicas.
    #[serde(rename = "te_endpoint", default)]
    pub endpoint: String,
    /// Id of its owner.
    #[serde(default)]
    pub client_id: serde_json::Value,
}

/// Some keys of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySample {
    /// Number of keys that were read.
    pub seen: usize,
    /// There may be more than were read.
    pub more: bool,
    /// Some of them, evenly spread over the list: it may be sorted.
    pub keys: Vec<String>,
}

/// An answer, or as much of it as was wanted.
pub(super) struct Page {
    pub status: StatusCode,
    pub body: BytesMut,
    pub whole: bool,
}

impl Admin {
    /// The state of a master.
    ///
    /// # Errors
    /// [`PoolError`].
    pub async fn health(&self) -> Result<Health, PoolError> {
        let page = self.get("/health", ANSWER_BYTES).await?.ok()?;
        // Up to 0.3.10 a word.
        if page.body.trim_ascii() == b"OK" { Ok(Health::default()) } else { read(&page.body) }
    }

    /// RPC address of the leader, as far as this master knows one. A master alone knows none.
    ///
    /// # Errors
    /// [`PoolError`].
    pub async fn leader(&self) -> Result<Option<Endpoint>, PoolError> {
        let address = self.health().await?.leader_address.filter(|address| !address.is_empty());
        let parse = |address: String| {
            Endpoint::parse(&address).map_err(|e| PoolError::Protocol(format!("the leader's address {e}")))
        };
        address.map(parse).transpose()
    }

    /// True if questions over this port have an effect: before 0.3.12 they grant a lease, as those
    /// over RPC do.
    ///
    /// # Errors
    /// [`PoolError`] if the master does not answer.
    pub async fn grants_leases(&self) -> Result<bool, PoolError> {
        // Of the pages that came with 0.3.12 the smallest.
        let page = self.get("/kv_events/status", ANSWER_BYTES).await?;
        match page.status {
            StatusCode::OK => Ok(false),
            StatusCode::NOT_FOUND => Ok(true),
            _ => page.ok().map(|_| false),
        }
    }

    /// The segments; `None` if the master has no such page (before 0.3.12).
    ///
    /// # Errors
    /// [`PoolError`].
    pub async fn segments(&self) -> Result<Option<Vec<Segment>>, PoolError> {
        /// The list, which releases send bare, or under `segments` or `data`.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum SegmentList {
            List(Vec<Segment>),
            Within { segments: Vec<Segment> },
            Data { data: Vec<Segment> },
        }
        let page = self.get("/get_segments_detail", ANSWER_BYTES).await?;
        if page.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        Ok(Some(match read(&page.ok()?.body)? {
            SegmentList::List(list)
            | SegmentList::Within { segments: list }
            | SegmentList::Data { data: list } => list,
        }))
    }

    /// Some keys of the pool, at most `most`, from at most `limit_bytes` of the list.
    ///
    /// # Errors
    /// [`PoolError`].
    pub async fn sample_keys(&self, most: usize, limit_bytes: usize) -> Result<KeySample, PoolError> {
        let page = self.get("/get_all_keys", limit_bytes).await?;
        let whole = page.whole;
        let page = page.ok_in_part()?;
        let text = String::from_utf8_lossy(&page.body);
        // The last line may be half a key.
        let text = if whole { &*text } else { text.rsplit_once('\n').map_or("", |(lines, _)| lines) };
        let keys = text.lines().filter(|line| !line.is_empty());
        let seen = keys.clone().count();
        let keys = keys.step_by(seen.div_ceil(most.max(1)).max(1)).map(str::to_owned).collect();
        Ok(KeySample { seen, more: !whole, keys })
    }

    /// `GET path`, at most about `limit_bytes` of it.
    pub(super) async fn get(&self, path: &str, limit_bytes: usize) -> Result<Page, PoolError> {
        let url = format!("http://{}{path}", self.endpoint);
        let page = async {
            let mut response = self.client.get(url).send().await.map_err(|e| unreachable(&e))?;
            let mut page = Page { status: response.status(), body: BytesMut::new(), whole: true };
            while let Some(chunk) = response.chunk().await.map_err(|e| unreachable(&e))? {
                if page.body.len() + chunk.len() > limit_bytes {
                    page.whole = false;
                    break;
                }
                page.body.extend_from_slice(&chunk);
            }
            Ok(page)
        };
        let late = || PoolError::Unreachable(format!("no whole answer in {} ms", self.time.as_millis()));
        tokio::time::timeout(self.time, page).await.unwrap_or_else(|_| Err(late()))
    }
}

impl Page {
    /// The whole of an answer that is no error.
    pub(super) fn ok(self) -> Result<Page, PoolError> {
        let page = self.ok_in_part()?;
        if page.whole { Ok(page) } else { Err(PoolError::Protocol("the answer is too large".into())) }
    }

    fn ok_in_part(self) -> Result<Page, PoolError> {
        match self.status {
            StatusCode::OK => Ok(self),
            StatusCode::NOT_FOUND => Err(PoolError::Protocol("the master has no such page".into())),
            status => Err(PoolError::Refused(format!("status {}", status.as_u16()))),
        }
    }
}

pub(super) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, PoolError> {
    serde_json::from_slice(body).map_err(|error| PoolError::Protocol(error.to_string()))
}

/// The innermost cause: the outer ones repeat the URL, which has the keys.
fn unreachable(error: &reqwest::Error) -> PoolError {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    PoolError::Unreachable(cause.to_string())
}
