//! The sizes of attention and recurrent layers in a config.
//!
//! Knows the names that families use. Knows no engine and no GPU.

use serde_json::Value;

use super::arch::{Attention, Mixer, Mla, SparseIndex, State, StateKind, Window};
use super::config::Config;
use super::dtype::Dtype;
use super::pattern::LayerKind;
use crate::error::Result;

/// What mixes tokens in layer `index` of kind `kind`.
pub(super) fn read(config: &Config<'_>, kind: LayerKind, index: usize, dtype: Dtype) -> Result<Vec<Mixer>> {
    Ok(match kind {
        LayerKind::Attention(window) => attention(config, window, index)?.into_iter().collect(),
        LayerKind::State => vec![Mixer::State(state(config, dtype)?)],
        LayerKind::Conv => vec![Mixer::State(conv(config, dtype)?)],
        LayerKind::Both(window) => {
            let mut all = vec![Mixer::State(state(config, dtype)?)];
            all.extend(attention(config, window, index)?);
            all
        }
        LayerKind::Experts | LayerKind::FeedForward | LayerKind::Nothing => Vec::new(),
    })
}

const HEADS: &[&str] = &["num_attention_heads", "n_heads", "n_head", "num_heads"];
const KV_HEADS: &[&str] =
    &["num_key_value_heads", "n_kv_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"];

/// Attention, latent where the config has a latent rank; nothing where a block is left out.
fn attention(config: &Config<'_>, window: Window, index: usize) -> Result<Option<Mixer>> {
    if config.get(&["compress_ratios", "compress_ratio"]).is_some() {
        return Err(config.wrong("compress_ratios", "attention over compressed tokens is not modelled"));
    }
    if let Some(kv_rank) = config.int(&["kv_lora_rank"])? {
        return Ok(Some(Mixer::Mla(mla(config, kv_rank)?)));
    }
    let heads = config.need(HEADS)?;
    let key_dim = head_dim(config, heads)?;
    let mut attention = Attention {
        heads,
        kv_heads: kv_heads(config, heads, index)?,
        key_dim,
        value_dim: config.int(&["v_head_dim"])?.unwrap_or(key_dim),
        window,
        shares_cache: false,
        gated: config.flag(&["attn_output_gate"]) || config.model_type() == "qwen3_next",
    };
    match window {
        Window::Full => {
            // Global layers of some models have heads of their own.
            if let Some(dim) = config.int(&["global_head_dim"])? {
                attention.key_dim = dim;
                attention.value_dim = dim;
            }
            if let Some(kv) = config.int(&["num_global_key_value_heads"])? {
                attention.kv_heads = kv;
            }
        }
        Window::Sliding(_) | Window::Chunked(_) => {
            if let Some(kv) = config.int(&["swa_num_key_value_heads"])? {
                attention.kv_heads = kv;
            }
            if let Some(dim) = config.int(&["swa_head_dim"])? {
                attention.key_dim = dim;
                attention.value_dim = config.int(&["swa_v_head_dim"])?.unwrap_or(dim);
            }
        }
    }
    if let Some(block) = config.list(&["block_configs"]).and_then(|b| b.get(index)) {
        return from_block(config, attention, block);
    }
    Ok(Some(Mixer::Attention(attention)))
}

/// A searched architecture: each block says its own heads, or that it has no attention.
fn from_block(config: &Config<'_>, mut attention: Attention, block: &Value) -> Result<Option<Mixer>> {
    let part = &block["attention"];
    let flag = |k: &str| part.get(k).and_then(Value::as_bool).unwrap_or(false);
    if flag("no_op") || flag("replace_with_linear") {
        return Ok(None);
    }
    if let Some(group) = part.get("n_heads_in_group").and_then(Value::as_u64).filter(|g| *g > 0) {
        attention.kv_heads = attention.heads / group;
    } else if let Some(kv) = part.get("num_key_value_heads").filter(|v| !v.is_null()) {
        attention.kv_heads = config.as_int("block_configs.attention.num_key_value_heads", kv)?;
    }
    Ok(Some(Mixer::Attention(attention)))
}

