//! Outcomes of comparing our tokens with each engine's, and the trust that follows from them.

use std::collections::BTreeMap;

use crate::endpoint::Endpoint;
use crate::tokenization::{Difference, Trust};

/// Outcome of comparing with one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It makes the same tokens.
    Same,
    /// It makes the same of texts, and others of chats: its template is another.
    OtherChats,
    /// It makes other tokens.
    Other,
}

/// Reasons why a finding may no longer hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The engine was out of reach.
    Away,
    /// Its process is another one.
    Restarted,
}

/// Trust in tokens that are computed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenTrust {
    /// Of texts that are prompts as they are.
    pub texts: Trust,
    /// Of chats, by a template.
    pub chats: Trust,
}

#[derive(Clone, Copy, Debug)]
struct Found {
    finding: Finding,
    doubt: Option<Doubt>,
}

/// The latest finding of each engine of the fleet. One that is in doubt holds until the engine has
/// been compared again.
#[derive(Debug, Default)]
pub struct Findings(BTreeMap<Endpoint, Found>);

impl Finding {
    /// Finding that a difference is. `compared` requests came before it.
    pub fn of(difference: &Difference, compared: usize) -> Finding {
        if difference.is_chat && compared > 0 { Finding::OtherChats } else { Finding::Other }
    }

    fn trust(self) -> TokenTrust {
        let (texts, chats) = match self {
            Finding::Same => (Trust::Proven, Trust::Proven),
            Finding::OtherChats => (Trust::Proven, Trust::Refuted),
            Finding::Other => (Trust::Refuted, Trust::Refuted),
        };
        TokenTrust { texts, chats }
    }
}

impl Findings {
    /// Forgets the engines that are no members.
    pub fn retain(&mut self, engines: &[Endpoint]) {
        self.0.retain(|engine, _| engines.contains(engine));
    }

    /// Notes that the finding of an engine may no longer hold.
    pub fn doubt(&mut self, engine: &Endpoint, doubt: Doubt) {
        if let Some(found) = self.0.get_mut(engine) {
            // A restart is told, whatever comes after it.
            found.doubt = found.doubt.filter(|it| *it == Doubt::Restarted).or(Some(doubt));
        }
    }

    /// True if an engine is to be compared.
    pub fn is_due(&self, engine: &Endpoint) -> bool {
        self.0.get(engine).is_none_or(|found| found.doubt.is_some())
    }

    /// Records a finding. True if it is news: another one than before, or of another process.
    pub fn record(&mut self, engine: &Endpoint, finding: Finding) -> bool {
        let before = self.0.insert(engine.clone(), Found { finding, doubt: None });
        before.is_none_or(|before| before.finding != finding || before.doubt == Some(Doubt::Restarted))
    }

    /// Trust that follows from all of them: one that differs refutes. `before` is the trust until
    /// now: what was proven by engines that have all left stays proven until the next is compared.
    pub fn trust(&self, before: TokenTrust) -> TokenTrust {
        let all = || self.0.values().map(|found| found.finding.trust());
        let of = |read: fn(TokenTrust) -> Trust, before: Trust| {
            let some = |trust| all().any(|it| read(it) == trust);
            match before {
                _ if some(Trust::Refuted) => Trust::Refuted,
                _ if some(Trust::Proven) => Trust::Proven,
                Trust::Proven => Trust::Proven,
                Trust::Unproven | Trust::Refuted => Trust::Unproven,
            }
        };
        TokenTrust { texts: of(|it| it.texts, before.texts), chats: of(|it| it.chats, before.chats) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNPROVEN: TokenTrust = TokenTrust { texts: Trust::Unproven, chats: Trust::Unproven };
    const PROVEN: TokenTrust = TokenTrust { texts: Trust::Proven, chats: Trust::Proven };
    const REFUTED: TokenTrust = TokenTrust { texts: Trust::Refuted, chats: Trust::Refuted };

    fn at(port: u16) -> Endpoint {
        Endpoint::new("p", port)
    }

    #[test]
    fn one_engine_that_differs_refutes_as_long_as_it_is_there() {
        let mut found = Findings::default();
        assert_eq!(found.trust(UNPROVEN), UNPROVEN);
        assert!(found.record(&at(1), Finding::Same) && !found.record(&at(1), Finding::Same));
        assert_eq!(found.trust(UNPROVEN), PROVEN);
        found.record(&at(2), Finding::OtherChats);
        assert_eq!(found.trust(PROVEN), TokenTrust { texts: Trust::Proven, chats: Trust::Refuted });
        found.record(&at(3), Finding::Other);
        assert_eq!(found.trust(PROVEN), REFUTED);
        found.retain(&[at(1)]);
        assert_eq!(found.trust(REFUTED), PROVEN);
        found.retain(&[]);
        assert_eq!((found.trust(PROVEN), found.trust(REFUTED)), (PROVEN, UNPROVEN));
    }

    #[test]
    fn a_finding_in_doubt_holds_until_the_engine_is_compared_again() {
        let mut found = Findings::default();
        assert!(found.is_due(&at(1)));
        found.record(&at(1), Finding::Other);
        assert!(!found.is_due(&at(1)));
        found.doubt(&at(1), Doubt::Away);
        assert!(found.is_due(&at(1)));
        assert_eq!(found.trust(REFUTED), REFUTED);
        assert!(!found.record(&at(1), Finding::Other), "it was only away, and is as before");
        found.doubt(&at(1), Doubt::Restarted);
        found.doubt(&at(1), Doubt::Away);
        assert!(found.record(&at(1), Finding::Other), "another process, with the same fault");
        found.doubt(&at(1), Doubt::Restarted);
        assert!(found.record(&at(1), Finding::Same));
        assert_eq!(found.trust(REFUTED), PROVEN);
    }
}
