//! The engine on a clock.
//!
//! A step takes what the cost model says, steps follow one another without a gap, and a step's results are
//! known at its end. With asynchronous scheduling a step is scheduled when the one before it starts, so a
//! request that arrives during a step waits for the one after next; an idle engine schedules at once.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::batch::{Batch, EntryKind};
use super::config::{EngineConfig, FrontEndCosts};
use super::core::{EngineCore, Next};
use super::events::{Counters, EngineEvent, EventKind, Gauges, Mode};
use super::front::{Arrival, Clock, FS_PER_NS, FrontEnd, clock, nanos};
use super::request::{NewRequest, Slot};
use super::runs::Runs;
use super::scheduler::{FinishReason, Outcome};
use super::servable::servable;
use crate::costs::{PrefillPiece, StepCost, StepShape};
use crate::error::Result;
use crate::units::{SimTime, Tokens};

/// What the engine does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Look at arrivals and schedule, now.
    Schedule,
    /// Wait for the oldest step to end.
    Wait,
    /// Wait for something from outside.
    Sleep,
}

/// Turns without work after which nothing can change by itself: asynchronous scheduling has two in flight,
/// and each of them may hold the output of a preempted request.
const IDLE_TURNS: u32 = 4;

/// A simulated vLLM engine with cost model `C`. See the module.
#[derive(Debug)]
pub struct Engine<C> {
    config: EngineConfig,
    costs: C,
    mode: Mode,
    core: EngineCore,
    front: FrontEnd,
    /// Cancellations to come: time, order, request.
    cancels: BinaryHeap<Reverse<(Clock, u64, u64)>>,
    cancelled: u64,
    now: Clock,
    phase: Phase,
    idle_turns: u32,
    /// When the steps in flight end.
    ends: VecDeque<Clock>,
    /// When the last step scheduled ends.
    device_free: Clock,
    runs: Runs,
    counters: Counters,
    pieces: Vec<PrefillPiece>,
}

impl<C: StepCost> Engine<C> {
    /// An idle engine at time zero.
    ///
    /// # Errors
    /// Those of [`EngineConfig::validate`].
    pub fn new(config: EngineConfig, front_end: FrontEndCosts, costs: C, mode: Mode) -> Result<Self> {
        Ok(Self {
            core: EngineCore::new(&config)?,
            config,
            costs,
            mode,
            front: FrontEnd::new(front_end),
            cancels: BinaryHeap::new(),
            cancelled: 0,
            now: 0,
            phase: Phase::Sleep,
            idle_turns: 0,
            ends: VecDeque::new(),
            device_free: 0,
            runs: Runs::default(),
            counters: Counters::default(),
            pieces: Vec::new(),
        })
    }

    /// The settings.
    pub const fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Hands a request in that arrives at `at`. Requests may be handed in before they arrive and in any
    /// order, but not for a time that [`Self::advance`] has passed: such a one arrives at that time.
    ///
    /// A request that can never be run ends as [`FinishReason::Refused`] when it reaches the scheduler.
    pub fn submit(&mut self, at: SimTime, request: NewRequest) {
        self.front.submit(clock(at), request);
    }

    /// Ends a request at `at`, wherever it is by then. Unknown and ended ones are let be.
    pub fn cancel(&mut self, at: SimTime, id: u64) {
        self.cancelled += 1;
        self.cancels.push(Reverse((clock(at), self.cancelled, id)));
    }

    /// When something may happen next: a time to which [`Self::advance`] can go without passing anything.
    /// `None` if nothing will happen without a new request.
    pub fn next_event_time(&self) -> Option<SimTime> {
        let at = match self.phase {
            Phase::Schedule => Some(self.now),
            Phase::Wait => self.ends.front().map(|end| self.now.max(*end)),
            Phase::Sleep => self.next_from_outside(),
        };
        at.map(nanos)
    }

    fn next_from_outside(&self) -> Option<Clock> {
        let cancel = self.cancels.peek().map(|Reverse((at, ..))| *at);
        self.front.earliest().into_iter().chain(cancel).min().map(|at| at.max(self.now))
    }

