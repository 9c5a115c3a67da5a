//! The simulated vLLM: front end, scheduler, KV blocks, prefix cache, and the clock on top.
//!
//! One duty: to decide and to time as vLLM's V1 engine does. It knows the cost model and units; it must not
//! know HTTP, a real clock, a log, or who sends requests and why.
//!
//! [`EngineCore`] is the loop without time, exact to the step; [`Engine`] is the loop on a clock.

mod batch;
mod config;
mod content;
mod core;
mod events;
mod front;
mod jump;
mod kv;
mod pool;
mod request;
mod runs;
mod scheduler;
mod servable;
mod split;
mod timed;
mod waiting;

pub use batch::{EntryKind, PrefixLookups, PrefixStats};
pub use config::{EngineConfig, FrontEndCosts, KvCacheGroup, MambaCacheMode, SchedulingPolicy};
pub use content::{Prompt, Segment, Stream};
pub use core::{Counts, EngineCore, Leap, Processed, Scheduled, Share, Turn};
pub use events::{Counters, EngineEvent, EventKind, Gauges, Mode};
pub use request::NewRequest;
pub use scheduler::FinishReason;
pub use servable::{NeverAdmittable, blocks_for, servable};
pub use timed::Engine;
