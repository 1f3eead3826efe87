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

/// The tags of a request as they end a key: `@name%value` for each `lmcache.tag.{name}` of its
/// configuration, in the order of the configuration.
#[must_use]
pub fn tags<'a>(request_config: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut out = String::new();
    for (name, value) in request_config {
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
        assert_eq!(tags([("lmcache.tag.user", "u"), ("x", "1"), ("lmcache.tag.org", "o")]), "@user%u@org%o");
        assert_eq!(tags([("x", "1")]), "");
    }
}
