//! What a language model consists of, as far as memory and time depend on it.
//!
//! Knows layers, heads, experts and states. Knows no file format, no GPU and no engine.

use super::dtype::Dtype;
use super::quant::WeightFormat;

/// A language model.
#[derive(Clone, Debug)]
pub struct Architecture {
    /// The class name of the checkpoint, or its model type.
    pub name: String,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Entries of the vocabulary; 0 where the file does not say.
    pub vocab_size: u64,
    /// The longest context that the checkpoint declares.
    pub max_model_len: Option<u64>,
    /// The format in which it computes.
    pub dtype: Dtype,
    /// How the weights are stored.
    pub weights: WeightFormat,
    /// Whether the output matrix is the embedding.
    pub tied_embeddings: bool,
    /// The layers, in order.
    pub layers: Vec<Layer>,
    /// Layers that predict further tokens, used only with speculative decoding.
    pub mtp_layers: u64,
    /// Parameters of vision and audio towers (an approximation from their sizes), held whole on every GPU.
    pub tower_params: u64,
    /// What was assumed because the file does not say it.
    pub notes: Vec<String>,
}

/// One layer: what mixes tokens, then what works on each token.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Attention, state, or both in parallel; empty in layers that only work on single tokens.
    pub mixers: Vec<Mixer>,
    /// The feed-forward part.
    pub feed_forward: FeedForward,
}

/// What mixes tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Softmax attention with keys and values for each KV head.
    Attention(Attention),
    /// Multi-head latent attention: one latent vector a token, replicated over tensor-parallel ranks.
    Mla(Mla),
    /// A recurrent state of fixed size.
    State(State),
}

/// Softmax attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: u64,
    /// Heads of keys and values.
    pub kv_heads: u64,
    /// Numbers in a key of one head.
    pub key_dim: u64,
    /// Numbers in a value of one head.
    pub value_dim: u64,
    /// Which tokens it sees.
    pub window: Window,
    /// Whether it reads another layer's cache and has none of its own.
    pub shares_cache: bool,
    /// Whether queries carry an output gate of the same size.
    pub gated: bool,
}

/// Which tokens attention sees, hence which the cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// All.
    Full,
    /// The last so many.
    Sliding(u64),
    /// Those of the same chunk of so many.
    Chunked(u64),
}

impl Window {
    /// Tokens of a context of `context` that a decode step reads.
    pub fn reads(self, context: f64) -> f64 {
        match self {
            Self::Full => context,
            Self::Sliding(n) | Self::Chunked(n) => context.min(n as f64),
        }
    }
}

/// Multi-head latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Mla {
    /// Query heads.
    pub heads: u64,
    /// Numbers in the latent vector.
    pub kv_rank: u64,
    /// Numbers in the rotary key beside it.
    pub rope_dim: u64,
    /// Numbers in a head's key without the rotary part.
    pub nope_dim: u64,
    /// Numbers in a head's value.
    pub value_dim: u64,
    /// Rank of the queries' low-rank form, if they have one.
    pub q_rank: Option<u64>,
    /// Sparse attention: how an index chooses the tokens that are read.
    pub index: Option<SparseIndex>,
}

/// The index of sparse attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseIndex {
    /// Tokens that are read.
    pub top_k: u64,
    /// Numbers in an index key, one byte each, plus a 32-bit scale.
    pub head_dim: u64,
    /// Query heads of the index.
    pub heads: u64,
}

/// A recurrent state, as vLLM lays it out.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The family, for messages.
    pub kind: StateKind,
    /// Numbers in a row of the convolution state over all ranks (0: none); rows are `conv_kernel` - 1.
    pub conv_dim: u64,
    /// Width of the convolution.
    pub conv_kernel: u64,
    /// Numbers in the recurrent state over all ranks.
    pub recurrent: u64,
    /// Format of the recurrent state.
    pub recurrent_dtype: Dtype,
    /// Parameters of the layer's projections.
    pub params: u64,
    /// Groups of the state-space parameters, replicated where they do not divide by the ranks: (groups, numbers each).
    pub groups: Option<(u64, u64)>,
}

/// Families of recurrent layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// Gated delta rule.
    GatedDeltaNet,
    /// Kimi delta attention.
    KimiDelta,
    /// Mamba, first version.
    Mamba1,
    /// Mamba, second version.
    Mamba2,
    /// A short convolution without recurrence.
    ShortConv,
    /// Linear attention with decay.
    Linear,
}

