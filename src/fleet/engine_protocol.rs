//! Protocol of this fleet's engines, as far as it is known.

use crate::dialect::Dialect;
use crate::endpoint::Endpoint;
use crate::util::swap::Live;

use std::sync::Arc;

/// Of `[dialect]` what requests need.
#[derive(Clone, Debug, Default)]
pub struct EngineProtocol {
    /// Dialect of the engines, as far as it is known.
    pub dialect: Dialect,
    /// They may turn out to speak another.
    pub open: bool,
    /// Place where a prefiller's bootstrap server listens, on the prefiller's host.
    pub bootstrap_port: u16,
    /// Prefillers for which that is not so, and where it listens there.
    pub bootstraps: Vec<(Endpoint, Endpoint)>,
    /// Place where decoders call back, a whole URL.
    pub callback_url: String,
    /// Prefillers understand lists of prompts.
    pub batch: bool,
}

/// The protocol at this moment: where the configuration leaves it open, engines tell it while the
/// gateway runs.
#[derive(Debug)]
pub struct LiveProtocol {
    now: Live<EngineProtocol>,
    /// The configuration leaves the dialect open.
    is_auto: bool,
}

impl EngineProtocol {
    /// Place where the bootstrap server of a prefiller listens.
    pub fn bootstrap(&self, prefiller: &Endpoint) -> Endpoint {
        let own = self.bootstraps.iter().find(|(of, _)| of == prefiller).map(|(_, at)| at.clone());
        own.unwrap_or_else(|| Endpoint::new(prefiller.host.clone(), self.bootstrap_port))
    }
}

impl LiveProtocol {
    /// Creates it with the protocol of the configuration.
    pub fn new(configured: EngineProtocol) -> LiveProtocol {
        LiveProtocol { is_auto: configured.open, now: Live::new(configured) }
    }

    /// The protocol at this moment.
    pub fn now(&self) -> Arc<EngineProtocol> {
        self.now.now()
    }

    /// The engines may speak another dialect than they did, if the configuration leaves it open:
    /// some have restarted. False if it does not.
    pub fn reopen(&self) -> bool {
        if self.is_auto {
            self.now.set(EngineProtocol { open: true, ..(*self.now()).clone() });
        }
        self.is_auto
    }

    /// The engines have turned out to speak this, if it was open.
    pub fn turn_to(&self, dialect: Dialect, bootstrap_port: Option<u16>) {
        let before = self.now();
        if !before.open {
            return;
        }
        // A hand-off may still tell more of an engine whose dialect has several forms.
        let open = dialect == Dialect::KvTransfer;
        let bootstrap_port = bootstrap_port.unwrap_or(before.bootstrap_port);
        self.now.set(EngineProtocol { dialect, open, bootstrap_port, ..(*before).clone() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bootstrap_server_is_on_its_prefillers_host_unless_told_otherwise() {
        let special = (Endpoint::new("a", 8100), Endpoint::new("10.0.0.9", 9001));
        let protocol =
            EngineProtocol { bootstrap_port: 8998, bootstraps: vec![special], ..EngineProtocol::default() };
        assert_eq!(protocol.bootstrap(&Endpoint::new("a", 8100)), Endpoint::new("10.0.0.9", 9001));
        assert_eq!(protocol.bootstrap(&Endpoint::new("a", 8101)), Endpoint::new("a", 8998));
    }

    #[test]
    fn engines_are_believed_once_and_only_where_the_configuration_leaves_it_open() {
        let of =
            |open| LiveProtocol::new(EngineProtocol { open, bootstrap_port: 1, ..EngineProtocol::default() });
        let fixed = of(false);
        fixed.turn_to(Dialect::Sglang, Some(2));
        assert_eq!((fixed.now().dialect, fixed.now().bootstrap_port), (Dialect::KvTransfer, 1));
        let open = of(true);
        open.turn_to(Dialect::KvTransfer, None);
        assert!(open.now().open, "a hand-off may tell more");
        open.turn_to(Dialect::Mooncake, Some(2));
        open.turn_to(Dialect::Pool, None);
        assert_eq!((open.now().dialect, open.now().bootstrap_port), (Dialect::Mooncake, 2));
        assert!(open.reopen() && !fixed.reopen() && !fixed.now().open);
        open.turn_to(Dialect::Sglang, Some(3));
        assert_eq!((open.now().dialect, open.now().open), (Dialect::Sglang, false), "they were restarted");
    }
}
