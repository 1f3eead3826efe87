//! Requests in flight of keys in the store: the places that each gateway holds of a key.
//!
//! They are the text `NUMBER=PLACES=TIME` for each gateway, with blanks between: its number, its
//! places, and the store's time in ms at which it told them. A gateway that has not told any for
//! some seconds holds none.

use redis::Script;
use redis::aio::ConnectionLike;

use super::ShareError;
use super::slices::DueExchange;
use crate::auth::key_places::{PlacesGrant, PlacesRequest};
use crate::auth::{Digest, KeyPlaces};
use crate::route::shared::message::ReplicaId;

/// Time after which a gateway that has not told its places holds none, ms: three renewals.
const FORGET_MS: u64 = 3_000;

/// Notes the places that a gateway holds, and gives it more of those that are free. Four arguments
/// for each key behind the gateway's number and the time: the limit, requests under way, most
/// places beyond them, and parts. One step, so that no place is given twice.
const EXCHANGE: &str = "local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local me, forget = ARGV[1], tonumber(ARGV[2])
local answer = {}
for nth, key in ipairs(KEYS) do
  local of = {}
  for field = 1, 4 do of[field] = tonumber(ARGV[2 + (nth - 1) * 4 + field]) end
  local limit, inside, spare, parts = of[1], of[2], of[3], of[4]
  local others, kept = 0, {}
  for id, held, at in string.gmatch(redis.call('GET', key) or '', '(%x+)=(%d+)=(%d+)') do
    if id ~= me and math.abs(now - at) < forget then
      others = others + held
      kept[#kept + 1] = id .. '=' .. held .. '=' .. at
    end
  end
  local free = math.max(0, limit - others - inside)
  local more = math.min(spare, math.floor(free / parts))
  kept[#kept + 1] = me .. '=' .. string.format('%.0f=%.0f', inside + more, now)
  redis.call('SET', key, table.concat(kept, ' '), 'PX', ARGV[2])
  answer[#answer + 1] = inside + more
  answer[#answer + 1] = free - more
end
return answer";

/// Places in a store, as one gateway uses them.
#[derive(Clone, Debug)]
pub struct Places {
    prefix: String,
    me: String,
    exchange: Script,
}

impl Places {
    /// The places whose names begin with `prefix`, for a gateway.
    pub fn new(prefix: &str, me: ReplicaId) -> Places {
        let (prefix, me) = (prefix.to_owned(), format!("{:016x}", me.0));
        Places { prefix, me, exchange: Script::new(EXCHANGE) }
    }

    /// Exchanges places of some keys; the grants are in the same order.
    ///
    /// # Errors
    /// The store refuses, for instance since its memory is full.
    pub async fn exchange(
        &self,
        store: &mut impl ConnectionLike,
        due: &[DueExchange<KeyPlaces, PlacesRequest>],
    ) -> Result<Vec<PlacesGrant>, ShareError> {
        let mut call = self.exchange.prepare_invoke();
        call.arg(&self.me).arg(FORGET_MS);
        for DueExchange { name, request, .. } in due {
            let PlacesRequest { limit, inside, spare, parts } = *request;
            call.key(key_name(&self.prefix, name)).arg(limit).arg(inside).arg(spare).arg(parts);
        }
        let answer: Vec<u32> = call.invoke_async(store).await?;
        let pairs = answer.chunks_exact(2).map(|pair| PlacesGrant { held: pair[0], free: pair[1] });
        Ok(pairs.collect())
    }
}

/// Name of a key's places in the store, which hides that of the key as the name of a bucket does.
fn key_name(prefix: &str, name: &str) -> String {
    format!("{prefix}:places:1:{}", Digest::of(format!("pd-proxy key places {name}").as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By `printf 'pd-proxy key places team-a' | sha256sum`.
    #[test]
    fn places_have_the_hash_of_a_name() {
        let hash = "30a9b92b33bdc64c1908a599347daa093928e5d97e784cf0ad2f9217beb989c7";
        assert_eq!(key_name("pd-proxy", "team-a"), format!("pd-proxy:places:1:{hash}"));
    }
}
