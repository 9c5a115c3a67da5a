//! The contract between the engine and a cost model.

/// Femtoseconds.
pub type Fs = u64;

/// Femtoseconds of `ns` nanoseconds, rounded; negative and NaN become zero, five hours are the limit.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
pub fn fs_from_ns(ns: f64) -> Fs {
    ((ns * 1e6).round() as u64).min(u64::MAX / 4)
}

/// A piece of a prompt that is computed in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillPiece {
    /// Tokens computed in this step.
    pub tokens: u64,
    /// Tokens of the same request that were in the KV cache before.
    pub computed_before: u64,
    /// Whether the prompt is complete after this step, so that a token is sampled.
    pub finishes: bool,
}

/// What a step computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepShape<'a> {
    /// Sequences that decode one token.
    pub decode_seqs: u32,
    /// Sum over them of their tokens in the KV cache.
    pub decode_resident: u64,
    /// Pieces of prompts.
    pub prefill: &'a [PrefillPiece],
}

impl StepShape<'_> {
    /// Tokens of all pieces of prompts.
    pub fn prefill_tokens(&self) -> u64 {
        self.prefill.iter().map(|p| p.tokens).sum()
    }
}

/// A cost model.
pub trait StepCost {
    /// The cost of one step.
    fn step(&self, shape: &StepShape<'_>) -> Fs;

    /// The cost of `steps` consecutive pure decode steps of `batch` sequences, whose resident tokens are
    /// `resident` at the first step and grow by `batch` a step. Equals the sum of [`StepCost::step`] exactly.
    fn decode_run(&self, batch: u32, resident: u64, steps: u64) -> u128;
}
