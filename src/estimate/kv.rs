//! How vLLM lays out the KV cache of a model: pages, groups and blocks, and what fits in given memory.
//!
//! Follows `vllm/v1/kv_cache_interface.py`, `vllm/v1/core/kv_cache_utils.py` and `_align_hybrid_block_size`
//! of `vllm/platforms/interface.py`. Knows layers and options. Knows no GPU and no weights.

use super::arch::{Architecture, Attention, Mixer, Mla, State, Window};
use super::dtype::KvDtype;
use crate::error::{Error, ErrorKind, Result};

/// Engine options that decide on the layout. Names are vLLM's.
#[derive(Clone, Debug, PartialEq)]
pub struct KvOptions {
    /// Ranks that share attention heads.
    pub tensor_parallel_size: u64,
    /// Ranks that share the tokens of a sequence.
    pub decode_context_parallel_size: u64,
    /// Format of the cache.
    pub kv_cache_dtype: KvDtype,
    /// Tokens in a block; `None` is the backend's choice (16; 64 for sparse MLA).
    pub block_size: Option<u64>,
    /// Tokens of a step, which bound what sliding windows hold while a prompt is computed.
    pub max_num_batched_tokens: u64,
    /// Steps under way at once: 1, or 2 in versions that count asynchronous scheduling.
    pub concurrent_batches: u64,
    /// Treat windows as full attention.
    pub disable_hybrid_kv_cache_manager: bool,
    /// How recurrent states are kept.
    pub mamba_cache_mode: StateMode,
    /// Draft tokens a step; above zero the prediction layers of the model hold KV too.
    pub num_speculative_tokens: u64,
}

impl Default for KvOptions {
    fn default() -> Self {
        Self {
            tensor_parallel_size: 1,
            decode_context_parallel_size: 1,
            kv_cache_dtype: KvDtype::Auto,
            block_size: None,
            max_num_batched_tokens: 8192,
            concurrent_batches: 1,
            disable_hybrid_kv_cache_manager: false,
            mamba_cache_mode: StateMode::Align,
            num_speculative_tokens: 0,
        }
    }
}

/// vLLM's `mamba_cache_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateMode {
    /// One state a sequence, no prefix caching.
    None,
    /// States at block boundaries where a chunk ended: two pages a sequence.
    Align,
    /// A state for every block.
    All,
}

/// What a page of one layer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Tokens(Window),
    State,
}

/// The page of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    holds: Holds,
    /// Tokens in the page; unused for states.
    tokens: u64,
    bytes: u64,
}

/// Layers that share a block table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Layers in it.
    pub layers: usize,
    /// Tokens in one of its blocks.
    pub block_tokens: u64,
    /// `None` for recurrent states.
    pub window: Option<Window>,
}

/// The cache of one rank.
#[derive(Clone, Debug)]
pub struct KvLayout {
    /// Its groups.
    pub groups: Vec<Group>,
    /// Bytes of a block of the pool, over all layers that share it.
    pub block_bytes: u64,
    /// Bytes of one token over all layers with keys and values, as if every layer kept all tokens.
    pub token_bytes: u64,
    /// Tokens in an attention block.
    pub block_size: u64,
    /// Bytes of the unpadded state of one layer; 0 without recurrent layers.
    pub state_bytes: u64,
    options: KvOptions,
}

/// What a cache of a given size holds.
#[derive(Clone, Debug, PartialEq)]
pub struct KvCapacity {
    /// Blocks of the pool (`num_gpu_blocks`), of which one is the null block.
    pub num_blocks: u64,
    /// The length of the requests that the other numbers speak of.
    pub max_model_len: u64,
    /// Blocks that one such request takes.
    pub blocks_per_request: u64,
    /// Such requests at once (`kv_cache_max_concurrency`).
    pub max_concurrency: f64,
    /// `int(max_concurrency * max_model_len)`: the "KV cache size" of versions from 0.21 on
    /// (`kv_cache_size_tokens`).
    pub tokens: u64,
    /// `num_blocks // groups * block size`: the "KV cache size" of earlier versions.
    pub tokens_before_0_21: u64,
}

