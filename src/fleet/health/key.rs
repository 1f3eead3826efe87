//! An engine's word about the key that the gateway sends it.
//!
//! vLLM asks for its `--api-key` on all routes below `/v1`, and for none on `/health`: an engine
//! that refuses every request answers each probe well. Its list of models tells before a request
//! does.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use http::StatusCode;

/// Sources of the key that engines get with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeySource {
    /// The client's own `Authorization` is passed on: what the gateway is refused without one says
    /// nothing of requests.
    #[default]
    Client,
    /// `engine.api_key`.
    Configuration,
    /// None is sent, since clients' keys end at the gateway.
    Nobody,
}

/// The latest word of one engine, in one role.
#[derive(Debug, Default)]
pub struct KeyWord {
    /// Status of its refusal; 0 = it does not refuse.
    refused: AtomicU16,
    /// True if a leg went well since its process may last have changed.
    served: AtomicBool,
    /// True if it refuses its list to those whose requests it serves: a proxy has rules by path.
    list_is_closed: AtomicBool,
}

/// True if an engine that answers so does not take the key that it was sent.
pub fn is_of_the_key(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

impl KeySource {
    /// True if no request comes with another key than the gateway's own questions.
    pub fn is_ours(self) -> bool {
        self != KeySource::Client
    }

    /// Cause for the log and for people: an engine answers `status` with keys of this source.
    pub fn cause(self, status: StatusCode) -> String {
        let status = status.as_u16();
        match self {
            KeySource::Client => {
                format!(
                    "it wants a key ({status}): set engine.api_key, or clients must send the engine's own"
                )
            }
            KeySource::Configuration => {
                format!("it refuses engine.api_key ({status}): set that to its --api-key")
            }
            KeySource::Nobody => {
                format!("it refuses requests without a key ({status}): set engine.api_key to its --api-key")
            }
        }
    }
}

impl KeyWord {
    /// True while it refuses the key.
    pub fn refuses(&self) -> bool {
        self.refused.load(Ordering::Relaxed) != 0
    }

    /// It refused to list its models, or a request before it served any. False if that says
    /// nothing.
    pub fn refused(&self, status: StatusCode) -> bool {
        if self.served.load(Ordering::Relaxed) {
            self.list_is_closed.store(true, Ordering::Relaxed);
        }
        if self.list_is_closed.load(Ordering::Relaxed) {
            return false;
        }
        self.refused.store(status.as_u16(), Ordering::Relaxed);
        true
    }

    /// It listed its models. True if it refused before.
    pub fn listed(&self) -> bool {
        self.refuses() && self.refused.swap(0, Ordering::Relaxed) != 0
    }

    /// A leg on it went well. True if it refused before.
    pub fn served(&self) -> bool {
        if !self.served.load(Ordering::Relaxed) {
            self.served.store(true, Ordering::Relaxed);
        }
        let refused = self.listed();
        if refused {
            self.list_is_closed.store(true, Ordering::Relaxed);
        }
        refused
    }

    /// Its process may be another one, with another key.
    pub fn doubt(&self) {
        self.served.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO: StatusCode = StatusCode::UNAUTHORIZED;

    #[test]
    fn a_refused_list_counts_until_a_list_or_a_leg_goes_well() {
        let word = KeyWord::default();
        assert!(word.refused(NO) && word.refuses());
        assert!(word.listed() && !word.listed() && !word.refuses());
        assert!(word.refused(NO), "restarted with another key");
    }

    #[test]
    fn an_engine_that_serves_takes_the_key_whatever_its_list_says() {
        let word = KeyWord::default();
        assert!(word.refused(NO));
        assert!(word.served() && !word.served() && !word.refuses());
        word.doubt();
        assert!(!word.refused(NO) && !word.refuses(), "its list is closed, and its requests are served");
        let word = KeyWord::default();
        assert!(!word.served());
        assert!(!word.refused(NO), "a leg went well");
    }

    #[test]
    fn a_restart_makes_a_served_leg_old() {
        let word = KeyWord::default();
        assert!(!word.served());
        word.doubt();
        assert!(word.refused(NO));
    }
}
