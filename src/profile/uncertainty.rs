//! How far a profile's predictions can be trusted.

use serde::{Deserialize, Serialize};

use crate::costs::DecodeCosts;

/// Spreads (one standard deviation) of what the fit learnt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uncertainty {
    /// Noise of one measured throughput, relative.
    pub noise: f64,
    /// Relative error of a base between two entries of its table, at the middle between them.
    pub between_batches: f64,
    /// Natural logarithm of the factor by which a TTFT is off. Missing: no TTFT was given to the fit, and none
    /// is predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_log: Option<f64>,
    /// Relative error of a prefill row inside the fitted lengths. Missing: as `ttft_log`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<f64>,
    /// Of the decode table, entry by entry.
    pub decode: Vec<DecodeSpread>,
}

/// The posterior of one batch size's line `base + slope x context`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeSpread {
    /// Standard deviation of the base, milliseconds.
    pub base_ms: f64,
    /// Standard deviation of the slope, nanoseconds per token of mean context.
    pub slope_ns: f64,
    /// Correlation of the two.
    pub correlation: f64,
}

impl DecodeSpread {
    /// Standard deviation of the step time at `context`, milliseconds.
    fn step_ms(&self, context: f64) -> f64 {
        let slope = self.slope_ns * context * 1e-6;
        let variance =
            self.base_ms * self.base_ms + slope * slope + 2.0 * self.correlation * self.base_ms * slope;
        variance.max(0.0).sqrt()
    }
}

impl Uncertainty {
    /// Refuses spreads without meaning; `entries` is the length of the decode table.
    ///
    /// # Errors
    /// A sentence that names the field.
    pub fn validate(&self, entries: usize) -> Result<(), String> {
        if self.decode.len() != entries {
            return Err(format!("decode: {} entries for {entries} batch sizes", self.decode.len()));
        }
        let spreads = [
            ("noise", Some(self.noise)),
            ("between_batches", Some(self.between_batches)),
            ("ttft_log", self.ttft_log),
            ("prefill", self.prefill),
        ];
        for (name, value) in spreads {
            if value.is_some_and(|v| !(v.is_finite() && v >= 0.0)) {
                return Err(format!("{name}: not a finite number >= 0"));
            }
        }
        let bad = |d: &DecodeSpread| {
            !(d.base_ms.is_finite() && d.base_ms >= 0.0 && d.slope_ns.is_finite() && d.slope_ns >= 0.0)
                || !(-1.0..=1.0).contains(&d.correlation)
        };
        match self.decode.iter().position(bad) {
            Some(i) => Err(format!("decode[{i}]: spreads must be >= 0 and the correlation within -1..=1")),
            None => Ok(()),
        }
    }

    /// Relative standard deviation of a predicted step of `batch` sequences at mean context `context`: the
    /// posterior of the table's neighbours, the noise of one measurement, and the roughness of the table where
    /// the batch lies between or beyond its entries.
    pub fn decode_spread(&self, costs: &DecodeCosts, batch: u32, context: f64) -> f64 {
        let above = costs.batch.partition_point(|b| *b < batch);
        let step = costs.step_ms(f64::from(batch), context);
        let at = |i: usize| {
            let own = costs.step_ms(f64::from(costs.batch[i]), context);
            self.decode[i].step_ms(context) / own
        };
        let last = costs.batch.len() - 1;
        let (fitted, off_table) = if above > last {
            let octaves = (f64::from(batch) / f64::from(costs.batch[last])).log2();
            (at(last), self.between_batches * (1.0 + octaves))
        } else if costs.batch[above] == batch || above == 0 {
            (at(above), if costs.batch[above] == batch { 0.0 } else { self.between_batches })
        } else {
            let (lo, hi) = (f64::from(costs.batch[above - 1]), f64::from(costs.batch[above]));
            let share = (f64::from(batch) - lo) / (hi - lo);
            (at(above - 1).max(at(above)), self.between_batches * 4.0 * share * (1.0 - share))
        };
        // The roughness is one of the base, so it matters less where reading the KV cache dominates.
        let base_share = costs.step_ms(f64::from(batch), 0.0) / step;
        fitted.hypot(self.noise).hypot(off_table * base_share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_point_is_sharper_than_a_distant_one() {
        let costs =
            DecodeCosts { batch: vec![1, 4], base_ms: vec![3.0, 4.0], slope_ns: vec![5.0, 6.0], near: None };
        // Fitted at 8K with 0.3 %: base and slope move against each other.
        let slope = 0.5;
        let base = slope * 8_192e-6;
        let spread = DecodeSpread { base_ms: base, slope_ns: slope, correlation: -1.0 };
        let u = Uncertainty {
            noise: 0.003,
            between_batches: 0.05,
            ttft_log: None,
            prefill: None,
            decode: vec![spread; 2],
        };
        u.validate(2).unwrap();
        let near = u.decode_spread(&costs, 1, 8_192.0);
        let far = u.decode_spread(&costs, 1, 131_072.0);
        assert!((near - 0.003).abs() < 1e-6 && far > 0.01, "{near} {far}");
        assert!(u.decode_spread(&costs, 2, 8_192.0) > near);
        assert!(u.decode_spread(&costs, 64, 8_192.0) > u.decode_spread(&costs, 8, 8_192.0));
    }
}