impl KvLayout {
    /// The layout for `model`.
    ///
    /// # Errors
    /// Options that contradict the model, and page sizes that vLLM cannot unify.
    pub fn new(model: &Architecture, options: &KvOptions) -> Result<Self> {
        let options = Self::resolved(model, options)?;
        let mut mixers: Vec<&Mixer> = model.layers.iter().flat_map(|l| &l.mixers).collect();
        if options.num_speculative_tokens > 0 {
            let drafts = usize::try_from(model.mtp_layers).unwrap_or(0);
            if let Some(last) = mixers.iter().rev().find(|m| !matches!(m, Mixer::State(_))).copied() {
                mixers.extend(std::iter::repeat_n(last, drafts));
            }
        }
        let token_bytes = mixers.iter().map(|m| layer_token_bytes(m, model, &options)).sum();
        let state_bytes =
            mixers.iter().filter_map(|m| state_of(m)).map(|s| state_bytes(s, model, &options)).max();
        let state_bytes = state_bytes.unwrap_or(0);
        let block = block_size(&mixers, model, &options, state_bytes);
        let mut pages: Vec<Page> = Vec::new();
        for mixer in &mixers {
            pages.extend(pages_of(mixer, model, &options, block));
        }
        if pages.is_empty() {
            return Err(Error::new(ErrorKind::Input, format!("{}: no layer keeps a cache", model.name)));
        }
        let (groups, block_bytes) = group(pages)?;
        Ok(Self { groups, block_bytes, token_bytes, block_size: block, state_bytes, options })
    }

    /// Options with `auto` replaced and contradictions refused.
    fn resolved(model: &Architecture, options: &KvOptions) -> Result<KvOptions> {
        let usage = |m: String| Error::new(ErrorKind::Usage, m);
        let mut options = options.clone();
        let tp = options.tensor_parallel_size;
        for (name, value) in [
            ("tensor_parallel_size", tp),
            ("decode_context_parallel_size", options.decode_context_parallel_size),
            ("max_num_batched_tokens", options.max_num_batched_tokens),
            ("block_size", options.block_size.unwrap_or(1)),
        ] {
            if value == 0 {
                return Err(usage(format!("{name} must be positive, is 0")));
            }
        }
        for mixer in model.layers.iter().flat_map(|l| &l.mixers) {
            let heads = match mixer {
                Mixer::Attention(Attention { heads, .. }) | Mixer::Mla(Mla { heads, .. }) => *heads,
                Mixer::State(_) => continue,
            };
            if heads % tp != 0 {
                return Err(usage(format!(
                    "tensor_parallel_size {tp} does not divide {heads} attention heads"
                )));
            }
        }
        if options.kv_cache_dtype == KvDtype::Auto {
            options.kv_cache_dtype = model.weights.kv_cache.unwrap_or(KvDtype::Auto);
        }
        let sparse = model.layers.iter().flat_map(|l| &l.mixers).any(is_sparse);
        if sparse && options.kv_cache_dtype == KvDtype::Fp8 {
            options.kv_cache_dtype = KvDtype::Fp8DsMla;
        }
        Ok(options)
    }

    /// Blocks that a request of `tokens` tokens takes while up to `in_flight` tokens are being computed.
    pub fn blocks_for(&self, tokens: u64, in_flight: u64) -> u64 {
        let own = tokens.div_ceil(self.options.decode_context_parallel_size);
        let one = |group: &Group| match group.window {
            Some(Window::Full) => own.div_ceil(group.block_tokens),
            // One more, as a window need not start at a block's start.
            Some(Window::Sliding(w)) => (w - 1 + in_flight).min(tokens).div_ceil(group.block_tokens) + 1,
            Some(Window::Chunked(c)) => (c + in_flight).min(tokens).div_ceil(group.block_tokens),
            None => match self.options.mamba_cache_mode {
                StateMode::None => 1 + self.options.num_speculative_tokens,
                StateMode::Align => 2 + self.options.num_speculative_tokens,
                StateMode::All => tokens.div_ceil(self.block_size),
            },
        };
        self.groups.iter().map(one).sum()
    }

