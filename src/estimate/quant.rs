//! How the weights of a checkpoint are stored: bytes a parameter, by part of the model.
//!
//! Reads `quantization_config`. Knows no layer's size and no GPU.

use serde_json::Value;

use super::config::Config;
use super::dtype::{Dtype, KvDtype};
use crate::error::Result;

/// Parts of a model whose weights can be stored differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Projections of attention.
    Attention,
    /// Projections of recurrent layers.
    State,
    /// Feed-forward networks that all tokens use.
    Dense,
    /// Routed experts.
    Experts,
    /// Embedding and output matrix.
    Embedding,
}

/// The storage of a checkpoint's weights.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightFormat {
    /// The method's name, `none` for plain weights.
    pub method: String,
    /// Bytes of a parameter that is stored as the method says, scales included.
    pub quantized: f64,
    /// Bytes of any other parameter.
    pub plain: f64,
    /// Only experts are stored as the method says.
    experts_only: bool,
    /// Name fragments of modules that stay plain.
    ignored: Vec<String>,
    /// The KV cache that the checkpoint asks for.
    pub kv_cache: Option<KvDtype>,
}

impl WeightFormat {
    /// Plain weights.
    pub fn plain(dtype: Dtype) -> Self {
        let bytes = dtype.bytes() as f64;
        Self {
            method: "none".to_owned(),
            quantized: bytes,
            plain: bytes,
            experts_only: false,
            ignored: Vec::new(),
            kv_cache: None,
        }
    }

    /// Reads the quantization of a config.
    ///
    /// # Errors
    /// A method whose size is not known, named with the remedy.
    pub(super) fn read(config: &Config<'_>, dtype: Dtype) -> Result<Self> {
        let mut format = Self::plain(dtype);
        let Some(quant) = config.get_up(&["quantization_config", "compression_config"]) else {
            return Ok(format);
        };
        let text = |k: &str| quant.get(k).and_then(Value::as_str).unwrap_or_default().to_lowercase();
        let method = text("quant_method");
        let algorithm = text("quant_algo");
        let group = quant.get("group_size").and_then(Value::as_f64).filter(|g| *g > 0.0);
        let bits = quant.get("bits").and_then(Value::as_f64);
        format.quantized = match method.as_str() {
            "fp8" | "fbgemm_fp8" | "ptpc_fp8" => 1.0 + 4.0 / (128.0 * 128.0),
            "mxfp4" | "gpt_oss_mxfp4" => 0.5 + 1.0 / 32.0,
            "mxfp8" => 1.0 + 1.0 / 32.0,
            // Packed integers, a 16-bit scale and a packed zero point for each group.
            "awq" | "awq_marlin" | "gptq" | "gptq_marlin" | "auto-round" | "intel/auto-round" => {
                let bits = bits.unwrap_or(4.0);
                bits / 8.0 + (2.0 + bits / 8.0) / group.unwrap_or(128.0)
            }
            "bitsandbytes" if quant.get("load_in_8bit").and_then(Value::as_bool) == Some(true) => 1.0,
            "bitsandbytes" => 0.5 + 4.0 / 64.0,
            "compressed-tensors" => Self::compressed(quant),
            "modelopt" | "modelopt_fp4" | "modelopt_mixed" | "" if !algorithm.is_empty() => {
                match algorithm.as_str() {
                    "nvfp4" | "nvfp4_awq" | "w4a8_nvfp4_fp8" => 0.5 + 1.0 / 16.0,
                    "mxfp8" => 1.0 + 1.0 / 32.0,
                    _ => 1.0,
                }
            }
            _ => {
                return Err(config.wrong(
                    "quantization_config.quant_method",
                    format!(
                        "the size of weights stored as {method:?} is not known; give their bytes instead"
                    ),
                ));
            }
        };
        format.experts_only = method.contains("mxfp4");
        let lists = ["ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers"];
        format.ignored = lists
            .iter()
            .filter_map(|k| quant.get(*k).and_then(Value::as_array))
            .flatten()
            .filter_map(|v| v.as_str().map(str::to_lowercase))
            .collect();
        format.kv_cache = Self::kv_scheme(quant);
        format.method = if algorithm.is_empty() { method } else { format!("{method} {algorithm}") };
        Ok(format)
    }

