//! `measured.csv`: one row a cell.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::{Cell, Columns, Phase, Status, format_context};
use crate::error::{Error, Result};

/// The header of `measured.csv`. Columns may stand in any order; the first, third, fourth and fifth are required.
pub const CSV_HEADER: &str = "phase,context_label,context_tokens,concurrency,status,total_tok_s,per_request_tok_s,\
ttft_ms,inter_token_ms,avg_active,completed,output_tokens,measured_s";

/// The largest concurrency that is taken for real.
const MAX_CONCURRENCY: u32 = 1_000_000;

/// One row with its place, for messages that name file, line and field.
struct Row<'a> {
    path: &'a Path,
    line: u64,
    fields: BTreeMap<&'a str, &'a str>,
}

impl Row<'_> {
    fn error(&self, field: &str, message: impl std::fmt::Display) -> Error {
        Error::input(format!("{}:{}", self.path.display(), self.line), format!("field {field}: {message}"))
    }

    fn text(&self, field: &str) -> &str {
        self.fields.get(field).map_or("", |s| s.trim())
    }

    fn number(&self, field: &str) -> Result<Option<f64>> {
        let text = self.text(field);
        if text.is_empty() {
            return Ok(None);
        }
        let value: f64 =
            text.parse().map_err(|_| self.error(field, format!("\"{text}\" is not a number")))?;
        if !value.is_finite() || value < 0.0 {
            return Err(
                self.error(field, format!("{text} is not a finite number >= 0; leave it empty if unknown"))
            );
        }
        Ok(Some(value))
    }

    /// A number of which zero would be a contradiction.
    fn positive(&self, field: &str) -> Result<Option<f64>> {
        match self.number(field)? {
            Some(0.0) => Err(self.error(field, "0 cannot be measured; leave it empty if unknown")),
            other => Ok(other),
        }
    }

    fn integer(&self, field: &str) -> Result<u64> {
        let text = self.text(field);
        text.parse().map_err(|_| self.error(field, format!("\"{text}\" is not a whole number")))
    }

    fn cell(&self) -> Result<Cell> {
        let phase = match self.text("phase") {
            "prefill" => Phase::Prefill,
            "decode" => Phase::Decode,
            other => return Err(self.error("phase", format!("\"{other}\" is neither prefill nor decode"))),
        };
        let status = match self.text("status") {
            "valid" => Status::Valid,
            "invalid" => Status::Invalid,
            "over_capacity" => Status::OverCapacity,
            other => {
                return Err(
                    self.error("status", format!("\"{other}\" is not valid, invalid or over_capacity"))
                );
            }
        };
        let context_tokens = self.integer("context_tokens")?;
        if context_tokens > 1_000_000_000 {
            return Err(self.error("context_tokens", format!("{context_tokens} is above a billion tokens")));
        }
        let concurrency = self.integer("concurrency")?;
        let concurrency =
            u32::try_from(concurrency).ok().filter(|c| (1..=MAX_CONCURRENCY).contains(c)).ok_or_else(
                || self.error("concurrency", format!("{concurrency} is outside 1..={MAX_CONCURRENCY}")),
            )?;
        let columns = Columns {
            total_tok_s: self.positive("total_tok_s")?,
            per_request_tok_s: self.positive("per_request_tok_s")?,
            ttft_ms: self.positive("ttft_ms")?,
            inter_token_ms: self.positive("inter_token_ms")?,
            avg_active: self.number("avg_active")?,
            completed: self.number("completed")?,
            output_tokens: self.number("output_tokens")?,
            measured_s: self.positive("measured_s")?,
        };
        let cell = Cell {
            phase,
            context_label: match self.text("context_label") {
                "" => format_context(context_tokens),
                label => label.to_owned(),
            },
            context_tokens,
            concurrency,
            status,
            columns,
        };
        self.consistent(&cell)?;
        Ok(cell)
    }

    /// Refuses a row whose own numbers exclude each other.
    fn consistent(&self, cell: &Cell) -> Result<()> {
        let c = &cell.columns;
        if cell.status == Status::OverCapacity && c.total_tok_s.is_some() {
            return Err(self
                .error("status", "over_capacity, yet total_tok_s is given; use valid or empty the numbers"));
        }
        if cell.status == Status::Valid && c.total_tok_s.is_none() && c.ttft_ms.is_none() {
            return Err(self.error("status", "valid, yet neither total_tok_s nor ttft_ms is given"));
        }
        if let (Some(rate), Some(tokens), Some(span)) = (c.total_tok_s, c.output_tokens, c.measured_s)
            && cell.phase == Phase::Decode
            && cell.status == Status::Valid
        {
            let implied = tokens / span;
            if (implied / rate - 1.0).abs() > 0.2 {
                return Err(self.error(
                    "total_tok_s",
                    format!("{rate} contradicts output_tokens / measured_s = {implied:.1} by more than 20 %"),
                ));
            }
        }
        Ok(())
    }
}

