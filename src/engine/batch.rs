//! A step that was scheduled: who computes what.

use super::request::Slot;
use crate::units::Tokens;

/// How a request came into a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// It was admitted.
    New,
    /// It ran already.
    Running,
    /// It was admitted again after a preemption.
    Resumed,
}

/// One request's share of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) slot: Slot,
    pub(super) serial: u64,
    /// Tokens computed.
    pub(super) tokens: Tokens,
    /// Tokens of the sequence computed before.
    pub(super) computed_before: Tokens,
    pub(super) kind: EntryKind,
    /// Tokens found in the prefix cache at admission.
    pub(super) hit: Tokens,
    /// Whether a token is sampled.
    pub(super) samples: bool,
}

impl Entry {
    pub(super) const fn new(slot: Slot, serial: u64, tokens: Tokens, kind: EntryKind) -> Self {
        Self { slot, serial, tokens, computed_before: 0, kind, hit: 0, samples: false }
    }

    /// Whether it costs what a decoding sequence costs.
    pub(super) const fn is_decode(&self) -> bool {
        self.tokens == 1 && self.samples
    }
}

/// Look-ups of the prefix cache by admitted requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixLookups {
    /// Requests admitted.
    pub requests: u64,
    /// Their tokens.
    pub queries: Tokens,
    /// The tokens found.
    pub hits: Tokens,
}

impl std::ops::AddAssign for PrefixLookups {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.queries += other.queries;
        self.hits += other.hits;
    }
}

/// Look-ups of new requests and of preempted ones, apart: vLLM's metrics count the former.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStats {
    /// Of requests that were never preempted.
    pub fresh: PrefixLookups,
    /// Of requests that were.
    pub after_preemption: PrefixLookups,
}

/// See the module. Its memory is used again.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Counts up from one.
    pub(super) id: u64,
    pub(super) entries: Vec<Entry>,
    /// Requests preempted while it was scheduled, by id and in order.
    pub(super) preempted: Vec<u64>,
    pub(super) prefix: PrefixStats,
}

impl Batch {
    pub(super) fn restart(&mut self, id: u64) {
        self.id = id;
        self.entries.clear();
        self.preempted.clear();
        self.prefix = PrefixStats::default();
    }
}
