//! The engine's options under vLLM's names.

use serde::{Deserialize, Serialize};

use crate::units::Tokens;

/// What a hybrid model keeps of its recurrent state for later requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MambaCacheMode {
    /// Nothing: no prefix of a hybrid model is reused.
    None,
    /// The state at the last block boundary of a prompt.
    Align,
    /// The state at every block.
    All,
}

/// Options of a replica. The defaults are vLLM 0.32's for an H100 or H200 server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// Longest sequence, prompt and output, tokens.
    pub max_model_len: Tokens,
    /// Token budget of a step.
    pub max_num_batched_tokens: Tokens,
    /// Most sequences that run at once.
    pub max_num_seqs: u32,
    /// Tokens of a KV block.
    pub block_size: Tokens,
    /// Whether full blocks are reused.
    pub enable_prefix_caching: bool,
    /// Whether a prompt may be computed in pieces.
    pub enable_chunked_prefill: bool,
    /// Whether a step is scheduled while the one before it runs.
    pub async_scheduling: bool,
    /// Present for hybrid models only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mamba_cache_mode: Option<MambaCacheMode>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_model_len: 131_072,
            max_num_batched_tokens: 8_192,
            max_num_seqs: 1_024,
            block_size: 16,
            enable_prefix_caching: true,
            enable_chunked_prefill: true,
            async_scheduling: true,
            mamba_cache_mode: None,
        }
    }
}

impl EngineConfig {
    /// Refuses options that describe no engine.
    ///
    /// # Errors
    /// A sentence that names the option.
    pub fn validate(&self) -> Result<(), String> {
        for (name, value) in [
            ("max_model_len", self.max_model_len),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_num_seqs", u64::from(self.max_num_seqs)),
            ("block_size", self.block_size),
        ] {
            if value == 0 {
                return Err(format!("{name}: must be positive"));
            }
        }
        if self.max_num_batched_tokens < u64::from(self.max_num_seqs) {
            return Err(format!(
                "max_num_batched_tokens: {} is below max_num_seqs = {}; vLLM refuses that",
                self.max_num_batched_tokens, self.max_num_seqs
            ));
        }
        Ok(())
    }
}
