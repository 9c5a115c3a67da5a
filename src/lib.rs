//! inferometer: calibrate, simulate, cross-check and plan vLLM servers.

pub mod error;
pub mod record;
pub mod units;
