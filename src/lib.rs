//! inferometer: calibrate, simulate, cross-check and plan vLLM servers.

pub mod costs;
pub mod error;
pub mod record;
pub mod units;
