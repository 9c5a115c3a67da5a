//! How long a step takes: batch shape in, span out.
//!
//! Knows batch sizes, tokens and bytes' shadows (slopes per token); knows no request, no queue, no clock
//! and no traffic. Costs are evaluated in whole femtoseconds, so that the closed form for many decode
//! steps equals their sum to the last digit.

mod decode;
mod graphs;
mod prefill;
mod step;

pub use decode::{DecodeCosts, NearAttention};
pub use graphs::padded_batch;
pub use prefill::{PrefillCosts, StepCosts};
pub use step::{Fs, PrefillPiece, StepCost, StepShape, fs_from_ns};
