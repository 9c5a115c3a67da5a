//! The sizes of feed-forward networks and experts in a config.
//!
//! Knows the names that families use. Knows no engine and no GPU.

use serde_json::Value;

use super::arch::FeedForward;
use super::config::Config;
use super::pattern::LayerKind;
use crate::error::Result;

const EXPERTS: &[&str] = &["num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"];
const TOP_K: &[&str] =
    &["num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k", "moe_topk"];
const INNER: &[&str] = &["intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "inner_size"];
const EXPERT_INNER: &[&str] =
    &["moe_intermediate_size", "expert_hidden_dim", "moe_ffn_hidden_size", "expert_ffn_hidden_size"];

/// Whether feed-forward networks are layers of their own, beside those that mix tokens.
pub(super) fn separate(config: &Config<'_>) -> bool {
    config.get(&["hybrid_override_pattern"]).is_some()
        || matches!(config.model_type().as_str(), "mamba" | "mamba2" | "falcon_mamba")
}

/// The feed-forward part of layer `index`.
pub(super) fn read(config: &Config<'_>, index: usize, kind: LayerKind) -> Result<FeedForward> {
    if let Some(block) = config.list(&["block_configs"]).and_then(|b| b.get(index)) {
        return Ok(from_block(config, block)?.unwrap_or(FeedForward::None));
    }
    let matrices = matrices(config);
    let experts = config.int(EXPERTS)?.unwrap_or(0);
    let routed = match kind {
        LayerKind::Experts => true,
        LayerKind::FeedForward => false,
        _ => experts > 1 && has_experts(config, index)?,
    };
    if !routed {
        let inner = match config.int(INNER)? {
            // Llama-4 keeps the width of its dense layers apart.
            Some(_) if experts > 1 && config.get(&["intermediate_size_mlp"]).is_some() => {
                config.need(&["intermediate_size_mlp"])?
            }
            Some(inner) => inner,
            None if experts > 1 => config.need(EXPERT_INNER)?,
            None if four_times(config) => 4 * config.need(&["hidden_size", "n_embd", "d_model"])?,
            None => 0,
        };
        return Ok(FeedForward::Dense { inner, matrices });
    }
    let inner = match config.int(EXPERT_INNER)? {
        Some(inner) => inner,
        None => config.need(INNER)?,
    };
    Ok(FeedForward::Moe {
        experts,
        top_k: config.need(TOP_K)?,
        inner,
        shared_inner: shared_inner(config, inner)?,
        matrices,
    })
}

/// The width of the part that all tokens use.
fn shared_inner(config: &Config<'_>, inner: u64) -> Result<u64> {
    let given = config.int(&[
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    ])?;
    let count = config.int(&[
        "n_shared_experts",
        "num_shared_experts",
        "num_shared_expert",
        "moe_num_shared_experts",
    ])?;
    Ok(match (given, count) {
        (Some(width), Some(count)) if config.get(&["moe_shared_expert_intermediate_size"]).is_some() => {
            width * count.max(1)
        }
        (Some(width), _) => width,
        (None, Some(count)) => count * inner,
        (None, None) if config.model_type().starts_with("llama4") => inner,
        (None, None) => 0,
    })
}

/// Whether layer `index` of a mixture-of-experts model has experts.
fn has_experts(config: &Config<'_>, index: usize) -> Result<bool> {
    let layer = index as u64;
    if let Some(list) = config.list(&["mlp_layer_types", "moe_layer_freq"]) {
        return Ok(match list.get(index) {
            Some(Value::String(kind)) => kind != "dense",
            Some(other) => other.as_u64() != Some(0),
            None => true,
        });
    }
    if let Some(list) = config.list(&["moe_layers", "moe_layers_enum"]) {
        return Ok(list.iter().any(|v| v.as_u64() == Some(layer)));
    }
    if layer < config.int(&["first_k_dense_replace", "num_dense_layers"])?.unwrap_or(0) {
        return Ok(false);
    }
    if config.list(&["mlp_only_layers"]).is_some_and(|l| l.iter().any(|v| v.as_u64() == Some(layer))) {
        return Ok(false);
    }
    if let Some(step) = config.int(&["decoder_sparse_step", "interleave_moe_layer_step"])?.filter(|s| *s > 0)
    {
        return Ok((layer + 1).is_multiple_of(step));
    }
    if let Some(step) = config.int(&["moe_layer_freq"])?.filter(|s| *s > 0) {
        return Ok(layer.is_multiple_of(step));
    }
    if let Some(period) = config.int(&["expert_layer_period"])?.filter(|s| *s > 0) {
        return Ok(layer % period == config.int(&["expert_layer_offset"])?.unwrap_or(0));
    }
    Ok(true)
}

/// Families whose feed-forward networks are four times as wide as the model unless their config says otherwise.
fn four_times(config: &Config<'_>) -> bool {
    matches!(config.model_type().as_str(), "gpt2" | "gpt_bigcode" | "gptj" | "bloom" | "falcon" | "mpt")
}

/// Matrices of a network: three with a gate. Families without a gate name a plain activation.
fn matrices(config: &Config<'_>) -> u64 {
    let plain =
        ["opt", "gpt2", "gpt_neox", "falcon", "phi", "starcoder2", "nemotron", "nemotron_h", "bloom", "mpt"];
    if plain.contains(&config.model_type().as_str()) { 2 } else { 3 }
}

/// A searched architecture: the factor or width of each block.
fn from_block(config: &Config<'_>, block: &Value) -> Result<Option<FeedForward>> {
    let part = &block["ffn"];
    if part.get("no_op").and_then(Value::as_bool) == Some(true) {
        return Ok(None);
    }
    let hidden = config.need(&["hidden_size"])?;
    if part.get("replace_with_linear").and_then(Value::as_bool) == Some(true) {
        return Ok(Some(FeedForward::Dense { inner: hidden, matrices: 1 }));
    }
    let inner = match part.get("intermediate_size").and_then(Value::as_u64) {
        Some(inner) => inner,
        None => match part.get("ffn_mult").and_then(Value::as_f64) {
            // Two thirds of the factor, rounded up to a multiple of 256.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive width")]
            Some(factor) => ((2.0 * factor * hidden as f64 / 3.0) as u64).next_multiple_of(256),
            None => config.need(INNER)?,
        },
    };
    Ok(Some(FeedForward::Dense { inner, matrices: 3 }))
}
