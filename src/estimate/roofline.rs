//! An uncalibrated cost of a step: bytes over bandwidth, operations over arithmetic, whichever is larger, plus
//! what a step costs however small it is.
//!
//! Knows an architecture, a GPU and stated efficiencies. Knows no measurement: a fitted cost is better.
//!
//! A decode step of `B` sequences with `S` tokens in the cache takes
//!
//! ```text
//! fixed + max(bytes of weights / bandwidth, operations(B) / arithmetic)
//!       + B * bytes of state / bandwidth + exchange(B) + S * bytes of KV a token / bandwidth
//! ```
//!
//! where of the weights of routed experts only those that `B` tokens use are read ([`distinct_experts`]), and
//! layers with a window read no more than the window.

use super::arch::{Architecture, FeedForward, Mixer, Window, distinct_experts};
use super::gpu::Gpu;
use super::kv::{KvOptions, layer_token_bytes};
use super::memory::Weights;
use crate::costs::{DecodeCosts, Fs, NearAttention, StepCost, StepShape, fs_from_ns};

/// What share of the data sheet a real kernel reaches. The defaults are round figures between published
/// measurements of decode kernels (70 to 90 % of bandwidth) and of large matrix products (55 to 80 %).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiency {
    /// Of memory bandwidth.
    pub bandwidth: f64,
    /// Of arithmetic in matrix products.
    pub arithmetic: f64,
    /// Of arithmetic in attention over a prompt.
    pub attention: f64,
    /// Of the interconnect.
    pub interconnect: f64,
    /// Microseconds of a step with captured graphs, however small.
    pub step_us: f64,
    /// Further microseconds for each layer: launches and synchronisation.
    pub layer_us: f64,
    /// Further microseconds for each exchange between ranks.
    pub exchange_us: f64,
    /// Further microseconds for each layer of a step with prompts, which runs without captured graphs.
    pub eager_layer_us: f64,
}

impl Default for Efficiency {
    fn default() -> Self {
        Self {
            bandwidth: 0.8,
            arithmetic: 0.65,
            attention: 0.6,
            interconnect: 0.6,
            step_us: 300.0,
            layer_us: 10.0,
            exchange_us: 8.0,
            eager_layer_us: 60.0,
        }
    }
}

/// What bounds a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Memory bandwidth.
    Bandwidth,
    /// Arithmetic.
    Arithmetic,
    /// Launches and synchronisation, the same on every GPU.
    Fixed,
}

/// The cost of steps on one GPU, or on several with tensor parallelism. Times in nanoseconds inside.
#[derive(Clone, Debug)]
pub struct RooflineCost {
    /// Reading the weights that every step reads.
    weights_ns: f64,
    /// Reading all experts, and how many a token uses of how many.
    experts: Vec<Experts>,
    /// Matrix products of one token, without the output matrix.
    token_ns: f64,
    /// The output matrix for one sampled token.
    sample_ns: f64,
    /// Reading and writing the states of one sequence.
    state_ns: f64,
    /// Exchange between ranks: fixed, and for each token.
    exchange_ns: (f64, f64),
    /// Fixed cost with captured graphs, and more without.
    fixed_ns: (f64, f64),
    /// Reading one cached token in layers that see all.
    full_ns: f64,
    /// Reading one cached token in layers with a window: (window, cost).
    windows: Vec<(u64, f64)>,
    /// Attention of one prompt token to one token: layers that see all, and those with windows.
    prompt_ns: f64,
    prompt_windows: Vec<(u64, f64)>,
}

/// The routed experts of layers alike.
#[derive(Clone, Copy, Debug)]
struct Experts {
    count: u64,
    top_k: u64,
    all_ns: f64,
}

/// The coefficients of a decode batch, femtoseconds.
struct Line {
    base: Fs,
    per_resident: Fs,
    /// (resident tokens at which it saturates, cost of one below).
    near: Vec<(u64, Fs)>,
}

