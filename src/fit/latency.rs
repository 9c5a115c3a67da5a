//! Front end and prefill from times to first token, on the simulated protocol itself.

use rayon::prelude::*;

use super::observe::Observations;
use super::solve::{huber, minimise};
use crate::costs::PrefillCosts;
use crate::error::Result;
use crate::profile::{FrontEnd, Profile};
use crate::simulate::{CellRequest, Options, simulate_cell, simulate_prefill};
use crate::units::SimSpan;

/// The fitted constants, in this order, as natural logarithms.
const NAMES: [&str; 7] = [
    "front_end.serial_us_per_token",
    "front_end.latency_ms",
    "front_end.latency_us_per_token",
    "front_end.launch_delay_ms",
    "costs.prefill.eager_ms",
    "costs.prefill.token_us",
    "costs.prefill.attention_ps",
];

/// Centres and spreads (natural logarithm) of the priors: orders of magnitude of a tokeniser (a million tokens a
/// second), of an HTTP round trip through an API server, of a new connection, of an eager step of a model with some
/// tens of layers, of a prefill at some hundred thousand tokens a second.
const PRIOR: [(f64, f64); 7] =
    [(1.0, 1.0), (10.0, 0.7), (0.5, 1.0), (50.0, 1.0), (30.0, 1.0), (10.0, 2.0), (50.0, 2.0)];

/// Standard deviations (natural logarithm) that residuals are measured in: a single TTFT, a prefill row, the median of
/// a loaded cell.
const SIGMA_WARM: f64 = 0.05;
const SIGMA_PREFILL: f64 = 0.04;
const SIGMA_LOADED: f64 = 0.08;

/// Spreads below these are luck.
const TTFT_FLOOR: f64 = 0.08;
const PREFILL_FLOOR: f64 = 0.04;

pub(super) fn prior_front_end() -> FrontEnd {
    FrontEnd {
        serial_ms: 0.0,
        serial_us_per_token: PRIOR[0].0,
        latency_ms: PRIOR[1].0,
        latency_us_per_token: PRIOR[2].0,
        launch_delay_ms: PRIOR[3].0,
    }
}

pub(super) fn prior_prefill() -> PrefillCosts {
    PrefillCosts {
        max_graph_tokens: 512,
        eager_ms: PRIOR[4].0,
        token_us: PRIOR[5].0,
        graph_token_us: 0.0,
        attention_ps: PRIOR[6].0,
    }
}

fn read(profile: &Profile) -> Vec<f64> {
    let (f, p) = (&profile.front_end, &profile.costs.prefill);
    [
        f.serial_us_per_token,
        f.latency_ms,
        f.latency_us_per_token,
        f.launch_delay_ms,
        p.eager_ms,
        p.token_us,
        p.attention_ps,
    ]
    .iter()
    .map(|v| v.max(1e-9).ln())
    .collect()
}

fn write(profile: &mut Profile, logs: &[f64]) {
    let v: Vec<f64> = logs.iter().map(|l| l.exp()).collect();
    let (f, p) = (&mut profile.front_end, &mut profile.costs.prefill);
    f.serial_us_per_token = v[0];
    f.latency_ms = v[1];
    f.latency_us_per_token = v[2];
    f.launch_delay_ms = v[3];
    p.eager_ms = v[4];
    p.token_us = v[5];
    p.attention_ps = v[6];
}

/// One thing to reproduce.
#[derive(Clone, Copy, Debug)]
struct Aim {
    context_tokens: u64,
    /// Zero: a cold prompt.
    concurrency: u32,
    first_at_context: bool,
    ttft_ms: f64,
    sigma: f64,
}

fn aims(observed: &Observations) -> Vec<Aim> {
    let cold = observed.prefill.iter().map(|row| Aim {
        context_tokens: row.context_tokens,
        concurrency: 0,
        first_at_context: true,
        ttft_ms: row.ttft_ms,
        sigma: SIGMA_PREFILL,
    });
    let warm = observed.warm.iter().map(|row| Aim {
        context_tokens: row.context_tokens,
        concurrency: 1,
        first_at_context: true,
        ttft_ms: row.ttft_ms,
        sigma: SIGMA_WARM,
    });
    let loaded = observed.decode.iter().filter(|c| c.concurrency > 1).filter_map(|cell| {
        Some(Aim {
            context_tokens: cell.context_tokens,
            concurrency: cell.concurrency,
            first_at_context: cell.first_at_context,
            ttft_ms: cell.ttft_ms?,
            sigma: SIGMA_LOADED,
        })
    });
    cold.chain(warm).chain(loaded).collect()
}

