//! Runs of tokens that are not reported yet, one a request.

use super::events::{EngineEvent, EventKind};
use super::request::Slot;
use crate::units::SimTime;

#[derive(Clone, Copy, Debug)]
struct Run {
    request: u64,
    first_index: u64,
    count: u64,
    first_at: SimTime,
    last_at: SimTime,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Runs {
    by_slot: Vec<Option<Run>>,
}

impl Runs {
    /// Adds `count` tokens, the first of which has `index`.
    pub(super) fn add(
        &mut self,
        slot: Slot,
        request: u64,
        index: u64,
        count: u64,
        first: SimTime,
        last: SimTime,
    ) {
        let slot = super::timed::index(slot);
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, None);
        }
        match &mut self.by_slot[slot] {
            Some(run) => {
                run.count += count;
                run.last_at = last;
            }
            none => {
                *none = Some(Run { request, first_index: index, count, first_at: first, last_at: last });
            }
        }
    }

    /// Reports the run of a request that stops or pauses.
    pub(super) fn end(&mut self, slot: Slot, request: u64, events: &mut Vec<EngineEvent>) {
        if let Some(run) = self.by_slot.get_mut(super::timed::index(slot)).and_then(Option::take) {
            debug_assert_eq!(run.request, request);
            events.push(run.event());
        }
    }

    /// Reports all runs.
    pub(super) fn cut(&mut self, events: &mut Vec<EngineEvent>) {
        events.extend(self.by_slot.iter_mut().filter_map(Option::take).map(|run| run.event()));
    }
}

impl Run {
    fn event(&self) -> EngineEvent {
        let Self { request, first_index, count, first_at, last_at } = *self;
        EngineEvent {
            at: last_at,
            request,
            kind: EventKind::Tokens { first_index, count, first_at, last_at },
        }
    }
}