/// Reads `measured.csv`; `path` is only named in messages.
///
/// # Errors
/// [`crate::error::ErrorKind::Input`] with file, line and field: an unreadable or repeated row, a missing or
/// unknown column, a number that is none, a cell that contradicts itself.
pub fn parse_csv(path: &Path, text: &str) -> Result<Vec<Cell>> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let header = reader.headers().map_err(|e| csv_error(path, &e))?.clone();
    let known: Vec<&str> = CSV_HEADER.split(',').collect();
    if let Some(unknown) = header.iter().find(|h| !known.contains(h)) {
        return Err(Error::input(
            format!("{}:1", path.display()),
            format!("unknown column \"{unknown}\"; the columns are {CSV_HEADER}"),
        ));
    }
    for required in ["phase", "context_tokens", "concurrency", "status"] {
        if !header.iter().any(|h| h == required) {
            return Err(Error::input(
                format!("{}:1", path.display()),
                format!("column {required} is missing; the columns are {CSV_HEADER}"),
            ));
        }
    }
    let mut cells: Vec<Cell> = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|e| csv_error(path, &e))?;
        let line = record.position().map_or(0, csv::Position::line);
        let row = Row { path, line, fields: header.iter().zip(record.iter()).collect() };
        let cell = row.cell()?;
        if cells.iter().any(|c| {
            (c.phase, c.context_tokens, c.concurrency) == (cell.phase, cell.context_tokens, cell.concurrency)
        }) {
            return Err(Error::input(
                format!("{}:{line}", path.display()),
                format!("the cell {} x {} stands here a second time", cell.context_label, cell.concurrency),
            ));
        }
        cells.push(cell);
    }
    if cells.is_empty() {
        return Err(Error::input(path.display(), "no cells: the file has no rows below its header"));
    }
    Ok(cells)
}

fn csv_error(path: &Path, error: &csv::Error) -> Error {
    let place = error
        .position()
        .map_or_else(|| path.display().to_string(), |p| format!("{}:{}", path.display(), p.line()));
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => Error::input(
            place,
            format!("{len} fields where the header has {expected_len}; is the file truncated?"),
        ),
        _ => Error::input(place, error),
    }
}

/// Writes cells as `measured.csv`.
pub fn write_csv(cells: &[Cell]) -> String {
    let mut out = format!("{CSV_HEADER}\n");
    for cell in cells {
        let phase = match cell.phase {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        };
        let status = match cell.status {
            Status::Valid => "valid",
            Status::Invalid => "invalid",
            Status::OverCapacity => "over_capacity",
        };
        let c = &cell.columns;
        let numbers = [
            c.total_tok_s,
            c.per_request_tok_s,
            c.ttft_ms,
            c.inter_token_ms,
            c.avg_active,
            c.completed,
            c.output_tokens,
            c.measured_s,
        ]
        .map(|v| v.map_or_else(String::new, |v| v.to_string()))
        .join(",");
        let _ = writeln!(
            out,
            "{phase},{},{},{},{status},{numbers}",
            cell.context_label, cell.context_tokens, cell.concurrency
        );
    }
    out
}
