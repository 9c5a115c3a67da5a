//! How long prompts and answers are.
//!
//! Knows laws of lengths and random streams. Knows no arrival and no engine.

use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::rng::Stream;
use crate::units::Tokens;

/// A law of lengths, in tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Length {
    /// Always the same.
    Fixed {
        /// The length.
        tokens: Tokens,
    },
    /// Every length from `min` to `max` alike.
    Uniform {
        /// The shortest.
        min: Tokens,
        /// The longest.
        max: Tokens,
    },
    /// The logarithm is normal. What would lie outside `min` to `max` takes the nearer end.
    LogNormal {
        /// The median of the law.
        median: f64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
        /// The shortest.
        #[serde(default = "one")]
        min: Tokens,
        /// The longest.
        max: Tokens,
    },
    /// A histogram: a bin by its weight, then every length in it alike.
    Histogram {
        /// The bins, ascending and apart.
        bins: Vec<Bin>,
    },
}

/// A bin of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bin {
    /// The shortest length in it.
    pub min: Tokens,
    /// The longest length in it.
    pub max: Tokens,
    /// How often, against the other bins.
    pub weight: f64,
}

const fn one() -> Tokens {
    1
}

/// Lengths beyond this are typing errors.
const LONGEST: Tokens = 1 << 40;

impl Length {
    /// Refuses laws without meaning; `field` is how errors name the law.
    ///
    /// # Errors
    /// An input error that names the field and its value.
    pub fn validate(&self, field: &str) -> Result<()> {
        let wrong = |key: &str, message: String| Err(Error::input(format!("{field}.{key}"), message));
        let range = |min: Tokens, max: Tokens| {
            if min == 0 {
                wrong("min", "must be positive, is 0".to_owned())
            } else if max < min || max > LONGEST {
                wrong("max", format!("must lie between min ({min}) and {LONGEST}, is {max}"))
            } else {
                Ok(())
            }
        };
        match self {
            Self::Fixed { tokens } if *tokens == 0 || *tokens > LONGEST => {
                wrong("tokens", format!("must lie between 1 and {LONGEST}, is {tokens}"))
            }
            Self::Fixed { .. } => Ok(()),
            Self::Uniform { min, max } => range(*min, *max),
            Self::LogNormal { median, sigma, min, max } => {
                if !(median.is_finite() && *median > 0.0) {
                    return wrong("median", format!("must be a positive number, is {median}"));
                }
                if !(sigma.is_finite() && *sigma >= 0.0) {
                    return wrong("sigma", format!("must be a number >= 0, is {sigma}"));
                }
                range(*min, *max)
            }
            Self::Histogram { bins } => {
                for (i, bin) in bins.iter().enumerate() {
                    range(bin.min, bin.max)?;
                    if !(bin.weight.is_finite() && bin.weight >= 0.0) {
                        return wrong(
                            &format!("bins[{i}].weight"),
                            format!("must be a number >= 0, is {}", bin.weight),
                        );
                    }
                    if i > 0 && bin.min <= bins[i - 1].max {
                        return wrong(
                            &format!("bins[{i}].min"),
                            "bins must ascend and not overlap".to_owned(),
                        );
                    }
                }
                if bins.iter().all(|b| b.weight == 0.0) {
                    return wrong("bins", "no bin has a weight".to_owned());
                }
                Ok(())
            }
        }
    }

    /// The histogram of observed lengths, in bins that grow by about an eighth.
    ///
    /// # Errors
    /// A usage error if there is no positive length.
    pub fn from_observed(lengths: impl IntoIterator<Item = Tokens>) -> Result<Self> {
        let mut lengths: Vec<Tokens> = lengths.into_iter().filter(|l| *l > 0).collect();
        lengths.sort_unstable();
        let Some(longest) = lengths.last().copied() else {
            return Err(Error::usage("a histogram needs at least one positive length"));
        };
        let mut bins = Vec::new();
        let mut min = lengths[0];
        while min <= longest {
            let max = (min + min / 8).min(longest);
            let weight = lengths.partition_point(|l| *l <= max) - lengths.partition_point(|l| *l < min);
            if weight > 0 {
                bins.push(Bin { min, max, weight: weight as f64 });
            }
            min = max + 1;
        }
        Ok(Self::Histogram { bins })
    }

