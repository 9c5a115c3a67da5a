//! Predictions beside measurements: per cell, per column, and what is suspicious.
//!
//! Judges; does not fit, simulate protocols or present.

mod flags;

pub use flags::Flag;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::error::Result;
use crate::matrix::{Matrix, MatrixSpec, PredictedCell, PredictedColumns, PredictedStatus, predict};
use crate::metrics::ErrorSummary;
use crate::profile::Profile;
use crate::record::{COLUMN_NAMES, Cell, Columns, Measurement, Phase, Plan, Status, distinct};

/// Whether a fit could see a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The plan names it.
    Calibration,
    /// It was not seen.
    HeldOut,
}

/// Both statuses of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Statuses {
    /// What was measured.
    pub measured: Status,
    /// What was predicted.
    pub predicted: PredictedStatus,
}

/// One compared cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckedCell {
    /// What it measures.
    pub phase: Phase,
    /// Target context, tokens.
    pub context_tokens: u64,
    /// Streams.
    pub concurrency: u32,
    /// Whether the fit saw it.
    pub role: Role,
    /// Whether it ran and was predicted to run.
    pub status: Statuses,
    /// The measured columns.
    pub measured: MeasuredColumns,
    /// The predicted columns.
    pub predicted: PredictedColumns,
    /// (predicted / measured - 1) x 100.
    pub error_percent: BTreeMap<&'static str, f64>,
    /// What is suspicious about the measurement.
    pub flags: Vec<Flag>,
    /// What a reader should know of the prediction.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The measured columns that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the columns of record::Columns")]
pub struct MeasuredColumns {
    pub total_tok_s: Option<f64>,
    pub per_request_tok_s: Option<f64>,
    pub ttft_ms: Option<f64>,
    pub inter_token_ms: Option<f64>,
    pub avg_active: Option<f64>,
    pub completed: Option<f64>,
    pub output_tokens: Option<f64>,
}

impl MeasuredColumns {
    /// The column called `name`, one of [`COLUMN_NAMES`].
    pub fn get(&self, name: &str) -> Option<f64> {
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

impl From<&Columns> for MeasuredColumns {
    fn from(c: &Columns) -> Self {
        Self {
            total_tok_s: c.total_tok_s,
            per_request_tok_s: c.per_request_tok_s,
            ttft_ms: c.ttft_ms,
            inter_token_ms: c.inter_token_ms,
            avg_active: c.avg_active,
            completed: c.completed,
            output_tokens: c.output_tokens,
        }
    }
}

/// A count out of a population.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// How many.
    pub n: usize,
    /// Of how many.
    pub of: usize,
}

/// How the statuses of the cells that are over capacity agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OverCapacity {
    /// Measured over capacity and predicted so.
    pub agree: usize,
    /// Measured over capacity, not determined by the profile.
    pub undetermined: usize,
    /// Cells measured over capacity.
    pub of: usize,
    /// Cells that ran although they were predicted to be skipped.
    pub wrongly_predicted: usize,
}

/// The figures of a whole comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Errors of held-out decode cells, by column.
    pub held_out: BTreeMap<&'static str, ErrorSummary>,
    /// Errors of the cells that were fitted, by column.
    pub calibration: BTreeMap<&'static str, ErrorSummary>,
    /// Errors of held-out prefill rows, by column.
    pub held_out_prefill: BTreeMap<&'static str, ErrorSummary>,
    /// Decode cells, held out or not, whose completed count is exact.
    pub completed_exact: Share,
    /// Cells over capacity.
    pub over_capacity: OverCapacity,
    /// Share of held-out decode cells whose measured value lies in the 90 % interval, by column.
    pub coverage_90: BTreeMap<&'static str, f64>,
    /// Mean half-width of that interval over the same cells, percent of the predicted value, by column.
    pub half_width_90_percent: BTreeMap<&'static str, f64>,
}

/// A comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// Cell by cell, in the order of the measurement.
    pub cells: Vec<CheckedCell>,
    /// All together.
    pub summary: Summary,
    /// What the profile wants a reader to know.
    pub notes: Vec<String>,
}

/// Predicts every cell of `measurement` and sets both side by side. `plan` says which cells the fit saw.
///
/// # Errors
/// As [`predict`].
pub fn check(measurement: &Measurement, plan: &Plan, profile: &Profile) -> Result<Check> {
    let of = |phase| measurement.cells.iter().filter(move |c: &&Cell| c.phase == phase);
    let protocol = &measurement.meta.protocol;
    let mut spec = MatrixSpec::of(profile);
    spec.contexts = distinct(of(Phase::Decode).map(|c| c.context_tokens));
    spec.concurrency = distinct(of(Phase::Decode).map(|c| c.concurrency));
    spec.prefill = distinct(of(Phase::Prefill).map(|c| c.context_tokens));
    spec.max_tokens = protocol.max_tokens.unwrap_or(spec.max_tokens);
    if let Some(seconds) = protocol.duration_s {
        spec.duration = crate::units::SimSpan::from_secs_f64(seconds);
    }
    let matrix = predict(profile, &spec)?;
    let cells: Vec<CheckedCell> = measurement
        .cells
        .iter()
        .filter_map(|cell| compare(measurement, plan, profile, &matrix, cell))
        .collect();
    let summary = summarise(&cells);
    Ok(Check { cells, summary, notes: profile.notes.clone() })
}

