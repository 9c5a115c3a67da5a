//! inferometer: calibrate, simulate, cross-check and plan vLLM servers.

pub mod costs;
pub mod error;
pub mod estimate;
pub mod metrics;
pub mod record;
pub mod rng;
pub mod traffic;
pub mod units;
