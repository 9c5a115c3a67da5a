//! inferometer: calibrate, simulate, cross-check and plan vLLM servers.

pub mod units;
