//! When requests come: open-loop arrivals.
//!
//! Knows rates and random streams. Knows no engine and no request's size.

use rand_distr::{Distribution, Exp1, Gamma};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::rng::Stream;
use crate::units::{NANOS_PER_SEC, SimSpan, SimTime};

/// A law of arrivals. Rates are requests a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Arrivals {
    /// One request every 1/rate seconds, the first after that time.
    Constant {
        /// Requests a second.
        rate: f64,
    },
    /// Independent arrivals.
    Poisson {
        /// Requests a second.
        rate: f64,
    },
    /// Gamma-distributed gaps, as `vllm bench serve --burstiness`: shape `burstiness`, mean 1/rate. 1 is Poisson,
    /// less comes in bursts, more is steadier; the squared coefficient of variation is 1/burstiness.
    Gamma {
        /// Requests a second.
        rate: f64,
        /// The shape.
        burstiness: f64,
    },
    /// Poisson arrivals whose rate varies: straight lines between points, repeated with a period or held after the
    /// last point.
    Varying {
        /// The rate at given times, ascending from zero.
        points: Vec<RatePoint>,
        /// After this many seconds the points repeat.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        period_s: Option<f64>,
    },
}

/// The rate at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RatePoint {
    /// Seconds since the start, or since the start of the period.
    pub at_s: f64,
    /// Requests a second.
    pub rate: f64,
}

impl Arrivals {
    /// Refuses laws without meaning.
    ///
    /// # Errors
    /// An input error that names the field and its value.
    pub fn validate(&self) -> Result<()> {
        let positive = |field: &str, value: f64| {
            if value.is_finite() && value > 0.0 {
                Ok(())
            } else {
                Err(Error::input(
                    format!("arrivals.{field}"),
                    format!("must be a positive number, is {value}"),
                ))
            }
        };
        match self {
            Self::Constant { rate } | Self::Poisson { rate } => positive("rate", *rate),
            Self::Gamma { rate, burstiness } => {
                positive("rate", *rate)?;
                positive("burstiness", *burstiness)
            }
            Self::Varying { points, period_s } => validate_points(points, *period_s),
        }
    }

    /// Mean rate over the long run, requests a second.
    pub fn mean_rate(&self) -> f64 {
        match self {
            Self::Constant { rate } | Self::Poisson { rate } | Self::Gamma { rate, .. } => *rate,
            Self::Varying { points, period_s: None } => points.last().map_or(0.0, |p| p.rate),
            Self::Varying { points, period_s: Some(period) } => expected(points, 0.0, *period) / period,
        }
    }

    /// The arrivals, endless, drawn from `stream`.
    ///
    /// # Errors
    /// As [`Arrivals::validate`].
    pub fn times(&self, stream: Stream) -> Result<Times> {
        self.validate()?;
        let gap = match self {
            Self::Constant { rate } => Gap::Constant(1.0 / rate),
            Self::Poisson { rate } => Gap::Exponential(1.0 / rate),
            Self::Gamma { rate, burstiness } => {
                let law = Gamma::new(*burstiness, 1.0 / (rate * burstiness))
                    .map_err(|e| Error::input("arrivals.burstiness", e))?;
                Gap::Gamma(law)
            }
            Self::Varying { points, period_s } => {
                Gap::Varying { points: points.clone(), period_s: *period_s }
            }
        };
        Ok(Times { gap, stream, count: 0, seconds: 0.0, carry: 0 })
    }
}

fn validate_points(points: &[RatePoint], period_s: Option<f64>) -> Result<()> {
    let wrong = |field: &str, message: String| Err(Error::input(format!("arrivals.{field}"), message));
    let Some(first) = points.first() else { return wrong("points", "at least one is needed".to_owned()) };
    if first.at_s != 0.0 {
        return wrong("points[0].at_s", format!("the first point lies at 0, is {}", first.at_s));
    }
    for (i, point) in points.iter().enumerate() {
        if !(point.rate.is_finite() && point.rate >= 0.0) {
            return wrong(&format!("points[{i}].rate"), format!("must be a number >= 0, is {}", point.rate));
        }
        if !point.at_s.is_finite() || (i > 0 && point.at_s <= points[i - 1].at_s) {
            return wrong(&format!("points[{i}].at_s"), format!("times must ascend, is {}", point.at_s));
        }
    }
    let last = points[points.len() - 1];
    match period_s {
        Some(period) if !(period.is_finite() && period >= last.at_s && period > 0.0) => {
            wrong("period_s", format!("must be a number from the last point ({}) on, is {period}", last.at_s))
        }
        Some(_) if points.iter().all(|p| p.rate == 0.0) => wrong("points", "every rate is 0".to_owned()),
        None if last.rate == 0.0 => {
            wrong("points", "the last rate is 0 and holds for ever: give period_s, or a rate".to_owned())
        }
        _ => Ok(()),
    }
}

