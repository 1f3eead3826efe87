//! `fleet.ranks`: engines with another number of data-parallel ranks than the others of their role.

use super::bounds::MAX_RANKS;
use super::{Endpoint, Fleet, Problem};

impl Fleet {
    /// Engines with the number of their ranks, where that is given; entries that can't be read are
    /// left out.
    pub fn ranks(&self) -> Vec<(Endpoint, u16)> {
        self.ranks.iter().filter_map(|text| entry(text)).collect()
    }
}

/// Finds fault with an entry that is no engine with a number of ranks.
pub(super) fn rank_count_fault(_: &'static str, text: &str) -> Option<Problem> {
    entry(text).is_none().then(|| Problem::NotARankCount { text: text.to_owned() })
}

fn entry(text: &str) -> Option<(Endpoint, u16)> {
    let (engine, ranks) = text.rsplit_once('=')?;
    let ranks = ranks.trim().parse().ok().filter(|ranks| (1..=MAX_RANKS).contains(&u64::from(*ranks)))?;
    Some((Endpoint::parse(engine).ok()?, ranks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_given_with_its_ranks() {
        assert_eq!(entry("10.0.0.1:8100=4"), Some((Endpoint::new("10.0.0.1", 8100), 4)));
        assert_eq!(entry("[::1]:80=1"), Some((Endpoint::new("::1", 80), 1)));
        for bad in ["", "a:1", "a:1=", "a:1=0", "a:1=65", "a:1=x", "=4", "a=4"] {
            assert_eq!(entry(bad), None, "{bad}");
        }
        let said = rank_count_fault("", "a:1").unwrap().to_string();
        assert!(said.contains("engine=number"), "{said}");
    }
}
