//! Accounts of the parts of one request with several prompts: each part has one, which is never
//! settled by itself.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use crate::fleet::Instance;

/// Relation of an account to others.
#[derive(Debug, Default)]
pub(super) enum RequestScope {
    /// It is all there is.
    #[default]
    Alone,
    /// It has parts.
    Whole(Arc<Parts>),
    /// It is a part.
    Part(Arc<Parts>),
}

/// The sum so far, shared by the whole and its parts.
#[derive(Debug, Default)]
pub(super) struct Parts(Mutex<Sum>);

/// Result of one part.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) prompt: Option<u64>,
    pub(super) cached: Option<u64>,
    pub(super) output: Option<u64>,
    /// Number of times that its stream was continued elsewhere.
    pub(super) resumed: u32,
    pub(super) prefiller: Option<Arc<Instance>>,
    pub(super) decoder: Option<Arc<Instance>>,
}

/// Sum of all parts that are over. A count that nobody told is `None`.
#[derive(Clone, Debug, Default)]
pub(super) struct Sum {
    pub(super) parts: usize,
    pub(super) prompt: Option<u64>,
    pub(super) cached: Option<u64>,
    pub(super) output: Option<u64>,
    pub(super) resumed: u32,
    /// Each engine once.
    pub(super) prefillers: Vec<Arc<Instance>>,
    pub(super) decoders: Vec<Arc<Instance>>,
}

impl RequestScope {
    /// A part more.
    pub(super) fn part(&mut self) -> RequestScope {
        if matches!(self, RequestScope::Alone) {
            *self = RequestScope::Whole(Arc::default());
        }
        match self {
            RequestScope::Whole(parts) | RequestScope::Part(parts) => RequestScope::Part(parts.clone()),
            RequestScope::Alone => RequestScope::Alone,
        }
    }

    pub(super) fn is_part(&self) -> bool {
        matches!(self, RequestScope::Part(_))
    }

    pub(super) fn is_whole(&self) -> bool {
        matches!(self, RequestScope::Whole(_))
    }

    /// Any part was sent to an engine.
    pub(super) fn began(&self) -> bool {
        self.sum().is_some_and(|sum| !sum.prefillers.is_empty() || !sum.decoders.is_empty())
    }

    /// A part is over.
    pub(super) fn add(&self, part: Part) {
        if let RequestScope::Part(parts) = self {
            parts.0.lock().unwrap_or_else(PoisonError::into_inner).add(part);
        }
    }

    /// Sum of the parts of a whole.
    pub(super) fn sum(&self) -> Option<Sum> {
        match self {
            RequestScope::Whole(parts) => {
                Some(parts.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
            }
            RequestScope::Alone | RequestScope::Part(_) => None,
        }
    }
}

impl Sum {
    /// Of a request that is one part.
    pub(super) fn of(part: Part) -> Sum {
        let mut sum = Sum::default();
        sum.add(part);
        sum
    }

    /// Its prefillers, as logged.
    pub(super) fn prefiller_names(&self) -> Option<String> {
        names(&self.prefillers)
    }

    /// Its decoders, as logged.
    pub(super) fn decoder_names(&self) -> Option<String> {
        names(&self.decoders)
    }

    fn add(&mut self, part: Part) {
        let plus = |sum: &mut Option<u64>, count: Option<u64>| {
            if let Some(count) = count {
                *sum = Some(sum.unwrap_or(0) + count);
            }
        };
        self.parts += 1;
        self.resumed += part.resumed;
        plus(&mut self.prompt, part.prompt);
        plus(&mut self.cached, part.cached);
        plus(&mut self.output, part.output);
        for (engines, engine) in [(&mut self.prefillers, part.prefiller), (&mut self.decoders, part.decoder)]
        {
            let new = engine.filter(|engine| engines.iter().all(|known| known.id() != engine.id()));
            engines.extend(new);
        }
    }
}

fn names(engines: &[Arc<Instance>]) -> Option<String> {
    let (first, others) = engines.split_first()?;
    let mut names = first.endpoint().to_string();
    for engine in others {
        // A string takes all.
        _ = write!(names, ",{}", engine.endpoint());
    }
    Some(names)
}
