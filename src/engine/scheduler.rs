//! What one step computes: vLLM's scheduling rules.
//!
//! Knows requests, budgets and blocks; knows no time. Running requests come first, in the order in which
//! they were admitted, then waiting ones while the budget, the slots and the blocks last; when a running
//! request finds no block, another one is preempted and nothing is admitted in that step.

use super::batch::{Batch, Entry, EntryKind, PrefixStats};
use super::config::{EngineConfig, SchedulingPolicy};
use super::kv::{Ask, Hit, KvCache};
use super::request::{NewRequest, Requests, Slot, Status};
use super::split::AlignedSplit;
use super::waiting::WaitingQueue;
use crate::units::{Blocks, Tokens};

/// Why admission ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdmissionEnd {
    /// Nobody waits.
    Empty,
    /// As many run as may.
    Slots,
    /// The budget is spent.
    Budget,
    /// The first in the queue does not fit.
    Blocks,
    /// For a reason that may be gone at the next step.
    Passing,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// It generated its end-of-sequence token.
    Stop,
    /// It reached its limit of output or the engine's of length.
    Length,
    /// It was cancelled.
    Abort,
    /// It could never have been run; see [`super::servable`].
    Refused,
}

/// What processing a step's result brings about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// A request has one token more.
    Token(Slot),
    /// A request ended.
    Finished(Slot, FinishReason),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Scheduler {
    pub(super) requests: Requests,
    pub(super) running: Vec<Slot>,
    pub(super) waiting: WaitingQueue,
    pub(super) kv: KvCache,
    hit: Hit,
    pub(super) budget: Tokens,
    batch_tokens: Tokens,
    pub(super) max_active: usize,
    pub(super) max_model_len: Tokens,
    long_prefill: Tokens,
    adaptive: bool,
    chunked: bool,
    pub(super) asynchronous: bool,
    policy: SchedulingPolicy,
    whole: bool,
    split: Option<AlignedSplit>,
    /// Whether a request ended since the last step was scheduled.
    ended: bool,
    /// Why the last admission ended, as long as that still holds.
    pub(super) settled: Option<AdmissionEnd>,
    batches: u64,
}

impl Scheduler {
    pub(super) fn new(config: &EngineConfig) -> Self {
        Self {
            requests: Requests::default(),
            running: Vec::new(),
            waiting: WaitingQueue::new(config.scheduling_policy),
            kv: KvCache::new(config),
            hit: Hit::default(),
            budget: config.token_budget(),
            batch_tokens: config.max_num_batched_tokens,
            max_active: config.max_active() as usize,
            max_model_len: config.max_model_len,
            long_prefill: config.long_prefill_token_threshold,
            adaptive: config.long_prefill_token_threshold_adaptive,
            chunked: config.enable_chunked_prefill,
            asynchronous: config.async_scheduling,
            policy: config.scheduling_policy,
            whole: config.scheduler_reserve_full_isl,
            split: AlignedSplit::new(config),
            ended: false,
            settled: None,
            batches: 0,
        }
    }

    /// Queues a request; `arrival` is its rank among all.
    pub(super) fn add(&mut self, new: NewRequest, arrival: u128) -> Slot {
        let priority = new.priority;
        let slot = self.requests.insert(new, arrival, self.kv.group_count());
        self.requests[slot].place = self.waiting.add(slot, priority, arrival);
        self.settled = None;
        slot
    }

    /// Ends a request from outside; its slot if it was alive.
    pub(super) fn abort(&mut self, id: u64) -> Option<Slot> {
        let slot = self.requests.find(id)?;
        if self.requests[slot].status == Status::Running {
            self.running.retain(|s| *s != slot);
        } else {
            self.waiting.remove(self.requests[slot].place);
        }
        self.end(slot);
        Some(slot)
    }

    fn end(&mut self, slot: Slot) {
        self.kv.free(&mut self.requests[slot].seq);
        self.requests.remove(slot);
        self.ended = true;
        self.settled = None;
    }

    /// Whether the engine has something to do.
    pub(super) fn has_requests(&self) -> bool {
        self.ended || !self.running.is_empty() || !self.waiting.is_empty()
    }

    /// Free blocks.
    pub(super) const fn free_blocks(&self) -> Blocks {
        self.kv.free_blocks()
    }

