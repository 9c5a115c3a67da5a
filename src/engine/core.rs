//! The engine's loop without time: schedule a step, process a result, again.
//!
//! Synchronous: each step's result is processed before the next is scheduled. Asynchronous: two steps are in
//! flight, so a step is scheduled before the result of the one before it is known.

use std::collections::VecDeque;

use super::batch::{Batch, EntryKind, PrefixStats};
use super::config::EngineConfig;
use super::request::{NewRequest, Requests, Slot};
use super::scheduler::{FinishReason, Outcome, Scheduler};
use crate::error::Result;
use crate::units::{Blocks, Tokens};

/// How many requests run and wait, and how many blocks are free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that run.
    pub running: usize,
    /// Requests that wait, preempted ones among them.
    pub waiting: usize,
    /// Blocks that are free, findable ones among them.
    pub free_blocks: Blocks,
}

/// One request's share of a step, as a trace tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The request.
    pub id: u64,
    /// Tokens computed.
    pub tokens: Tokens,
    /// Tokens of the sequence computed before.
    pub computed_before: Tokens,
    /// How it came into the step.
    pub kind: EntryKind,
}

/// A step that was scheduled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scheduled {
    /// Its number among all steps scheduled, from one.
    pub batch: u64,
    /// Who computes what, in order.
    pub shares: Vec<Share>,
    /// Requests that were preempted, in order.
    pub preempted: Vec<u64>,
    /// Look-ups of admitted requests.
    pub prefix: PrefixStats,
    /// The state after scheduling.
    pub after: Counts,
}

/// A result that was processed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processed {
    /// The number of its step.
    pub batch: u64,
    /// Tokens delivered.
    pub tokens: u64,
    /// Requests that ended: id, reason, tokens generated.
    pub finished: Vec<(u64, FinishReason, Tokens)>,
    /// The state after processing.
    pub after: Counts,
}

/// What one turn of the loop did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// The step it scheduled.
    pub scheduled: Option<Scheduled>,
    /// The result it processed.
    pub processed: Option<Processed>,
}

/// Many turns at once in which every running request decoded one token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leap {
    /// How many.
    pub turns: u64,
    /// Each running request in order: id and tokens computed before the first of the turns.
    pub requests: Vec<(u64, Tokens)>,
    /// The state after the last.
    pub after: Counts,
}

/// What comes after scheduling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Schedule another step first.
    Schedule,
    /// Process the oldest step's result.
    Process,
    /// Nothing: nobody is here.
    Sleep,
}

/// See the module.
#[derive(Debug)]
pub struct EngineCore {
    pub(super) scheduler: Scheduler,
    /// Steps in flight, oldest first.
    pub(super) in_flight: VecDeque<Batch>,
    spare: Vec<Batch>,
    depth: usize,
}

impl EngineCore {
    /// An idle engine.
    ///
    /// # Errors
    /// Those of [`EngineConfig::validate`].
    pub fn new(config: &EngineConfig) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            scheduler: Scheduler::new(config),
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            depth: config.concurrent_batches(),
        })
    }

    /// Queues a request; `arrival` is its rank among all, by which priorities that are equal are told apart.
    ///
    /// # Panics
    /// If a request of this id is alive.
    pub fn add(&mut self, request: NewRequest, arrival: u128) {
        self.scheduler.add(request, arrival);
    }

    /// Ends a request from outside; false if it was not alive.
    pub fn abort(&mut self, id: u64) -> bool {
        self.scheduler.abort(id).is_some()
    }

    /// Whether a turn would do anything.
    pub fn has_work(&self) -> bool {
        self.scheduler.has_requests() || !self.in_flight.is_empty()
    }

    /// The present state.
    pub fn counts(&self) -> Counts {
        Counts {
            running: self.scheduler.running.len(),
            waiting: self.scheduler.waiting.len(),
            free_blocks: self.scheduler.free_blocks(),
        }
    }

    /// One turn of the loop.
    pub fn turn(&mut self) -> Turn {
        let mut turn = Turn::default();
        let had_requests = self.scheduler.has_requests();
        let next = self.schedule();
        if had_requests {
            turn.scheduled = self.in_flight.back().map(|batch| self.trace(batch));
        }
        if next == Next::Process {
            let mut processed = Processed::default();
            let batch = self.process(|requests, outcome| match outcome {
                Outcome::Token(_) => processed.tokens += 1,
                Outcome::Finished(slot, reason) => {
                    let request = &requests[slot];
                    processed.finished.push((request.id, reason, request.seq.output));
                }
            });
            processed.batch = batch;
            processed.after = self.counts();
            turn.processed = Some(processed);
        }
        turn
    }

    fn trace(&self, batch: &Batch) -> Scheduled {
        let share = |e: &super::batch::Entry| Share {
            id: self.scheduler.requests[e.slot].id,
            tokens: e.tokens,
            computed_before: e.computed_before,
            kind: e.kind,
        };
        Scheduled {
            batch: batch.id,
            shares: batch.entries.iter().map(share).collect(),
            preempted: batch.preempted.clone(),
            prefix: batch.prefix,
            after: self.counts(),
        }
    }

    /// Schedules a step, if there is anything to schedule, and says what comes next.
    pub(super) fn schedule(&mut self) -> Next {
        if !self.scheduler.has_requests() {
            return if self.in_flight.is_empty() { Next::Sleep } else { Next::Process };
        }
        let mut batch = self.spare.pop().unwrap_or_default();
        self.scheduler.schedule(&mut batch);
        let executes = !batch.entries.is_empty();
        self.in_flight.push_back(batch);
        if self.in_flight.len() < self.depth && (executes || self.scheduler.has_requests()) {
            Next::Schedule
        } else {
            Next::Process
        }
    }

    /// Processes the oldest step's result; its number.
    ///
    /// # Panics
    /// If no step is in flight.
    pub(super) fn process(&mut self, report: impl FnMut(&Requests, Outcome)) -> u64 {
        let batch = self.in_flight.pop_front().expect("a step is in flight");
        self.scheduler.update(&batch, report);
        let id = batch.id;
        self.spare.push(batch);
        id
    }

    /// Takes up to `limit` turns at once, if in each of them every running request would decode one token
    /// and nothing else would happen.
    pub fn leap(&mut self, limit: u64) -> Option<Leap> {
        let turns = self.horizon(limit);
        if turns == 0 {
            return None;
        }
        let before = |slot: &Slot| {
            let request = &self.scheduler.requests[*slot];
            (request.id, request.computed)
        };
        let requests = self.scheduler.running.iter().map(before).collect();
        self.jump(turns);
        Some(Leap { turns, requests, after: self.counts() })
    }

    /// Checks the engine's books: blocks and requests are conserved.
    ///
    /// # Panics
    /// If they are not.
    pub fn check(&self) {
        self.scheduler.check();
    }
}
