//! The settings of a simulated engine, under vLLM's option names, and what follows from them.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::units::{Blocks, SimSpan, Tokens};

/// Which waiting request is admitted first and which running one is preempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedulingPolicy {
    /// First come, first served; the last admitted is preempted.
    #[default]
    Fcfs,
    /// The smallest `(priority, arrival)` first; the largest is preempted.
    Priority,
}

/// When the state of recurrent layers is kept for reuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MambaCacheMode {
    /// Never: one state page a request, and no prefix reuse for the whole model.
    None,
    /// At block boundaries at which a chunk of the prompt ended.
    #[default]
    Align,
}

/// A group of layers that share block tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum KvCacheGroup {
    /// Attention over the whole context: one block per `block_size` tokens.
    FullAttention,
    /// Attention over the last `sliding_window` tokens; blocks below the window are given back.
    SlidingWindow {
        /// Tokens a query attends to, itself included.
        sliding_window: Tokens,
        /// Tokens a block, where it differs from the engine's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        block_size: Option<Tokens>,
    },
    /// A recurrent state: a fixed number of pages a request, whatever its length.
    Mamba,
}

/// An engine's settings. Names and meanings are vLLM's; the default is its server on an H100 or H200.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// Longest sequence, prompt plus output.
    pub max_model_len: Tokens,
    /// Token budget of a step.
    pub max_num_batched_tokens: Tokens,
    /// Token budget of a step where it is smaller than the batch's capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_num_scheduled_tokens: Option<Tokens>,
    /// Most requests that run at once.
    pub max_num_seqs: u32,
    /// Most requests that are admitted at once, where it is smaller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_num_active_seqs: Option<u32>,
    /// Tokens a block. For hybrid models the raised one (see [`crate::engine`]).
    pub block_size: Tokens,
    /// Blocks of the pool, all groups together. One of them is the null block and never used.
    pub num_gpu_blocks: Blocks,
    /// Whether blocks of finished and running requests are found again by their content.
    pub enable_prefix_caching: bool,
    /// Whether a prompt may be computed in several steps.
    pub enable_chunked_prefill: bool,
    /// Most tokens of one prompt a step, when more than one request exists; 0 means no limit.
    pub long_prefill_token_threshold: Tokens,
    /// Whether that limit is raised to a fair share of the budget.
    pub long_prefill_token_threshold_adaptive: bool,
    /// Whether a step is scheduled while the one before it runs.
    pub async_scheduling: bool,
    /// Order of admission and preemption.
    pub scheduling_policy: SchedulingPolicy,
    /// Whether a request is admitted only if its whole present length fits.
    pub scheduler_reserve_full_isl: bool,
    /// Fraction of the pool that admissions leave free while something runs.
    pub watermark: f64,
    /// How recurrent state is cached; without effect for models that have none.
    pub mamba_cache_mode: MambaCacheMode,
    /// Whether requests that hit the same recurrent state may be admitted in one step. With partial prefix hits
    /// for hybrid models (vLLM pull request 46384, in 0.32) a prompt registers the state at its last boundary anew
    /// even if it hit it, and an identical prompt waits for the next step; earlier engines admit both.
    pub mamba_shared_hits: bool,
    /// Granularity of prefix hits in tokens, where it is finer than the blocks of the groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_match_unit: Option<Tokens>,
    /// Which states and windows stay findable: 0 the last of a prompt and junctions of prompts, `n` one in
    /// `n` tokens as well, `None` all.
    pub prefix_cache_retention_interval: Option<Tokens>,
    /// The groups of layers, in vLLM's order.
    pub kv_cache_groups: Vec<KvCacheGroup>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_model_len: 131_072,
            max_num_batched_tokens: 8_192,
            max_num_scheduled_tokens: None,
            max_num_seqs: 1_024,
            max_num_active_seqs: None,
            block_size: 16,
            num_gpu_blocks: 32_768,
            enable_prefix_caching: true,
            enable_chunked_prefill: true,
            long_prefill_token_threshold: 0,
            long_prefill_token_threshold_adaptive: false,
            async_scheduling: true,
            scheduling_policy: SchedulingPolicy::Fcfs,
            scheduler_reserve_full_isl: true,
            watermark: 0.0,
            mamba_cache_mode: MambaCacheMode::Align,
            mamba_shared_hits: false,
            prefix_match_unit: None,
            prefix_cache_retention_interval: Some(0),
            kv_cache_groups: vec![KvCacheGroup::FullAttention],
        }
    }
}