impl RooflineCost {
    /// The cost of `model` on `gpu` under `options`.
    pub fn new(model: &Architecture, gpu: &Gpu, options: &KvOptions, efficiency: &Efficiency) -> Self {
        let tp = options.tensor_parallel_size;
        let (ranks, hidden) = (tp as f64, model.hidden_size as f64);
        let read = 1.0 / (gpu.bandwidth_gb_s * efficiency.bandwidth);
        let peak = matrix_tflops(model, gpu);
        // 2 operations a parameter; a teraflop a second is 1,000 operations a nanosecond.
        let product = |params: f64| 2.0 * params / ranks / (peak * 1e3 * efficiency.arithmetic);
        let weights = Weights::of(model, tp);
        let vocab = (model.vocab_size * model.hidden_size) as f64;
        let layers = model.layers.len() as f64;
        let mut cost = Self {
            weights_ns: (weights.bytes - weights.idle_bytes - weights.expert_bytes) * read,
            experts: Vec::new(),
            token_ns: product(weights.active_params - vocab),
            sample_ns: product(vocab),
            state_ns: 0.0,
            exchange_ns: (0.0, 0.0),
            fixed_ns: (
                1e3 * (efficiency.step_us + layers * efficiency.layer_us),
                1e3 * layers * efficiency.eager_layer_us,
            ),
            full_ns: 0.0,
            windows: Vec::new(),
            prompt_ns: 0.0,
            prompt_windows: Vec::new(),
        };
        if tp > 1 {
            // Two sums over ranks a layer, each moving the activations there and back.
            let bytes = 2.0 * layers * 2.0 * (ranks - 1.0) / ranks * hidden * model.dtype.bytes() as f64;
            cost.exchange_ns = (
                2.0 * layers * 1e3 * efficiency.exchange_us,
                bytes / (gpu.interconnect_gb_s / 2.0 * efficiency.interconnect),
            );
        }
        let dcp = options.decode_context_parallel_size as f64;
        for mixer in model.layers.iter().flat_map(|l| &l.mixers) {
            let attend =
                2.0 * attention_numbers(mixer) / ranks / (gpu.bf16_tflops * 1e3 * efficiency.attention);
            cost.add_mixer(mixer, model, options, read / dcp, attend);
        }
        cost.add_experts(model, weights.expert_bytes * read);
        cost
    }

    fn add_mixer(
        &mut self,
        mixer: &Mixer,
        model: &Architecture,
        options: &KvOptions,
        read: f64,
        attend: f64,
    ) {
        let mut bytes = layer_token_bytes(mixer, model, options) as f64;
        let window = match mixer {
            Mixer::State(state) => {
                let bytes =
                    state.bytes(options.tensor_parallel_size, options.num_speculative_tokens, model.dtype);
                self.state_ns += 2.0 * bytes as f64 * read;
                return;
            }
            Mixer::Attention(a) => a.window,
            // Sparse attention reads its index of every token, and the latent vectors of the chosen ones.
            Mixer::Mla(m) => match m.index {
                Some(index) => {
                    let keys = (index.head_dim + 4) as f64;
                    self.full_ns += keys * read;
                    bytes -= keys;
                    Window::Sliding(index.top_k)
                }
                None => Window::Full,
            },
        };
        let add =
            |list: &mut Vec<(u64, f64)>, span: u64, value: f64| match list.iter_mut().find(|w| w.0 == span) {
                Some(entry) => entry.1 += value,
                None => list.push((span, value)),
            };
        match window {
            Window::Full => {
                self.full_ns += bytes * read;
                self.prompt_ns += attend;
            }
            Window::Sliding(span) | Window::Chunked(span) => {
                add(&mut self.windows, span, bytes * read);
                add(&mut self.prompt_windows, span, attend);
            }
        }
    }

