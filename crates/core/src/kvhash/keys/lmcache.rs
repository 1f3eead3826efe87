//! LMCache's own spellings: packed ranks, request tags, names of files and objects.

use super::preset::Connector;
use super::profile::Store;

/// Ranks that fit in a byte of [`kv_rank`].
pub const MAX_WORLD: u32 = 255;

/// LMCache MP's packed rank: `world << 24 | rank << 16 | world << 8 | rank`.
#[must_use]
pub fn kv_rank(world: u32, rank: u32) -> u32 {
    (world << 24) | (rank << 16) | (world << 8) | rank
}

/// One member of a request's configuration for LMCache.
#[derive(Clone, Copy, Debug)]
pub struct RequestSetting<'a> {
    /// Its name, such as `lmcache.tag.user`.
    pub name: &'a str,
    /// Its value as text.
    pub value: &'a str,
}

/// The tags of a request as they end a key: `@name%value` for each `lmcache.tag.{name}` of its
/// configuration, in the order of the configuration.
#[must_use]
pub fn tags<'a>(request_config: impl IntoIterator<Item = RequestSetting<'a>>) -> String {
    let mut out = String::new();
    for RequestSetting { name, value } in request_config {
        if let Some(tag) = name.strip_prefix("lmcache.tag.") {
            for piece in ["@", tag, "%", value] {
                out.push_str(piece);
            }
        }
    }
    out
}

/// Spelling of keys in a store: the replacement of `/`, and the end of the name.
pub(super) fn spelling(connector: Connector, store: &Store) -> (&'static str, &'static str) {
    match (connector, store) {
        (Connector::LmcacheEngine | Connector::LmcacheMp, Store::Files { .. }) => ("-SEP-", ".data"),
        (Connector::LmcacheEngine, Store::S3) => ("_", ""),
        _ => ("/", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_packed_twice() {
        assert_eq!(kv_rank(4, 2), 0x0402_0402);
        assert_eq!(kv_rank(MAX_WORLD, 254), 0xFFFE_FFFE);
    }

    #[test]
    fn only_tags_end_the_key() {
        let setting = |name, value| RequestSetting { name, value };
        let [user, other, org] =
            [setting("lmcache.tag.user", "u"), setting("x", "1"), setting("lmcache.tag.org", "o")];
        assert_eq!(tags([user, other, org]), "@user%u@org%o");
        assert_eq!(tags([other]), "");
    }
}
