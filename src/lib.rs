//! inferometer: calibrate, simulate, cross-check and plan vLLM servers.

pub mod costs;
pub mod engine;
pub mod error;
pub mod metrics;
pub mod profile;
pub mod record;
pub mod simulate;
pub mod traffic;
pub mod units;
pub mod fit;
