//! The cost of a step in which every sequence decodes one token.
//!
//! `step(B, L) = base(B) + slope(B) * L [+ near(B) * min(L, span)]`, L = mean context of the batch.
//!
//! * `base` is a table, because kernel and graph selection make it non-smooth (batch 8 can be slower than 16).
//! * `slope` is the reading of the KV cache: latency-bound (flat in B) for small batches, bandwidth-bound
//!   (proportional to B) for large ones.
//! * `near` exists for attention that stops reading after `span` tokens (sparse or sliding-window attention).

use serde::{Deserialize, Serialize};

use super::graphs::padded_batch;
use super::step::{Fs, fs_from_ns};

/// A fitted decode cost. The tables are indexed by the position in `batch`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeCosts {
    /// Batch sizes of the table, ascending.
    pub batch: Vec<u32>,
    /// Step time at context zero, milliseconds.
    pub base_ms: Vec<f64>,
    /// Step time per token of mean context, nanoseconds.
    pub slope_ns: Vec<f64>,
    /// The part that saturates with context, if the model has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near: Option<NearAttention>,
}

/// KV reading that stops growing at `span_tokens` of context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NearAttention {
    /// Context at which it saturates, tokens.
    pub span_tokens: u64,
    /// Step time per token of mean context below the span, nanoseconds; one for each batch of the table.
    pub slope_ns: Vec<f64>,
}

/// The coefficients of one batch size, in femtoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Per step.
    pub(super) base: Fs,
    /// Per resident token (sum over the batch).
    pub(super) per_resident: Fs,
    /// Per resident token below the knee.
    pub(super) near_per_resident: Fs,
    /// Resident tokens at which the near part saturates.
    pub(super) knee: u64,
}

impl DecodeCosts {
    /// Refuses tables that do not describe a cost.
    ///
    /// # Errors
    /// A sentence that names the field.
    pub fn validate(&self) -> Result<(), String> {
        let n = self.batch.len();
        if n == 0 {
            return Err("batch: the table is empty".to_owned());
        }
        if self.batch[0] == 0 || self.batch.windows(2).any(|w| w[0] >= w[1]) {
            return Err("batch: sizes must be positive and ascending".to_owned());
        }
        let mut tables = vec![("base_ms", &self.base_ms), ("slope_ns", &self.slope_ns)];
        if let Some(near) = &self.near {
            tables.push(("near.slope_ns", &near.slope_ns));
            if near.span_tokens == 0 {
                return Err("near.span_tokens: must be positive".to_owned());
            }
        }
        for (name, table) in tables {
            if table.len() != n {
                return Err(format!("{name}: {} entries for {n} batch sizes", table.len()));
            }
            if let Some(bad) = table.iter().find(|v| !(v.is_finite() && **v >= 0.0)) {
                return Err(format!("{name}: {bad} is not a finite number >= 0"));
            }
        }
        if self.base_ms.iter().any(|v| *v <= 0.0) {
            return Err("base_ms: a step takes time".to_owned());
        }
        Ok(())
    }

    /// Step time in milliseconds, of `batch` sequences (before padding) with mean context `context`.
    pub fn step_ms(&self, batch: f64, context: f64) -> f64 {
        let near = self.near.as_ref().map_or(0.0, |near| {
            self.interpolate(&near.slope_ns, batch, true) * context.min(near.span_tokens as f64)
        });
        self.interpolate(&self.base_ms, batch, false)
            + 1e-6 * (self.interpolate(&self.slope_ns, batch, true) * context + near)
    }

    /// The coefficients for `batch` sequences, padded to a captured graph where one exists.
    pub(super) fn line(&self, batch: u32, max_num_seqs: u32) -> Line {
        let executed = f64::from(padded_batch(batch, max_num_seqs));
        let seqs = f64::from(batch.max(1));
        let (near, knee) = self.near.as_ref().map_or((0, u64::MAX), |near| {
            let slope = self.interpolate(&near.slope_ns, seqs, true) / seqs;
            (fs_from_ns(slope), near.span_tokens.saturating_mul(u64::from(batch)))
        });
        Line {
            base: fs_from_ns(self.interpolate(&self.base_ms, executed, false) * 1e6),
            per_resident: fs_from_ns(self.interpolate(&self.slope_ns, seqs, true) / seqs),
            near_per_resident: near,
            knee,
        }
    }

