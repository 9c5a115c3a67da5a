//! Measurement and plan in, profile out.
//!
//! Reads records, never a server, and looks at the plan's cells only: replacing any other cell by garbage does not
//! change a digit. The *form* of the model was found by looking at whole public matrices; only its *parameters* are
//! fitted blind.
//!
//! # Which cells a plan should hold
//!
//! Each parameter asks for a cell that moves when it moves:
//!
//! * `base(B)` is not smooth, so every batch size of the matrix once, at the shortest context, where the base is the
//!   largest share of a step;
//! * `slope(B)` follows a roofline `max(k, c B)` with its own spread, so one latency-bound batch (1) and two
//!   bandwidth-bound ones (a middle one and the largest that fits) at the longest context, the longest lever;
//! * attention that saturates (sparse, sliding window) needs a middle context besides, for two batches;
//! * the prefill rows: the shortest and the longest, and enough between them to tell tokens from attention;
//! * the warm TTFT of every context, because the uncached tail differs from context to context;
//! * a cell beyond the KV cache, if one is known, for the edge.
//!
//! # What is fitted how
//!
//! Throughput: every plan cell is simulated with the current costs; the ratio of simulated and measured throughput
//! turns into a step time that the cell *should* have had, and a maximum a posteriori fit of the table to these step
//! times gives the next costs. TTFT: Nelder-Mead on the simulated protocol itself, robust (Huber) on log ratios,
//! from several starting points. Both alternate until neither moves.

mod decode;
mod latency;
mod observe;
mod rule;
mod solve;
mod start;

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::metrics::Z_90;
use crate::profile::Profile;
use crate::record::{Measurement, Plan};

pub use observe::Observations;
pub(crate) use observe::throughput;
pub use rule::plan_by_rule;

/// Alternations of the two fits; the second moves throughput by less than 0.1 % after the first.
const ROUNDS: usize = 3;

/// Simulations of a plan cell within a round, each correcting the step times of the last.
const CORRECTIONS: usize = 3;

/// Fits a profile to the cells of `measurement` that `plan` names.
///
/// # Errors
/// [`crate::error::ErrorKind::Undetermined`] if the plan cannot predict throughput at all;
/// [`crate::error::ErrorKind::Input`] if the measurement contradicts itself.
pub fn fit(measurement: &Measurement, plan: &Plan) -> Result<Profile> {
    let observed = Observations::gather(measurement, plan)?;
    if observed.decode.is_empty() {
        return Err(Error::undetermined(format!(
            "{}: the plan holds no valid decode cell, so no throughput can be predicted; add at least one, \
             for example the smallest concurrency at the shortest context",
            measurement.origin.display()
        )));
    }
    let mut profile = start::profile(measurement, plan, &observed);
    let mut learnt = decode::fit(&mut profile, &observed, None);
    for round in 0..ROUNDS {
        for _ in 0..CORRECTIONS {
            let targets = observed
                .decode
                .par_iter()
                .map(|cell| decode::target(&profile, cell))
                .collect::<Result<Vec<_>>>()?;
            learnt = decode::fit(&mut profile, &observed, Some(&targets));
        }
        latency::fit(&mut profile, &observed, round == 0)?;
    }
    profile.notes.append(&mut learnt);
    latency::note_undetermined(&mut profile, &observed);
    Ok(profile)
}

/// Factors on decode steps that bound a cell's throughput with 90 % probability: (slow, fast).
pub(crate) fn decode_bounds(spread: f64) -> (f64, f64) {
    ((Z_90 * spread).exp(), (-Z_90 * spread).exp())
}