    /// Experts by their number and use; their bytes are shared out by parameters.
    fn add_experts(&mut self, model: &Architecture, all_ns: f64) {
        let size = |f: &FeedForward| {
            let (_, expert, experts) = f.params(model.hidden_size);
            (expert * experts) as f64
        };
        let total: f64 = model.layers.iter().map(|l| size(&l.feed_forward)).sum();
        for layer in &model.layers {
            if let FeedForward::Moe { experts, top_k, .. } = layer.feed_forward {
                let ns = all_ns * size(&layer.feed_forward) / total;
                match self.experts.iter_mut().find(|e| e.count == experts && e.top_k == top_k) {
                    Some(entry) => entry.all_ns += ns,
                    None => self.experts.push(Experts { count: experts, top_k, all_ns: ns }),
                }
            }
        }
    }

    /// Weights and products for `tokens` tokens, of which `sampled` give a token.
    fn products_ns(&self, tokens: f64, sampled: f64) -> f64 {
        let experts = |e: &Experts| e.all_ns * distinct_experts(e.count, e.top_k, tokens) / e.count as f64;
        let read = self.weights_ns + self.experts.iter().map(experts).sum::<f64>();
        read.max(self.token_ns * tokens + self.sample_ns * sampled)
    }

    /// Everything of a decode step that does not depend on context.
    fn base_ns(&self, batch: f64) -> f64 {
        self.fixed_ns.0
            + self.products_ns(batch, batch)
            + self.state_ns * batch
            + self.exchange_ns.0
            + self.exchange_ns.1 * batch
    }

    /// Which resource bounds the products of a decode batch.
    pub(super) fn products_bound(&self, batch: f64) -> Resource {
        let products = self.token_ns * batch + self.sample_ns * batch;
        if self.products_ns(batch, batch) > products { Resource::Bandwidth } else { Resource::Arithmetic }
    }

    /// Everything of a decode step that does not depend on context, nanoseconds.
    pub(super) fn decode_base_ns(&self, batch: f64) -> f64 {
        self.base_ns(batch)
    }

    /// What is the same on every GPU: launches and synchronisation, nanoseconds.
    pub(super) fn decode_fixed_ns(&self) -> f64 {
        self.fixed_ns.0
    }

    /// One prompt token's products, and its attention to one token, nanoseconds.
    pub(super) fn prompt_ns(&self) -> (f64, f64) {
        let windows: f64 = self.prompt_windows.iter().map(|(_, ns)| ns).sum();
        (self.token_ns, self.prompt_ns + windows)
    }

    /// Reading one cached token, in layers that see all and in those with windows, nanoseconds.
    pub(super) fn read_ns(&self) -> (f64, f64) {
        (self.full_ns, self.windows.iter().map(|(_, ns)| ns).sum())
    }

    fn line(&self, batch: u32) -> Line {
        let near =
            self.windows.iter().map(|(span, ns)| (span.saturating_mul(u64::from(batch)), fs_from_ns(*ns)));
        Line {
            base: fs_from_ns(self.base_ns(f64::from(batch))),
            per_resident: fs_from_ns(self.full_ns),
            near: near.collect(),
        }
    }

    /// The decode part as a table over `batches`, for a profile.
    pub fn decode_costs(&self, batches: &[u32]) -> DecodeCosts {
        let sizes = || batches.iter().map(|b| f64::from(*b));
        let near = self.windows.iter().map(|(span, _)| *span).max().map(|span_tokens| {
            // Narrower windows are stretched to the widest one at the same cost when full.
            let full: f64 = self.windows.iter().map(|(span, ns)| *span as f64 * ns).sum();
            NearAttention { span_tokens, slope_ns: sizes().map(|b| b * full / span_tokens as f64).collect() }
        });
        DecodeCosts {
            batch: batches.to_vec(),
            base_ms: sizes().map(|b| self.base_ns(b) * 1e-6).collect(),
            slope_ns: sizes().map(|b| self.full_ns * b).collect(),
            near,
        }
    }