    /// Blocks that a request of `tokens` tokens takes while its prompt is computed: vLLM's measure.
    pub fn blocks_per_request(&self, tokens: u64) -> u64 {
        self.blocks_for(tokens, self.options.concurrent_batches * self.options.max_num_batched_tokens)
    }

    /// Bytes of the blocks that grow with a request: for each further token, on average.
    pub fn bytes_per_further_token(&self) -> f64 {
        let dcp = self.options.decode_context_parallel_size as f64;
        let full = self.groups.iter().filter(|g| g.window == Some(Window::Full));
        full.map(|g| self.block_bytes as f64 / g.block_tokens as f64 / dcp).sum()
    }

    /// Bytes that a request takes however short it is: states and whole windows at length `tokens`.
    pub fn bytes_besides_tokens(&self, tokens: u64) -> f64 {
        (self.blocks_per_request(tokens) * self.block_bytes) as f64
            - self.bytes_per_further_token() * tokens as f64
    }

    /// What `bytes` of cache memory on each rank hold, for requests of `max_model_len` tokens.
    pub fn capacity(&self, bytes: u64, max_model_len: u64) -> KvCapacity {
        let num_blocks = bytes / self.block_bytes;
        let blocks_per_request = self.blocks_per_request(max_model_len).max(1);
        let max_concurrency = num_blocks as f64 / blocks_per_request as f64;
        let smallest = self.groups.iter().filter(|g| g.window.is_some()).map(|g| g.block_tokens).min();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, below 2^63")]
        let tokens = (max_concurrency * max_model_len as f64) as u64;
        KvCapacity {
            num_blocks,
            max_model_len,
            blocks_per_request,
            max_concurrency,
            tokens,
            tokens_before_0_21: num_blocks / self.groups.len() as u64
                * smallest.unwrap_or(self.block_size)
                * self.options.decode_context_parallel_size,
        }
    }

    /// The longest request that `bytes` of cache memory hold, up to `limit`; 0 if none fits.
    pub fn longest_request(&self, bytes: u64, limit: u64) -> u64 {
        let blocks = bytes / self.block_bytes;
        let (mut fits, mut fails) = (0, limit + 1);
        while fails - fits > 1 {
            let middle = fits + (fails - fits) / 2;
            if self.blocks_per_request(middle) <= blocks { fits = middle } else { fails = middle }
        }
        fits
    }
}

fn is_sparse(mixer: &Mixer) -> bool {
    matches!(mixer, Mixer::Mla(Mla { index: Some(_), .. }))
}

fn state_of(mixer: &Mixer) -> Option<&State> {
    if let Mixer::State(state) = mixer { Some(state) } else { None }
}

fn state_bytes(state: &State, model: &Architecture, options: &KvOptions) -> u64 {
    state.bytes(options.tensor_parallel_size, options.num_speculative_tokens, model.dtype)
}

/// Bytes of one token in one layer, on one rank.
pub(super) fn layer_token_bytes(mixer: &Mixer, model: &Architecture, options: &KvOptions) -> u64 {
    let kv = options.kv_cache_dtype;
    match mixer {
        Mixer::Attention(a) if a.shares_cache => 0,
        Mixer::Attention(a) => {
            a.kv_heads_per_rank(options.tensor_parallel_size)
                * (kv.head_bytes(a.key_dim, model.dtype) + kv.head_bytes(a.value_dim, model.dtype))
        }
        Mixer::Mla(m) => {
            let latent = match kv {
                // `flashmla_sparse.py`: 512 8-bit numbers, 4 scales, 64 16-bit rotary numbers.
                KvDtype::Fp8DsMla => 656,
                _ => kv.head_bytes(m.kv_rank + m.rope_dim, model.dtype),
            };
            latent + m.index.map_or(0, |i| i.head_dim + 4)
        }
        Mixer::State(_) => 0,
    }
}

