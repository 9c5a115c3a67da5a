//! The front end: what happens to a request before the scheduler sees it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::config::FrontEndCosts;
use super::request::NewRequest;
use crate::units::SimTime;

/// Femtoseconds since the start: nanoseconds times a million, in as many bits as a year needs.
pub(super) type Clock = u128;

/// Femtoseconds in a nanosecond.
pub(super) const FS_PER_NS: u128 = 1_000_000;

/// An instant on the clock.
pub(super) fn clock(at: SimTime) -> Clock {
    u128::from(at.as_nanos()) * FS_PER_NS
}

/// The nanosecond in which an instant lies.
pub(super) fn nanos(at: Clock) -> SimTime {
    SimTime::from_nanos(u64::try_from(at / FS_PER_NS).expect("simulated time stays within 584 years"))
}

/// A request under way to the scheduler.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) at: Clock,
    /// Order of submission.
    pub(super) order: u64,
    pub(super) request: NewRequest,
}

#[derive(Debug)]
struct Ready {
    ready: Clock,
    /// When the serial stage was free before it served this request.
    stage_before: Clock,
    arrival: Arrival,
}

impl PartialEq for Ready {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Ready {}
impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Ready {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.ready, self.arrival.order).cmp(&(other.ready, other.arrival.order))
    }
}

/// A serial stage, first come, first served, then a latency.
#[derive(Debug)]
pub(super) struct FrontEnd {
    costs: FrontEndCosts,
    /// Not yet in the serial stage, by arrival.
    coming: VecDeque<Arrival>,
    ready: BinaryHeap<Reverse<Ready>>,
    stage_free: Clock,
    submitted: u64,
}

impl FrontEnd {
    pub(super) fn new(costs: FrontEndCosts) -> Self {
        Self { costs, coming: VecDeque::new(), ready: BinaryHeap::new(), stage_free: 0, submitted: 0 }
    }

    /// Takes a request that arrives at `at`, in any order of arrival.
    pub(super) fn submit(&mut self, at: Clock, request: NewRequest) {
        self.submitted += 1;
        let arrival = Arrival { at, order: self.submitted, request };
        self.take_back_later_than(at);
        let place = match self.coming.back() {
            Some(last) if last.at > at => self.coming.partition_point(|other| other.at <= at),
            _ => self.coming.len(),
        };
        self.coming.insert(place, arrival);
    }

    /// Undoes the serial stage for requests that arrive after `at` and are not out yet.
    fn take_back_later_than(&mut self, at: Clock) {
        if !self.ready.iter().any(|Reverse(r)| r.arrival.at > at) {
            return;
        }
        let (mut later, kept): (Vec<Ready>, Vec<Ready>) =
            std::mem::take(&mut self.ready).into_iter().map(|Reverse(r)| r).partition(|r| r.arrival.at > at);
        self.ready = kept.into_iter().map(Reverse).collect();
        later.sort_by_key(|r| (r.arrival.at, r.arrival.order));
        if let Some(first) = later.first() {
            self.stage_free = first.stage_before;
        }
        for r in later.into_iter().rev() {
            self.coming.push_front(r.arrival);
        }
    }

    /// When the next request reaches the scheduler.
    pub(super) fn next_ready(&mut self) -> Option<Clock> {
        loop {
            let ready = self.ready.peek().map(|Reverse(r)| r.ready);
            match self.coming.front() {
                Some(next) if ready.is_none_or(|ready| next.at < ready) => self.serve_next(),
                _ => return ready,
            }
        }
    }

    fn serve_next(&mut self) {
        let Some(arrival) = self.coming.pop_front() else { return };
        let tokens = u128::from(arrival.request.prompt.len());
        let cost = |base: crate::units::SimSpan, per_token: u64| {
            u128::from(base.as_nanos()) * FS_PER_NS + u128::from(per_token) * tokens
        };
        let stage_before = self.stage_free;
        self.stage_free =
            stage_before.max(arrival.at) + cost(self.costs.serial_base, self.costs.serial_per_token_fs);
        let ready = self.stage_free + cost(self.costs.latency_base, self.costs.latency_per_token_fs);
        self.ready.push(Reverse(Ready { ready, stage_before, arrival }));
    }

    /// The next request that has reached the scheduler by `now`.
    pub(super) fn take(&mut self, now: Clock) -> Option<Arrival> {
        self.next_ready().filter(|ready| *ready <= now)?;
        self.ready.pop().map(|Reverse(r)| r.arrival)
    }

    /// Drops a request that has not reached the scheduler; false if there is none of this id.
    pub(super) fn cancel(&mut self, id: u64) -> bool {
        if let Some(place) = self.coming.iter().position(|a| a.request.id == id) {
            self.coming.remove(place);
            return true;
        }
        let before = self.ready.len();
        self.ready.retain(|Reverse(r)| r.arrival.request.id != id);
        self.ready.len() < before
    }

    /// A time before which nothing comes out.
    pub(super) fn earliest(&self) -> Option<Clock> {
        let ready = self.ready.peek().map(|Reverse(r)| r.ready);
        let coming = self.coming.front().map(|a| a.at);
        ready.into_iter().chain(coming).min()
    }
}
