//! The cost of the prompt tokens of a step, alone or beside decoding sequences.

use serde::{Deserialize, Serialize};

use super::decode::DecodeCosts;
use super::step::{Fs, StepCost, StepShape, fs_from_ns};

/// A fitted prefill cost.
///
/// A step that computes more tokens than the largest captured CUDA graph runs eagerly and costs
/// `eager_ms + token_us * n + attention_ps * sum(tokens x context)`, where a piece of t tokens behind c computed
/// ones attends to t (c + t / 2). A step below that size replays a graph, as a decode step does: its fixed cost
/// is the decode base, its tokens cost `graph_token_us`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefillCosts {
    /// Largest step, in tokens, that a captured graph runs. vLLM: `min(2 * max_num_seqs, 512)`.
    pub max_graph_tokens: u64,
    /// Fixed cost of a step above that size, milliseconds.
    pub eager_ms: f64,
    /// Per prompt token of such a step, microseconds.
    pub token_us: f64,
    /// Per prompt token of a step that a graph runs, microseconds.
    pub graph_token_us: f64,
    /// Per prompt token and token it attends to, picoseconds.
    pub attention_ps: f64,
}

impl PrefillCosts {
    /// Refuses numbers that do not describe a cost.
    ///
    /// # Errors
    /// A sentence that names the field.
    pub fn validate(&self) -> Result<(), String> {
        for (name, value) in [
            ("eager_ms", self.eager_ms),
            ("token_us", self.token_us),
            ("graph_token_us", self.graph_token_us),
            ("attention_ps", self.attention_ps),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(format!("{name}: {value} is not a finite number >= 0"));
            }
        }
        Ok(())
    }
}

/// The whole cost model of a replica.
#[derive(Clone, Debug, PartialEq)]
pub struct StepCosts {
    decode: DecodeCosts,
    prefill: PrefillCosts,
    max_num_seqs: u32,
    /// Coefficients in femtoseconds: (eager, token, graph token, attention).
    fs: [Fs; 4],
    /// The decode line of each batch size, so that a step looks one up instead of interpolating tables.
    lines: Vec<super::decode::Line>,
}

/// Batch sizes whose coefficients are kept; larger ones are computed when asked.
const KEPT_LINES: u32 = 1_024;

impl StepCosts {
    /// Joins a decode and a prefill cost. `max_num_seqs` decides which CUDA graphs exist.
    pub fn new(decode: DecodeCosts, prefill: PrefillCosts, max_num_seqs: u32) -> Self {
        let fs = [
            fs_from_ns(prefill.eager_ms * 1e6),
            fs_from_ns(prefill.token_us * 1e3),
            fs_from_ns(prefill.graph_token_us * 1e3),
            fs_from_ns(prefill.attention_ps * 1e-3),
        ];
        let lines = (0..=KEPT_LINES.min(max_num_seqs)).map(|b| decode.line(b, max_num_seqs)).collect();
        Self { decode, prefill, max_num_seqs, fs, lines }
    }

    fn line(&self, batch: u32) -> super::decode::Line {
        let kept = usize::try_from(batch).ok().and_then(|b| self.lines.get(b));
        kept.copied().unwrap_or_else(|| self.decode.line(batch, self.max_num_seqs))
    }
}

impl StepCost for StepCosts {
    fn step(&self, shape: &StepShape<'_>) -> Fs {
        let decode = self.line(shape.decode_seqs);
        if shape.prefill.is_empty() {
            return decode.step(shape.decode_resident);
        }
        let [eager, token, graph_token, attention] = self.fs;
        let tokens = shape.prefill_tokens();
        // Twice the area t (c + t / 2), so that it stays whole.
        let area: u64 = shape.prefill.iter().map(|p| p.tokens * (2 * p.computed_before + p.tokens)).sum();
        let reading = decode.step(shape.decode_resident) - decode.base;
        let fixed = if tokens + u64::from(shape.decode_seqs) > self.prefill.max_graph_tokens {
            eager + token * tokens
        } else {
            let pieces = u32::try_from(shape.prefill.len()).unwrap_or(u32::MAX);
            self.line(shape.decode_seqs.saturating_add(pieces)).base + graph_token * tokens
        };
        fixed + attention * area / 2 + reading
    }

    fn decode_run(&self, batch: u32, resident: u64, steps: u64) -> u128 {
        self.line(batch).run(batch, resident, steps)
    }
}

#[cfg(test)]
mod tests {
    use super::super::step::PrefillPiece;
    use super::*;

    fn costs() -> StepCosts {
        let decode =
            DecodeCosts { batch: vec![1, 8], base_ms: vec![3.0, 5.0], slope_ns: vec![5.0, 12.0], near: None };
        let prefill = PrefillCosts {
            max_graph_tokens: 512,
            eager_ms: 40.0,
            token_us: 5.0,
            graph_token_us: 1.0,
            attention_ps: 60.0,
        };
        StepCosts::new(decode, prefill, 256)
    }

    fn step(decode_seqs: u32, pieces: &[(u64, u64)]) -> Fs {
        let prefill: Vec<PrefillPiece> = pieces
            .iter()
            .map(|(tokens, computed_before)| PrefillPiece {
                tokens: *tokens,
                computed_before: *computed_before,
                finishes: true,
            })
            .collect();
        costs().step(&StepShape { decode_seqs, decode_resident: 1_000, prefill: &prefill })
    }

    #[test]
    fn a_run_of_one_is_a_step() {
        assert_eq!(u128::from(step(4, &[])), costs().decode_run(4, 1_000, 1));
    }

    #[test]
    fn steps_above_the_largest_graph_pay_the_eager_cost() {
        assert!(step(0, &[(513, 0)]) > step(0, &[(512, 0)]) + 30 * 1_000_000_000_000);
        assert!(step(1, &[(512, 0)]) > step(0, &[(512, 0)]) + 30 * 1_000_000_000_000);
    }

    #[test]
    fn more_work_never_costs_less() {
        assert!(step(2, &[(600, 100)]) <= step(2, &[(600, 200)]));
        assert!(step(2, &[(600, 100)]) <= step(2, &[(700, 100)]));
        assert!(step(2, &[(600, 100)]) <= step(2, &[(600, 100), (5, 0)]));
    }
}
