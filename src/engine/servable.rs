//! Whether a request can ever be run.
//!
//! vLLM admits a request whose prompt fits and then preempts it for ever if its output does not; here it is
//! refused with the reason.

use std::fmt;

use super::config::{EngineConfig, KvCacheGroup};
use crate::units::{Blocks, Tokens};

/// Why a request can never be run to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeverAdmittable {
    /// The prompt leaves no room for a token.
    TooLong {
        /// Tokens of the prompt.
        prompt: Tokens,
        /// The engine's limit.
        max_model_len: Tokens,
    },
    /// It needs more blocks than there are.
    TooManyBlocks {
        /// Blocks it needs at its end.
        needed: u64,
        /// Blocks that can be used: the null block is not.
        usable: Blocks,
    },
    /// Prompts are not computed in pieces, and this one does not fit a step.
    TooLongForAStep {
        /// Tokens of the prompt.
        prompt: Tokens,
        /// The budget of a step.
        budget: Tokens,
    },
}

impl fmt::Display for NeverAdmittable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { prompt, max_model_len } => write!(
                f,
                "a prompt of {prompt} tokens leaves no room for output within max_model_len {max_model_len}"
            ),
            Self::TooManyBlocks { needed, usable } => {
                write!(f, "it needs {needed} KV blocks at its end and the pool has {usable}")
            }
            Self::TooLongForAStep { prompt, budget } => write!(
                f,
                "a prompt of {prompt} tokens exceeds the {budget} tokens of a step, with chunked prefill off"
            ),
        }
    }
}

impl std::error::Error for NeverAdmittable {}

/// Whether a request of `prompt` tokens can generate `output` tokens when it is alone. The last token is never
/// read, so `prompt + output - 1` tokens need a place.
///
/// # Errors
/// [`NeverAdmittable`], which says what is missing.
pub fn servable(
    config: &EngineConfig,
    prompt: Tokens,
    output: Tokens,
) -> std::result::Result<(), NeverAdmittable> {
    if prompt == 0 || prompt >= config.max_model_len {
        return Err(NeverAdmittable::TooLong { prompt, max_model_len: config.max_model_len });
    }
    let length = prompt.saturating_add(output.max(1)).min(config.max_model_len) - 1;
    if !config.enable_chunked_prefill && prompt > config.token_budget() {
        return Err(NeverAdmittable::TooLongForAStep { prompt, budget: config.token_budget() });
    }
    let needed = blocks_for(config, prompt, length);
    let usable = config.num_gpu_blocks - 1;
    if needed > u64::from(usable) {
        return Err(NeverAdmittable::TooManyBlocks { needed, usable });
    }
    Ok(())
}

/// Most blocks that a sequence of `length` tokens holds at once, all groups together.
pub fn blocks_for(config: &EngineConfig, prompt: Tokens, length: Tokens) -> u64 {
    let of_group = |group: &KvCacheGroup| {
        let block = config.group_block_size(*group);
        let all = length.div_ceil(block);
        match *group {
            KvCacheGroup::SlidingWindow { sliding_window, .. } => {
                // The window, and what steps in flight still read below it.
                let chunk = config.token_budget().min(prompt) * config.concurrent_batches() as u64;
                all.min((sliding_window + chunk).div_ceil(block) + 1)
            }
            // The present state and the one it comes from.
            KvCacheGroup::Mamba if config.prefix_caching() => all.min(2),
            KvCacheGroup::FullAttention | KvCacheGroup::Mamba => all,
        }
    };
    config.kv_cache_groups.iter().map(of_group).sum()
}
