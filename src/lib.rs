//! inferometer: calibrate, simulate, cross-check and plan vLLM servers.

pub mod costs;
pub mod engine;
pub mod error;
pub mod metrics;
pub mod record;
pub mod traffic;
pub mod units;
