//! The question "what would the whole benchmark show?": a grid of contexts and concurrencies, every cell simulated.
//!
//! Knows no measurement and no presentation.

use rayon::prelude::*;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::fit::decode_bounds;
use crate::metrics::{Estimate, Z_90};
use crate::profile::{Capacity, Profile};
use crate::record::{Columns, Phase, distinct};
use crate::simulate::{CellRequest, Options, simulate_cell, simulate_prefill};
use crate::units::SimSpan;

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixSpec {
    /// Contexts of the decode cells, tokens.
    pub contexts: Vec<u64>,
    /// Simultaneous streams.
    pub concurrency: Vec<u32>,
    /// Contexts of the prefill rows, tokens.
    pub prefill: Vec<u64>,
    /// Output limit of a request, tokens.
    pub max_tokens: u64,
    /// Length of the window.
    pub duration: SimSpan,
}

impl MatrixSpec {
    /// The grid that the profile answers by default.
    pub fn of(profile: &Profile) -> Self {
        let m = &profile.matrix;
        Self {
            contexts: m.contexts.clone(),
            concurrency: m.concurrency.clone(),
            prefill: m.prefill.clone(),
            max_tokens: m.max_tokens,
            duration: SimSpan::from_secs_f64(m.duration_s),
        }
    }
}

/// What is predicted of a cell's being run at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PredictedStatus {
    /// It runs.
    Valid,
    /// The benchmark skips it.
    OverCapacity,
    /// The profile does not know the KV cache well enough to say.
    Undetermined,
}

/// The columns of a predicted cell; `None` is what the profile does not determine or the cell does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PredictedColumns {
    /// As [`Columns::total_tok_s`].
    pub total_tok_s: Option<Estimate>,
    /// As [`Columns::per_request_tok_s`].
    pub per_request_tok_s: Option<Estimate>,
    /// As [`Columns::ttft_ms`].
    pub ttft_ms: Option<Estimate>,
    /// As [`Columns::inter_token_ms`].
    pub inter_token_ms: Option<Estimate>,
    /// As [`Columns::avg_active`].
    pub avg_active: Option<Estimate>,
    /// As [`Columns::completed`].
    pub completed: Option<Estimate>,
    /// As [`Columns::output_tokens`].
    pub output_tokens: Option<Estimate>,
}

impl PredictedColumns {
    /// The column called `name`, one of [`crate::record::COLUMN_NAMES`].
    pub fn get(&self, name: &str) -> Option<Estimate> {
        match name {
            "total_tok_s" => self.total_tok_s,
            "per_request_tok_s" => self.per_request_tok_s,
            "ttft_ms" => self.ttft_ms,
            "inter_token_ms" => self.inter_token_ms,
            "avg_active" => self.avg_active,
            "completed" => self.completed,
            "output_tokens" => self.output_tokens,
            _ => None,
        }
    }
}

/// A predicted cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictedCell {
    /// What it measures.
    pub phase: Phase,
    /// Target context, tokens.
    pub context_tokens: u64,
    /// Streams.
    pub concurrency: u32,
    /// Whether it runs.
    pub status: PredictedStatus,
    /// The columns with their 90 % intervals.
    pub columns: PredictedColumns,
    /// What a reader should know of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A predicted matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// The question.
    pub spec: MatrixSpec,
    /// Prefill rows, then decode cells row by row.
    pub cells: Vec<PredictedCell>,
}

impl Matrix {
    /// The cell at these coordinates.
    pub fn cell(&self, phase: Phase, context_tokens: u64, concurrency: u32) -> Option<&PredictedCell> {
        self.cells
            .iter()
            .find(|c| (c.phase, c.context_tokens, c.concurrency) == (phase, context_tokens, concurrency))
    }
}

