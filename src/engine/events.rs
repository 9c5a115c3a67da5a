//! What an engine reports.

use super::batch::PrefixStats;
use super::scheduler::FinishReason;
use crate::units::{Blocks, SimTime, Tokens};

/// How the engine goes from event to event. Both ways give the same events to the nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Every step by itself: the oracle.
    StepByStep,
    /// Decode steps between events at once.
    #[default]
    FastForward,
}

/// Something that happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineEvent {
    /// When; of a run of tokens, when the last one came.
    pub at: SimTime,
    /// To whom.
    pub request: u64,
    /// What.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The scheduler took it into its queue.
    Queued,
    /// It was admitted (again, after a preemption).
    Scheduled {
        /// Tokens found in the prefix cache.
        hit_tokens: Tokens,
    },
    /// It generated tokens.
    Tokens {
        /// Index of the first of them in the output, from zero.
        first_index: u64,
        /// How many.
        count: u64,
        /// When the first one came.
        first_at: SimTime,
        /// When the last one came.
        last_at: SimTime,
    },
    /// It lost its blocks and waits again.
    Preempted,
    /// It ended.
    Finished {
        /// Why.
        reason: FinishReason,
    },
}

/// The state as a server's metrics show it. Requests that are still in the front end are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// `vllm:num_requests_running`.
    pub running: usize,
    /// `vllm:num_requests_waiting`.
    pub waiting: usize,
    /// Blocks that are free, findable ones among them.
    pub free_blocks: Blocks,
    /// Blocks that requests hold; the null block is neither free nor used.
    pub used_blocks: Blocks,
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// `vllm:generation_tokens`.
    pub generation_tokens: u64,
    /// `vllm:prompt_tokens`: a prompt counts when its first token is generated.
    pub prompt_tokens: u64,
    /// `vllm:num_preemptions`.
    pub preemptions: u64,
    /// Steps that computed something.
    pub steps: u64,
    /// `vllm:prefix_cache_queries` and `vllm:prefix_cache_hits` are the fresh ones.
    pub prefix: PrefixStats,
}

impl PrefixStats {
    pub(super) fn add(&mut self, other: &Self) {
        self.fresh += other.fresh;
        self.after_preemption += other.after_preemption;
    }
}
