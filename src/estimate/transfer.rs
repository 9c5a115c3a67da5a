//! From a calibrated cost on one setup to an expected cost on another: each term by the resource that bounds it.
//!
//! Knows two setups of one model. Knows no measurement on the second: every term that it returns is extrapolated,
//! and its interval spans what the candidates for the bounding resource would give.

use super::arch::Architecture;
use super::gpu::Gpu;
use super::kv::KvOptions;
use super::roofline::{Efficiency, Resource, RooflineCost};
use crate::costs::DecodeCosts;
use crate::error::{Error, Result};

/// A model on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The model, with the format of its weights.
    pub model: &'a Architecture,
    /// The GPU.
    pub gpu: &'a Gpu,
    /// Ranks and cache format.
    pub options: &'a KvOptions,
}

/// How one term changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// The term: `base` and the batch, `slope`, `near`, `prompt token`, `prompt attention`.
    pub name: String,
    /// What bounds it on the new setup.
    pub bound_by: Resource,
    /// New over old.
    pub factor: f64,
    /// The smallest that any candidate resource gives.
    pub low: f64,
    /// The largest.
    pub high: f64,
}

/// A transferred cost.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The decode cost on the new setup.
    pub decode: DecodeCosts,
    /// What was done to every term: all are extrapolated.
    pub terms: Vec<Term>,
}

impl Transfer {
    /// Takes the decode cost that was fitted on `from` to `to`.
    ///
    /// # Errors
    /// An undetermined error where a term exists in the fit but not in the model's roofline, so that nothing says
    /// how it scales.
    pub fn new(fitted: &DecodeCosts, from: Setup<'_>, to: Setup<'_>) -> Result<Self> {
        let cost = |s: Setup<'_>| RooflineCost::new(s.model, s.gpu, s.options, &Efficiency::default());
        let (old, new) = (cost(from), cost(to));
        let ratios = Ratios {
            bandwidth: from.gpu.bandwidth_gb_s / to.gpu.bandwidth_gb_s,
            arithmetic: from.gpu.bf16_tflops / to.gpu.bf16_tflops,
        };
        let mut terms = Vec::new();
        let mut decode = fitted.clone();
        for (batch, base) in fitted.batch.iter().zip(&mut decode.base_ms) {
            let size = f64::from(*batch);
            let factor = new.decode_base_ns(size) / old.decode_base_ns(size);
            let half_fixed = 2.0 * new.decode_fixed_ns() > new.decode_base_ns(size);
            let bound_by = if half_fixed { Resource::Fixed } else { new.products_bound(size) };
            terms.push(ratios.term(format!("base {batch}"), bound_by, factor, true));
            *base *= factor;
        }
        let ((old_full, old_near), (new_full, new_near)) = (old.read_ns(), new.read_ns());
        let slope = quotient("slope", new_full, old_full)?;
        terms.push(ratios.term("slope".to_owned(), Resource::Bandwidth, slope, false));
        for value in &mut decode.slope_ns {
            *value *= slope;
        }
        if let Some(near) = &mut decode.near {
            let factor = quotient("near", new_near, old_near)?;
            terms.push(ratios.term("near".to_owned(), Resource::Bandwidth, factor, false));
            for value in &mut near.slope_ns {
                *value *= factor;
            }
        }
        let ((old_token, old_pair), (new_token, new_pair)) = (old.prompt_ns(), new.prompt_ns());
        terms.push(ratios.term(
            "prompt token".to_owned(),
            Resource::Arithmetic,
            new_token / old_token,
            false,
        ));
        if old_pair > 0.0 {
            terms.push(ratios.term(
                "prompt attention".to_owned(),
                Resource::Arithmetic,
                new_pair / old_pair,
                false,
            ));
        }
        Ok(Self { decode, terms })
    }
}

fn quotient(term: &str, new: f64, old: f64) -> Result<f64> {
    if old > 0.0 {
        Ok(new / old)
    } else {
        let message = format!(
            "{term}: the fit has this term, the model's architecture does not: it cannot be transferred"
        );
        Err(Error::undetermined(message))
    }
}

/// Old over new of each resource.
struct Ratios {
    bandwidth: f64,
    arithmetic: f64,
}

impl Ratios {
    /// A term with the interval that spans its own factor, and how either resource alone, or for terms with a
    /// `fixed` part none, would scale it.
    fn term(&self, name: String, bound_by: Resource, factor: f64, fixed: bool) -> Term {
        let mut candidates = vec![factor, self.bandwidth, self.arithmetic];
        if fixed {
            // Half way to unchanged: a step is never launches alone.
            candidates.push(0.5 * (1.0 + factor));
        }
        let low = candidates.iter().copied().fold(f64::INFINITY, f64::min);
        let high = candidates.iter().copied().fold(0.0, f64::max);
        Term { name, bound_by, factor, low, high }
    }
}
