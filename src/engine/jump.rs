//! Many decode steps at once.
//!
//! Between two events every running request gains one token a step, so `n` turns of the loop have a closed
//! form. How many can be taken: none may let a request end, be admitted or be preempted. While blocks are
//! only added, the first waiting request that does not fit stays so: fewer blocks are free at every step and
//! it never needs fewer (blocks that it would find and that are evicted were free, hence counted). Which of
//! the equal free blocks goes to whom makes no difference to any later decision, for a block is known by its
//! content and its place in the free list only.

use super::batch::{Entry, EntryKind};
use super::core::EngineCore;
use super::request::Request;
use super::scheduler::{AdmissionEnd, Scheduler};
use crate::units::Tokens;

impl EngineCore {
    /// How many turns, at most `limit`, can be taken at once from here.
    pub(super) fn horizon(&self, limit: u64) -> u64 {
        let scheduler = &self.scheduler;
        let expected = usize::from(scheduler.asynchronous);
        let running = scheduler.running.len();
        if self.in_flight.len() != expected || running == 0 || running as u64 > scheduler.budget {
            return 0;
        }
        let Some(waiters_see_blocks) = scheduler.waiters_stay() else { return 0 };
        let batch = self.in_flight.front().map(|batch| batch.id);
        // Where something else than appending blocks can happen, stay within the blocks held.
        let bounded = waiters_see_blocks || !scheduler.kv.only_grows();
        let mut turns = limit;
        for slot in &scheduler.running {
            let request = &scheduler.requests[*slot];
            turns = turns.min(request.decodes(batch, scheduler.max_model_len));
            if bounded {
                turns = turns.min(request.seq.quiet_to().saturating_sub(request.computed));
            }
            if turns == 0 {
                return 0;
            }
        }
        if bounded { turns } else { scheduler.affordable(turns) }
    }

    /// Takes `turns` turns at once; at most [`Self::horizon`] of them.
    pub(super) fn jump(&mut self, turns: u64) {
        self.scheduler.decode(turns);
        if let Some(batch) = self.in_flight.front_mut() {
            let scheduler = &mut self.scheduler;
            batch.restart(scheduler.last_batch());
            for slot in &scheduler.running {
                let request = &scheduler.requests[*slot];
                let entry = Entry::new(*slot, request.serial, 1, EntryKind::Running);
                batch.entries.push(Entry { computed_before: request.computed - 1, samples: true, ..entry });
            }
        }
    }
}

impl Scheduler {
    /// Whether nobody can be admitted while all running requests decode; if so, whether that depends on the
    /// blocks that decoding fills (a waiting prompt may quote what a running request generates).
    fn waiters_stay(&self) -> Option<bool> {
        let running = self.running.len();
        let Some((_, first)) = self.waiting.next_after(None) else { return Some(false) };
        if running >= self.max_active || running as u64 == self.budget {
            return Some(false);
        }
        (self.settled == Some(AdmissionEnd::Blocks)).then(|| self.requests[first].seq.prompt.quotes_output())
    }

    /// The most of `turns` for which there are blocks.
    fn affordable(&self, turns: u64) -> u64 {
        let free = u64::from(self.free_blocks());
        let needed = |n: u64| -> u64 {
            let growth = |slot: &u32| {
                let request = &self.requests[*slot];
                self.kv.growth(&request.seq, request.computed, n)
            };
            self.running.iter().map(growth).sum()
        };
        if needed(turns) <= free {
            return turns;
        }
        let (mut fits, mut not) = (0, turns);
        while not - fits > 1 {
            let middle = fits + (not - fits) / 2;
            if needed(middle) <= free { fits = middle } else { not = middle }
        }
        fits
    }

    /// Lets every running request decode `turns` tokens.
    fn decode(&mut self, turns: u64) {
        self.note_turns(turns);
        let batch = self.last_batch();
        for i in 0..self.running.len() {
            let request = &mut self.requests[self.running[i]];
            request.computed += turns;
            request.seq.output += turns;
            if request.computed > request.seq.quiet_to() {
                // The token of the step in flight is not known yet.
                let known = request.computed - request.placeholders;
                self.kv.grow(&mut request.seq, request.computed, known);
            }
            request.in_flight = request.placeholders;
            request.last_batch = batch;
        }
    }
}

impl Request {
    /// Turns for which it certainly decodes one token each: it does so now, in the step in flight as well,
    /// and neither limit is reached.
    fn decodes(&self, in_flight: Option<u64>, max_model_len: Tokens) -> u64 {
        let steady = !self.prefilling
            && self.stale == 0
            && self.seq.len() + self.placeholders == self.computed + 1
            && self.placeholders == u64::from(in_flight.is_some())
            && in_flight.is_none_or(|batch| batch == self.last_batch);
        if !steady {
            return 0;
        }
        let tokens = self.last_token().saturating_sub(self.seq.output + 1);
        tokens.min((max_model_len - 1).saturating_sub(self.seq.len()))
    }
}
