//! MemCache by its HTTP address (`metrics_url`), for where the other can't be reached: slower, and
//! places in every answer.
//!
//! Asks only with connections that stay open: services of 1.2 and 1.3 never send the body of an
//! answer to `Connection: close`. Versions before 1.2 do not tell whether an object can be read
//! yet, and count it as present.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::{StreamExt, TryStreamExt, stream};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::Semaphore;

use super::json::{MetaAnswer, placements};
use super::ranks::RankHosts;
use crate::endpoint::Endpoint;
use crate::kvhash::keys::KeyBatch;
use crate::pool::store::{KeyStore, Placement};
use crate::pool::{Answer, PoolError};

/// Most keys of one question: a little over a millisecond.
const BATCH_KEYS: usize = 256;
/// Most bytes of path and query: 1.1 refuses more than 8 192.
const NARROW_BYTES: usize = 8_000;
/// The same from 1.2 on, which refuses a head of more than 64 KiB.
const WIDE_BYTES: usize = 60_000;
/// Parts of one question on the way at once.
const PARTS_AT_ONCE: usize = 4;
/// Most bytes of an answer: 16 times what this many keys take.
const MAX_BODY_BYTES: usize = 2 << 20;

const PATH: &str = "/batch_query_keys?keys=";
/// Every byte of a key that could have a meaning in a query; `+` would be read as a space.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'/')
    .remove(b':')
    .remove(b'@');

/// Place where a meta service is.
#[derive(Clone, Debug)]
pub struct MemCacheHttpConfig {
    /// Endpoint of its `metrics_url`.
    pub service: Endpoint,
    /// Hosts of ranks.
    pub hosts: RankHosts,
    /// Most questions on the way.
    pub in_flight: usize,
}

/// A client of one meta service's HTTP address.
#[derive(Debug)]
pub struct MemCacheHttp {
    client: reqwest::Client,
    config: MemCacheHttpConfig,
    permits: Semaphore,
    /// The service has shown that it is not of the versions with short URLs.
    wide: AtomicBool,
}

/// One request: its URL, and how many keys it is about.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    url: String,
    start: usize,
    count: usize,
}

impl MemCacheHttp {
    /// Asks through `client`, which must keep connections.
    pub fn new(client: reqwest::Client, config: MemCacheHttpConfig) -> Self {
        let permits = Semaphore::new(config.in_flight);
        Self { client, config, permits, wide: AtomicBool::new(false) }
    }

    async fn ask(&self, keys: &KeyBatch, indexes: &[u32]) -> Result<Vec<Placement>, PoolError> {
        if indexes.len() > BATCH_KEYS {
            return Err(PoolError::TooLarge(format!("{} keys at once", indexes.len())));
        }
        let names: Option<Vec<&str>> = indexes.iter().map(|index| keys.get(*index as usize)).collect();
        let names = names.ok_or_else(|| PoolError::TooLarge("an index beyond the keys".to_owned()))?;
        let most_bytes = if self.wide.load(Ordering::Relaxed) { WIDE_BYTES } else { NARROW_BYTES };
        let parts = parts(&format!("http://{}", self.config.service), &names, most_bytes)?;
        let _permit = self.permits.try_acquire().map_err(|_| PoolError::Busy)?;
        let asked = parts.into_iter().map(|part| self.exchange(part, &names));
        let found: Vec<Vec<Placement>> = stream::iter(asked).buffered(PARTS_AT_ONCE).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn exchange(&self, part: Part, names: &[&str]) -> Result<Vec<Placement>, PoolError> {
        let names = names.get(part.start..part.start + part.count).unwrap_or_default();
        let mut reply = self.client.get(part.url).send().await.map_err(|error| lost(&error))?;
        if !reply.status().is_success() {
            // Should an older service have taken this one's place, shorter questions will do.
            self.wide.store(false, Ordering::Relaxed);
            return Err(PoolError::Refused(format!("status {}", reply.status().as_u16())));
        }
        let mut body = Vec::new();
        while let Some(chunk) = reply.chunk().await.map_err(|error| lost(&error))? {
            if body.len() + chunk.len() > MAX_BODY_BYTES {
                return Err(PoolError::Protocol("an answer without end".to_owned()));
            }
            body.extend_from_slice(&chunk);
        }
        let MetaAnswer { placements, states } = placements(&body, names.iter().copied(), &self.config.hosts)?;
        if states {
            self.wide.store(true, Ordering::Relaxed);
        }
        Ok(placements)
    }
}

impl KeyStore for MemCacheHttp {
    fn name(&self) -> &'static str {
        "memcache_http"
    }

