//! Quantities of the model: simulated time and spans, tokens, KV blocks.
//!
//! Time is counted in whole nanoseconds, so two runs with the same inputs agree to the last bit.
//! Knows nothing of clocks, costs or requests. Arithmetic that would leave the range panics in every
//! build: a simulated time that wraps is a wrong answer.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// Nanoseconds in a second.
pub const NANOS_PER_SEC: u64 = 1_000_000_000;

/// An instant of simulated time, in nanoseconds since the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SimTime(u64);

/// A span of simulated time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SimSpan(u64);

impl SimTime {
    /// The start of the run.
    pub const ZERO: Self = Self(0);
    /// Later than every event.
    pub const NEVER: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the start, rounded to the nearest `f64`.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / NANOS_PER_SEC as f64
    }

    /// The span from `earlier` to `self`.
    ///
    /// # Panics
    /// If `earlier` is later than `self`.
    pub fn since(self, earlier: Self) -> SimSpan {
        SimSpan(self.0.checked_sub(earlier.0).expect("an instant is not before its cause"))
    }
}

impl SimSpan {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A span of `nanos` nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A span of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// A span of `secs` seconds, rounded to the nearest nanosecond; negative and NaN become zero,
    /// and spans over 500 years are cut there.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    pub fn from_secs_f64(secs: f64) -> Self {
        Self(((secs * NANOS_PER_SEC as f64).round() as u64).min(u64::MAX / 2))
    }

    /// Whole nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds, rounded to the nearest `f64`.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / NANOS_PER_SEC as f64
    }

    /// Milliseconds, rounded to the nearest `f64`.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl Add<SimSpan> for SimTime {
    type Output = Self;
    fn add(self, span: SimSpan) -> Self {
        Self(self.0.checked_add(span.0).expect("simulated time stays within 584 years"))
    }
}

impl AddAssign<SimSpan> for SimTime {
    fn add_assign(&mut self, span: SimSpan) {
        *self = *self + span;
    }
}

impl Add for SimSpan {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.checked_add(other.0).expect("simulated spans stay within 584 years"))
    }
}

impl Sub for SimSpan {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.checked_sub(other.0).expect("a span is not negative"))
    }
}

impl fmt::Display for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&SimSpan(self.0), f)
    }
}

impl fmt::Display for SimSpan {
    /// Three significant places in the largest unit that keeps the number at or above one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            0..1_000 => format!("{} ns", self.0),
            1_000..1_000_000 => format!("{:.1} us", self.0 as f64 / 1e3),
            1_000_000..NANOS_PER_SEC => format!("{:.1} ms", self.0 as f64 / 1e6),
            _ => format!("{:.3} s", self.as_secs_f64()),
        };
        f.pad(&text)
    }
}

/// A number of tokens.
pub type Tokens = u64;

/// A number of KV-cache blocks.
pub type Blocks = u32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_the_unit() {
        assert_eq!(SimSpan::from_nanos(12).to_string(), "12 ns");
        assert_eq!(SimSpan::from_nanos(4_500).to_string(), "4.5 us");
        assert_eq!(SimSpan::from_secs_f64(0.0125).to_string(), "12.5 ms");
        assert_eq!(SimTime::from_nanos(1_500_000_000).to_string(), "1.500 s");
    }

    #[test]
    fn seconds_round_to_the_nearest_nanosecond() {
        assert_eq!(SimSpan::from_secs_f64(1e-9 * 2.6).as_nanos(), 3);
        assert_eq!(SimSpan::from_secs_f64(-1.0), SimSpan::ZERO);
        assert_eq!(SimSpan::from_secs_f64(f64::NAN), SimSpan::ZERO);
    }
}
