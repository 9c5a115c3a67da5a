//! A predicted matrix.

use std::fmt::Write as _;

use super::grid::{Grid, places};
use super::table::Table;
use super::{Format, Style, json, short, with_interval};
use crate::matrix::{Matrix, PredictedCell, PredictedStatus};
use crate::metrics::Estimate;
use crate::profile::Profile;
use crate::record::{COLUMN_NAMES, Phase, distinct, format_context};

/// Writes `matrix` as it was predicted from `profile`.
pub fn matrix_report(profile: &Profile, matrix: &Matrix, format: Format, style: Style) -> String {
    match format {
        Format::Json => as_json(profile, matrix),
        Format::Csv => wide(matrix).render(format, style),
        Format::Markdown => {
            let mut out = format!("{}\n\n", headline(profile, matrix));
            out += &readable(matrix).render(format, style);
            notes(profile, matrix, &mut out, "- ");
            out
        }
        Format::Text => text(profile, matrix, style),
    }
}

fn headline(profile: &Profile, matrix: &Matrix) -> String {
    let o = &profile.origin;
    format!(
        "Predicted: {} on {} x {} ({}), up to {} output tokens a request, window {}. In brackets the 90 % interval.",
        o.model, o.gpu_count, o.gpu, o.engine, matrix.spec.max_tokens, matrix.spec.duration
    )
}

fn text(profile: &Profile, matrix: &Matrix, style: Style) -> String {
    let mut out = format!("{}\n\n", headline(profile, matrix));
    let contexts = distinct(decode(matrix).map(|c| c.context_tokens));
    let concurrency = distinct(decode(matrix).map(|c| c.concurrency));
    let grids: [(&str, fn(&PredictedCell) -> Option<Estimate>, bool); 3] = [
        ("Total output tok/s", |c| c.columns.total_tok_s, true),
        ("Median TTFT, ms", |c| c.columns.ttft_ms, false),
        ("Median inter-token latency, ms", |c| c.columns.inter_token_ms, false),
    ];
    for (title, column, more_is_better) in grids {
        let values: Vec<Option<f64>> = decode(matrix).map(|c| column(c).map(|e| e.value)).collect();
        if values.iter().all(Option::is_none) {
            continue;
        }
        let cells = values
            .iter()
            .zip(places(&values))
            .map(|(value, place)| {
                let place = place.unwrap_or(0.0);
                value.map(|v| (short(v), if more_is_better { 1.0 - place } else { place }))
            })
            .collect();
        let grid = Grid { title, contexts: &contexts, concurrency: &concurrency, cells, empty: "over" };
        out += &grid.render(style);
        out.push('\n');
    }
    out += &readable(matrix).render(Format::Text, style);
    notes(profile, matrix, &mut out, "  ");
    out
}

fn decode(matrix: &Matrix) -> impl Iterator<Item = &PredictedCell> {
    matrix.cells.iter().filter(|c| c.phase == Phase::Decode)
}

fn notes(profile: &Profile, matrix: &Matrix, out: &mut String, bullet: &str) {
    let cells = matrix.cells.iter().flat_map(|c| {
        let name = format!("{} x {}", format_context(c.context_tokens), c.concurrency);
        c.notes.iter().map(move |n| if n.starts_with(&name) { n.clone() } else { format!("{name}: {n}") })
    });
    let mut all: Vec<String> = profile.notes.clone();
    all.extend(cells);
    if !all.is_empty() {
        out.push_str("\nNotes\n");
        out.push_str(if bullet == "- " { "\n" } else { "" });
    }
    for note in all {
        let _ = writeln!(out, "{bullet}{note}");
    }
}

fn status(cell: &PredictedCell) -> &'static str {
    match cell.status {
        PredictedStatus::Valid => "valid",
        PredictedStatus::OverCapacity => "over_capacity",
        PredictedStatus::Undetermined => "undetermined",
    }
}

fn phase(cell: &PredictedCell) -> &'static str {
    match cell.phase {
        Phase::Prefill => "prefill",
        Phase::Decode => "decode",
    }
}

/// The columns of the reference page.
fn readable(matrix: &Matrix) -> Table {
    let mut table = Table::new(
        &[
            "phase",
            "context",
            "streams",
            "status",
            "total tok/s",
            "tok/s per request",
            "TTFT ms",
            "ITL ms",
            "active",
            "completed",
            "output tokens",
        ],
        2,
    );
    for cell in &matrix.cells {
        let c = &cell.columns;
        let count = |e: Option<Estimate>| {
            e.map_or_else(String::new, |e| {
                if e.high - e.low < 0.5 {
                    format!("{:.0}", e.value)
                } else {
                    format!("{:.0} ({:.0}..{:.0})", e.value, e.low, e.high)
                }
            })
        };
        table.rows.push(vec![
            phase(cell).to_owned(),
            format_context(cell.context_tokens),
            cell.concurrency.to_string(),
            status(cell).replace('_', " "),
            with_interval(c.total_tok_s),
            with_interval(c.per_request_tok_s),
            with_interval(c.ttft_ms),
            with_interval(c.inter_token_ms),
            c.avg_active.map_or_else(String::new, |e| format!("{:.1}", e.value)),
            count(c.completed),
            c.output_tokens.map_or_else(String::new, |e| super::group(e.value)),
        ]);
    }
    table
}

/// Every number with its bounds.
fn wide(matrix: &Matrix) -> Table {
    let mut header: Vec<String> =
        ["phase", "context_label", "context_tokens", "concurrency", "status"].map(str::to_owned).to_vec();
    for name in COLUMN_NAMES {
        header.extend([name.to_owned(), format!("{name}_low"), format!("{name}_high")]);
    }
    let mut table = Table { header, rows: Vec::new(), labels: 5 };
    for cell in &matrix.cells {
        let mut row = vec![
            phase(cell).to_owned(),
            format_context(cell.context_tokens),
            cell.context_tokens.to_string(),
            cell.concurrency.to_string(),
            status(cell).to_owned(),
        ];
        for name in COLUMN_NAMES {
            let e = cell.columns.get(name);
            let text = |v: f64| format!("{v:.3}");
            row.extend(e.map_or_else(
                || [const { String::new() }; 3],
                |e| [text(e.value), text(e.low), text(e.high)],
            ));
        }
        table.rows.push(row);
    }
    table
}

fn as_json(profile: &Profile, matrix: &Matrix) -> String {
    json(&serde_json::json!({
        "kind": "prediction",
        "profile": { "model": profile.origin.model, "gpu": profile.origin.gpu, "gpu_count": profile.origin.gpu_count,
                     "engine": profile.origin.engine, "source": profile.origin.source, "notes": profile.notes },
        "max_tokens": matrix.spec.max_tokens,
        "duration_s": matrix.spec.duration.as_secs_f64(),
        "interval": "90 %",
        "cells": matrix.cells,
    }))
}
