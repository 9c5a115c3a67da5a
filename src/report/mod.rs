//! Answers as text for a terminal, Markdown, CSV or JSON.
//!
//! The only room that knows presentation; it computes no statistic.

mod check;
mod grid;
mod matrix;
mod table;
mod timeline;

pub use check::check_report;
pub use matrix::matrix_report;
pub use timeline::cell_report;

use crate::metrics::Estimate;

/// How an answer is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For a terminal.
    #[default]
    Text,
    /// For a document.
    Markdown,
    /// For a spreadsheet.
    Csv,
    /// For a program.
    Json,
}

/// What the output device can show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Whether colours may be used.
    pub colour: bool,
    /// Width of a line; zero: unlimited.
    pub width: usize,
}

/// Three significant digits, at most one decimal beyond ten.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1_000.0 => group(value),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A whole number with thousands separated.
fn group(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if value < 0.0 { format!("-{out}") } else { out }
}

/// A value with its interval: "1,027 (1,010..1,043)".
fn with_interval(estimate: Option<Estimate>) -> String {
    estimate.map_or_else(String::new, |e| format!("{} ({}..{})", short(e.value), short(e.low), short(e.high)))
}

/// Any serialisable answer as JSON, with a final newline.
fn json(value: &impl serde::Serialize) -> String {
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}