/// ln(simulated / measured).
fn residual(profile: &Profile, aim: &Aim) -> Result<f64> {
    let simulated = if aim.concurrency == 0 {
        simulate_prefill(profile, aim.context_tokens)?
    } else {
        let request = CellRequest {
            context_tokens: aim.context_tokens,
            concurrency: aim.concurrency,
            max_tokens: profile.matrix.max_tokens,
            duration: SimSpan::from_secs_f64(profile.matrix.duration_s),
            first_at_context: aim.first_at_context,
        };
        let outcome = simulate_cell(profile, &request, Options::default())?;
        outcome.summary.columns.ttft_ms.unwrap_or(f64::NAN)
    };
    Ok((simulated / aim.ttft_ms).ln())
}

fn residuals(profile: &Profile, aims: &[Aim]) -> Result<Vec<f64>> {
    aims.par_iter().map(|aim| residual(profile, aim)).collect()
}

/// Fits the constants. `thorough` starts from several points, otherwise from where the last fit ended.
pub(super) fn fit(profile: &mut Profile, observed: &Observations, thorough: bool) -> Result<()> {
    let aims = aims(observed);
    if aims.is_empty() {
        return Ok(());
    }
    let start = read(profile);
    let cost = |logs: &[f64]| {
        let mut trial = profile.clone();
        write(&mut trial, logs);
        let prior: f64 =
            logs.iter().zip(PRIOR).map(|(l, (centre, sd))| ((l - f64::ln(centre)) / sd).powi(2)).sum();
        match residuals(&trial, &aims) {
            Ok(r) => prior + r.iter().zip(&aims).map(|(r, a)| huber(r / a.sigma, 2.0)).sum::<f64>(),
            Err(_) => f64::NAN,
        }
    };
    let shifts: &[[f64; 7]] = if thorough {
        &[[0.0; 7], [0.3, 0.3, 0.0, 0.7, 0.5, -0.7, 0.3], [-0.5, 0.3, 0.5, 0.0, -0.5, -0.5, 0.0]]
    } else {
        &[[0.0; 7]]
    };
    let starts: Vec<Vec<f64>> =
        shifts.iter().map(|shift| start.iter().zip(shift).map(|(s, d)| s + d).collect()).collect();
    let best = minimise(cost, &starts, if thorough { 0.4 } else { 0.15 }, if thorough { 600 } else { 300 });
    write(profile, &best);
    let left = residuals(profile, &aims)?;
    let spread = |cold: bool, floor: f64| {
        let own: Vec<f64> = left
            .iter()
            .zip(&aims)
            .filter(|(_, a)| (a.concurrency == 0) == cold)
            .map(|(r, _)| r * r)
            .collect();
        // The constants were bent towards these residuals: each kind pays its share of them.
        let n = own.len() as f64;
        let constants = NAMES.len() as f64 * n / left.len() as f64;
        (!own.is_empty()).then(|| (own.iter().sum::<f64>() / (n - constants).max(1.0)).sqrt().max(floor))
    };
    profile.uncertainty.ttft_log = spread(false, TTFT_FLOOR);
    profile.uncertainty.prefill = spread(true, PREFILL_FLOOR);
    Ok(())
}

/// Names the constants that the plan does not determine.
pub(super) fn note_undetermined(profile: &mut Profile, observed: &Observations) {
    let lengths = observed.prefill.len();
    let loaded = observed.decode.iter().any(|c| c.concurrency > 1 && c.ttft_ms.is_some());
    if lengths == 0 {
        profile.notes.push(format!(
            "{}, {} and {} are priors: the plan has no prefill row; two rows, a short and a long one, would determine them",
            NAMES[4], NAMES[5], NAMES[6]
        ));
    } else if lengths == 1 {
        profile.notes.push(format!(
            "{} is a prior: the plan has one prefill row; a longer one would determine it",
            NAMES[6]
        ));
    }
    if observed.warm.is_empty() {
        profile.notes.push(format!(
            "{}, {} and {} are priors and no TTFT is predicted: the plan names no warm TTFT; the single-request TTFT of \
             two contexts would determine them",
            NAMES[0], NAMES[1], NAMES[2]
        ));
    } else if !loaded {
        profile.notes.push(format!(
            "{} and {} are mostly priors: no decode cell of the plan with several streams gives a TTFT",
            NAMES[0], NAMES[3]
        ));
    }
}