fn compare(
    measurement: &Measurement,
    plan: &Plan,
    profile: &Profile,
    matrix: &Matrix,
    cell: &Cell,
) -> Option<CheckedCell> {
    let predicted: &PredictedCell = matrix.cell(cell.phase, cell.context_tokens, cell.concurrency)?;
    let seen = match cell.phase {
        Phase::Prefill => plan.has_prefill(cell.context_tokens),
        Phase::Decode => plan.has_decode(cell.context_tokens, cell.concurrency),
    };
    let mut error_percent = BTreeMap::new();
    if cell.status != Status::OverCapacity {
        for name in COLUMN_NAMES {
            let measured = match name {
                "total_tok_s" if cell.phase == Phase::Decode => crate::fit::throughput(cell, measurement),
                _ => cell.columns.get(name),
            };
            if let (Some(m), Some(p)) = (measured, predicted.columns.get(name))
                && m > 0.0
            {
                error_percent.insert(name, (p.value / m - 1.0) * 100.0);
            }
        }
    }
    Some(CheckedCell {
        phase: cell.phase,
        context_tokens: cell.context_tokens,
        concurrency: cell.concurrency,
        role: if seen { Role::Calibration } else { Role::HeldOut },
        status: Statuses { measured: cell.status, predicted: predicted.status },
        measured: MeasuredColumns::from(&cell.columns),
        predicted: predicted.columns,
        error_percent,
        flags: flags::of(measurement, profile, cell, predicted),
        notes: predicted.notes.clone(),
    })
}

fn summarise(cells: &[CheckedCell]) -> Summary {
    let usable = |phase: Phase, role: Role| {
        cells.iter().filter(move |c| c.phase == phase && c.role == role && c.status.measured == Status::Valid)
    };
    let errors = |phase: Phase, role: Role| {
        let mut by_column = BTreeMap::new();
        for name in COLUMN_NAMES {
            let all: Vec<f64> =
                usable(phase, role).filter_map(|c| c.error_percent.get(name).copied()).collect();
            if let Some(summary) = ErrorSummary::of(&all) {
                by_column.insert(name, summary);
            }
        }
        by_column
    };
    let mut summary = Summary {
        held_out: errors(Phase::Decode, Role::HeldOut),
        calibration: errors(Phase::Decode, Role::Calibration),
        held_out_prefill: errors(Phase::Prefill, Role::HeldOut),
        ..Summary::default()
    };
    for name in COLUMN_NAMES {
        let both: Vec<(f64, crate::metrics::Estimate)> = usable(Phase::Decode, Role::HeldOut)
            .filter_map(|c| Some((c.measured.get(name)?, c.predicted.get(name)?)))
            .collect();
        if both.is_empty() {
            continue;
        }
        let n = both.len() as f64;
        let inside = both.iter().filter(|(m, p)| p.covers(*m)).count() as f64;
        summary.coverage_90.insert(name, inside / n);
        let widths: Vec<f64> = both
            .iter()
            .filter(|(_, p)| p.value > 0.0)
            .map(|(_, p)| 50.0 * (p.high - p.low) / p.value)
            .collect();
        if !widths.is_empty() {
            summary.half_width_90_percent.insert(name, widths.iter().sum::<f64>() / widths.len() as f64);
        }
    }
    for cell in cells.iter().filter(|c| c.phase == Phase::Decode) {
        count(cell, &mut summary);
    }
    summary
}

fn count(cell: &CheckedCell, summary: &mut Summary) {
    let over = &mut summary.over_capacity;
    match cell.status.measured {
        Status::OverCapacity => {
            over.of += 1;
            over.agree += usize::from(cell.status.predicted == PredictedStatus::OverCapacity);
            over.undetermined += usize::from(cell.status.predicted == PredictedStatus::Undetermined);
        }
        Status::Valid => {
            over.wrongly_predicted += usize::from(cell.status.predicted == PredictedStatus::OverCapacity);
            if let (Some(m), Some(p)) = (cell.measured.completed, cell.predicted.completed) {
                summary.completed_exact.of += 1;
                summary.completed_exact.n += usize::from((m - p.value).abs() < 0.5);
            }
        }
        Status::Invalid => {}
    }
}