    /// A table's value at `batch`: linear between its entries. Below the first entry it is the first; above
    /// the last one, bandwidth-bound costs (`proportional`) grow with the batch, others along the last segment.
    fn interpolate(&self, table: &[f64], batch: f64, proportional: bool) -> f64 {
        let sizes: Vec<f64> = self.batch.iter().map(|b| f64::from(*b)).collect();
        let last = sizes.len() - 1;
        if batch <= sizes[0] {
            return table[0];
        }
        if batch >= sizes[last] {
            if proportional {
                return table[last] * batch / sizes[last];
            }
            let rise = if last == 0 {
                0.0
            } else {
                ((table[last] - table[last - 1]) / (sizes[last] - sizes[last - 1])).max(0.0)
            };
            return table[last] + rise * (batch - sizes[last]);
        }
        let i = sizes.partition_point(|b| *b <= batch);
        let share = (batch - sizes[i - 1]) / (sizes[i] - sizes[i - 1]);
        table[i - 1] + share * (table[i] - table[i - 1])
    }
}

impl Line {
    /// The cost of one step with `resident` tokens.
    pub(super) fn step(&self, resident: u64) -> Fs {
        self.base + self.per_resident * resident + self.near_per_resident * resident.min(self.knee)
    }

    /// The cost of `steps` steps whose resident tokens start at `resident` and grow by `batch` a step.
    pub(super) fn run(&self, batch: u32, resident: u64, steps: u64) -> u128 {
        let (n, b, r) = (u128::from(steps), u128::from(batch), u128::from(resident));
        let all = arithmetic_sum(r, b, n);
        // Steps whose resident tokens lie below the knee; the others cost the knee.
        let below = match self.knee.checked_sub(resident) {
            None | Some(0) => 0,
            Some(_) if batch == 0 => n,
            Some(room) => u128::from(room).div_ceil(b).min(n),
        };
        let near = arithmetic_sum(r, b, below) + (n - below) * u128::from(self.knee);
        u128::from(self.base) * n
            + u128::from(self.per_resident) * all
            + u128::from(self.near_per_resident) * near
    }
}

/// `first + (first + rise) + ...`, `terms` terms.
fn arithmetic_sum(first: u128, rise: u128, terms: u128) -> u128 {
    terms * first + rise * (terms * terms.saturating_sub(1) / 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn costs(near: Option<NearAttention>) -> DecodeCosts {
        DecodeCosts {
            batch: vec![1, 4, 8, 16],
            base_ms: vec![2.9, 3.9, 5.6, 5.1],
            slope_ns: vec![5.5, 5.9, 12.0, 23.0],
            near,
        }
    }

    proptest! {
        #[test]
        fn the_closed_form_equals_the_sum(batch in 1_u32..40, resident in 0_u64..300_000, steps in 0_u64..300,
                                          span in 1_u64..4_000, with_near: bool) {
            let near = with_near.then(|| NearAttention { span_tokens: span, slope_ns: vec![40.0, 41.0, 80.0, 170.0] });
            let line = costs(near).line(batch, 256);
            let sum: u128 = (0..steps).map(|i| u128::from(line.step(resident + i * u64::from(batch)))).sum();
            prop_assert_eq!(line.run(batch, resident, steps), sum);
        }

        #[test]
        fn more_context_never_costs_less(batch in 1_u32..40, a in 0_u64..100_000, b in 0_u64..100_000) {
            let line = costs(None).line(batch, 256);
            prop_assert!(line.step(a.max(b)) >= line.step(a.min(b)));
        }
    }

    #[test]
    fn the_table_may_fall_and_extends_beyond_its_ends() {
        let c = costs(None);
        assert!(c.step_ms(16.0, 0.0) < c.step_ms(8.0, 0.0));
        assert!((c.step_ms(0.5, 0.0) - 2.9).abs() < 1e-12);
        // The last segment falls; beyond the table a larger batch must not become free.
        assert!(c.step_ms(64.0, 0.0) >= c.step_ms(16.0, 0.0));
        assert!((c.step_ms(32.0, 1e6) - c.step_ms(32.0, 0.0) - 46.0).abs() < 1e-9);
    }
}
