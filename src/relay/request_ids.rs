//! The ids under which engines know the requests that are under way.
//!
//! A client's `X-Request-Id` need not be unique: one of its own requests leads to
//! several calls, and a mesh repeats the id with what it tries again. Up to 0.13 vLLM tells
//! requests apart by nothing else. It refuses the second, or, where a prefiller still keeps blocks
//! for the first, which has long had its answer there, takes one for the other. Gateways that share
//! a fleet do not know each other's ids: each adds its own mark to all of them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The clients' ids that are in use.
#[derive(Clone, Debug, Default)]
pub struct Names(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    taken: Mutex<HashSet<String>>,
    /// End of all ids, by which other gateways' ids differ; none where there are no others.
    mark: OnceLock<String>,
}

/// Name of one request at engines; its id is free again when this is dropped.
#[derive(Debug)]
pub struct Name {
    id: String,
    /// Place where the id is in use; `None` for one that was made unique.
    taken: Option<Names>,
}

impl Names {
    /// Marks all ids from now on as those of one gateway of several.
    pub fn mark(&self, gateway: u32) {
        // The mark of the first call is kept.
        let _ = self.0.mark.set(format!("-{gateway:08x}"));
    }

    /// The client's id, or that and something random while another request has it.
    pub fn take(&self, id: &str) -> Name {
        let marked = self.0.mark.get().map(|mark| format!("{id}{mark}"));
        let id = marked.as_deref().unwrap_or(id);
        if self.with(|taken| taken.insert(id.to_owned())) {
            return Name { id: id.to_owned(), taken: Some(self.clone()) };
        }
        let random = uuid::Uuid::new_v4().simple().to_string();
        Name { id: format!("{id}-{}", &random[..8]), taken: None }
    }

    fn with<T>(&self, work: impl FnOnce(&mut HashSet<String>) -> T) -> T {
        work(&mut self.0.taken.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Name {
    /// A name of which the client had no part.
    pub fn unchosen() -> Name {
        Name { id: uuid::Uuid::new_v4().to_string(), taken: None }
    }

    /// The id towards engines.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if let Some(names) = &self.taken {
            names.with(|taken| taken.remove(&self.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_in_use_is_made_unique_and_free_again_when_its_owner_goes() {
        let names = Names::default();
        let (first, second, third) = (names.take("a"), names.take("a"), names.take("a"));
        assert_eq!((first.id(), names.take("b").id()), ("a", "b"));
        assert!(second.id().starts_with("a-") && second.id().len() == 10 && second.id() != third.id());
        drop((second, third));
        assert_ne!(names.take("a").id(), "a", "its owner is still here");
        drop(first);
        assert_eq!(names.take("a").id(), "a");
        assert!(names.with(|taken| taken.is_empty()));
    }

    #[test]
    fn gateways_that_share_a_fleet_have_no_id_in_common() {
        let (one, other) = (Names::default(), Names::default());
        one.mark(0x1f);
        other.mark(0x20);
        let (first, second) = (one.take("a"), other.take("a"));
        assert_eq!((first.id(), second.id()), ("a-0000001f", "a-00000020"));
        assert!(one.take("a").id().starts_with("a-0000001f-"));
        drop(first);
        assert_eq!(one.take("a").id(), "a-0000001f");
    }
}