/// Tokens in an attention block: what the backend wants, raised until a page holds a recurrent state.
fn block_size(mixers: &[&Mixer], model: &Architecture, options: &KvOptions, state_bytes: u64) -> u64 {
    let sparse = mixers.iter().any(|m| is_sparse(m));
    let base = options.block_size.unwrap_or(if sparse { 64 } else { 16 });
    let per_token = mixers.iter().map(|m| layer_token_bytes(m, model, options)).find(|b| *b > 0);
    let (Some(per_token), true) = (per_token, state_bytes > 0) else { return base };
    let mla = mixers.iter().any(|m| matches!(m, Mixer::Mla(_)));
    let kernel_block = if sparse { 64 } else { 16 };
    let alignment = base.max(kernel_block).max(if mla { 128 } else { 0 });
    let raised = alignment * state_bytes.div_ceil(alignment * per_token);
    base.max(raised.next_multiple_of(kernel_block))
}

/// The pages of one layer: one, or two where sparse attention keeps an index beside the latent vectors.
fn pages_of(mixer: &Mixer, model: &Architecture, options: &KvOptions, block: u64) -> Vec<Page> {
    let window = match mixer {
        Mixer::State(state) => {
            let bytes = state_bytes(state, model, options);
            return vec![Page { holds: Holds::State, tokens: block, bytes }];
        }
        Mixer::Attention(a) if a.shares_cache => return Vec::new(),
        Mixer::Attention(a) if !options.disable_hybrid_kv_cache_manager => a.window,
        _ => Window::Full,
    };
    let bytes = block * layer_token_bytes(mixer, model, options);
    vec![Page { holds: Holds::Tokens(window), tokens: block, bytes }]
}

/// Groups layers so that every group has pages of the same size and, as far as possible, the same number of
/// layers. Returns the groups and the bytes of a block.
fn group(mut pages: Vec<Page>) -> Result<(Vec<Group>, u64)> {
    if pages.iter().all(|p| p.holds == pages[0].holds) && pages[0].holds != Holds::State {
        // One table serves all layers, also where their sizes differ.
        let bytes = pages.iter().map(|p| p.bytes).sum();
        let Holds::Tokens(window) = pages[0].holds else { unreachable!("states were excluded") };
        let one = Group { layers: pages.len(), block_tokens: pages[0].tokens, window: Some(window) };
        return Ok((vec![one], bytes));
    }
    let largest = pages.iter().map(|p| p.bytes).max().unwrap_or(1);
    for page in &mut pages {
        match page.holds {
            // A state is padded to the page.
            Holds::State => page.bytes = largest,
            Holds::Tokens(_) if largest % page.bytes == 0 => {
                page.tokens *= largest / page.bytes;
                page.bytes = largest;
            }
            Holds::Tokens(_) => {
                return Err(Error::new(
                    ErrorKind::Input,
                    format!(
                        "pages of {} and {largest} bytes cannot share a pool: vLLM refuses this model",
                        page.bytes
                    ),
                ));
            }
        }
    }
    let mut kinds: Vec<(Page, usize)> = Vec::new();
    for page in pages {
        match kinds.iter_mut().find(|(p, _)| *p == page) {
            Some((_, count)) => *count += 1,
            None => kinds.push((page, 1)),
        }
    }
    let fewest = kinds.iter().map(|(_, n)| *n).min().unwrap_or(1);
    let most = kinds.iter().map(|(_, n)| *n).max().unwrap_or(1);
    // Nearly equal numbers are padded to the larger one rather than split.
    let size = if 2 * most < 3 * fewest { most } else { fewest };
    let mut groups = Vec::new();
    for (page, count) in kinds {
        let parts = count.div_ceil(size);
        groups.extend((0..parts).map(|i| Group {
            layers: (count - i).div_ceil(parts),
            block_tokens: page.tokens,
            window: if let Holds::Tokens(window) = page.holds { Some(window) } else { None },
        }));
    }
    let widest = groups.iter().map(|g| g.layers).max().unwrap_or(1) as u64;
    Ok((groups, widest * largest))
}
