//! Number formats of weights, activations and the KV cache, and their sizes.
//!
//! Knows bytes. Knows no model and no GPU.

use serde::{Deserialize, Serialize};

/// The format in which a model computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// IEEE half precision.
    Float16,
    /// Brain floating point.
    Bfloat16,
    /// IEEE single precision.
    Float32,
}

impl Dtype {
    /// Parses a name of `PyTorch` (`torch.bfloat16`, `half`).
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim_start_matches("torch.").to_lowercase().as_str() {
            "float16" | "fp16" | "half" => Some(Self::Float16),
            "bfloat16" | "bf16" => Some(Self::Bfloat16),
            "float32" | "fp32" | "float" => Some(Self::Float32),
            _ => None,
        }
    }

    /// Bytes of one number.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Float32 => 4,
        }
    }
}

/// The format of the KV cache, by vLLM's names of `--kv-cache-dtype`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvDtype {
    /// What the checkpoint asks for, else the model's own format.
    #[default]
    Auto,
    /// Half precision.
    Float16,
    /// Brain floating point.
    Bfloat16,
    /// Eight bits, one scale a tensor.
    Fp8,
    /// The packed form of sparse MLA: 656 bytes a token and layer.
    Fp8DsMla,
    /// Eight bits with a 32-bit scale a token and head.
    Fp8PerTokenHead,
    /// Four bits with an 8-bit scale for 16 numbers.
    Nvfp4,
}

impl KvDtype {
    /// Parses a value of `--kv-cache-dtype`.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text.to_lowercase().as_str() {
            "auto" => Self::Auto,
            "float16" | "half" => Self::Float16,
            "bfloat16" => Self::Bfloat16,
            "fp8" | "fp8_e4m3" | "fp8_e5m2" | "fp8_inc" => Self::Fp8,
            "fp8_ds_mla" => Self::Fp8DsMla,
            "fp8_per_token_head" | "int8_per_token_head" => Self::Fp8PerTokenHead,
            "nvfp4" => Self::Nvfp4,
            _ => return None,
        })
    }

    /// Bytes of `numbers` numbers of one head and token, scales included; `model` stands for `auto`.
    pub const fn head_bytes(self, numbers: u64, model: Dtype) -> u64 {
        match self {
            Self::Auto => numbers * model.bytes(),
            Self::Float16 | Self::Bfloat16 => numbers * 2,
            Self::Fp8 | Self::Fp8DsMla => numbers,
            Self::Fp8PerTokenHead => numbers + 4,
            Self::Nvfp4 => numbers / 2 + numbers / 16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_known_by_vllms_names() {
        assert_eq!(Dtype::parse("torch.bfloat16"), Some(Dtype::Bfloat16));
        assert_eq!(KvDtype::parse("fp8_e4m3"), Some(KvDtype::Fp8));
        assert_eq!(KvDtype::parse("int3"), None);
        assert_eq!(KvDtype::Nvfp4.head_bytes(128, Dtype::Bfloat16), 72);
    }
}
