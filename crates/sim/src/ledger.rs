//! Hand-offs the engine still holds for a decoder, and what became of the others.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::blocks::BlockIds;

/// A snapshot of what an engine holds. All counts are since the engine's start unless they say
/// "now".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Finished prefills held now for a decoder.
    pub pinned_handoffs: usize,
    /// Blocks they hold now.
    pub pinned_blocks: usize,
    /// Hand-offs a decoder has read and given back.
    pub released_by_decode: u64,
    /// Hand-offs a decoder gave back unread, because it rejected or dropped the request.
    pub released_by_reject: u64,
    /// Hand-offs nobody asked for within the lease.
    pub expired: u64,
    /// Requests computing or writing now.
    pub running: usize,
    /// Requests waiting now for blocks, the prefill slot or remote KV.
    pub waiting: usize,
    /// Blocks held now, pinned ones included.
    pub used_blocks: usize,
    /// Reason why the engine died, if it did.
    pub dead: Option<String>,
}

/// Names that are remembered after their lease ended.
const GONE: usize = 256;

/// Reasons why a hand-off was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The decoder has its KV.
    Read,
    /// The decoder will not need it.
    Unread,
}

/// Pinned hand-offs by `remote_request_id`, each under a lease.
#[derive(Debug, Default)]
pub struct Pins {
    /// A name may be given twice, where engines meet by the client's: oldest first.
    by_request: HashMap<String, VecDeque<Pin>>,
    by_expiry: BTreeMap<(u64, u64), String>,
    /// The last names whose lease ended, oldest first.
    gone: VecDeque<String>,
    sequence: u64,
    released_by_decode: u64,
    released_by_reject: u64,
    expired: u64,
}

#[derive(Debug)]
struct Pin {
    blocks: BlockIds,
    expiry: (u64, u64),
}

impl Pins {
    /// Holds `blocks` for `request_id` until `expiry_us`.
    pub fn add(&mut self, request_id: String, blocks: BlockIds, expiry_us: u64) {
        self.sequence += 1;
        let expiry = (expiry_us, self.sequence);
        self.by_expiry.insert(expiry, request_id.clone());
        self.by_request.entry(request_id).or_default().push_back(Pin { blocks, expiry });
    }

    /// Ends a hold before its time; gives the blocks to free, None if there is no such hold (any
    /// more).
    pub fn release(&mut self, request_id: &str, why: Release) -> Option<BlockIds> {
        let pin = self.take(request_id, |_| true)?;
        self.by_expiry.remove(&pin.expiry);
        match why {
            Release::Read => self.released_by_decode += 1,
            Release::Unread => self.released_by_reject += 1,
        }
        Some(pin.blocks)
    }

    /// Ends one hold whose lease is over by `now_us`.
    pub fn expire_one(&mut self, now_us: u64) -> Option<BlockIds> {
        let (&expiry, _) = self.by_expiry.first_key_value().filter(|((at, _), _)| *at <= now_us)?;
        let request_id = self.by_expiry.remove(&expiry)?;
        self.expired += 1;
        let blocks = self.take(&request_id, |pin| pin.expiry == expiry).map(|pin| pin.blocks);
        self.gone.push_back(request_id);
        if self.gone.len() > GONE {
            self.gone.pop_front();
        }
        blocks
    }

    /// Takes the oldest pin of that name which is meant.
    fn take(&mut self, request_id: &str, meant: impl Fn(&Pin) -> bool) -> Option<Pin> {
        let pins = self.by_request.get_mut(request_id)?;
        let at = pins.iter().position(meant)?;
        let pin = pins.remove(at);
        if pins.is_empty() {
            self.by_request.remove(request_id);
        }
        pin
    }

    /// Blocks that are held for `request_id`.
    #[must_use]
    pub fn blocks(&self, request_id: &str) -> Option<BlockIds> {
        self.by_request.get(request_id)?.front().map(|pin| pin.blocks.clone())
    }

    /// True if it was held until its lease ended.
    #[must_use]
    pub fn has_expired(&self, request_id: &str) -> bool {
        self.gone.iter().any(|gone| gone == request_id)
    }

    /// Time at which the next lease ends.
    #[must_use]
    pub fn next_expiry_us(&self) -> Option<u64> {
        self.by_expiry.first_key_value().map(|((at, _), _)| *at)
    }

    /// Writes the counts of this book into `ledger`.
    pub fn report(&self, ledger: &mut Ledger) {
        let pins = || self.by_request.values().flatten();
        ledger.pinned_handoffs = pins().count();
        ledger.pinned_blocks = pins().map(|pin| pin.blocks.len()).sum();
        ledger.released_by_decode = self.released_by_decode;
        ledger.released_by_reject = self.released_by_reject;
        ledger.expired = self.expired;
    }
}