/// Predicts every cell of `spec`, on all cores; the result does not depend on their number.
///
/// # Errors
/// [`crate::error::ErrorKind::Usage`] for a question without meaning; an engine that cannot serve it.
pub fn predict(profile: &Profile, spec: &MatrixSpec) -> Result<Matrix> {
    validate(spec)?;
    let contexts = distinct(spec.contexts.iter().copied());
    let sizes = distinct(spec.concurrency.iter().copied());
    let least = sizes.first().copied().unwrap_or(1);
    let prefill = distinct(spec.prefill.iter().copied());
    let grid: Vec<(Phase, u64, u32)> = prefill
        .into_iter()
        .map(|c| (Phase::Prefill, c, 1))
        .chain(contexts.iter().flat_map(|c| sizes.iter().map(|n| (Phase::Decode, *c, *n))))
        .collect();
    let cells = grid
        .into_par_iter()
        .map(|(phase, context, concurrency)| match phase {
            Phase::Prefill => prefill_row(profile, context),
            Phase::Decode => {
                let request = CellRequest {
                    context_tokens: context,
                    concurrency,
                    max_tokens: spec.max_tokens,
                    duration: spec.duration,
                    first_at_context: concurrency == least,
                };
                decode_cell(profile, &request)
            }
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Matrix { spec: spec.clone(), cells })
}

/// The largest concurrency that is taken for real.
const MAX_CONCURRENCY: u32 = 65_536;

fn validate(spec: &MatrixSpec) -> Result<()> {
    if let Some(bad) = spec.concurrency.iter().find(|c| !(1..=MAX_CONCURRENCY).contains(c)) {
        return Err(Error::usage(format!("concurrency {bad} is outside 1..={MAX_CONCURRENCY}")));
    }
    if spec.max_tokens == 0 || spec.max_tokens > 1_000_000_000 {
        return Err(Error::usage(format!("max-tokens {} is outside 1..=1000000000", spec.max_tokens)));
    }
    if spec.duration < SimSpan::from_millis(100) {
        return Err(Error::usage("duration is below 0.1 s: no window of that length is measured"));
    }
    Ok(())
}

fn prefill_row(profile: &Profile, context: u64) -> Result<PredictedCell> {
    let mut columns = PredictedColumns::default();
    let mut notes = beyond_model_len(profile, context, 1);
    let tokens = profile.prompt_tokens(context);
    if let Some(spread) = profile.uncertainty.prefill {
        let ttft = simulate_prefill(profile, context)?;
        let wide = Z_90 * spread;
        columns.ttft_ms = Some(Estimate { value: ttft, low: ttft, high: ttft }.widened_log(wide));
        let rate = tokens as f64 / ttft * 1e3;
        columns.total_tok_s = Some(Estimate { value: rate, low: rate, high: rate }.widened_log(wide));
        columns.completed = Some(Estimate { value: 1.0, low: 1.0, high: 1.0 });
    } else {
        notes.push("the fit saw no prefill row, so none is predicted".to_owned());
    }
    Ok(PredictedCell {
        phase: Phase::Prefill,
        context_tokens: context,
        concurrency: 1,
        status: PredictedStatus::Valid,
        columns,
        notes,
    })
}

fn beyond_model_len(profile: &Profile, context: u64, max_tokens: u64) -> Vec<String> {
    let (needed, limit) = (profile.prompt_tokens(context) + max_tokens, profile.engine.max_model_len);
    if needed <= limit {
        return Vec::new();
    }
    vec![format!(
        "{needed} tokens exceed max_model_len = {limit}: predicted as if the server allowed them; it would refuse the request"
    )]
}

fn decode_cell(profile: &Profile, request: &CellRequest) -> Result<PredictedCell> {
    let (context, concurrency) = (request.context_tokens, request.concurrency);
    let capacity = profile.kv.judge(context, concurrency, request.max_tokens);
    let mut notes: Vec<String> = capacity.note(context, concurrency).into_iter().collect();
    notes.extend(beyond_model_len(profile, context, request.max_tokens));
    let (status, columns) = match capacity {
        Capacity::Skipped { .. } => (PredictedStatus::OverCapacity, PredictedColumns::default()),
        Capacity::Fits => (PredictedStatus::Valid, columns(profile, request)?),
        Capacity::Undetermined { .. } => (PredictedStatus::Undetermined, columns(profile, request)?),
    };
    if status != PredictedStatus::OverCapacity {
        notes.extend(profile.extrapolation(context, concurrency));
    }
    Ok(PredictedCell { phase: Phase::Decode, context_tokens: context, concurrency, status, columns, notes })
}

/// Simulates the cell as the profile says, and with decode steps as slow and as fast as its spread allows.
fn columns(profile: &Profile, request: &CellRequest) -> Result<PredictedColumns> {
    let prompt = profile.prompt_tokens(request.context_tokens) as f64;
    let spread = profile.uncertainty.decode_spread(&profile.costs.decode, request.concurrency, prompt);
    let (slow, fast) = decode_bounds(spread);
    let run = |decode_scale: f64| -> Result<Columns> {
        let options = Options { decode_scale, ..Options::default() };
        Ok(simulate_cell(profile, request, options)?.summary.columns)
    };
    let (nominal, slow, fast) = (run(1.0)?, run(slow)?, run(fast)?);
    let both = |f: fn(&Columns) -> Option<f64>| {
        let others: Vec<f64> = [&slow, &fast].into_iter().filter_map(f).collect();
        f(&nominal).map(|v| Estimate::spanning(v, &others))
    };
    // Where restarts fall inside the window moves the tokens of a cell by a fraction of a step time's effect.
    let rate = |f: fn(&Columns) -> Option<f64>| both(f).map(|e| e.widened(Z_90 * profile.uncertainty.noise));
    let ttft =
        profile.uncertainty.ttft_log.filter(|_| request.context_tokens > 0 || profile.fitted.contexts.0 == 0);
    Ok(PredictedColumns {
        total_tok_s: rate(|c| c.total_tok_s),
        per_request_tok_s: rate(|c| c.per_request_tok_s),
        ttft_ms: ttft.and_then(|spread| Some(both(|c| c.ttft_ms)?.widened_log(Z_90 * spread))),
        inter_token_ms: rate(|c| c.inter_token_ms),
        avg_active: both(|c| c.avg_active).map(|e| e.widened(0.02)),
        completed: both(|c| c.completed).map(Estimate::whole),
        output_tokens: rate(|c| c.output_tokens),
    })
}
