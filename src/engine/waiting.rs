//! The queue of requests that wait to run.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::config::SchedulingPolicy;
use super::request::Slot;

/// A place in the queue; smaller ones come first.
pub(super) type QueueKey = (i64, u128);

/// First come, first served, with preempted requests put at the front; or by priority and arrival.
#[derive(Debug)]
pub(super) struct WaitingQueue {
    policy: SchedulingPolicy,
    queue: BTreeMap<QueueKey, Slot>,
    front: i64,
    back: i64,
}

impl WaitingQueue {
    pub(super) fn new(policy: SchedulingPolicy) -> Self {
        Self { policy, queue: BTreeMap::new(), front: 0, back: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Adds a request and says where.
    pub(super) fn add(&mut self, slot: Slot, priority: i32, arrival: u128) -> QueueKey {
        self.back += 1;
        self.insert(slot, self.back, priority, arrival)
    }

    /// Puts a preempted request before all others (where the policy has a front) and says where.
    pub(super) fn put_first(&mut self, slot: Slot, priority: i32, arrival: u128) -> QueueKey {
        self.front -= 1;
        self.insert(slot, self.front, priority, arrival)
    }

    fn insert(&mut self, slot: Slot, order: i64, priority: i32, arrival: u128) -> QueueKey {
        let key = match self.policy {
            SchedulingPolicy::Fcfs => (order, 0),
            SchedulingPolicy::Priority => (i64::from(priority), arrival),
        };
        self.queue.insert(key, slot);
        key
    }

    pub(super) fn remove(&mut self, key: QueueKey) {
        self.queue.remove(&key);
    }

    /// The first request, or the first one after `key`.
    pub(super) fn next_after(&self, key: Option<QueueKey>) -> Option<(QueueKey, Slot)> {
        let first = match key {
            None => self.queue.first_key_value(),
            Some(key) => self.queue.range((Bound::Excluded(key), Bound::Unbounded)).next(),
        };
        first.map(|(key, slot)| (*key, *slot))
    }
}
