//! The whole estimate: what fits on a GPU, at which concurrency, and what to know before buying.
//!
//! Knows how the parts of this room belong together. Knows no presentation.

use super::arch::Architecture;
use super::dtype::KvDtype;
use super::gpu::Gpu;
use super::kv::{KvCapacity, KvLayout, KvOptions, StateMode};
use super::memory::{MemoryBudget, MemoryOptions, Weights};
use crate::error::{Error, Result};

/// What is asked for. Names are vLLM's; `None` is vLLM's default on the GPU or the model's own value.
#[derive(Clone, Debug)]
pub struct EstimateOptions {
    /// Share of the GPU's memory that the server may use.
    pub gpu_memory_utilization: f64,
    /// GPUs that share every layer.
    pub tensor_parallel_size: u64,
    /// Ranks that share the tokens of a sequence.
    pub decode_context_parallel_size: u64,
    /// The longest request.
    pub max_model_len: Option<u64>,
    /// Tokens of the largest step.
    pub max_num_batched_tokens: Option<u64>,
    /// Sequences of the largest step.
    pub max_num_seqs: Option<u64>,
    /// Format of the KV cache.
    pub kv_cache_dtype: KvDtype,
    /// Tokens in a block.
    pub block_size: Option<u64>,
    /// How recurrent states are kept.
    pub mamba_cache_mode: StateMode,
    /// Steps under way at once, for the tokens that windows must hold (see [`KvOptions::concurrent_batches`]).
    pub concurrent_batches: u64,
    /// Treat windows as full attention.
    pub disable_hybrid_kv_cache_manager: bool,
    /// Draft tokens a step.
    pub num_speculative_tokens: u64,
    /// Memory for the cache on each rank, where it is known.
    pub kv_cache_memory_bytes: Option<u64>,
    /// Bytes of the weights on each rank, where they are known.
    pub weights_bytes: Option<f64>,
}

impl Default for EstimateOptions {
    fn default() -> Self {
        Self {
            // The default of version 0.32; earlier ones had 0.9.
            gpu_memory_utilization: 0.92,
            tensor_parallel_size: 1,
            decode_context_parallel_size: 1,
            max_model_len: None,
            max_num_batched_tokens: None,
            max_num_seqs: None,
            kv_cache_dtype: KvDtype::Auto,
            block_size: None,
            mamba_cache_mode: StateMode::Align,
            concurrent_batches: 1,
            disable_hybrid_kv_cache_manager: false,
            num_speculative_tokens: 0,
            kv_cache_memory_bytes: None,
            weights_bytes: None,
        }
    }
}

/// What comes out.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// Parameters and weights.
    pub weights: Weights,
    /// Where the memory goes.
    pub budget: MemoryBudget,
    /// How the cache is laid out.
    pub layout: KvLayout,
    /// What the cache holds; `None` where nothing is left for it.
    pub capacity: Option<KvCapacity>,
    /// Whether one can serve with that.
    pub verdict: Verdict,
    /// What was assumed, and what should be known.
    pub notes: Vec<String>,
}

/// Whether a model can be served on given GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Yes.
    Fits,
    /// Weights and workspace alone exceed the memory.
    DoesNotFit {
        /// Bytes that are missing on each rank.
        missing_bytes: f64,
    },
    /// The server would start only with a shorter `max_model_len`.
    TooLong {
        /// Bytes of cache that one request of the asked length needs.
        needed_bytes: f64,
        /// The longest request that fits, tokens.
        longest: u64,
    },
}

impl Estimate {
    /// Estimates `model` on `gpu`.
    ///
    /// # Errors
    /// Options without meaning, options that contradict the model, and models that vLLM could not lay out.
    pub fn new(model: &Architecture, gpu: &Gpu, options: &EstimateOptions) -> Result<Self> {
        if !(options.gpu_memory_utilization > 0.0 && options.gpu_memory_utilization <= 1.0) {
            let message =
                format!("gpu_memory_utilization must lie in (0, 1], is {}", options.gpu_memory_utilization);
            return Err(Error::usage(message));
        }
        let max_model_len =
            options.max_model_len.or(model.max_model_len).filter(|l| *l > 0).ok_or_else(|| {
                Error::usage("the config names no max_position_embeddings: give max_model_len".to_owned())
            })?;
        let defaults = gpu.server_defaults();
        let max_num_batched_tokens = options.max_num_batched_tokens.unwrap_or(defaults.0);
        let layout = KvLayout::new(
            model,
            &KvOptions {
                tensor_parallel_size: options.tensor_parallel_size,
                decode_context_parallel_size: options.decode_context_parallel_size,
                kv_cache_dtype: options.kv_cache_dtype,
                block_size: options.block_size,
                max_num_batched_tokens,
                concurrent_batches: options.concurrent_batches,
                disable_hybrid_kv_cache_manager: options.disable_hybrid_kv_cache_manager,
                mamba_cache_mode: options.mamba_cache_mode,
                num_speculative_tokens: options.num_speculative_tokens,
            },
        )?;
        let budget = MemoryBudget::new(
            model,
            gpu.visible_bytes(),
            &MemoryOptions {
                gpu_memory_utilization: options.gpu_memory_utilization,
                tensor_parallel_size: options.tensor_parallel_size,
                max_num_batched_tokens,
                max_num_seqs: options.max_num_seqs.unwrap_or(defaults.1),
                kv_cache_memory_bytes: options.kv_cache_memory_bytes,
                weights_bytes: options.weights_bytes,
            },
        );
        let weights = Weights::of(model, options.tensor_parallel_size);
        let mut notes = model.notes.clone();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be positive")]
        let cache = (budget.kv_cache > 0.0).then_some(budget.kv_cache as u64);
        let Some(cache) = cache else {
            let verdict = Verdict::DoesNotFit { missing_bytes: -budget.kv_cache };
            return Ok(Self { weights, budget, layout, capacity: None, verdict, notes });
        };
        let capacity = layout.capacity(cache, max_model_len);
        let verdict = if capacity.blocks_per_request > capacity.num_blocks {
            let needed_bytes = (capacity.blocks_per_request * layout.block_bytes) as f64;
            Verdict::TooLong { needed_bytes, longest: layout.longest_request(cache, max_model_len) }
        } else {
            Verdict::Fits
        };
        notes.extend(block_notes(&layout, &capacity));
        Ok(Self { weights, budget, layout, capacity: Some(capacity), verdict, notes })
    }
}

/// Below so many requests of one token, fixed parts of a request decide on concurrency.
const FEW_REQUESTS: u64 = 32;
/// From such a block on, most prompts have hardly a whole block to share.
const LARGE_BLOCK: u64 = 2048;

/// What large blocks do to concurrency and prefix reuse.
fn block_notes(layout: &KvLayout, capacity: &KvCapacity) -> Vec<String> {
    let mut notes = Vec::new();
    if layout.state_bytes == 0 {
        return notes;
    }
    if layout.block_size >= LARGE_BLOCK {
        notes.push(format!(
            "block of {} tokens, so that a page holds a recurrent state: prefixes shorter than that are never reused, \
             and a repeated prompt recomputes up to that many tokens",
            layout.block_size
        ));
    }
    let pinned = layout.blocks_per_request(1);
    if pinned * FEW_REQUESTS > capacity.num_blocks {
        notes.push(format!(
            "a request of any length takes at least {pinned} of {} blocks: at most {} requests run at once, however \
             short they are",
            capacity.num_blocks,
            capacity.num_blocks / pinned
        ));
    }
    notes
}