    /// Bytes a parameter of the first group of `compressed-tensors`.
    fn compressed(quant: &Value) -> f64 {
        let weights = quant
            .get("config_groups")
            .and_then(Value::as_object)
            .and_then(|groups| groups.values().next())
            .and_then(|g| g.get("weights"));
        let number = |k: &str| weights.and_then(|w| w.get(k)).and_then(Value::as_f64);
        let bits = number("num_bits").unwrap_or(8.0);
        let float = weights.and_then(|w| w.get("type")).and_then(Value::as_str) == Some("float");
        let symmetric = weights.and_then(|w| w.get("symmetric")).and_then(Value::as_bool).unwrap_or(true);
        // Four-bit floats have 8-bit scales; integers have 16-bit ones and, unsymmetric, a packed zero point.
        let overhead = match (float && bits < 8.0, symmetric) {
            (true, _) => 1.0,
            (false, true) => 2.0,
            (false, false) => 2.0 + bits / 8.0,
        };
        bits / 8.0 + number("group_size").filter(|g| *g > 0.0).map_or(0.0, |g| overhead / g)
    }

    /// The KV cache that a checkpoint's quantization declares.
    fn kv_scheme(quant: &Value) -> Option<KvDtype> {
        let named = ["kv_cache_quant_algo", "kv_cache_quant_method"]
            .iter()
            .find_map(|k| quant.get(*k).and_then(Value::as_str))
            .and_then(KvDtype::parse);
        let scheme = quant.get("kv_cache_scheme").filter(|v| v.is_object());
        let eight_bits = scheme.is_some_and(|s| {
            s.get("num_bits").and_then(Value::as_u64) == Some(8)
                && s.get("type").and_then(Value::as_str).unwrap_or("float") == "float"
        });
        named.or(eight_bits.then_some(KvDtype::Fp8))
    }

    /// Bytes of a parameter of `part` in layer `layer`.
    pub fn bytes(&self, part: Part, layer: usize) -> f64 {
        let fragments: &[&str] = match part {
            Part::Embedding => return self.plain,
            Part::Attention => &["self_attn", "attention"],
            Part::State => &["linear_attn", "mamba", "conv"],
            Part::Dense => &["shared_expert", "mlp.down_proj", "mlp.gate_up_proj", "mlp.up_proj"],
            Part::Experts => &[".experts"],
        };
        if self.experts_only && part != Part::Experts {
            return self.plain;
        }
        let plain = self
            .ignored
            .iter()
            .any(|entry| fragments.iter().any(|f| entry.contains(f)) && Self::names_layer(entry, layer));
        if plain { self.plain } else { self.quantized }
    }

    /// Whether an entry of an ignore list speaks of `layer`, or of no layer in particular.
    fn names_layer(entry: &str, layer: usize) -> bool {
        let after =
            entry.split_once("layers.").or_else(|| entry.split_once("layers\\.")).map(|(_, rest)| rest);
        let digits = after.map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
        match digits.as_deref() {
            None | Some("") => true,
            Some(number) => number.parse() == Ok(layer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(quant: &Value) -> Result<WeightFormat> {
        let value = serde_json::json!({"quantization_config": quant});
        WeightFormat::read(&Config::new("c", &value).unwrap(), Dtype::Bfloat16)
    }

    #[test]
    fn methods_have_their_sizes() {
        let awq = read(&serde_json::json!({"quant_method": "awq", "bits": 4, "group_size": 128})).unwrap();
        assert!((awq.bytes(Part::Dense, 0) - (0.5 + 2.5 / 128.0)).abs() < 1e-12);
        let experts = read(&serde_json::json!({"quant_method": "mxfp4"})).unwrap();
        assert!((experts.bytes(Part::Experts, 0) - 0.531_25).abs() < 1e-12);
        assert!((experts.bytes(Part::Attention, 0) - 2.0).abs() < 1e-12);
        let packed = serde_json::json!({"quant_method": "compressed-tensors", "config_groups": {"group_0":
            {"weights": {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": true}}}});
        assert!((read(&packed).unwrap().bytes(Part::Experts, 0) - (0.5 + 2.0 / 32.0)).abs() < 1e-12);
    }

    #[test]
    fn ignored_modules_stay_plain_in_the_layers_they_name() {
        let format = read(&serde_json::json!({"quant_method": "fp8",
            "ignore": ["lm_head", "model.layers.3.self_attn.q_proj", "re:.*linear_attn.*"]}))
        .unwrap();
        assert!((format.bytes(Part::Attention, 3) - 2.0).abs() < 1e-12);
        assert!(format.bytes(Part::Attention, 30) < 1.1);
        assert!((format.bytes(Part::State, 7) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn an_unknown_method_is_refused() {
        assert!(read(&serde_json::json!({"quant_method": "tangled"})).is_err());
    }
}