/// KV heads: one list entry a layer, one number, one for multi-query models, else as many as query heads.
fn kv_heads(config: &Config<'_>, heads: u64, index: usize) -> Result<u64> {
    if let Some(list) = config.list(KV_HEADS) {
        let entry = list
            .get(index)
            .ok_or_else(|| config.wrong(KV_HEADS[0], format!("the list has no entry for layer {index}")))?;
        return config.as_int(KV_HEADS[0], entry);
    }
    let multi_query = config.flag(&["multi_query"]) && !config.flag(&["new_decoder_architecture"]);
    let kv = match config.int(KV_HEADS)? {
        Some(kv) => kv,
        None if multi_query => 1,
        None => heads,
    };
    if kv == 0 || kv > heads {
        return Err(config.wrong(KV_HEADS[0], format!("{kv} for {heads} attention heads")));
    }
    Ok(kv)
}

/// The explicit head size, else the hidden size shared out over the heads.
fn head_dim(config: &Config<'_>, heads: u64) -> Result<u64> {
    if let Some(dim) =
        config.int(&["head_dim", "attention_head_dim", "kv_channels", "head_size"])?.filter(|d| *d > 0)
    {
        return Ok(dim);
    }
    let hidden = config.need(&["hidden_size", "n_embd", "d_model", "dim"])?;
    if hidden % heads == 0 {
        Ok(hidden / heads)
    } else {
        Err(config.wrong(
            "head_dim",
            format!("is missing, and hidden_size {hidden} does not divide by {heads} heads"),
        ))
    }
}

fn mla(config: &Config<'_>, kv_rank: u64) -> Result<Mla> {
    // Zero is a value: latent attention without a rotary part.
    let rope_dim = config.int(&["qk_rope_head_dim"])?.ok_or_else(|| config.missing(&["qk_rope_head_dim"]))?;
    let nope_dim = config.int(&["qk_nope_head_dim"])?.unwrap_or(0);
    let index = match config.int(&["index_topk"])?.filter(|k| *k > 0) {
        None => None,
        Some(top_k) => Some(SparseIndex {
            top_k,
            head_dim: config.int(&["index_head_dim"])?.unwrap_or(128),
            heads: config.int(&["index_n_heads"])?.unwrap_or(64),
        }),
    };
    Ok(Mla {
        heads: config.need(HEADS)?,
        kv_rank,
        rope_dim,
        nope_dim,
        value_dim: config.int(&["v_head_dim"])?.unwrap_or(nope_dim),
        q_rank: config.int(&["q_lora_rank"])?.filter(|r| *r > 0),
        index,
    })
}

/// The recurrent state of a layer, by the keys that its family uses.
fn state(config: &Config<'_>, dtype: Dtype) -> Result<State> {
    let hidden = config.need(&["hidden_size"])?;
    if let Some(v_heads) = config.int(&["linear_num_value_heads"])? {
        return gated_delta(config, dtype, hidden, v_heads);
    }
    if let Some(part) = config.part("linear_attn_config") {
        let (heads, dim) = (part.need(&["num_heads"])?, part.need(&["head_dim"])?);
        return Ok(kimi_delta(hidden, heads, dim, part.int(&["short_conv_kernel_size"])?.unwrap_or(4)));
    }
    if let Some(kernel) = config.int(&["short_conv_kernel_size"])? {
        let heads = config.need(HEADS)?;
        return Ok(kimi_delta(hidden, heads, head_dim(config, heads)?, kernel));
    }
    if config.get(&["mamba_num_heads", "mamba_n_heads", "n_mamba_heads"]).is_some() {
        return mamba2(config, dtype, hidden);
    }
    if let Some(size) = config.int(&["mamba_d_state", "state_size"])? {
        let inner =
            match config.int(&["intermediate_size"])?.filter(|_| config.get(&["mamba_expand"]).is_none()) {
                Some(inner) => inner,
                None => hidden * config.int(&["mamba_expand"])?.unwrap_or(2),
            };
        let kernel = config.int(&["mamba_d_conv", "conv_kernel"])?.unwrap_or(4);
        return Ok(State {
            kind: StateKind::Mamba1,
            conv_dim: inner,
            conv_kernel: kernel,
            recurrent: inner * size,
            recurrent_dtype: dtype,
            params: 3 * hidden * inner,
            groups: None,
        });
    }
    if config.get(&["attn_type_list", "layer_group_size"]).is_some() {
        let heads = config.need(HEADS)?;
        let dim = head_dim(config, heads)?;
        return Ok(State {
            kind: StateKind::Linear,
            conv_dim: 0,
            conv_kernel: 1,
            recurrent: heads * dim * dim,
            recurrent_dtype: dtype,
            params: 5 * hidden * heads * dim,
            groups: None,
        });
    }
    Err(config.missing(&["linear_num_value_heads", "linear_attn_config", "mamba_n_heads", "mamba_d_state"]))
}

