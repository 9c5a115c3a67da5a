//! From a model's `config.json` and a GPU's data sheet to an uncalibrated estimate: what fits, and how fast.
//!
//! Knows Hugging Face configs, GPUs and vLLM's rules for the KV cache. Knows no server, no traffic and no
//! measurement: whatever is measured is better than what this room says.

mod arch;
mod config;
mod dtype;
mod feed_forward;
mod gpu;
mod kv;
mod memory;
mod mixers;
mod pattern;
mod quant;
mod read;
mod roofline;
mod transfer;
mod verdict;

pub use arch::{
    Architecture, Attention, FeedForward, Layer, Mixer, Mla, SparseIndex, State, StateKind, Window,
    distinct_experts,
};
pub use dtype::{Dtype, KvDtype};
pub use gpu::Gpu;
pub use kv::{Group, KvCapacity, KvLayout, KvOptions, StateMode};
pub use memory::{MemoryBudget, MemoryOptions, Weights};
pub use quant::{Part, WeightFormat};
pub use roofline::{Efficiency, Resource, RooflineCost};
pub use transfer::{Setup, Term, Transfer};
pub use verdict::{Estimate, EstimateOptions, Verdict};