    /// The length at normal deviate `z`: more for a larger one. This is how lengths are correlated.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive lengths; casts saturate"
    )]
    fn at(&self, z: f64) -> Tokens {
        match self {
            Self::Fixed { tokens } => *tokens,
            Self::Uniform { min, max } => within(*min, *max, normal_cdf(z)),
            Self::LogNormal { median, sigma, min, max } => {
                ((median * (sigma * z).exp()).round() as Tokens).clamp(*min, *max)
            }
            Self::Histogram { bins } => {
                let total: f64 = bins.iter().map(|b| b.weight).sum();
                let mut left = normal_cdf(z) * total;
                for bin in bins {
                    if left < bin.weight {
                        return within(bin.min, bin.max, left / bin.weight);
                    }
                    left -= bin.weight;
                }
                bins.iter().rev().find(|b| b.weight > 0.0).map_or(1, |b| b.max)
            }
        }
    }

    /// A length by itself.
    pub fn sample(&self, stream: &mut Stream) -> Tokens {
        self.at(StandardNormal.sample(stream))
    }

    /// Mean length, tokens.
    pub fn mean(&self) -> f64 {
        match self {
            Self::Fixed { tokens } => *tokens as f64,
            Self::Uniform { min, max } => 0.5 * (*min as f64 + *max as f64),
            Self::LogNormal { median, sigma, min, max } => {
                let (low, high) = (*min as f64, *max as f64);
                if *sigma == 0.0 {
                    return median.clamp(low, high);
                }
                let z = |x: f64| (x / median).ln() / sigma;
                let (a, b) = (z(low), z(high));
                let inside =
                    median * (0.5 * sigma * sigma).exp() * (normal_cdf(b - sigma) - normal_cdf(a - sigma));
                low * normal_cdf(a) + inside + high * (1.0 - normal_cdf(b))
            }
            Self::Histogram { bins } => {
                let total: f64 = bins.iter().map(|b| b.weight).sum();
                bins.iter().map(|b| b.weight * 0.5 * (b.min as f64 + b.max as f64)).sum::<f64>() / total
            }
        }
    }

    /// The longest length that can come.
    pub fn longest(&self) -> Tokens {
        match self {
            Self::Fixed { tokens } => *tokens,
            Self::Uniform { max, .. } | Self::LogNormal { max, .. } => *max,
            Self::Histogram { bins } => {
                bins.iter().filter(|b| b.weight > 0.0).map(|b| b.max).max().unwrap_or(0)
            }
        }
    }
}

/// The length at share `u` of the range, every length alike.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the share is not negative")]
fn within(min: Tokens, max: Tokens, u: f64) -> Tokens {
    (min + (u.max(0.0) * (max - min + 1) as f64) as Tokens).min(max)
}

/// The normal distribution function, to 7.5e-8 (Abramowitz and Stegun 26.2.17).
fn normal_cdf(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let series = t
        * (0.319_381_530
            + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-0.5 * z * z).exp() * 0.398_942_280_401_432_7 * series;
    if z < 0.0 { tail } else { 1.0 - tail }
}

/// Prompt and output together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lengths {
    /// Of the prompt.
    pub prompt: Length,
    /// Of the answer.
    pub output: Length,
    /// Correlation of the two normal deviates behind the lengths (a Gaussian copula), from -1 to 1.
    #[serde(default)]
    pub correlation: f64,
}

impl Lengths {
    /// Refuses laws without meaning.
    ///
    /// # Errors
    /// An input error that names the field and its value.
    pub fn validate(&self) -> Result<()> {
        self.prompt.validate("prompt")?;
        self.output.validate("output")?;
        if (-1.0..=1.0).contains(&self.correlation) {
            Ok(())
        } else {
            Err(Error::input("correlation", format!("must lie between -1 and 1, is {}", self.correlation)))
        }
    }

    /// Prompt and output of one request. Always takes two deviates, so changing one law does not move the other.
    pub fn sample(&self, stream: &mut Stream) -> (Tokens, Tokens) {
        let first: f64 = StandardNormal.sample(stream);
        let second: f64 = StandardNormal.sample(stream);
        let rest = (1.0 - self.correlation * self.correlation).max(0.0).sqrt();
        (self.prompt.at(first), self.output.at(self.correlation * first + rest * second))
    }
}