fn gated_delta(config: &Config<'_>, dtype: Dtype, hidden: u64, v_heads: u64) -> Result<State> {
    let k_heads = config.need(&["linear_num_key_heads"])?;
    let (k_dim, v_dim) = (config.need(&["linear_key_head_dim"])?, config.need(&["linear_value_head_dim"])?);
    let (keys, values) = (k_heads * k_dim, v_heads * v_dim);
    Ok(State {
        kind: StateKind::GatedDeltaNet,
        conv_dim: 2 * keys + values,
        conv_kernel: config.int(&["linear_conv_kernel_dim"])?.unwrap_or(4),
        recurrent: v_heads * v_dim * k_dim,
        recurrent_dtype: recurrent_dtype(config, dtype),
        params: hidden * (2 * keys + 2 * values + 2 * v_heads) + values * hidden,
        groups: None,
    })
}

/// Kimi delta attention: the recurrent state is single precision whatever the model's format.
fn kimi_delta(hidden: u64, heads: u64, dim: u64, conv_kernel: u64) -> State {
    let width = heads * dim;
    State {
        kind: StateKind::KimiDelta,
        conv_dim: 3 * width,
        conv_kernel,
        recurrent: heads * dim * dim,
        recurrent_dtype: Dtype::Float32,
        params: 4 * hidden * width + 2 * (hidden * dim + dim * width),
        groups: None,
    }
}

fn mamba2(config: &Config<'_>, dtype: Dtype, hidden: u64) -> Result<State> {
    let heads = config.need(&["mamba_num_heads", "mamba_n_heads", "n_mamba_heads"])?;
    let inner = match config.int(&["mamba_d_ssm"])?.filter(|d| *d > 0) {
        Some(inner) => inner,
        None => {
            match config.float(&["mamba_expand"])?.filter(|_| config.get(&["mamba_head_dim"]).is_none()) {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a small positive factor"
                )]
                Some(expand) => (expand * hidden as f64) as u64,
                None => heads * config.need(&["mamba_head_dim", "mamba_d_head", "mamba_headdim"])?,
            }
        }
    };
    let head_dim = config
        .get(&["mamba_head_dim", "mamba_d_head", "mamba_headdim"])
        .and_then(Value::as_u64)
        .unwrap_or(inner / heads);
    let size = config.need(&["ssm_state_size", "mamba_d_state", "state_size"])?;
    let groups = config.int(&["n_groups", "mamba_n_groups", "mamba_ngroups"])?.unwrap_or(1);
    Ok(State {
        kind: StateKind::Mamba2,
        conv_dim: inner + 2 * groups * size,
        conv_kernel: config.int(&["conv_kernel", "mamba_d_conv"])?.unwrap_or(4),
        recurrent: heads * head_dim * size,
        recurrent_dtype: recurrent_dtype(config, dtype),
        params: hidden * (2 * inner + 2 * groups * size + heads) + inner * hidden,
        groups: Some((groups, size)),
    })
}

fn conv(config: &Config<'_>, dtype: Dtype) -> Result<State> {
    let hidden = config.need(&["hidden_size"])?;
    Ok(State {
        kind: StateKind::ShortConv,
        conv_dim: config.int(&["conv_dim"])?.unwrap_or(hidden),
        conv_kernel: config.need(&["conv_L_cache"])?,
        recurrent: 0,
        recurrent_dtype: dtype,
        params: 4 * hidden * hidden,
        groups: None,
    })
}

/// The format of a recurrent state that the checkpoint asks for, else the model's own.
fn recurrent_dtype(config: &Config<'_>, dtype: Dtype) -> Dtype {
    config.text(&["mamba_ssm_cache_dtype", "mamba_ssm_dtype"]).and_then(Dtype::parse).unwrap_or(dtype)
}
