//! Requests in flight of keys in the store: the places that each gateway holds of a key.
//!
//! They are the text `TIME`, and `NUMBER=PLACES=TIME` for each gateway, with blanks between: the
//! store's time in ms at which the first gateway told; each one's number, its places, and the time
//! at which it told them. A gateway that has not told any for some seconds holds none.

use redis::Script;
use redis::aio::ConnectionLike;

use super::ShareError;
use super::slices::DueExchange;
use crate::auth::key_places::{PlacesGrant, PlacesRequest};
use crate::auth::{Digest, KeyPlaces};
use crate::route::shared::message::ReplicaId;

/// Time after which a gateway that has not told its places holds none, ms: three renewals.
const FORGET_MS: u64 = 3_000;

/// Time from the first word of a gateway in which none gets more than its part, ms: after a store
/// came back empty all have reached it by then, and have told what they hold.
pub(super) const YOUNG_MS: u64 = 2_000;

/// Notes the places that a gateway holds, and gives it more of those that are free. Four arguments
/// for each key behind the gateway's number and the times: the limit, requests under way, most
/// places beyond them, and parts. One step, so that no place is given twice.
const EXCHANGE: &str = "local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local me, forget, young = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local answer = {}
for nth, key in ipairs(KEYS) do
  local of = {}
  for field = 1, 4 do of[field] = tonumber(ARGV[3 + (nth - 1) * 4 + field]) end
  local limit, inside, spare, parts = of[1], of[2], of[3], of[4]
  local known = redis.call('GET', key) or ''
  local since = tonumber(string.match(known, '^(%d+) ')) or now
  local others, kept = 0, {string.format('%.0f', since)}
  for id, held, at in string.gmatch(known, '(%x+)=(%d+)=(%d+)') do
    if id ~= me and math.abs(now - at) < forget then
      others = others + held
      kept[#kept + 1] = id .. '=' .. held .. '=' .. at
    end
  end
  local free = math.max(0, limit - others - inside)
  local is_young = math.abs(now - since) < young
  local most = is_young and math.min(free, math.max(0, math.floor(limit / parts) - inside)) or math.floor(free / parts)
  local more = math.min(spare, most)
  kept[#kept + 1] = me .. '=' .. string.format('%.0f=%.0f', inside + more, now)
  redis.call('SET', key, table.concat(kept, ' '), 'PX', ARGV[2])
  answer[#answer + 1] = inside + more
  answer[#answer + 1] = free - more
  answer[#answer + 1] = is_young and 1 or 0
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
        call.arg(&self.me).arg(FORGET_MS).arg(YOUNG_MS);
        for DueExchange { name, request, .. } in due {
            let PlacesRequest { limit, inside, spare, parts } = *request;
            call.key(key_name(&self.prefix, name)).arg(limit).arg(inside).arg(spare).arg(parts);
        }
        let answer: Vec<u32> = call.invoke_async(store).await?;
        let each =
            answer.chunks_exact(3).map(|of| PlacesGrant { held: of[0], free: of[1], young: of[2] == 1 });
        Ok(each.collect())
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
