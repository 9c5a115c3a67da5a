//! `measurement.toml`: where the numbers come from, the server, the protocol. What is unknown is left out.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The schema tag of `measurement.toml`.
pub const MEASUREMENT_SCHEMA: &str = "inferometer-measurement-1";

/// Provenance of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasurementMeta {
    /// Always [`MEASUREMENT_SCHEMA`].
    pub schema: String,
    /// Who published it and where.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The server that was measured.
    #[serde(default)]
    pub server: ServerMeta,
    /// How it was measured.
    #[serde(default)]
    pub protocol: ProtocolMeta,
}

impl Default for MeasurementMeta {
    fn default() -> Self {
        Self {
            schema: MEASUREMENT_SCHEMA.to_owned(),
            source: String::new(),
            server: ServerMeta::default(),
            protocol: ProtocolMeta::default(),
        }
    }
}

/// What is known of a server. Names are vLLM's where vLLM has the option.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "the fields are vLLM's own options; units are in their names")]
pub struct ServerMeta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor_parallel_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_context_parallel_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculative: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory_utilization: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_num_batched_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_num_seqs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_gpu_blocks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_prefix_caching: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_chunked_prefill: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub async_scheduling: Option<bool>,
    /// "none", "align" or "all"; present only for hybrid models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mamba_cache_mode: Option<String>,
    /// Tokens after which sparse attention reads no more KV (`index_topk`), or the sliding window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_span_tokens: Option<u64>,
    /// KV cache as the server reports it, tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_tokens: Option<u64>,
}

/// Where a cell's total tok/s comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TotalSource {
    /// Completion tokens of all streams inside the window over the window's length.
    #[default]
    WindowUsage,
    /// Median of the server's own rate, about one sample a second, quantised to `concurrency` tokens a sample.
    ServerRateMedian,
}

/// How the cells were measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProtocolMeta {
    /// The tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_version: Option<String>,
    /// Output limit of a request, tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Length of the window, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_s: Option<f64>,
    /// Where total tok/s comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_tok_s: Option<TotalSource>,
    /// The tool skips a cell if concurrency x (context + `max_tokens`) exceeds this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_rule_kv_tokens: Option<u64>,
    /// Tokens of chat template and wrapper text around a prompt. A prompt aimed at N tokens has
    /// N - (N / 8192 - 1) x this many, because the tool calibrates its text length at 8,192.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_overhead_tokens: Option<u64>,
}

impl MeasurementMeta {
    /// Reads `measurement.toml`; `path` is only named in messages.
    ///
    /// # Errors
    /// [`crate::error::ErrorKind::Input`] with line and column, for a wrong schema tag, or for numbers without meaning.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let meta: Self =
            toml::from_str(text).map_err(|e| Error::input(path.display(), e.to_string().trim_end()))?;
        if meta.schema != MEASUREMENT_SCHEMA {
            return Err(Error::input(
                path.display(),
                format!("schema is \"{}\"; this version reads \"{MEASUREMENT_SCHEMA}\"", meta.schema),
            ));
        }
        if let Some(d) = meta.protocol.duration_s
            && !(d.is_finite() && d > 0.0)
        {
            return Err(Error::input(
                path.display(),
                format!("protocol.duration_s: {d} is not a positive time"),
            ));
        }
        if meta.protocol.max_tokens == Some(0) {
            return Err(Error::input(path.display(), "protocol.max_tokens: 0 tokens cannot be generated"));
        }
        Ok(meta)
    }

    /// The text of `measurement.toml`.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }
}
