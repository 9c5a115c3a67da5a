//! inferometer: calibrate, simulate, cross-check and plan vLLM servers.

pub mod check;
pub mod costs;
pub mod engine;
pub mod error;
pub mod estimate;
pub mod fit;
pub mod matrix;
pub mod metrics;
pub mod profile;
pub mod record;
pub mod report;
pub mod rng;
pub mod shipped;
pub mod simulate;
pub mod traffic;
pub mod units;

#[cfg(feature = "cli")]
pub mod cli;
