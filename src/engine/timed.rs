//! The replica on simulated time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::{EngineConfig, EngineEvent, EventKind, FrontEndCosts, Gauges, MambaCacheMode, Mode, NewRequest};
use crate::costs::{PrefillPiece, StepCost, StepShape};
use crate::error::{Error, Result};
use crate::units::{SimTime, Tokens};

/// Femtoseconds in a nanosecond.
const FS_PER_NS: u128 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Submit(usize),
    Arrive(usize),
    Cancel(u64),
}

#[derive(Clone, Debug)]
struct Request {
    id: u64,
    stream: u64,
    prompt: Tokens,
    limit: Tokens,
    computed: Tokens,
    /// Outputs that scheduled steps will have produced.
    promised: Tokens,
    /// Outputs produced.
    produced: Tokens,
    gone: bool,
}

#[derive(Clone, Debug, Default)]
struct Batch {
    /// (slot, whether a token is sampled).
    entries: Vec<(usize, bool)>,
    pieces: Vec<PrefillPiece>,
    decode_seqs: u32,
    decode_resident: u64,
}

impl Batch {
    fn pure_decode(&self) -> bool {
        self.pieces.is_empty()
    }
}

/// One replica.
#[derive(Debug)]
pub struct Engine<C> {
    config: EngineConfig,
    front: FrontEndCosts,
    costs: C,
    mode: Mode,
    calendar: BinaryHeap<Reverse<(SimTime, u64, Due)>>,
    sequence: u64,
    serial_free: SimTime,
    slots: Vec<Request>,
    by_id: BTreeMap<u64, usize>,
    waiting: VecDeque<usize>,
    running: Vec<usize>,
    /// The step on the device: when it began and ends, femtoseconds.
    executing: Option<(u128, u128, Batch)>,
    next: Option<Batch>,
    cached: BTreeMap<u64, Tokens>,
    now: SimTime,
}

impl<C: StepCost> Engine<C> {
    /// An idle replica.
    ///
    /// # Errors
    /// If an option describes no engine.
    pub fn new(config: EngineConfig, front: FrontEndCosts, costs: C, mode: Mode) -> Result<Self> {
        config.validate().map_err(|e| Error::input("engine", e))?;
        Ok(Self {
            config,
            front,
            costs,
            mode,
            calendar: BinaryHeap::new(),
            sequence: 0,
            serial_free: SimTime::ZERO,
            slots: Vec::new(),
            by_id: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            executing: None,
            next: None,
            cached: BTreeMap::new(),
            now: SimTime::ZERO,
        })
    }

    /// Hands a request to the front end at `at`.
    pub fn submit(&mut self, at: SimTime, request: NewRequest) {
        let prompt: Tokens = request.prompt.iter().map(|s| s.len).sum();
        let room = self.config.max_model_len.saturating_sub(prompt).max(1);
        let limit = request.max_tokens.min(request.stop_after.unwrap_or(Tokens::MAX)).min(room);
        let slot = self.slots.len();
        self.by_id.insert(request.id, slot);
        self.slots.push(Request {
            id: request.id,
            stream: request.prompt.first().map_or(0, |s| s.stream),
            prompt,
            limit,
            computed: 0,
            promised: 0,
            produced: 0,
            gone: false,
        });
        self.plan(at, Due::Submit(slot));
    }

    /// The client drops a request at `at`.
    pub fn cancel(&mut self, at: SimTime, id: u64) {
        self.plan(at, Due::Cancel(id));
    }

    /// The next instant at which something happens.
    pub fn next_event_time(&self) -> Option<SimTime> {
        let due = self.calendar.peek().map(|Reverse((at, ..))| *at);
        let end = self.executing.as_ref().map(|(_, end, _)| instant(*end));
        due.into_iter().chain(end).min()
    }

    /// What a scrape would show.
    pub fn gauges(&self) -> Gauges {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Gauges { running: count(self.running.len()), waiting: count(self.waiting.len()) }
    }

    /// Processes everything up to `until`, appending what happened. Returns early, right after an instant at
    /// which a request finished, so that a driver can react. Returns the time reached.
    pub fn advance(&mut self, until: SimTime, events: &mut Vec<EngineEvent>) -> SimTime {
        while let Some(at) = self.next_event_time().filter(|at| *at <= until) {
            if self.mode == Mode::FastForward && self.jump(until, events) {
                continue;
            }
            self.now = at;
            let mut finished = false;
            while let Some(Reverse((due_at, _, due))) = self.calendar.peek().copied()
                && due_at == at
            {
                self.calendar.pop();
                self.handle(at, due, events);
            }
            if self.executing.as_ref().is_some_and(|(_, end, _)| instant(*end) == at) {
                finished = self.complete(at, events);
            } else if self.executing.is_none() {
                self.start_idle(at, events);
            }
            if finished {
                return at;
            }
        }
        self.now = until;
        until
    }