impl EngineConfig {
    /// Refuses settings with which no engine would start.
    ///
    /// # Errors
    /// [`crate::error::ErrorKind::Input`] that names the field and what it must be.
    pub fn validate(&self) -> Result<()> {
        let check = |ok: bool, field: &str, must: &str| {
            if ok { Ok(()) } else { Err(Error::input(format!("engine.{field}"), must)) }
        };
        check(self.max_model_len > 0, "max_model_len", "must be positive")?;
        check(self.max_num_batched_tokens > 0, "max_num_batched_tokens", "must be positive")?;
        check(self.token_budget() > 0, "max_num_scheduled_tokens", "must be positive")?;
        check(self.max_num_seqs > 0, "max_num_seqs", "must be positive")?;
        check(self.max_active() > 0, "max_num_active_seqs", "must be positive")?;
        check(self.block_size > 0, "block_size", "must be positive")?;
        check(self.num_gpu_blocks > 1, "num_gpu_blocks", "must be at least 2: one block is the null block")?;
        check(self.watermark >= 0.0 && self.watermark < 1.0, "watermark", "must be in [0, 1)")?;
        check(!self.kv_cache_groups.is_empty(), "kv_cache_groups", "must name at least one group")?;
        for group in &self.kv_cache_groups {
            if let KvCacheGroup::SlidingWindow { sliding_window, block_size } = group {
                check(*sliding_window > 0, "kv_cache_groups.sliding_window", "must be positive")?;
                check(*block_size != Some(0), "kv_cache_groups.block_size", "must be positive")?;
            }
        }
        let unit = self.hash_block_size();
        let divides = unit > 0 && self.cacheable_sizes().all(|size| size.is_multiple_of(unit));
        check(
            divides || !self.prefix_caching(),
            "prefix_match_unit",
            "must divide the block size of every group",
        )?;
        if let Some(interval) = self.prefix_cache_retention_interval {
            let whole = interval.is_multiple_of(self.scheduler_block_size());
            let must = "must be a multiple of the common block size of the groups (or 0, or absent)";
            check(!self.prefix_caching() || whole, "prefix_cache_retention_interval", must)?;
        }
        Ok(())
    }

    /// Tokens a step may compute.
    pub fn token_budget(&self) -> Tokens {
        self.max_num_scheduled_tokens.unwrap_or(Tokens::MAX).min(self.max_num_batched_tokens)
    }

    /// Requests that may run.
    pub fn max_active(&self) -> u32 {
        self.max_num_active_seqs.unwrap_or(u32::MAX).min(self.max_num_seqs)
    }

    /// Whether the model has recurrent layers.
    pub fn has_mamba(&self) -> bool {
        self.kv_cache_groups.contains(&KvCacheGroup::Mamba)
    }

    /// Whether prompts are found again: off for recurrent layers whose state is not kept.
    pub fn prefix_caching(&self) -> bool {
        self.enable_prefix_caching && !(self.has_mamba() && self.mamba_cache_mode == MambaCacheMode::None)
    }

    /// Batches that are scheduled and not yet processed, at most.
    pub fn concurrent_batches(&self) -> usize {
        if self.async_scheduling { 2 } else { 1 }
    }

    /// Tokens a block of `group`.
    pub fn group_block_size(&self, group: KvCacheGroup) -> Tokens {
        match group {
            KvCacheGroup::SlidingWindow { block_size: Some(size), .. } => size,
            KvCacheGroup::Mamba if !self.prefix_caching() => self.max_model_len,
            _ => self.block_size,
        }
    }

    /// The least common multiple of the groups' block sizes: positions at which all groups can resume.
    pub fn scheduler_block_size(&self) -> Tokens {
        self.kv_cache_groups.iter().map(|g| self.group_block_size(*g)).fold(1, lcm)
    }

    /// Tokens a hashed unit.
    pub fn hash_block_size(&self) -> Tokens {
        if self.kv_cache_groups.len() <= 1 || !self.prefix_caching() {
            return self.scheduler_block_size();
        }
        self.prefix_match_unit.unwrap_or_else(|| self.cacheable_sizes().fold(0, gcd))
    }

    /// Whether a hit may end inside a block: recurrent state is kept at a finer position than block ends, and
    /// every other group can be searched at that granularity.
    pub fn partial_hits(&self) -> bool {
        let unit = self.hash_block_size();
        self.kv_cache_groups.len() > 1
            && self.prefix_caching()
            && self.has_mamba()
            && self.block_size > unit
            && self.kv_cache_groups.iter().all(|group| {
                !matches!(group, KvCacheGroup::SlidingWindow { .. }) || self.group_block_size(*group) == unit
            })
    }

    /// Blocks that admissions leave free.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the fraction is in [0, 1)")]
    pub fn watermark_blocks(&self) -> Blocks {
        (self.watermark * f64::from(self.num_gpu_blocks)) as Blocks
    }

    fn cacheable_sizes(&self) -> impl Iterator<Item = Tokens> {
        self.kv_cache_groups.iter().map(|g| self.group_block_size(*g))
    }
}

/// What happens to a request before the scheduler sees it: a serial stage (rendering, tokenising, hashing) in
/// which requests queue first come, first served, then a latency in which they do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FrontEndCosts {
    /// Serial stage, a request.
    pub serial_base: SimSpan,
    /// Serial stage, a prompt token, femtoseconds.
    pub serial_per_token_fs: u64,
    /// Latency, a request.
    pub latency_base: SimSpan,
    /// Latency, a prompt token, femtoseconds.
    pub latency_per_token_fs: u64,
}

fn gcd(a: Tokens, b: Tokens) -> Tokens {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: Tokens, b: Tokens) -> Tokens {
    a / gcd(a, b) * b
}