    /// Plans one step into `batch`.
    pub(super) fn schedule(&mut self, batch: &mut Batch) {
        self.batches += 1;
        batch.restart(self.batches);
        self.kv.start_step();
        let limit = self.long_prefill_limit();
        let mut budget = self.budget;
        self.schedule_running(batch, &mut budget, limit);
        let end = if batch.preempted.is_empty() {
            self.schedule_waiting(batch, &mut budget, limit)
        } else {
            AdmissionEnd::Passing
        };
        self.settled = Some(end);
        self.kv.end_step();
        for entry in &mut batch.entries {
            let request = &mut self.requests[entry.slot];
            entry.computed_before = request.computed;
            request.computed += entry.tokens;
            request.in_flight += entry.tokens;
            request.last_batch = batch.id;
            request.prefilling = request.computed < request.seq.len() + request.placeholders;
            entry.samples = !request.prefilling;
            if self.asynchronous && entry.samples {
                request.placeholders += 1;
            }
        }
        self.ended = false;
    }

    /// The limit on one prompt's tokens in a step; it protects others, so it needs some.
    fn long_prefill_limit(&self) -> Tokens {
        let requests = (self.running.len() + self.waiting.len()) as u64;
        match (self.long_prefill, self.adaptive) {
            (0, _) => Tokens::MAX,
            _ if requests <= 1 => Tokens::MAX,
            (limit, true) => limit.max(self.batch_tokens / requests),
            (limit, false) => limit,
        }
    }

    fn schedule_running(&mut self, batch: &mut Batch, budget: &mut Tokens, limit: Tokens) {
        let mut i = 0;
        while i < self.running.len() && *budget > 0 {
            let slot = self.running[i];
            let request = &self.requests[slot];
            let (computed, held) = (request.computed, request.placeholders);
            if held > 0 && computed + 2 - held >= request.seq.prompt.len() + request.max_tokens {
                i += 1; // its last token is being computed
                continue;
            }
            let room = self.max_model_len.saturating_sub(computed + 1);
            let mut new = (request.seq.len() + held - computed).min(limit).min(*budget).min(room);
            if let Some(split) = &self.split {
                new = split.clip(request, computed, new);
            }
            if new == 0 {
                i += 1;
                continue;
            }
            if computed + new > request.seq.quiet_to() && !self.make_room(&mut i, new, batch, budget) {
                break;
            }
            batch.entries.push(Entry::new(slot, self.requests[slot].serial, new, EntryKind::Running));
            *budget -= new;
            i += 1;
        }
    }

    /// Finds blocks for the running request at `i`, preempting others; false if it was preempted itself.
    fn make_room(&mut self, i: &mut usize, new: Tokens, batch: &mut Batch, budget: &mut Tokens) -> bool {
        let slot = self.running[*i];
        loop {
            let request = &mut self.requests[slot];
            let ask = Ask {
                computed: request.computed,
                new,
                in_flight: request.in_flight,
                waiting: false,
                others_run: true,
                whole: false,
            };
            if self.kv.allocate(&mut request.seq, ask, None) {
                return true;
            }
            let at = match self.policy {
                SchedulingPolicy::Fcfs => self.running.len() - 1,
                SchedulingPolicy::Priority => (0..self.running.len())
                    .max_by_key(|at| {
                        let r = &self.requests[self.running[*at]];
                        (r.priority, r.arrival)
                    })
                    .expect("the request itself runs"),
            };
            let victim = self.running.remove(at);
            if at < *i {
                *i -= 1;
            }
            if let Some(entry) = batch.entries.iter().position(|e| e.slot == victim) {
                *budget += batch.entries.remove(entry).tokens;
            }
            self.preempt(victim, batch);
            if victim == slot {
                return false;
            }
        }
    }

    fn preempt(&mut self, slot: Slot, batch: &mut Batch) {
        let request = &mut self.requests[slot];
        self.kv.free(&mut request.seq);
        request.status = Status::Preempted;
        request.computed = 0;
        request.stale = request.in_flight;
        request.placeholders = 0;
        request.preemptions += 1;
        request.place = self.waiting.put_first(slot, request.priority, request.arrival);
        batch.preempted.push(request.id);
    }

