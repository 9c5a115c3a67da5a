//! The calibrated artefact: what was learnt of a server, as one file that a person can read and edit.
//!
//! A profile says what its numbers are, where they come from and how far they can be trusted. It knows nothing
//! of how they were fitted nor of what will be asked; only the rules that turn its own numbers into a prompt
//! length, a capacity or a spread live here.

mod capacity;
mod uncertainty;

pub use capacity::{Capacity, KvCapacity};
pub use uncertainty::{DecodeSpread, Uncertainty};

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::costs::{DecodeCosts, PrefillCosts, StepCosts};
use crate::engine::{EngineConfig, FrontEndCosts, KvCacheGroup, MambaCacheMode};
use crate::error::{Error, Result, read_text};
use crate::record::TotalSource;

/// The schema tag of `profile.toml`.
pub const PROFILE_SCHEMA: &str = "inferometer-profile-1";

/// Tokens of a prompt whose context is given as 0: the instruction without a document.
pub const EMPTY_CONTEXT_TOKENS: u64 = 70;

/// Tokens of template and wrapper around a document where nothing better is known: between the 152 and 168
/// that two public servers of the reference tool show.
pub const DEFAULT_PROMPT_OVERHEAD: u64 = 160;

/// The context at which the reference tool calibrates its text length, tokens.
const CALIBRATION_CONTEXT: f64 = 8_192.0;

/// Tokens by which the reference tool keeps a prompt below `max_model_len`.
pub const MODEL_LEN_MARGIN: u64 = 64;

/// A calibrated server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Always [`PROFILE_SCHEMA`].
    pub schema: String,
    /// What was calibrated and from what.
    pub origin: Origin,
    /// The grid that `predict` answers when nothing else is asked.
    pub matrix: MatrixDefaults,
    /// Where the calibration stood: outside these ranges a prediction extrapolates.
    pub fitted: FittedRange,
    /// What is known of the KV cache.
    pub kv: KvCapacity,
    /// The engine's options.
    pub engine: EngineConfig,
    /// The serial stage before the scheduler, and the pipelined latency around it.
    pub front_end: FrontEnd,
    /// How long steps take.
    pub costs: Costs,
    /// How far predictions can be trusted.
    pub uncertainty: Uncertainty,
    /// What the fit wants a reader to know, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Where a profile comes from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Origin {
    /// Model name.
    pub model: String,
    /// GPU name.
    pub gpu: String,
    /// Number of GPUs.
    pub gpu_count: u32,
    /// Engine and version.
    pub engine: String,
    /// The measurement's own source.
    pub source: String,
    /// The cells that were used, as a person writes them.
    pub fitted_on: String,
    /// The version of this program that fitted it.
    pub fitted_by: String,
}

/// The default grid and protocol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatrixDefaults {
    /// Contexts of the decode cells, tokens.
    pub contexts: Vec<u64>,
    /// Simultaneous streams.
    pub concurrency: Vec<u32>,
    /// Contexts of the prefill rows, tokens.
    pub prefill: Vec<u64>,
    /// Output limit of a request, tokens.
    pub max_tokens: u64,
    /// Length of the window, seconds.
    pub duration_s: f64,
    /// Tokens of wrapper text around a prompt.
    pub prompt_overhead_tokens: u64,
    /// How total tok/s is formed.
    pub total_tok_s: TotalSource,
}

/// The ranges that the calibration covered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedRange {
    /// Shortest and longest context of a fitted decode cell, tokens.
    pub contexts: (u64, u64),
    /// Smallest and largest batch of a fitted decode cell.
    pub concurrency: (u32, u32),
}

/// The front end's costs and the client's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrontEnd {
    /// Serial part, per request, milliseconds.
    pub serial_ms: f64,
    /// Serial part, per prompt token, microseconds.
    pub serial_us_per_token: f64,
    /// Pipelined part, per request, milliseconds.
    pub latency_ms: f64,
    /// Pipelined part, per prompt token, microseconds.
    pub latency_us_per_token: f64,
    /// What the first request of a new connection takes longer, milliseconds.
    pub launch_delay_ms: f64,
}