    fn plan(&mut self, at: SimTime, due: Due) {
        self.sequence += 1;
        self.calendar.push(Reverse((at, self.sequence, due)));
    }

    fn handle(&mut self, at: SimTime, due: Due, events: &mut Vec<EngineEvent>) {
        match due {
            Due::Submit(slot) => {
                let tokens = self.slots[slot].prompt;
                let span = |base: crate::units::SimSpan, per_token: u64| {
                    let ns = u64::try_from(u128::from(per_token) * u128::from(tokens) / FS_PER_NS)
                        .unwrap_or(u64::MAX);
                    base + crate::units::SimSpan::from_nanos(ns)
                };
                let done =
                    self.serial_free.max(at) + span(self.front.serial_base, self.front.serial_per_token_fs);
                self.serial_free = done;
                self.plan(
                    done + span(self.front.latency_base, self.front.latency_per_token_fs),
                    Due::Arrive(slot),
                );
            }
            Due::Arrive(slot) => {
                if !self.slots[slot].gone {
                    self.waiting.push_back(slot);
                    events.push(EngineEvent { at, request: self.slots[slot].id, kind: EventKind::Queued });
                }
            }
            Due::Cancel(id) => {
                if let Some(slot) = self.by_id.get(&id).copied() {
                    self.slots[slot].gone = true;
                    self.waiting.retain(|s| *s != slot);
                    self.running.retain(|s| *s != slot);
                }
            }
        }
    }

    fn start_idle(&mut self, at: SimTime, events: &mut Vec<EngineEvent>) {
        if let Some(batch) = self.schedule(at, events) {
            self.execute(u128::from(at.as_nanos()) * FS_PER_NS, batch, events);
        }
    }

    fn execute(&mut self, start: u128, batch: Batch, events: &mut Vec<EngineEvent>) {
        let shape = StepShape {
            decode_seqs: batch.decode_seqs,
            decode_resident: batch.decode_resident,
            prefill: &batch.pieces,
        };
        let end = start + u128::from(self.costs.step(&shape).max(1));
        self.executing = Some((start, end, batch));
        if self.config.async_scheduling {
            self.next = self.schedule(instant(start), events);
        }
    }

    fn complete(&mut self, at: SimTime, events: &mut Vec<EngineEvent>) -> bool {
        let Some((_, end, batch)) = self.executing.take() else { return false };
        let mut finished = false;
        for (slot, sampled) in batch.entries {
            let request = &mut self.slots[slot];
            if request.gone || !sampled {
                continue;
            }
            request.produced += 1;
            let kind =
                EventKind::Tokens { first_index: request.produced, count: 1, first_at: at, last_at: at };
            events.push(EngineEvent { at, request: request.id, kind });
            if request.produced == request.limit {
                request.gone = true;
                finished = true;
                events.push(EngineEvent { at, request: request.id, kind: EventKind::Finished });
                self.by_id.remove(&request.id);
                self.running.retain(|s| *s != slot);
            }
        }
        let next = self.next.take().or_else(|| self.schedule(at, events));
        if let Some(batch) = next {
            self.execute(end, batch, events);
        }
        finished
    }

    fn schedule(&mut self, at: SimTime, events: &mut Vec<EngineEvent>) -> Option<Batch> {
        let mut batch = Batch::default();
        let mut budget = self.config.max_num_batched_tokens;
        for i in 0..self.running.len() {
            let slot = self.running[i];
            budget -= self.take(slot, budget, &mut batch);
        }
        let seats = self.config.max_num_seqs as usize;
        while budget > 0 && self.running.len() < seats {
            let Some(slot) = self.waiting.front().copied() else { break };
            let hit = self.hit(slot);
            self.slots[slot].computed = hit;
            let taken = self.take(slot, budget, &mut batch);
            if taken == 0 {
                break;
            }
            budget -= taken;
            self.waiting.pop_front();
            self.running.push(slot);
            let kind = EventKind::Scheduled { hit_tokens: hit };
            events.push(EngineEvent { at, request: self.slots[slot].id, kind });
        }
        (!batch.entries.is_empty()).then_some(batch)
    }