    fn schedule_waiting(&mut self, batch: &mut Batch, budget: &mut Tokens, limit: Tokens) -> AdmissionEnd {
        let mut passed = None;
        loop {
            let Some((key, slot)) = self.waiting.next_after(passed) else {
                return if passed.is_some() { AdmissionEnd::Passing } else { AdmissionEnd::Empty };
            };
            if *budget == 0 {
                return AdmissionEnd::Budget;
            }
            if self.running.len() >= self.max_active {
                return AdmissionEnd::Slots;
            }
            if self.requests[slot].stale > 0 {
                passed = Some(key); // its former output is still under way
                continue;
            }
            match self.admit(slot, *budget, limit) {
                Ok(entry) => {
                    let request = &mut self.requests[slot];
                    if self.kv.caches() {
                        batch.prefix.record(request.seq.len(), entry.hit, request.preemptions > 0);
                    }
                    self.waiting.remove(key);
                    self.running.push(slot);
                    request.status = Status::Running;
                    request.computed = entry.hit;
                    *budget -= entry.tokens;
                    batch.entries.push(entry);
                }
                Err(end) => return end,
            }
        }
    }

    fn admit(&mut self, slot: Slot, budget: Tokens, limit: Tokens) -> Result<Entry, AdmissionEnd> {
        let others_run = !self.running.is_empty();
        let request = &mut self.requests[slot];
        self.kv.look_up(&mut request.seq, &mut self.hit);
        request.seq.junction = self.hit.junction;
        let mut new = (request.seq.len() - self.hit.tokens).min(limit);
        if !self.chunked && new > budget {
            return Err(AdmissionEnd::Passing);
        }
        new = new.min(budget);
        if let Some(split) = &self.split {
            new = split.clip(request, self.hit.tokens, new);
            if new == 0 {
                return Err(AdmissionEnd::Passing);
            }
        }
        let ask = Ask {
            computed: 0,
            new,
            in_flight: request.in_flight,
            waiting: true,
            others_run,
            whole: self.whole,
        };
        if !self.kv.allocate(&mut request.seq, ask, Some(&self.hit)) {
            return Err(if self.kv.has_fresh_states() {
                AdmissionEnd::Passing
            } else {
                AdmissionEnd::Blocks
            });
        }
        let resumed = request.status == Status::Preempted;
        let kind = if resumed { EntryKind::Resumed } else { EntryKind::New };
        Ok(Entry { hit: self.hit.tokens, ..Entry::new(slot, request.serial, new, kind) })
    }

    /// Processes the result of a step.
    pub(super) fn update(&mut self, batch: &Batch, mut report: impl FnMut(&Requests, Outcome)) {
        let mut left = 0;
        for entry in &batch.entries {
            let Some(request) = self.requests.alive(entry.slot, entry.serial) else { continue };
            request.in_flight -= entry.tokens;
            let stale = request.stale > 0;
            if stale {
                request.stale -= entry.tokens;
                self.settled = None;
            }
            if !entry.samples {
                continue;
            }
            request.seq.output += 1;
            if self.asynchronous && !stale {
                request.placeholders -= 1;
            }
            let (output, length) = (request.seq.output, request.seq.len());
            let reason = if output >= request.stop_after {
                Some(FinishReason::Stop)
            } else if output >= request.max_tokens || length >= self.max_model_len {
                Some(FinishReason::Length)
            } else {
                None
            };
            if self.asynchronous && request.status == Status::Running {
                let known = request.computed - request.placeholders;
                self.kv.cache_known(&mut request.seq, known);
            }
            report(&self.requests, Outcome::Token(entry.slot));
            if let Some(reason) = reason {
                report(&self.requests, Outcome::Finished(entry.slot, reason));
                if self.requests[entry.slot].status == Status::Running {
                    left += 1;
                } else {
                    self.waiting.remove(self.requests[entry.slot].place);
                }
                self.end(entry.slot);
            }
        }
        if left > 0 {
            let requests = &self.requests;
            self.running.retain(|slot| requests[*slot].status == Status::Running);
        }
    }

    /// The number of the last step scheduled.
    pub(super) const fn last_batch(&self) -> u64 {
        self.batches
    }

    /// Notes that `turns` steps were scheduled and processed without being looked at one by one.
    pub(super) const fn note_turns(&mut self, turns: u64) {
        self.batches += turns;
        self.ended = false;
    }

    /// Checks that blocks are conserved and every request is in one place.
    ///
    /// # Panics
    /// If not.
    pub(super) fn check(&self) {
        self.kv.check(self.requests.iter().map(|r| &r.seq));
        let alive = self.requests.iter().count();
        assert_eq!(alive, self.running.len() + self.waiting.len(), "a request runs or waits");
    }
}

impl PrefixStats {
    fn record(&mut self, queries: Tokens, hits: Tokens, preempted: bool) {
        let side = if preempted { &mut self.after_preemption } else { &mut self.fresh };
        side.requests += 1;
        side.queries += queries;
        side.hits += hits;
    }
}