    /// Goes on until `until`, that nanosecond included, and appends what happens to `events`.
    ///
    /// Returns early when a request has ended, before anything is scheduled at that instant, so that the
    /// driver can send another one. Returns the time reached.
    ///
    /// Tokens are reported as runs that are as long as possible: a run ends when its request ends or is
    /// preempted, and at `until`. Other requests' runs are *not* cut by an early return;
    /// [`Self::counters`] is exact at every return.
    pub fn advance(&mut self, until: SimTime, events: &mut Vec<EngineEvent>) -> SimTime {
        let limit = (u128::from(until.as_nanos()) + 1) * FS_PER_NS - 1;
        loop {
            let ended = match self.phase {
                Phase::Schedule if self.now <= limit => self.turn(limit, events),
                Phase::Wait => {
                    let end = self.ends.front().map_or(self.now, |end| self.now.max(*end));
                    if end > limit {
                        break;
                    }
                    self.now = end;
                    self.process(events)
                }
                Phase::Sleep => {
                    let next = self.front.next_ready();
                    let cancel = self.cancels.peek().map(|Reverse((at, ..))| *at);
                    match next.into_iter().chain(cancel).min() {
                        Some(at) if at <= limit => {
                            self.now = self.now.max(at);
                            self.idle_turns = 0;
                            self.phase = Phase::Schedule;
                            false
                        }
                        _ => break,
                    }
                }
                Phase::Schedule => break,
            };
            if ended {
                return nanos(self.now);
            }
        }
        self.runs.cut(events);
        until
    }

    /// Takes what has arrived and schedules; true if a request ended instead.
    fn turn(&mut self, limit: Clock, events: &mut Vec<EngineEvent>) -> bool {
        let mut ended = false;
        while let Some(arrival) = self.front.take(self.now) {
            ended |= self.receive(arrival, events);
        }
        ended |= self.apply_cancels(events);
        if ended {
            return true;
        }
        if self.mode == Mode::FastForward && self.leap(limit) {
            return false;
        }
        let before = self.core.in_flight.len();
        let next = self.core.schedule();
        if self.core.in_flight.len() > before {
            self.start_step(events);
        }
        self.phase = match next {
            Next::Schedule => Phase::Schedule,
            Next::Process => Phase::Wait,
            Next::Sleep => Phase::Sleep,
        };
        if self.idle_turns >= IDLE_TURNS && self.phase == Phase::Schedule {
            self.phase = Phase::Sleep;
        }
        false
    }

    fn receive(&mut self, Arrival { at, order, request }: Arrival, events: &mut Vec<EngineEvent>) -> bool {
        let event = |kind| EngineEvent { at: nanos(self.now), request: request.id, kind };
        let output = request.max_tokens.min(request.stop_after.unwrap_or(Tokens::MAX));
        if servable(&self.config, request.prompt.len(), output).is_err() {
            events.push(event(EventKind::Finished { reason: FinishReason::Refused }));
            return true;
        }
        events.push(event(EventKind::Queued));
        self.idle_turns = 0;
        self.core.scheduler.add(request, at << 64 | u128::from(order));
        false
    }

    fn apply_cancels(&mut self, events: &mut Vec<EngineEvent>) -> bool {
        let mut ended = false;
        while let Some(Reverse((at, _, id))) = self.cancels.peek().copied() {
            if at > self.now {
                break;
            }
            self.cancels.pop();
            let known = match self.core.scheduler.abort(id) {
                Some(slot) => {
                    self.runs.end(slot, id, events);
                    true
                }
                None => self.front.cancel(id),
            };
            if known {
                let kind = EventKind::Finished { reason: FinishReason::Abort };
                events.push(EngineEvent { at: nanos(self.now), request: id, kind });
                self.idle_turns = 0;
                ended = true;
            }
        }
        ended
    }

    /// Puts the step that was just scheduled on the device and reports who was admitted and preempted.
    fn start_step(&mut self, events: &mut Vec<EngineEvent>) {
        let Some(batch) = self.core.in_flight.back() else { return };
        let at = nanos(self.now);
        for id in &batch.preempted {
            if let Some(slot) = self.core.scheduler.requests.find(*id) {
                self.runs.end(slot, *id, events);
            }
            events.push(EngineEvent { at, request: *id, kind: EventKind::Preempted });
        }
        for entry in batch.entries.iter().filter(|e| e.kind != EntryKind::Running) {
            let id = self.core.scheduler.requests[entry.slot].id;
            let kind = EventKind::Scheduled { hit_tokens: entry.hit };
            events.push(EngineEvent { at, request: id, kind });
        }
        self.counters.preemptions += batch.preempted.len() as u64;
        self.counters.prefix.add(&batch.prefix);
        if batch.entries.is_empty() {
            self.idle_turns += 1;
        } else {
            self.idle_turns = 0;
            self.counters.steps += 1;
            let cost = step_cost(&self.costs, batch, &mut self.pieces);
            self.device_free = self.device_free.max(self.now) + u128::from(cost);
        }
        self.ends.push_back(self.device_free);
    }