    fn batch_keys(&self) -> usize {
        BATCH_KEYS
    }

    fn locate<'a>(&'a self, keys: &'a KeyBatch, indexes: &'a [u32]) -> Answer<'a, Vec<Placement>> {
        Box::pin(self.ask(keys, indexes))
    }
}

/// As few requests as there must be, none with more than `most_bytes` of path and query.
fn parts(base: &str, keys: &[&str], most_bytes: usize) -> Result<Vec<Part>, PoolError> {
    let mut parts: Vec<Part> = Vec::new();
    let mut spelled = String::new();
    for (at, key) in keys.iter().enumerate() {
        // The service takes the list apart after it has undone the escapes, and skips what is
        // empty.
        if key.is_empty() || key.contains(',') {
            return Err(PoolError::Refused("empty keys and commas can't be asked for by HTTP".to_owned()));
        }
        spelled.clear();
        spelled.extend(utf8_percent_encode(key, ESCAPED));
        match parts.last_mut() {
            Some(part) if part.url.len() - base.len() + 1 + spelled.len() <= most_bytes => {
                part.url.push(',');
                part.url.push_str(&spelled);
                part.count += 1;
            }
            _ if PATH.len() + spelled.len() <= most_bytes => {
                parts.push(Part { url: format!("{base}{PATH}{spelled}"), start: at, count: 1 });
            }
            _ => return Err(PoolError::TooLarge(format!("a key of {} bytes in a URL", key.len()))),
        }
    }
    Ok(parts)
}

fn lost(error: &reqwest::Error) -> PoolError {
    PoolError::Unreachable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_escaped() {
        let text = utf8_percent_encode("/m/Qwen3 8B@pcp0@h:1+a%2F&ü#", ESCAPED);
        assert_eq!(text.to_string(), "/m/Qwen3%208B@pcp0@h:1%2Ba%252F%26%C3%BC%23");
    }

    #[test]
    fn questions_are_cut_to_size() {
        let key = "k".repeat(110);
        let keys = vec![key.as_str(); 200];
        let cut = parts("http://h:1", &keys, NARROW_BYTES).unwrap();
        assert_eq!(cut.iter().map(|part| part.count).sum::<usize>(), 200);
        let mut next = 0;
        for part in &cut {
            assert_eq!(part.start, next);
            next += part.count;
            assert!(part.url.len() <= NARROW_BYTES + "http://h:1".len());
        }
        assert_eq!(cut.len(), 3);
        assert_eq!(parts("http://h:1", &keys, WIDE_BYTES).unwrap().len(), 1);
        assert_eq!(parts("http://h:1", &[], WIDE_BYTES), Ok(Vec::new()));
    }

    #[test]
    fn unaskable_key_is_refused() {
        let long = "k".repeat(NARROW_BYTES);
        assert!(matches!(parts("http://h:1", &[&long], NARROW_BYTES), Err(PoolError::TooLarge(_))));
        assert!(matches!(parts("http://h:1", &["a,b"], NARROW_BYTES), Err(PoolError::Refused(_))));
        assert!(matches!(parts("http://h:1", &[""], NARROW_BYTES), Err(PoolError::Refused(_))));
    }
}