    /// Attention of prompt pieces, nanoseconds: every token to those before it, within the window.
    fn prompt_attention_ns(&self, tokens: f64, before: f64) -> f64 {
        let seen = tokens * (before + tokens / 2.0);
        let windowed: f64 =
            self.prompt_windows.iter().map(|(span, ns)| ns * seen.min(tokens * *span as f64)).sum();
        self.prompt_ns * seen + windowed
    }
}

impl StepCost for RooflineCost {
    fn step(&self, shape: &StepShape<'_>) -> Fs {
        let line = self.line(shape.decode_seqs);
        if shape.prefill.is_empty() {
            return line.step(shape.decode_resident);
        }
        let decodes = f64::from(shape.decode_seqs);
        let prompt = shape.prefill_tokens() as f64;
        let finished = shape.prefill.iter().filter(|p| p.finishes).count() as f64;
        let attention: f64 = shape
            .prefill
            .iter()
            .map(|p| self.prompt_attention_ns(p.tokens as f64, p.computed_before as f64))
            .sum();
        let tokens = decodes + prompt;
        let sequences = decodes + shape.prefill.len() as f64;
        let rest = self.fixed_ns.0
            + self.fixed_ns.1
            + self.products_ns(tokens, decodes + finished)
            + self.state_ns * sequences
            + self.exchange_ns.0
            + self.exchange_ns.1 * tokens
            + attention;
        fs_from_ns(rest) + line.step(shape.decode_resident) - line.base
    }

    fn decode_run(&self, batch: u32, resident: u64, steps: u64) -> u128 {
        let line = self.line(batch);
        let (n, b, r) = (u128::from(steps), u128::from(batch), u128::from(resident));
        let mut sum = u128::from(line.base) * n + u128::from(line.per_resident) * arithmetic_sum(r, b, n);
        for (knee, fs) in &line.near {
            let below = match knee.checked_sub(resident) {
                None | Some(0) => 0,
                Some(_) if batch == 0 => n,
                Some(room) => u128::from(room).div_ceil(b).min(n),
            };
            sum += u128::from(*fs) * (arithmetic_sum(r, b, below) + (n - below) * u128::from(*knee));
        }
        sum
    }
}

impl Line {
    fn step(&self, resident: u64) -> Fs {
        let near: Fs = self.near.iter().map(|(knee, fs)| fs * resident.min(*knee)).sum();
        self.base + self.per_resident * resident + near
    }
}

/// `first + (first + rise) + ...`, `terms` terms.
fn arithmetic_sum(first: u128, rise: u128, terms: u128) -> u128 {
    terms * first + rise * (terms * terms.saturating_sub(1) / 2)
}

/// Arithmetic of matrix products: the narrowest format that both the weights and the hardware have. Weights of
/// four bits are unpacked to 16 where the hardware has no such arithmetic.
fn matrix_tflops(model: &Architecture, gpu: &Gpu) -> f64 {
    let method = model.weights.method.as_str();
    let eight_bits = (0.9..1.1).contains(&model.weights.quantized);
    let four_bit_floats = method.contains("fp4");
    match (four_bit_floats, eight_bits) {
        (true, _) => gpu.fp4_tflops.unwrap_or(gpu.bf16_tflops),
        (_, true) => gpu.fp8_tflops.or(gpu.int8_tops).unwrap_or(gpu.bf16_tflops),
        _ => gpu.bf16_tflops,
    }
}

/// Multiplications of one query token with one cached token in a layer: scores and values.
fn attention_numbers(mixer: &Mixer) -> f64 {
    match mixer {
        Mixer::Attention(a) => (a.heads * (a.key_dim + a.value_dim)) as f64,
        Mixer::Mla(m) => (m.heads * (m.nope_dim + m.rope_dim + m.value_dim)) as f64,
        Mixer::State(_) => 0.0,
    }
}
