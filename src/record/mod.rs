//! The one on-disk form of a run: cells with their columns, and what is known of server and protocol.
//!
//! A measurement is a directory with `measured.csv`, `measurement.toml` and usually `plan.toml`, or a bare
//! CSV file. This room reads, validates and writes it; it knows nothing of how numbers are obtained,
//! predicted or judged.

mod csv_form;
mod meta;
mod plan;
mod size;

pub use csv_form::{CSV_HEADER, parse_csv, write_csv};
pub use meta::{MEASUREMENT_SCHEMA, MeasurementMeta, ProtocolMeta, ServerMeta, TotalSource};
pub use plan::{DecodeCells, Plan};
pub use size::{format_context, parse_context};

use std::path::{Path, PathBuf};

use crate::error::{Error, Result, read_text, write_atomic};

/// What a cell measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// One cold prompt, one output token.
    Prefill,
    /// `concurrency` streams that decode for a fixed window.
    Decode,
}

/// Whether a cell's numbers may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Measured.
    Valid,
    /// Measured and spoilt: shown, never fitted.
    Invalid,
    /// Not run: the tool's rule says that the KV cache cannot hold it.
    OverCapacity,
}

/// The columns of a cell. `None` means that the source does not give the number.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Columns {
    /// Output tokens of all streams inside the window, per second of window. Prefill: prompt tokens / TTFT.
    pub total_tok_s: Option<f64>,
    /// Median over requests of 1 / (mean inter-token latency of the request).
    pub per_request_tok_s: Option<f64>,
    /// Median over all requests since launch of (first text - post), milliseconds.
    pub ttft_ms: Option<f64>,
    /// Median over requests of the request's mean inter-token latency, milliseconds.
    pub inter_token_ms: Option<f64>,
    /// Mean over the scrapes of the window of the number of running requests.
    pub avg_active: Option<f64>,
    /// Requests that ended between launch and the end of the window.
    pub completed: Option<f64>,
    /// Output tokens of all streams inside the window.
    pub output_tokens: Option<f64>,
    /// Length of the window, seconds.
    pub measured_s: Option<f64>,
}

/// The names of the compared columns, in the order of the page.
pub const COLUMN_NAMES: [&str; 7] = [
    "total_tok_s",
    "per_request_tok_s",
    "ttft_ms",
    "inter_token_ms",
    "avg_active",
    "completed",
    "output_tokens",
];

impl Columns {
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

/// One cell of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// What was measured.
    pub phase: Phase,
    /// How the context is written on the page ("8K").
    pub context_label: String,
    /// Target context, tokens; 0 means a prompt of about 70 tokens.
    pub context_tokens: u64,
    /// Simultaneous streams.
    pub concurrency: u32,
    /// Whether the numbers may be used.
    pub status: Status,
    /// The numbers.
    pub columns: Columns,
}

/// A measurement: cells, their provenance, and the plan that says which may be used to fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Where it was read from, for messages.
    pub origin: PathBuf,
    /// Server, protocol and source.
    pub meta: MeasurementMeta,
    /// All cells, in file order.
    pub cells: Vec<Cell>,
    /// The plan beside the cells, if there is one.
    pub plan: Option<Plan>,
}

impl Measurement {
    /// Reads a directory (`measured.csv`, `measurement.toml`, `plan.toml`) or a bare CSV file.
    ///
    /// # Errors
    /// [`crate::error::ErrorKind::Input`] with file, line and field.
    pub fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Err(Error::input(path.display(), "no such file or directory"));
        }
        if !path.is_dir() {
            let text = read_text(path)?;
            return Self::from_parts(path.to_path_buf(), &text, None, None);
        }
        let csv_path = path.join("measured.csv");
        let text = read_text(&csv_path)?;
        let optional = |name: &str| {
            let file = path.join(name);
            file.exists().then(|| read_text(&file).map(|t| (file, t))).transpose()
        };
        Self::from_parts(csv_path, &text, optional("measurement.toml")?, optional("plan.toml")?)
    }

    /// Builds a measurement from the texts of its files, each with the path that errors should name.
    ///
    /// # Errors
    /// As [`Measurement::read`].
    pub fn from_parts(
        csv_path: PathBuf,
        csv_text: &str,
        meta: Option<(PathBuf, String)>,
        plan: Option<(PathBuf, String)>,
    ) -> Result<Self> {
        let cells = parse_csv(&csv_path, csv_text)?;
        let meta = meta.map_or_else(
            || Ok(MeasurementMeta::default()),
            |(path, text)| MeasurementMeta::parse(&path, &text),
        )?;
        let plan = plan.map(|(path, text)| Plan::parse(&path, &text)).transpose()?;
        Ok(Self { origin: csv_path, meta, cells, plan })
    }

    /// Writes `measured.csv`, `measurement.toml` and, if present, `plan.toml` into `dir`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        std::fs::create_dir_all(dir).map_err(|e| {
            Error::new(crate::error::ErrorKind::Internal, format!("{}: cannot create: {e}", dir.display()))
        })?;
        write_atomic(&dir.join("measured.csv"), write_csv(&self.cells).as_bytes())?;
        write_atomic(&dir.join("measurement.toml"), self.meta.to_toml().as_bytes())?;
        if let Some(plan) = &self.plan {
            write_atomic(&dir.join("plan.toml"), plan.to_toml().as_bytes())?;
        }
        Ok(())
    }

    /// The decode cell at (`context_tokens`, `concurrency`).
    pub fn decode(&self, context_tokens: u64, concurrency: u32) -> Option<&Cell> {
        self.cells.iter().find(|c| {
            c.phase == Phase::Decode && c.context_tokens == context_tokens && c.concurrency == concurrency
        })
    }

    /// The prefill row at `context_tokens`.
    pub fn prefill(&self, context_tokens: u64) -> Option<&Cell> {
        self.cells.iter().find(|c| c.phase == Phase::Prefill && c.context_tokens == context_tokens)
    }

    /// The contexts of the decode cells, ascending, without repeats.
    pub fn contexts(&self) -> Vec<u64> {
        distinct(self.cells.iter().filter(|c| c.phase == Phase::Decode).map(|c| c.context_tokens))
    }

    /// The concurrencies of the decode cells, ascending, without repeats.
    pub fn concurrencies(&self) -> Vec<u32> {
        distinct(self.cells.iter().filter(|c| c.phase == Phase::Decode).map(|c| c.concurrency))
    }
}

/// The distinct values, ascending.
pub(crate) fn distinct<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    let set: std::collections::BTreeSet<T> = values.collect();
    set.into_iter().collect()
}