/// The part of a layer that works on each token by itself.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedForward {
    /// None.
    None,
    /// One network for all tokens.
    Dense {
        /// Its inner width.
        inner: u64,
        /// Matrices: 3 with a gate, else 2.
        matrices: u64,
    },
    /// Experts of which each token uses a few.
    Moe {
        /// Routed experts.
        experts: u64,
        /// Experts a token uses.
        top_k: u64,
        /// Inner width of an expert.
        inner: u64,
        /// Inner width of what all tokens use besides; 0 for none.
        shared_inner: u64,
        /// Matrices of an expert: 3 with a gate, else 2.
        matrices: u64,
    },
}

impl Attention {
    /// KV heads on each of `tp` ranks: at least one, so small numbers are replicated.
    pub fn kv_heads_per_rank(&self, tp: u64) -> u64 {
        (self.kv_heads / tp).max(1)
    }

    /// Parameters of its projections.
    pub fn params(&self, hidden: u64) -> u64 {
        let q = self.heads * self.key_dim * if self.gated { 2 } else { 1 };
        let kv = if self.shares_cache { 0 } else { self.kv_heads * (self.key_dim + self.value_dim) };
        hidden * (q + kv + self.heads * self.value_dim)
    }
}

impl Mla {
    /// Parameters of its projections: those split over ranks and those that every rank holds.
    pub fn params(&self, hidden: u64) -> (u64, u64) {
        let per_head = self.nope_dim + self.rope_dim;
        let (q_split, q_whole) = match self.q_rank {
            Some(rank) => (rank * self.heads * per_head, hidden * rank),
            None => (hidden * self.heads * per_head, 0),
        };
        let split = q_split
            + self.kv_rank * self.heads * (self.nope_dim + self.value_dim)
            + self.heads * self.value_dim * hidden;
        let index = self.index.map_or(0, |i| {
            self.q_rank.unwrap_or(hidden) * i.heads * i.head_dim + hidden * (i.head_dim + i.heads)
        });
        (split, q_whole + hidden * (self.kv_rank + self.rope_dim) + index)
    }
}

impl State {
    /// Bytes of one sequence's state on each of `tp` ranks, with `spec` speculative tokens and convolution
    /// rows in `dtype`.
    pub fn bytes(&self, tp: u64, spec: u64, dtype: Dtype) -> u64 {
        let conv = match self.groups {
            Some((groups, each)) if groups % tp != 0 => self.conv_dim + 2 * (tp - groups.min(tp)) * each,
            _ => self.conv_dim,
        };
        let rows = (self.conv_kernel + spec).saturating_sub(1);
        conv / tp * rows * dtype.bytes() + self.recurrent / tp * self.recurrent_dtype.bytes()
    }
}

impl FeedForward {
    /// Parameters: (dense ones, those of one expert, experts).
    pub fn params(&self, hidden: u64) -> (u64, u64, u64) {
        match *self {
            Self::None => (0, 0, 0),
            Self::Dense { inner, matrices } => (matrices * hidden * inner, 0, 0),
            Self::Moe { experts, inner, shared_inner, matrices, .. } => {
                (matrices * hidden * shared_inner, matrices * hidden * inner, experts)
            }
        }
    }
}

/// Distinct experts that `tokens` tokens use, expected under independent uniform routing:
/// `experts * (1 - (1 - top_k / experts)^tokens)`.
pub fn distinct_experts(experts: u64, top_k: u64, tokens: f64) -> f64 {
    let n = experts as f64;
    n * (1.0 - (1.0 - (top_k as f64 / n).min(1.0)).powf(tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_experts_start_at_top_k_and_saturate() {
        assert!((distinct_experts(128, 4, 1.0) - 4.0).abs() < 1e-9);
        assert!(distinct_experts(128, 4, 64.0) < 128.0);
        assert!((distinct_experts(128, 4, 1e4) - 128.0).abs() < 1e-6);
        assert!((distinct_experts(8, 8, 1.0) - 8.0).abs() < 1e-9);
    }

    #[test]
    fn few_kv_heads_are_replicated() {
        let attention = Attention {
            heads: 32,
            kv_heads: 2,
            key_dim: 128,
            value_dim: 128,
            window: Window::Full,
            shares_cache: false,
            gated: false,
        };
        assert_eq!([1, 2, 4, 8].map(|tp| attention.kv_heads_per_rank(tp)), [2, 1, 1, 1]);
    }
}
