//! From a `config.json` to an architecture: sizes that hold for the whole model, and its layers put together.
//!
//! Knows the names that families of models use. Knows no engine and no GPU.

use serde_json::Value;

use super::arch::{Architecture, FeedForward, Layer, Mixer};
use super::config::Config;
use super::dtype::Dtype;
use super::feed_forward;
use super::mixers;
use super::pattern::{LayerKind, kinds};
use super::quant::WeightFormat;
use crate::error::{Error, Result};

impl Architecture {
    /// Reads the text of a `config.json`; `file` is how errors name it.
    ///
    /// # Errors
    /// What is no JSON, and every needed key that is missing or senseless, by its path.
    pub fn from_json(file: &str, text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text).map_err(|e| {
            Error::input(format!("{file}:{}:{}", e.line(), e.column()), format!("not a config.json: {e}"))
        })?;
        Self::read(&Config::new(file, &value)?)
    }

    fn read(config: &Config<'_>) -> Result<Self> {
        let mut notes = Vec::new();
        let dtype = model_dtype(config, &mut notes)?;
        let count = config.need(&["num_hidden_layers", "n_layers", "n_layer", "num_layers"])?;
        let hidden_size = config.need(&["hidden_size", "n_embd", "d_model", "dim"])?;
        let kinds = kinds(config, count, &mut notes)?;
        let own_cache = count - config.int(&["num_kv_shared_layers"])?.unwrap_or(0).min(count);
        // Cross-layer attention: so many consecutive layers use the cache of their first.
        let shared_by = match config.int(&["cla_share_factor"])?.filter(|f| *f > 0) {
            Some(factor) if config.flag(&["use_cla"]) => factor,
            _ => 1,
        };
        let mut layers = Vec::with_capacity(kinds.len());
        for (index, kind) in kinds.iter().enumerate() {
            let mut mixers = mixers::read(config, *kind, index, dtype)?;
            for mixer in &mut mixers {
                if let Mixer::Attention(attention) = mixer {
                    attention.shares_cache =
                        index as u64 >= own_cache || !(index as u64).is_multiple_of(shared_by);
                }
            }
            let feed_forward = match kind {
                LayerKind::Experts | LayerKind::FeedForward => feed_forward::read(config, index, *kind)?,
                _ if feed_forward::separate(config) => FeedForward::None,
                _ => feed_forward::read(config, index, *kind)?,
            };
            layers.push(Layer { mixers, feed_forward });
        }
        if layers.iter().any(|l| matches!(l.feed_forward, FeedForward::Dense { inner: 0, .. })) {
            notes.push("intermediate_size is missing: feed-forward weights are not counted".to_owned());
        }
        let vocab_size = config
            .get_up(&["vocab_size", "padded_vocab_size"])
            .map(|v| config.as_int("vocab_size", v))
            .transpose()?
            .unwrap_or_else(|| {
                notes.push("vocab_size is missing: embedding and output matrix are not counted".to_owned());
                0
            });
        let name = config
            .get_up(&["architectures"])
            .and_then(|a| a.get(0))
            .and_then(Value::as_str)
            .or_else(|| config.text(&["model_type"]))
            .unwrap_or("unnamed model");
        Ok(Self {
            name: name.to_owned(),
            hidden_size,
            vocab_size,
            max_model_len: longest(config)?,
            dtype,
            weights: WeightFormat::read(config, dtype)?,
            tied_embeddings: tied(config),
            layers,
            mtp_layers: config
                .int(&["num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"])?
                .unwrap_or(0),
            tower_params: towers(config.root(), &mut notes),
            notes,
        })
    }
}

/// The longest sequence that the model was made for.
fn longest(config: &Config<'_>) -> Result<Option<u64>> {
    let names =
        ["max_position_embeddings", "model_max_length", "max_sequence_length", "seq_length", "n_positions"];
    config.get_up(&names).map(|v| config.as_int("max_position_embeddings", v)).transpose()
}

/// The format in which the model computes: what vLLM's `--dtype auto` makes of the checkpoint's.
fn model_dtype(config: &Config<'_>, notes: &mut Vec<String>) -> Result<Dtype> {
    let Some(value) = config.get_up(&["dtype", "torch_dtype"]) else {
        notes.push("dtype is missing: bfloat16 assumed".to_owned());
        return Ok(Dtype::Bfloat16);
    };
    let text = value.as_str().unwrap_or_default();
    match Dtype::parse(text) {
        Some(Dtype::Float32) => {
            notes.push("a float32 checkpoint is served as bfloat16".to_owned());
            Ok(Dtype::Bfloat16)
        }
        Some(dtype) => Ok(dtype),
        None => Err(config.wrong("dtype", format!("{value} is none of float16, bfloat16, float32"))),
    }
}

/// Whether the output matrix is the embedding; what a file leaves out is the family's default.
fn tied(config: &Config<'_>) -> bool {
    config.get_up(&["tie_word_embeddings"]).and_then(Value::as_bool).unwrap_or_else(|| {
        config.model_type().starts_with("gemma") || config.model_type().starts_with("cohere")
    })
}

/// Parameters of vision and audio towers, from their sizes: four square projections and a feed-forward
/// network a layer. Unknown shapes count nothing and are said.
fn towers(root: &serde_json::Map<String, Value>, notes: &mut Vec<String>) -> u64 {
    let mut sum = 0;
    for key in ["vision_config", "audio_config", "vit_config"] {
        let Some(part) = root.get(key).and_then(Value::as_object) else { continue };
        let number = |names: &[&str]| names.iter().find_map(|n| part.get(*n)).and_then(Value::as_u64);
        let layers = number(&["num_hidden_layers", "depth", "layers", "encoder_layers"]);
        let width = number(&["hidden_size", "embed_dim", "width", "d_model"]);
        let (Some(layers), Some(width)) = (layers, width) else {
            notes.push(format!("the size of {key} is not readable: its weights are not counted"));
            continue;
        };
        let inner = number(&["intermediate_size", "mlp_hidden_dim", "encoder_ffn_dim"]).unwrap_or(4 * width);
        sum += layers * (4 * width * width + 2 * width * inner);
    }
    sum
}
