//! A request inside the scheduler, and the place where it is kept.

use std::collections::BTreeMap;

use super::content::{Prompt, Stream};
use super::kv::Sequence;
use super::waiting::QueueKey;
use crate::units::Tokens;

/// A request as it is handed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRequest {
    /// Its name, unique among the requests that are alive.
    pub id: u64,
    /// Its prompt.
    pub prompt: Prompt,
    /// Most tokens it generates.
    pub max_tokens: Tokens,
    /// If it stops by itself: after this many tokens, the last of which says so.
    pub stop_after: Option<Tokens>,
    /// Lower runs first, under the priority policy.
    pub priority: i32,
}

/// Where a request is kept.
pub(super) type Slot = u32;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Status {
    #[default]
    Gone,
    Waiting,
    Preempted,
    Running,
}

#[derive(Debug, Default)]
pub(super) struct Request {
    pub(super) id: u64,
    /// Distinguishes the requests that one slot has held.
    pub(super) serial: u64,
    pub(super) priority: i32,
    /// Rank of arrival.
    pub(super) arrival: u128,
    pub(super) max_tokens: Tokens,
    pub(super) stop_after: Tokens,
    pub(super) seq: Sequence,
    /// Tokens scheduled so far, as if all had been computed.
    pub(super) computed: Tokens,
    /// Tokens that will be sampled by steps whose results are not processed (asynchronous scheduling).
    pub(super) placeholders: Tokens,
    /// Tokens scheduled in steps whose results are not processed.
    pub(super) in_flight: Tokens,
    /// The part of them that was scheduled before a preemption.
    pub(super) stale: Tokens,
    pub(super) preemptions: u32,
    pub(super) status: Status,
    /// Whether the last step that was scheduled leaves part of the prompt for later.
    pub(super) prefilling: bool,
    pub(super) place: QueueKey,
    /// The last batch it was scheduled in.
    pub(super) last_batch: u64,
}

impl Request {
    /// Tokens that `prefill` covers: the prompt, or what a preempted request had generated as well.
    pub(super) fn prefill_end(&self) -> Tokens {
        self.seq.prompt.len().max(self.seq.len().saturating_sub(1))
    }

    /// The number of the token that it will not pass: by the limit on output or by its own stop.
    pub(super) fn last_token(&self) -> Tokens {
        self.max_tokens.min(self.stop_after)
    }
}

/// All requests that are alive; slots are used again, with their memory.
#[derive(Debug, Default)]
pub(super) struct Requests {
    slots: Vec<Request>,
    vacant: Vec<Slot>,
    by_id: BTreeMap<u64, Slot>,
    serial: u64,
}

impl Requests {
    /// Keeps a new request.
    ///
    /// # Panics
    /// If its id is alive.
    pub(super) fn insert(&mut self, new: NewRequest, arrival: u128, groups: usize) -> Slot {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Request::default());
            Slot::try_from(self.slots.len() - 1).expect("requests are numbered in 32 bits")
        });
        let former = self.by_id.insert(new.id, slot);
        assert!(former.is_none(), "request {} is alive already", new.id);
        self.serial += 1;
        let mut seq = std::mem::take(&mut self.slots[slot as usize].seq);
        seq.restart(new.prompt, Stream::output_of(new.id), groups);
        self.slots[slot as usize] = Request {
            id: new.id,
            serial: self.serial,
            priority: new.priority,
            arrival,
            max_tokens: new.max_tokens.max(1),
            stop_after: new.stop_after.map_or(Tokens::MAX, |n| n.max(1)),
            seq,
            status: Status::Waiting,
            ..Request::default()
        };
        slot
    }

    /// Forgets a request.
    pub(super) fn remove(&mut self, slot: Slot) {
        let request = &mut self.slots[slot as usize];
        request.status = Status::Gone;
        request.serial = 0;
        self.by_id.remove(&request.id);
        self.vacant.push(slot);
    }

    pub(super) fn find(&self, id: u64) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    /// The request that `slot` held when its serial number was `serial`, if it is alive.
    pub(super) fn alive(&mut self, slot: Slot, serial: u64) -> Option<&mut Request> {
        Some(&mut self.slots[slot as usize]).filter(|r| r.serial == serial)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Request> {
        self.by_id.values().map(|slot| &self.slots[*slot as usize])
    }
}

impl std::ops::Index<Slot> for Requests {
    type Output = Request;
    fn index(&self, slot: Slot) -> &Request {
        &self.slots[slot as usize]
    }
}

impl std::ops::IndexMut<Slot> for Requests {
    fn index_mut(&mut self, slot: Slot) -> &mut Request {
        &mut self.slots[slot as usize]
    }
}
