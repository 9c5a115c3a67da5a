//! The catalogue of GPUs: memory, bandwidth, arithmetic, interconnect, each with its source.
//!
//! Knows data sheets. Knows no model.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::error::{Error, Result};

const CATALOGUE: &str = include_str!("gpus.toml");

/// One entry of the catalogue. Arithmetic is dense (no sparsity) with 32-bit accumulation.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Its name here.
    pub name: String,
    /// Other names, among them the one that the driver reports.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Nominal memory, gigabytes.
    pub memory_gb: f64,
    /// Total memory as the driver reports it, GiB: what `gpu_memory_utilization` is a share of.
    pub visible_gib: f64,
    /// Memory bandwidth, gigabytes a second.
    pub bandwidth_gb_s: f64,
    /// 16-bit floats, teraflops.
    pub bf16_tflops: f64,
    /// 8-bit floats, teraflops, where the hardware has them.
    #[serde(default)]
    pub fp8_tflops: Option<f64>,
    /// 4-bit floats, teraflops, where the hardware has them.
    #[serde(default)]
    pub fp4_tflops: Option<f64>,
    /// 8-bit integers, tera-operations.
    #[serde(default)]
    pub int8_tops: Option<f64>,
    /// What connects it to its neighbours.
    pub interconnect: String,
    /// Both directions together, gigabytes a second for each GPU.
    pub interconnect_gb_s: f64,
    /// The maker's document.
    pub source: String,
    /// A page whose figures were compared with these, if there is one.
    #[serde(default)]
    pub checked: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalogue {
    gpu: Vec<Gpu>,
}

static GPUS: LazyLock<Vec<Gpu>> =
    LazyLock::new(|| toml::from_str::<Catalogue>(CATALOGUE).expect("the catalogue is checked by a test").gpu);

impl Gpu {
    /// All entries.
    pub fn all() -> &'static [Gpu] {
        &GPUS
    }

    /// The entry of that name or alias; case, spaces, hyphens and underscores do not matter.
    ///
    /// # Errors
    /// A usage error that lists the names.
    pub fn find(name: &str) -> Result<&'static Gpu> {
        let plain = |text: &str| -> String {
            text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
        };
        let wanted = plain(name);
        Self::all()
            .iter()
            .find(|g| plain(&g.name) == wanted || g.aliases.iter().any(|a| plain(a) == wanted))
            .ok_or_else(|| {
                let names: Vec<&str> = Self::all().iter().map(|g| g.name.as_str()).collect();
                Error::usage(format!("GPU {name:?} is not in the catalogue; known are {}", names.join(", ")))
            })
    }

    /// Total memory as the driver reports it, bytes.
    pub fn visible_bytes(&self) -> f64 {
        self.visible_gib * f64::from(1 << 30)
    }

    /// The defaults of vLLM's server on this GPU: (`max_num_batched_tokens`, `max_num_seqs`)
    /// (`vllm/engine/arg_utils.py`).
    pub fn server_defaults(&self) -> (u64, u64) {
        match self.visible_gib {
            gib if gib >= 160.0 && !self.name.starts_with("MI") => (16_384, 1024),
            gib if gib >= 70.0 && !self.name.starts_with("A100") => (8192, 1024),
            _ => (2048, 256),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_is_complete_and_plausible() {
        for name in [
            "A100",
            "L40S",
            "H100 SXM",
            "H100 PCIe",
            "H100 NVL",
            "H200 SXM",
            "H200 NVL",
            "B200",
            "B300",
            "GH200",
            "MI300X",
            "MI325X",
            "RTX 4090",
            "RTX 5090",
            "RTX PRO 6000",
        ] {
            let gpu = Gpu::find(name).unwrap();
            let nominal_gib = gpu.memory_gb * 1e9 / f64::from(1 << 30);
            assert!(gpu.visible_gib > 0.85 * nominal_gib && gpu.visible_gib < 1.08 * nominal_gib, "{name}");
            assert!(gpu.bandwidth_gb_s > 500.0 && gpu.bf16_tflops > 100.0 && gpu.interconnect_gb_s >= 64.0);
            assert!(
                gpu.fp8_tflops.is_none_or(|f| f > 1.9 * gpu.bf16_tflops && f < 2.1 * gpu.bf16_tflops),
                "{name}"
            );
            assert!(gpu.source.starts_with("https://"), "{name}");
        }
    }

    #[test]
    fn names_are_found_as_the_driver_reports_them() {
        assert_eq!(Gpu::find("NVIDIA H100 80GB HBM3").unwrap().name, "H100-SXM");
        assert_eq!(Gpu::find("h200_nvl").unwrap().name, "H200-NVL");
        assert!(Gpu::find("Voodoo 2").unwrap_err().to_string().contains("H100-SXM"));
    }

    #[test]
    fn defaults_depend_on_memory() {
        let defaults = |name| Gpu::find(name).unwrap().server_defaults();
        assert_eq!(defaults("H100"), (8192, 1024));
        assert_eq!(defaults("A100"), (2048, 256));
        assert_eq!(defaults("B200"), (16_384, 1024));
        assert_eq!(defaults("MI300X"), (8192, 1024));
        assert_eq!(defaults("RTX 4090"), (2048, 256));
    }
}
