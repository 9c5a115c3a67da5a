//! Numbers that carry their trust: estimates with intervals, errors with their population.
//!
//! Knows no source of numbers: no engine, no file, no server.

use serde::{Deserialize, Serialize};

/// A value with its 90 % interval: the truth is expected inside `low..=high` nine times out of ten.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The best single value.
    pub value: f64,
    /// 5 % of the probability lies below.
    pub low: f64,
    /// 5 % of the probability lies above.
    pub high: f64,
}

impl Estimate {
    /// A value whose interval is the smallest one that holds `value` and all of `others`.
    pub fn spanning(value: f64, others: &[f64]) -> Self {
        let low = others.iter().copied().fold(value, f64::min);
        let high = others.iter().copied().fold(value, f64::max);
        Self { value, low, high }
    }

    /// Widened on both sides by `relative` of the value, in quadrature with what the interval has.
    #[must_use]
    pub fn widened(self, relative: f64) -> Self {
        let noise = relative * self.value.abs();
        let below = (self.value - self.low).hypot(noise);
        let above = (self.high - self.value).hypot(noise);
        Self { value: self.value, low: (self.value - below).max(0.0), high: self.value + above }
    }

    /// Widened by the factor `exp(+-spread)`, in quadrature on the logarithmic scale: for times, whose errors
    /// are factors.
    #[must_use]
    pub fn widened_log(self, spread: f64) -> Self {
        if self.value <= 0.0 || self.low <= 0.0 {
            return self.widened(spread);
        }
        let below = (self.value / self.low).ln().hypot(spread);
        let above = (self.high / self.value).ln().hypot(spread);
        Self { value: self.value, low: self.value * (-below).exp(), high: self.value * above.exp() }
    }

    /// Rounded outward to whole numbers; for counts.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { value: self.value, low: self.low.floor(), high: self.high.ceil() }
    }

    /// Whether `x` lies inside the interval.
    pub fn covers(&self, x: f64) -> bool {
        (self.low..=self.high).contains(&x)
    }
}

/// The standard normal quantile of 95 %: half-width of a 90 % interval in standard deviations.
pub const Z_90: f64 = 1.644_853_626_951_472_2;

/// A quantile of values by linear interpolation between order statistics (`k = (n - 1) p`). `None` of nothing.
pub fn quantile(values: &mut [f64], p: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    let k = p.clamp(0.0, 1.0) * last as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 <= k <= last")]
    let below = k.floor() as usize;
    let above = (below + 1).min(last);
    Some(values[below] + (k - below as f64) * (values[above] - values[below]))
}

/// How far predictions of a column are off, over the cells that have both numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ErrorSummary {
    /// Mean absolute error, percent of the measured value.
    pub mape: f64,
    /// Median absolute error, percent.
    pub median_ape: f64,
    /// 90th percentile of the absolute error, percent.
    pub p90_ape: f64,
    /// Largest absolute error, percent.
    pub max_ape: f64,
    /// Cells.
    pub n: usize,
}

impl ErrorSummary {
    /// Summarises signed errors in percent. `None` of nothing.
    pub fn of(errors_percent: &[f64]) -> Option<Self> {
        let mut abs: Vec<f64> = errors_percent.iter().map(|e| e.abs()).collect();
        let n = abs.len();
        let mape = abs.iter().sum::<f64>() / n as f64;
        Some(Self {
            median_ape: quantile(&mut abs, 0.5)?,
            p90_ape: quantile(&mut abs, 0.9)?,
            max_ape: quantile(&mut abs, 1.0)?,
            mape,
            n,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&mut [4.0, 1.0, 3.0, 2.0], 0.5), Some(2.5));
        assert_eq!(quantile(&mut [7.0], 0.9), Some(7.0));
        assert_eq!(quantile(&mut [], 0.5), None);
    }

    #[test]
    fn intervals_only_grow() {
        let e = Estimate::spanning(10.0, &[9.0, 12.0]);
        assert_eq!((e.low, e.high), (9.0, 12.0));
        let w = e.widened(0.1);
        assert!(w.low < e.low && w.high > e.high && w.covers(12.0) && !e.covers(12.1));
        let l = e.widened_log(0.2);
        assert!(l.low < e.low && l.high > e.high);
    }

    #[test]
    fn error_summaries_name_their_population() {
        assert_eq!(ErrorSummary::of(&[]), None);
        let s = ErrorSummary::of(&[-1.0, 3.0]).unwrap();
        assert_eq!((s.mape, s.max_ape, s.n), (2.0, 3.0, 2));
    }
}
