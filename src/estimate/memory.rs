//! What a rank's memory goes to: weights, workspace, and the rest for the KV cache.
//!
//! Knows sizes. Knows no speed. The workspace is an estimate with stated constants; give the server's own
//! figures where there are any.

use super::arch::{Architecture, FeedForward, Layer, Mixer};
use super::quant::Part;

/// Parameters of a model, and bytes of its weights on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weights {
    /// All parameters of the language model.
    pub params: f64,
    /// Parameters that one token uses.
    pub active_params: f64,
    /// Bytes on each rank.
    pub bytes: f64,
    /// Of them, bytes of routed experts.
    pub expert_bytes: f64,
    /// Of them, bytes that no step reads in full: the embedding table, and towers of other modalities.
    pub idle_bytes: f64,
}

impl Weights {
    /// The weights of `model` on each of `tp` ranks.
    pub fn of(model: &Architecture, tp: u64) -> Self {
        let ranks = tp as f64;
        let embedding = (model.vocab_size * model.hidden_size) as f64;
        let mut sum = Self { active_params: embedding, ..Self::default() };
        let embedding_bytes = embedding * model.weights.bytes(Part::Embedding, 0) / ranks;
        sum.params = if model.tied_embeddings { embedding } else { 2.0 * embedding };
        sum.bytes = if model.tied_embeddings { embedding_bytes } else { 2.0 * embedding_bytes };
        if !model.tied_embeddings {
            sum.idle_bytes += embedding_bytes;
        }
        // Towers are held whole, in the model's own format.
        let towers = model.tower_params as f64 * model.dtype.bytes() as f64;
        sum.bytes += towers;
        sum.idle_bytes += towers;
        for (index, layer) in model.layers.iter().enumerate() {
            sum.add_layer(model, layer, index, tp);
        }
        sum
    }

    fn add_layer(&mut self, model: &Architecture, layer: &Layer, index: usize, tp: u64) {
        let (hidden, ranks) = (model.hidden_size, tp as f64);
        let bytes = |part| model.weights.bytes(part, index);
        for mixer in &layer.mixers {
            let (split, whole, part) = match mixer {
                Mixer::Attention(a) => {
                    // KV projections are replicated where there are more ranks than KV heads.
                    let copies = a.kv_heads_per_rank(tp) * tp - a.kv_heads;
                    let extra = hidden * copies * (a.key_dim + a.value_dim);
                    (a.params(hidden) + if a.shares_cache { 0 } else { extra }, 0, Part::Attention)
                }
                Mixer::Mla(m) => {
                    let (split, whole) = m.params(hidden);
                    (split, whole, Part::Attention)
                }
                Mixer::State(s) => (s.params, 0, Part::State),
            };
            self.params += (split + whole) as f64;
            self.active_params += (split + whole) as f64;
            self.bytes += (split as f64 / ranks + whole as f64) * bytes(part);
        }
        let (dense, expert, experts) = layer.feed_forward.params(hidden);
        self.params += dense as f64 + (expert * experts) as f64;
        self.active_params += dense as f64;
        self.bytes += dense as f64 * bytes(Part::Dense) / ranks;
        if let FeedForward::Moe { top_k, .. } = layer.feed_forward {
            self.active_params += (expert * top_k) as f64;
            let all = (expert * experts) as f64 * padding(model, &layer.feed_forward) * bytes(Part::Experts)
                / ranks;
            self.expert_bytes += all;
            // The router is never quantized and whole on every rank.
            self.bytes += all + (hidden * experts) as f64 * model.dtype.bytes() as f64;
        }
    }
}

/// How much larger experts are in memory than in the file: the MXFP4 kernels pad the model's width to a multiple
/// of 256 and the experts' to one of 128 (gpt-oss loads 7 % more than its file holds).
fn padding(model: &Architecture, network: &FeedForward) -> f64 {
    match network {
        FeedForward::Moe { inner, .. } if model.weights.method.contains("mxfp4") => {
            let padded = model.hidden_size.next_multiple_of(256) * inner.next_multiple_of(128);
            padded as f64 / (model.hidden_size * inner) as f64
        }
        _ => 1.0,
    }
}

/// Engine options that decide on memory. Names are vLLM's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryOptions {
    /// Share of the GPU's memory that the server may use.
    pub gpu_memory_utilization: f64,
    /// Ranks.
    pub tensor_parallel_size: u64,
    /// Tokens of the largest step.
    pub max_num_batched_tokens: u64,
    /// Sequences of the largest step.
    pub max_num_seqs: u64,
    /// Memory for the cache on each rank, bytes, where it is known: `gpu_memory_utilization` is then not used.
    pub kv_cache_memory_bytes: Option<u64>,
    /// Bytes of the weights on each rank, where they are known ("Model loading took").
    pub weights_bytes: Option<f64>,
}

/// What a rank's memory goes to, bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryBudget {
    /// Memory that the driver reports.
    pub total: f64,
    /// What the server may use of it.
    pub requested: f64,
    /// Weights.
    pub weights: f64,
    /// Activations of the largest step and logits of the largest batch.
    pub activations: f64,
    /// Communication buffers, kernels' workspaces, captured graphs.
    pub other: f64,
    /// What is left for the KV cache; below zero if the rest does not fit.
    pub kv_cache: f64,
}

impl MemoryBudget {
    /// The budget of one rank with `total` bytes of memory.
    pub fn new(model: &Architecture, total: f64, options: &MemoryOptions) -> Self {
        let weights =
            options.weights_bytes.unwrap_or_else(|| Weights::of(model, options.tensor_parallel_size).bytes);
        let activations = activations(model, options);
        // NCCL and custom all-reduce buffers come with ranks; the rest is allocated by kernels.
        let other = GIB * if options.tensor_parallel_size > 1 { 0.8 } else { 0.1 };
        let requested = total * options.gpu_memory_utilization;
        let kv_cache = match options.kv_cache_memory_bytes {
            Some(bytes) => bytes as f64,
            None => requested - weights - activations - other,
        };
        Self { total, requested, weights, activations, other, kv_cache }
    }
}

const GIB: f64 = 1_073_741_824.0;

/// The peak of a profiling step: three copies of 32-bit logits for the largest batch (raw, scaled, sorted),
/// or the widest layer for all tokens of the largest step, whichever comes on top of the residual stream.
fn activations(model: &Architecture, options: &MemoryOptions) -> f64 {
    let tokens = options.max_num_batched_tokens as f64;
    let ranks = options.tensor_parallel_size as f64;
    let wide = model.layers.iter().map(|l| widest(l, model.hidden_size, ranks)).fold(0.0, f64::max);
    let layer = tokens * model.dtype.bytes() as f64 * (wide + 4.0 * model.hidden_size as f64);
    let logits = 3.0 * 4.0 * (options.max_num_seqs * model.vocab_size) as f64;
    layer + logits
}

/// Numbers a token that a layer keeps at once beside the residual stream.
fn widest(layer: &Layer, hidden: u64, ranks: f64) -> f64 {
    match layer.feed_forward {
        FeedForward::None => 0.0,
        FeedForward::Dense { inner, .. } => 3.0 * inner as f64 / ranks,
        FeedForward::Moe { top_k, inner, .. } => {
            top_k as f64 * (2.0 * inner as f64 / ranks).max(hidden as f64)
                + top_k as f64 * inner as f64 / ranks
        }
    }
}