/// The rate at `t` seconds of a period; held after the last point.
fn rate_at(points: &[RatePoint], t: f64) -> f64 {
    let next = points.partition_point(|p| p.at_s <= t);
    if next == points.len() {
        return points[next - 1].rate;
    }
    let (a, b) = (points[next - 1], points[next]);
    a.rate + (b.rate - a.rate) * (t - a.at_s) / (b.at_s - a.at_s)
}

/// Arrivals expected from `from` to `to` seconds within a period.
fn expected(points: &[RatePoint], from: f64, to: f64) -> f64 {
    let mut cuts: Vec<f64> = points.iter().map(|p| p.at_s).filter(|t| *t > from && *t < to).collect();
    cuts.push(to);
    let mut sum = 0.0;
    let mut at = from;
    for cut in cuts {
        sum += 0.5 * (rate_at(points, at) + rate_at(points, cut)) * (cut - at);
        at = cut;
    }
    sum
}

/// Arrival times of a law, ascending and endless.
pub struct Times {
    gap: Gap,
    stream: Stream,
    count: u64,
    /// Since the start, for laws in seconds; whole seconds are kept apart in `carry`, so that resolution does not
    /// fade over long runs.
    seconds: f64,
    carry: u64,
}

enum Gap {
    Constant(f64),
    Exponential(f64),
    Gamma(Gamma<f64>),
    Varying { points: Vec<RatePoint>, period_s: Option<f64> },
}

impl Iterator for Times {
    type Item = SimTime;

    fn next(&mut self) -> Option<SimTime> {
        self.count += 1;
        let gap = match &self.gap {
            // Multiplied, not summed: constant arrivals do not drift.
            Gap::Constant(gap) => {
                let span = SimSpan::from_secs_f64(gap * self.count as f64);
                return Some(SimTime::ZERO + span);
            }
            Gap::Exponential(mean) => {
                let unit: f64 = Exp1.sample(&mut self.stream);
                mean * unit
            }
            Gap::Gamma(law) => law.sample(&mut self.stream),
            Gap::Varying { points, period_s } => {
                let unit: f64 = Exp1.sample(&mut self.stream);
                let now = self.carry as f64 + self.seconds;
                time_of(points, *period_s, now, unit) - now
            }
        };
        self.seconds += gap;
        let whole = self.seconds.floor();
        self.seconds -= whole;
        self.carry = self.carry.saturating_add(SimSpan::from_secs_f64(whole).as_nanos() / NANOS_PER_SEC);
        let fraction = SimSpan::from_secs_f64(self.seconds).as_nanos();
        Some(SimTime::from_nanos(self.carry.saturating_mul(NANOS_PER_SEC).saturating_add(fraction)))
    }
}

/// The time at which `more` further arrivals are expected after `now`: the inverse of the integrated rate turns
/// unit exponentials into arrivals of the varying law.
fn time_of(points: &[RatePoint], period_s: Option<f64>, now: f64, mut more: f64) -> f64 {
    let period = period_s.unwrap_or(f64::INFINITY);
    let mut start = if period.is_finite() { (now / period).floor() * period } else { 0.0 };
    let mut at = now - start;
    if period.is_finite() {
        let whole = expected(points, 0.0, period);
        let rest = expected(points, at, period);
        if more >= rest {
            more -= rest;
            let periods = (more / whole).floor();
            more -= periods * whole;
            start += period * (1.0 + periods);
            at = 0.0;
        }
    }
    loop {
        let next = points.partition_point(|p| p.at_s <= at);
        let end = points.get(next).map_or(period, |p| p.at_s.min(period));
        let (rate, length) = (rate_at(points, at), end - at);
        if length <= 0.0 {
            return start + period;
        }
        let slope =
            if length.is_finite() && next < points.len() { (points[next].rate - rate) / length } else { 0.0 };
        let area = if length.is_finite() { (rate + 0.5 * slope * length) * length } else { f64::INFINITY };
        if more < area {
            // rate * x + slope * x^2 / 2 = more, solved without cancellation.
            let root = (rate * rate + 2.0 * slope * more).max(0.0).sqrt();
            return start + at + (2.0 * more / (rate + root)).min(length);
        }
        more -= area;
        at = end;
    }
}
