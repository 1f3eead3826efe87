//! Budgets of keys in the store: one bucket each, and how many gateways share them.
//!
//! A bucket is the text `LEVEL TIME`: tokens, and the store's time in ms at which there were so
//! many. The store fills it by its own clock, so clocks of gateways need not agree. It expires when
//! it would have been full for a minute: no bucket means a full one.

use std::sync::Arc;

use redis::Script;
use redis::aio::ConnectionLike;

use super::ShareError;
use super::places::YOUNG_MS;
use crate::auth::key_budget::{SliceGrant, SliceRequest};
use crate::auth::{Digest, KeyBudget, KeyCell};
use crate::route::shared::message::ReplicaId;

/// Buckets for which the store is asked at once, so that its other clients need not wait.
pub const TOGETHER: usize = 64;
/// Time after which a gateway that has not told that it is there counts no more, ms.
const FORGET_MS: u64 = 5_000;

/// Gives back what gateways have left, or takes their debts, and cuts a new slice for each bucket.
/// Five arguments for each: tokens per minute, tokens given back, most tokens of the slice, parts,
/// and the level if there is no bucket. One step, so that no token is given twice.
const EXCHANGE: &str = "local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local answer = {}
for nth, key in ipairs(KEYS) do
  local of = {}
  for field = 1, 5 do of[field] = tonumber(ARGV[(nth - 1) * 5 + field]) end
  local limit, returned, wanted, parts, level = of[1], of[2], of[3], of[4], of[5]
  local known, at = string.match(redis.call('GET', key) or '', '^(%S+) (%d+)$')
  if tonumber(known) then level = tonumber(known) + math.max(0, now - at) * limit / 60000 end
  level = math.min(limit, math.min(limit, level) + returned)
  local slice = math.max(0, math.min(wanted, level / parts))
  level = level - slice
  local expires = math.min(604800000, math.ceil((limit - level) * 60000 / limit) + 60000)
  redis.call('SET', key, string.format('%.3f %.0f', level, now), 'PX', string.format('%.0f', expires))
  answer[#answer + 1] = string.format('%.3f', slice)
  answer[#answer + 1] = string.format('%.3f', level)
end
return answer";

/// Notes that a gateway is there, forgets those that have not said so for long, counts all, and
/// says if the first has come a moment ago. The text is `TIME`, and `NUMBER=TIME` for each, with
/// blanks between.
const COUNT: &str = "local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known = redis.call('GET', KEYS[1]) or ''
local since = tonumber(string.match(known, '^(%d+) ')) or now
local all = {string.format('%.0f', since), ARGV[1] .. '=' .. string.format('%.0f', now)}
for id, at in string.gmatch(known, '(%x+)=(%d+)') do
  if id ~= ARGV[1] and math.abs(now - at) < tonumber(ARGV[2]) then all[#all + 1] = id .. '=' .. at end
end
redis.call('SET', KEYS[1], table.concat(all, ' '), 'PX', ARGV[2])
return {#all - 1, math.abs(now - since) < tonumber(ARGV[3]) and 1 or 0}";

/// Gateways that share limits, as the store counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayCount {
    /// Number of them, this one included.
    pub gateways: u32,
    /// The first one has come a moment ago: others may not have told yet that they are there.
    pub young: bool,
}

/// One key's exchange that is due, of its budget or of its places.
#[derive(Debug)]
pub struct DueExchange<T, R> {
    /// Name of the key.
    pub name: Arc<str>,
    /// State that waits for the grant.
    pub cell: Arc<KeyCell<T>>,
    /// Request that the store gets.
    pub request: R,
}

/// Buckets of a store, as one gateway uses them.
#[derive(Clone, Debug)]
pub struct Buckets {
    prefix: String,
    me: String,
    exchange: Script,
    count: Script,
}

impl Buckets {
    /// The buckets whose names begin with `prefix`, for a gateway.
    pub fn new(prefix: &str, me: ReplicaId) -> Buckets {
        let (exchange, count) = (Script::new(EXCHANGE), Script::new(COUNT));
        Buckets { prefix: prefix.to_owned(), me: format!("{:016x}", me.0), exchange, count }
    }

    /// Exchanges slices of some keys; the grants are in the same order.
    ///
    /// # Errors
    /// The store refuses, for instance since its memory is full.
    pub async fn exchange(
        &self,
        store: &mut impl ConnectionLike,
        due: &[DueExchange<KeyBudget, SliceRequest>],
    ) -> Result<Vec<SliceGrant>, ShareError> {
        let mut call = self.exchange.prepare_invoke();
        for DueExchange { name, request, .. } in due {
            let SliceRequest { per_minute, returned, wanted, parts, level } = *request;
            call.key(bucket_name(&self.prefix, name));
            for value in [per_minute, returned, wanted, parts, level] {
                call.arg(format!("{value:.3}"));
            }
        }
        let answer: Vec<f64> = call.invoke_async(store).await?;
        let pairs = answer.chunks_exact(2).map(|pair| SliceGrant { slice: pair[0], level: pair[1] });
        Ok(pairs.collect())
    }

    /// Says that this gateway is there, and returns the number of all.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn count_gateways(&self, store: &mut impl ConnectionLike) -> Result<GatewayCount, ShareError> {
        let mut call = self.count.key(format!("{}:gateways:1", self.prefix));
        call.arg(&self.me).arg(FORGET_MS).arg(YOUNG_MS);
        let (gateways, young): (u32, u8) = call.invoke_async(store).await?;
        Ok(GatewayCount { gateways, young: young == 1 })
    }
}

/// Name of a key's bucket: the number is the version of what is in it. The name of the key is
/// hashed, to hide it from those who see names in the store and do not know it.
fn bucket_name(prefix: &str, name: &str) -> String {
    format!("{prefix}:budget:1:{}", Digest::of(format!("pd-proxy key budget {name}").as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By `printf 'pd-proxy key budget team-a' | sha256sum`.
    #[test]
    fn buckets_have_the_hash_of_a_name() {
        let hash = "c994df173c64d764ca23b555d526cf2da2c41a29f1a13a1a0efcf976d6d7d403";
        assert_eq!(bucket_name("pd-proxy", "team-a"), format!("pd-proxy:budget:1:{hash}"));
    }
}