/// The cost tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Steps in which every sequence decodes.
    pub decode: DecodeCosts,
    /// Steps that compute prompt tokens.
    pub prefill: PrefillCosts,
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// [`crate::error::ErrorKind::Input`] with file, line and field.
    pub fn read(path: &Path) -> Result<Self> {
        let path = if path.is_dir() { path.join("profile.toml") } else { path.to_path_buf() };
        Self::parse(&path, &read_text(&path)?)
    }

    /// Reads a profile from text; `path` is only named in messages.
    ///
    /// # Errors
    /// As [`Profile::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let profile: Self =
            toml::from_str(text).map_err(|e| Error::input(path.display(), e.to_string().trim_end()))?;
        profile.validate().map_err(|message| Error::input(path.display(), message))?;
        Ok(profile)
    }

    /// The text of `profile.toml`.
    pub fn to_toml(&self) -> String {
        let head = "# Made by `inferometer fit`. Times of a step in milliseconds, slopes in nanoseconds per token of mean\n\
                    # context; spreads are standard deviations. Edit it freely: every command reads it as it is.\n";
        format!("{head}{}", toml::to_string(self).unwrap_or_default())
    }

    fn validate(&self) -> std::result::Result<(), String> {
        if self.schema != PROFILE_SCHEMA {
            return Err(format!("schema is \"{}\"; this version reads \"{PROFILE_SCHEMA}\"", self.schema));
        }
        self.costs.decode.validate().map_err(|e| format!("costs.decode.{e}"))?;
        self.costs.prefill.validate().map_err(|e| format!("costs.prefill.{e}"))?;
        self.uncertainty.validate(self.costs.decode.batch.len()).map_err(|e| format!("uncertainty.{e}"))?;
        let f = &self.front_end;
        for (name, value) in [
            ("serial_ms", f.serial_ms),
            ("serial_us_per_token", f.serial_us_per_token),
            ("latency_ms", f.latency_ms),
            ("latency_us_per_token", f.latency_us_per_token),
            ("launch_delay_ms", f.launch_delay_ms),
        ] {
            if !(value.is_finite() && (0.0..1e7).contains(&value)) {
                return Err(format!("front_end.{name}: {value} is not a time >= 0"));
            }
        }
        let m = &self.matrix;
        if m.contexts.is_empty() || m.concurrency.is_empty() {
            return Err("matrix: contexts and concurrency must not be empty".to_owned());
        }
        if m.concurrency.contains(&0) || m.max_tokens == 0 {
            return Err("matrix: concurrency and max_tokens must be positive".to_owned());
        }
        if !(m.duration_s.is_finite() && m.duration_s > 0.0) {
            return Err(format!("matrix.duration_s: {} is not a positive time", m.duration_s));
        }
        self.engine.validate().map_err(|e| e.to_string())
    }

    /// Tokens of the prompt that the reference tool sends for the label `context_tokens`.
    ///
    /// The tool calibrates characters per token on a prompt of 8,192 tokens that contains the wrapper, so a
    /// prompt aimed at N has N - (N / 8192 - 1) x overhead (see `docs/protocol.md`). Zero is the bare
    /// instruction. A prompt is kept 64 tokens below `max_model_len` where the label would just exceed it.
    pub fn prompt_tokens(&self, context_tokens: u64) -> u64 {
        if context_tokens == 0 {
            return EMPTY_CONTEXT_TOKENS;
        }
        let limit = self.engine.max_model_len;
        let aimed =
            if context_tokens == limit { limit.saturating_sub(MODEL_LEN_MARGIN) } else { context_tokens };
        let overhead = self.matrix.prompt_overhead_tokens as f64;
        let tokens = aimed as f64 - (aimed as f64 / CALIBRATION_CONTEXT - 1.0) * overhead;
        // Prompts below the calibration length are not padded beyond the label.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 <= tokens <= aimed")]
        let tokens = tokens.min(aimed as f64).max(1.0).round() as u64;
        tokens
    }

    /// The cost model, with decode steps scaled by `decode_scale` (1.0 is the fit itself).
    pub fn step_costs(&self, decode_scale: f64) -> StepCosts {
        let mut decode = self.costs.decode.clone();
        if (decode_scale - 1.0).abs() > f64::EPSILON {
            let near = decode.near.iter_mut().flat_map(|n| n.slope_ns.iter_mut());
            decode
                .base_ms
                .iter_mut()
                .chain(decode.slope_ns.iter_mut())
                .chain(near)
                .for_each(|v| *v *= decode_scale);
        }
        StepCosts::new(decode, self.costs.prefill.clone(), self.engine.max_num_seqs)
    }

    /// The engine's front end.
    pub fn front_end_costs(&self) -> FrontEndCosts {
        let f = &self.front_end;
        FrontEndCosts {
            serial_base: crate::units::SimSpan::from_secs_f64(f.serial_ms * 1e-3),
            serial_per_token_fs: crate::costs::fs_from_ns(f.serial_us_per_token * 1e3),
            latency_base: crate::units::SimSpan::from_secs_f64(f.latency_ms * 1e-3),
            latency_per_token_fs: crate::costs::fs_from_ns(f.latency_us_per_token * 1e3),
        }
    }

    /// Pages of the KV pool that a request of `tokens` tokens needs: one a block of every attention group; a recurrent
    /// state takes one, or two where it is cached at block boundaries (`mamba_cache_mode = "align"`).
    pub fn pages(&self, tokens: u64) -> u64 {
        let engine = &self.engine;
        let of = |group: &KvCacheGroup| match *group {
            KvCacheGroup::FullAttention => tokens.div_ceil(engine.block_size),
            KvCacheGroup::SlidingWindow { sliding_window, .. } => {
                let held = tokens.min(sliding_window + engine.max_num_batched_tokens);
                held.div_ceil(engine.group_block_size(*group)) + 1
            }
            KvCacheGroup::Mamba => 1 + u64::from(engine.mamba_cache_mode == MambaCacheMode::Align),
        };
        engine.kv_cache_groups.iter().map(of).sum()
    }

    /// Blocks of the server's pool, the null block included, where its capacity is known. What a server reports in
    /// tokens is its largest concurrency at `max_model_len` times `max_model_len`.
    pub fn pool_blocks(&self) -> Option<u64> {
        let limit = self.engine.max_model_len;
        let concurrency = self.kv.server_tokens? as f64 / limit as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
        let pages = (concurrency * self.pages(limit) as f64).round() as u64;
        Some(pages + 1)
    }

    /// Whether `context` and `concurrency` lie inside what was fitted; otherwise the sentence that says so.
    pub fn extrapolation(&self, context_tokens: u64, concurrency: u32) -> Option<String> {
        let (lo, hi) = self.fitted.contexts;
        let (least, most) = self.fitted.concurrency;
        let mut beyond = Vec::new();
        if context_tokens > hi || context_tokens < lo {
            beyond.push(format!("contexts {lo} to {hi}"));
        }
        if concurrency > most || concurrency < least {
            beyond.push(format!("batches {least} to {most}"));
        }
        (!beyond.is_empty()).then(|| format!("outside the fitted {}", beyond.join(" and ")))
    }
}
