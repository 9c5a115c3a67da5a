//! A simulated vLLM replica: serial front end, waiting queue, token budget, prefix cache, steps on a device.
//!
//! Pure: pumped by a driver. Knows no HTTP, clock, log or traffic.

mod config;
mod timed;

pub use config::{EngineConfig, MambaCacheMode};
pub use timed::Engine;

use crate::units::{SimSpan, SimTime, Tokens};

/// The stages before the scheduler: rendering, tokenising and hashing, first come first served, then a latency
/// that many requests can spend at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrontEndCosts {
    /// Serial part, per request.
    pub serial_base: SimSpan,
    /// Serial part, per prompt token, femtoseconds.
    pub serial_per_token_fs: u64,
    /// Pipelined part, per request.
    pub latency_base: SimSpan,
    /// Pipelined part, per prompt token, femtoseconds.
    pub latency_per_token_fs: u64,
}

/// How the engine moves through pure decode steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// One at a time: the oracle.
    StepByStep,
    /// In closed form up to the next thing that can change the batch.
    #[default]
    FastForward,
}

/// Consecutive tokens of a content: equal streams and offsets are equal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which content.
    pub stream: u64,
    /// Where in it.
    pub offset: Tokens,
    /// How many tokens.
    pub len: Tokens,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRequest {
    /// The driver's name for it.
    pub id: u64,
    /// The prompt.
    pub prompt: Vec<Segment>,
    /// Output limit.
    pub max_tokens: Tokens,
    /// Output after which the model stops by itself.
    pub stop_after: Option<Tokens>,
    /// Scheduling priority; lower is served first.
    pub priority: i32,
}

/// Something that happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineEvent {
    /// When.
    pub at: SimTime,
    /// To whom.
    pub request: u64,
    /// What.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It entered the scheduler's queue.
    Queued,
    /// It was admitted, with this many prompt tokens already in the cache.
    Scheduled {
        /// Cached tokens.
        hit_tokens: Tokens,
    },
    /// It produced tokens, counted from one.
    Tokens {
        /// Number of the first.
        first_index: Tokens,
        /// How many.
        count: Tokens,
        /// Time of the first.
        first_at: SimTime,
        /// Time of the last.
        last_at: SimTime,
    },
    /// It lost its blocks and waits again.
    Preempted,
    /// It ended.
    Finished,
}

/// What a scrape of the replica would show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Requests in the running list.
    pub running: u32,
    /// Requests in the waiting queue.
    pub waiting: u32,
}