    /// Processes the result of the step that ends now; true if a request ended.
    fn process(&mut self, events: &mut Vec<EngineEvent>) -> bool {
        let mut ended = self.apply_cancels(events);
        self.ends.pop_front();
        let at = nanos(self.now);
        let (runs, counters) = (&mut self.runs, &mut self.counters);
        self.core.process(|requests, outcome| match outcome {
            Outcome::Token(slot) => {
                let request = &requests[slot];
                counters.generation_tokens += 1;
                if request.seq.output == 1 {
                    counters.prompt_tokens += request.seq.prompt.len();
                }
                runs.add(slot, request.id, request.seq.output - 1, 1, at, at);
            }
            Outcome::Finished(slot, reason) => {
                let request = requests[slot].id;
                runs.end(slot, request, events);
                events.push(EngineEvent { at, request, kind: EventKind::Finished { reason } });
                ended = true;
            }
        });
        self.phase = Phase::Schedule;
        ended
    }

    /// Takes many decode steps at once, up to the next arrival, cancellation or `limit`; false if there are
    /// not at least two to take.
    fn leap(&mut self, limit: Clock) -> bool {
        let most = self.core.horizon(u64::MAX);
        if most < 2 {
            return false;
        }
        let scheduler = &self.core.scheduler;
        let batch = u32::try_from(scheduler.running.len()).expect("requests are numbered in 32 bits");
        let resident = scheduler.running.iter().map(|slot| scheduler.requests[*slot].computed).sum();
        // The turn's result comes from the step in flight if there is one, else from the step it schedules.
        let (start, in_flight) = match self.ends.front() {
            Some(end) => (self.now.max(*end), 1),
            None => (self.now, 0),
        };
        let result = |turn: u64| start + self.costs.decode_run(batch, resident, turn - in_flight.min(turn));
        let cancel = self.cancels.peek().map_or(Clock::MAX, |Reverse((at, ..))| *at);
        let limit = limit.min(cancel.saturating_sub(1));
        let ready = self.front.next_ready().unwrap_or(Clock::MAX);
        let mut turns = last_within(most, limit.min(ready - 1), result);
        if turns < most && turns > 0 && ready <= limit && result(turns + 1) <= limit {
            turns += 1; // scheduled before the arrival, processed after it
        }
        if turns < 2 {
            return false;
        }
        let (first, last) = (nanos(result(1)), nanos(result(turns)));
        for slot in &scheduler.running {
            let request = &scheduler.requests[*slot];
            if request.seq.output == 0 {
                self.counters.prompt_tokens += request.seq.prompt.len();
            }
            self.runs.add(*slot, request.id, request.seq.output, turns, first, last);
        }
        self.counters.generation_tokens += turns * u64::from(batch);
        self.counters.steps += turns;
        self.now = result(turns);
        self.device_free = start + self.costs.decode_run(batch, resident, turns);
        if let Some(end) = self.ends.front_mut() {
            *end = self.device_free;
        }
        self.core.jump(turns);
        true
    }

    /// What `/metrics` would show.
    pub fn gauges(&self) -> Gauges {
        let counts = self.core.counts();
        Gauges {
            running: counts.running,
            waiting: counts.waiting,
            free_blocks: counts.free_blocks,
            used_blocks: self.config.num_gpu_blocks - 1 - counts.free_blocks,
        }
    }

    /// Sums since the start.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Checks the engine's books: blocks and requests are conserved.
    ///
    /// # Panics
    /// If they are not.
    pub fn check(&self) {
        self.core.check();
    }
}

/// The cost of a step.
fn step_cost(costs: &impl StepCost, batch: &Batch, pieces: &mut Vec<PrefillPiece>) -> u64 {
    pieces.clear();
    let (mut decode_seqs, mut decode_resident) = (0, 0);
    for entry in &batch.entries {
        if entry.is_decode() {
            decode_seqs += 1;
            decode_resident += entry.computed_before;
        } else {
            pieces.push(PrefillPiece {
                tokens: entry.tokens,
                computed_before: entry.computed_before,
                finishes: entry.samples,
            });
        }
    }
    costs.step(&StepShape { decode_seqs, decode_resident, prefill: pieces })
}

/// The last of `1..=most` turns whose result is there by `limit`; zero if none is.
fn last_within(most: u64, limit: Clock, result: impl Fn(u64) -> Clock) -> u64 {
    if result(most) <= limit {
        return most;
    }
    let (mut within, mut beyond) = (0, most);
    while beyond - within > 1 {
        let middle = within + (beyond - within) / 2;
        if result(middle) <= limit { within = middle } else { beyond = middle }
    }
    within
}

/// A slot's place in a table.
pub(super) const fn index(slot: Slot) -> usize {
    slot as usize
}