    fn hit(&self, slot: usize) -> Tokens {
        let request = &self.slots[slot];
        let boundary = (request.prompt - 1) / self.config.block_size * self.config.block_size;
        let reusable =
            self.config.enable_prefix_caching && self.config.mamba_cache_mode != Some(MambaCacheMode::None);
        let cached = self.cached.get(&request.stream).copied().unwrap_or(0);
        if reusable { boundary.min(cached) } else { 0 }
    }

    /// Gives a request what it may compute in this step; returns the tokens.
    fn take(&mut self, slot: usize, budget: Tokens, batch: &mut Batch) -> Tokens {
        let request = &mut self.slots[slot];
        if request.promised >= request.limit || budget == 0 {
            return 0;
        }
        let wanted = request.prompt + request.promised - request.computed;
        if request.computed >= request.prompt {
            batch.decode_seqs += 1;
            batch.decode_resident += request.computed;
            request.computed += 1;
            request.promised += 1;
            batch.entries.push((slot, true));
            return 1;
        }
        let mut tokens = wanted.min(budget);
        if self.config.mamba_cache_mode == Some(MambaCacheMode::Align) {
            let block = self.config.block_size;
            let last = request.prompt / block * block;
            let end = request.computed + tokens;
            let clipped = if request.computed < last { end.min(last) / block * block } else { end };
            tokens =
                clipped.saturating_sub(request.computed).max(u64::from(clipped <= request.computed) * tokens);
        }
        let finishes = tokens == wanted;
        batch.pieces.push(PrefillPiece { tokens, computed_before: request.computed, finishes });
        request.computed += tokens;
        let full = request.computed / self.config.block_size * self.config.block_size;
        let cached = self.cached.entry(request.stream).or_default();
        *cached = full.max(*cached);
        if finishes {
            request.promised += 1;
        }
        batch.entries.push((slot, finishes));
        tokens
    }

    /// Jumps over pure decode steps. Returns whether it moved.
    fn jump(&mut self, until: SimTime, events: &mut Vec<EngineEvent>) -> bool {
        let Some((start, _, batch)) = &self.executing else { return false };
        let same = |b: &Batch| b.pure_decode() && b.entries.len() == self.running.len();
        if !same(batch) || (self.config.async_scheduling && !self.next.as_ref().is_some_and(same)) {
            return false;
        }
        let seats = self.config.max_num_seqs as usize;
        if !self.waiting.is_empty() && self.running.len() < seats {
            return false;
        }
        let room =
            self.running.iter().map(|s| self.slots[*s].limit - self.slots[*s].promised).min().unwrap_or(0);
        let bound = self.calendar.peek().map_or(u128::from(until.as_nanos()) + 1, |Reverse((at, ..))| {
            u128::from(at.as_nanos()).min(u128::from(until.as_nanos()) + 1)
        }) * FS_PER_NS;
        let (start, seqs, resident) = (*start, batch.decode_seqs, batch.decode_resident);
        let ends = |k: u64| start + self.costs.decode_run(seqs, resident, k);
        let (mut low, mut high) = (0, room);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if ends(middle) < bound { low = middle } else { high = middle - 1 }
        }
        if low < 2 {
            return false;
        }
        let steps = low;
        let (first_at, last_at, end) = (instant(ends(1)), instant(ends(steps)), ends(steps));
        let grown = u64::from(seqs) * steps;
        for slot in &self.running {
            let request = &mut self.slots[*slot];
            let first_index = request.produced + 1;
            request.produced += steps;
            request.promised += steps;
            request.computed += steps;
            let kind = EventKind::Tokens { first_index, count: steps, first_at, last_at };
            events.push(EngineEvent { at: last_at, request: request.id, kind });
        }
        if let Some(next) = &mut self.next {
            next.decode_resident += grown;
        }
        let cost = self.costs.decode_run(seqs, resident + grown, 1);
        if let Some((began, ended, batch)) = &mut self.executing {
            (*began, *ended) = (end, end + cost);
            batch.decode_resident += grown;
        }
        true
    }
}

/// Femtoseconds of the device as an instant: the nanosecond they lie in.
fn instant(fs: u128) -> SimTime {
    SimTime::from_nanos(u64::try_from(fs / FS_PER_NS).unwrap_or(u64::MAX))
}
