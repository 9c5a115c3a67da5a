//! A comparison of prediction and measurement.

use std::fmt::Write as _;

use super::grid::Grid;
use super::table::Table;
use super::{Format, Style, json, short};
use crate::check::{Check, CheckedCell, Role};
use crate::matrix::PredictedStatus;
use crate::metrics::ErrorSummary;
use crate::record::{COLUMN_NAMES, Phase, Status, distinct, format_context};

/// Writes `check`; `title` names the measurement.
pub fn check_report(title: &str, check: &Check, format: Format, style: Style) -> String {
    match format {
        Format::Json => json(check),
        Format::Csv => cells(check).render(format, style),
        Format::Text | Format::Markdown => {
            let mut out = format!("Prediction against measurement: {title}\n\n");
            if format == Format::Text {
                out += &errors_grid(check, style);
            }
            out += &cells(check).render(format, style);
            out.push('\n');
            out += &summary(check).render(format, style);
            out += &sentences(check);
            out
        }
    }
}

fn errors_grid(check: &Check, style: Style) -> String {
    let decode: Vec<&CheckedCell> = check.cells.iter().filter(|c| c.phase == Phase::Decode).collect();
    let contexts = distinct(decode.iter().map(|c| c.context_tokens));
    let concurrency = distinct(decode.iter().map(|c| c.concurrency));
    let mut cells = Vec::new();
    for context in &contexts {
        for streams in &concurrency {
            let cell = decode.iter().find(|c| c.context_tokens == *context && c.concurrency == *streams);
            let error = cell.and_then(|c| Some((c, *c.error_percent.get("total_tok_s")?)));
            cells.push(error.map(|(c, e)| {
                let mark = if c.role == Role::Calibration { "*" } else { "" };
                (format!("{e:+.1}{mark}"), e.abs() / 5.0)
            }));
        }
    }
    let grid = Grid {
        title: "Error of total tok/s, percent (* fitted on this cell; - over capacity or not measured)",
        contexts: &contexts,
        concurrency: &concurrency,
        cells,
        empty: "-",
    };
    format!("{}\n", grid.render(style))
}

fn cells(check: &Check) -> Table {
    let mut table = Table::new(
        &[
            "phase",
            "context",
            "streams",
            "role",
            "status",
            "column",
            "measured",
            "predicted",
            "low",
            "high",
            "error %",
            "flags",
        ],
        2,
    );
    for cell in &check.cells {
        let role = if cell.role == Role::Calibration { "calibration" } else { "held out" };
        let (measured, predicted) =
            (measured_status(cell.status.measured), predicted_status(cell.status.predicted));
        let status = if measured == predicted {
            measured.to_owned()
        } else {
            format!("{measured}, predicted {predicted}")
        };
        let flags: Vec<&str> = cell.flags.iter().map(|f| f.kind).collect();
        let start = [
            if cell.phase == Phase::Prefill { "prefill" } else { "decode" }.to_owned(),
            format_context(cell.context_tokens),
            cell.concurrency.to_string(),
            role.to_owned(),
            status,
        ];
        let before = table.rows.len();
        for column in ["total_tok_s", "ttft_ms", "inter_token_ms", "completed"] {
            let Some(p) = cell.predicted.get(column) else { continue };
            let Some(measured) = cell.measured.get(column) else { continue };
            let mut row = start.to_vec();
            row.extend([column.to_owned(), short(measured), short(p.value), short(p.low), short(p.high)]);
            row.push(cell.error_percent.get(column).map_or_else(String::new, |e| format!("{e:+.1}")));
            row.push(if table.rows.len() == before { flags.join(" ") } else { String::new() });
            table.rows.push(row);
        }
        if table.rows.len() == before {
            let mut row = start.to_vec();
            row.resize(11, String::new());
            row.push(flags.join(" "));
            table.rows.push(row);
        }
    }
    table
}

fn measured_status(status: Status) -> &'static str {
    match status {
        Status::Valid => "valid",
        Status::Invalid => "invalid",
        Status::OverCapacity => "over capacity",
    }
}

fn predicted_status(status: PredictedStatus) -> &'static str {
    match status {
        PredictedStatus::Valid => "valid",
        PredictedStatus::OverCapacity => "over capacity",
        PredictedStatus::Undetermined => "undetermined",
    }
}

fn summary(check: &Check) -> Table {
    let mut table = Table::new(
        &[
            "cells",
            "column",
            "n",
            "MAPE %",
            "median %",
            "p90 %",
            "max %",
            "90 % interval covers",
            "its half-width %",
        ],
        2,
    );
    let s = &check.summary;
    let mut add = |cells: &str, column: &str, e: &ErrorSummary, held_out: bool| {
        let extra = |v: Option<&f64>, scale: f64| {
            v.filter(|_| held_out).map_or_else(String::new, |v| format!("{:.1}", v * scale))
        };
        table.rows.push(vec![
            cells.to_owned(),
            column.to_owned(),
            e.n.to_string(),
            format!("{:.2}", e.mape),
            format!("{:.2}", e.median_ape),
            format!("{:.2}", e.p90_ape),
            format!("{:.2}", e.max_ape),
            extra(s.coverage_90.get(column), 100.0),
            extra(s.half_width_90_percent.get(column), 1.0),
        ]);
    };
    for name in COLUMN_NAMES {
        if let Some(e) = s.held_out.get(name) {
            add("held out", name, e, true);
        }
    }
    for name in ["total_tok_s", "ttft_ms"] {
        if let Some(e) = s.held_out_prefill.get(name) {
            add("held-out prefill", name, e, false);
        }
    }
    table
}

fn sentences(check: &Check) -> String {
    let s = &check.summary;
    let mut out = String::from("\n");
    let exact = s.completed_exact;
    if exact.of > 0 {
        let _ = writeln!(out, "Completed requests exact in {} of {} decode cells.", exact.n, exact.of);
    }
    let over = s.over_capacity;
    if over.of > 0 {
        let _ = writeln!(
            out,
            "Over capacity: {} of {} cells predicted so, {} undetermined.",
            over.agree, over.of, over.undetermined
        );
    }
    if over.wrongly_predicted > 0 {
        let _ =
            writeln!(out, "{} cells ran although they were predicted to be skipped.", over.wrongly_predicted);
    }
    for cell in &check.cells {
        for flag in &cell.flags {
            let place = format_context(cell.context_tokens);
            let _ = writeln!(out, "flag {} at {place} x {}: {}", flag.kind, cell.concurrency, flag.message);
        }
    }
    for note in &check.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}
