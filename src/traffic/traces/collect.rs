//! From rows to a trace: what is dropped, what is sorted, and what must be said about it.
//!
//! Knows the rules that all forms share. Knows no file format.

use std::collections::BTreeMap;

use super::{Dropped, Trace, TraceForm, TraceOptions, TraceRequest};
use crate::error::{Error, Result};
use crate::units::SimSpan;

/// A row as read.
pub(super) struct Row {
    pub(super) line: u64,
    /// Nanoseconds on the trace's own scale; `None` where the row has no time.
    pub(super) nanos: Option<i128>,
    pub(super) input: i64,
    pub(super) output: i64,
    pub(super) hash_ids: Vec<u64>,
    pub(super) session: Option<Box<str>>,
}

/// Gathers rows.
pub(super) struct Collector<'a> {
    name: &'a str,
    form: TraceForm,
    options: &'a TraceOptions,
    rows: u64,
    dropped: BTreeMap<Dropped, u64>,
    used: Vec<(i128, TraceRequest)>,
    timed: Option<bool>,
    last: i128,
    backwards: Backwards,
    blocks: BlockCheck,
    notes: Vec<String>,
}

/// Rows that step back in time.
#[derive(Default)]
struct Backwards {
    count: u64,
    first_line: u64,
}

/// Whether hash ids and lengths agree.
#[derive(Default)]
struct BlockCheck {
    rows: u64,
    agree: u64,
    first: Option<(u64, String)>,
    /// How many rows agree with each usual block size.
    others: BTreeMap<u64, u64>,
}

/// Block sizes that traces are known to use.
const USUAL_BLOCKS: [u64; 7] = [16, 32, 64, 128, 256, 512, 1024];

impl<'a> Collector<'a> {
    pub(super) fn new(name: &'a str, form: TraceForm, options: &'a TraceOptions) -> Self {
        Self {
            name,
            form,
            options,
            rows: 0,
            dropped: BTreeMap::new(),
            used: Vec::new(),
            timed: None,
            last: i128::MIN,
            backwards: Backwards::default(),
            blocks: BlockCheck::default(),
            notes: Vec::new(),
        }
    }

    /// An error at a line.
    pub(super) fn wrong(name: &str, line: u64, message: impl std::fmt::Display) -> Error {
        Error::input(format!("{name}:{line}"), message)
    }

    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(super) fn add(&mut self, row: Row) -> Result<()> {
        self.rows += 1;
        self.check_time(&row)?;
        let reason = match (row.input, row.output) {
            (i, o) if i < 0 || o < 0 => Some(Dropped::Negative),
            (0, 0) => Some(Dropped::ZeroInputAndOutput),
            (0, _) => Some(Dropped::ZeroInput),
            (_, 0) if !self.options.keep_failures => Some(Dropped::ZeroOutput),
            _ => None,
        };
        if let Some(reason) = reason {
            *self.dropped.entry(reason).or_default() += 1;
            return Ok(());
        }
        let nanos = row.nanos.unwrap_or(0);
        if nanos < self.last {
            self.backwards.count += 1;
            if self.backwards.count == 1 {
                self.backwards.first_line = row.line;
            }
        }
        self.last = nanos;
        let (input, output) = (row.input.unsigned_abs(), row.output.unsigned_abs());
        if !row.hash_ids.is_empty() {
            self.blocks.see(row.line, input, row.hash_ids.len() as u64, self.options.block_tokens);
        }
        self.used.push((
            nanos,
            TraceRequest {
                offset: SimSpan::ZERO,
                prompt_tokens: input,
                output_tokens: output.max(1),
                hash_ids: row.hash_ids,
                session: row.session,
                failed: output == 0,
                line: row.line,
            },
        ));
        Ok(())
    }

    /// All rows have a time, or none has.
    fn check_time(&mut self, row: &Row) -> Result<()> {
        match (self.timed, row.nanos.is_some()) {
            (None, true) => self.timed = Some(true),
            (None, false) if self.options.untimed => self.timed = Some(false),
            (None, false) => {
                return Err(Error::input(self.name, "no arrival times: give a rate or a concurrency"));
            }
            (Some(true), false) => {
                return Err(Self::wrong(self.name, row.line, "the arrival time is missing"));
            }
            (Some(false), true) => {
                let message = "has an arrival time, while rows before it have none";
                return Err(Self::wrong(self.name, row.line, message));
            }
            _ => {}
        }
        Ok(())
    }

    /// Sorts, checks and gives the trace. `wall_clock` says whether times count from 1970.
    pub(super) fn finish(mut self, wall_clock: bool) -> Result<Trace> {
        if self.rows == 0 {
            return Err(Error::input(self.name, "the trace has no rows"));
        }
        if self.used.is_empty() {
            let message = format!("no usable row among {}: {}", self.rows, reasons(&self.dropped));
            return Err(Error::input(self.name, message));
        }
        self.blocks.verdict(self.name, &mut self.notes)?;
        if self.backwards.count > 0 {
            self.notes.push(format!(
                "{} rows step back in time, the first in line {}: sorted by arrival",
                self.backwards.count, self.backwards.first_line
            ));
            // Stable: rows of the same time keep their order.
            self.used.sort_by_key(|(nanos, _)| *nanos);
        }
        if !self.dropped.is_empty() {
            self.notes.push(format!(
                "{} of {} rows not used: {}",
                self.dropped.values().sum::<u64>(),
                self.rows,
                reasons(&self.dropped)
            ));
        }
        let start = self.used[0].0;
        let mut requests = Vec::with_capacity(self.used.len());
        for (nanos, mut request) in self.used {
            let span = u64::try_from(nanos - start).ok().filter(|n| *n < u64::MAX / 4).ok_or_else(|| {
                Self::wrong(self.name, request.line, "the arrival lies more than a century after the first")
            })?;
            request.offset = SimSpan::from_nanos(span);
            requests.push(request);
        }
        Ok(Trace {
            form: self.form,
            requests,
            rows: self.rows,
            dropped: self.dropped,
            block_tokens: self.options.block_tokens,
            timed: self.timed == Some(true),
            start_nanos: wall_clock.then_some(start),
            notes: self.notes,
        })
    }
}

fn reasons(dropped: &BTreeMap<Dropped, u64>) -> String {
    let say = |(reason, count): (&Dropped, &u64)| {
        let what = match reason {
            Dropped::ZeroInput => "without prompt tokens",
            Dropped::ZeroOutput => "without output tokens (failed)",
            Dropped::ZeroInputAndOutput => "without any tokens",
            Dropped::Negative => "with negative tokens",
        };
        format!("{count} {what}")
    };
    dropped.iter().map(say).collect::<Vec<_>>().join(", ")
}

impl BlockCheck {
    fn see(&mut self, line: u64, input: u64, ids: u64, block: u64) {
        self.rows += 1;
        if ids == input.div_ceil(block) {
            self.agree += 1;
        } else if self.first.is_none() {
            let message = if ids > input.div_ceil(block) {
                let least = (ids - 1) * block + 1;
                format!(
                    "{ids} hash ids of {block} tokens need at least {least} tokens, the prompt has {input}"
                )
            } else {
                format!(
                    "{ids} hash ids of {block} tokens cover {} of {input} tokens, the rest is unique",
                    ids * block
                )
            };
            self.first = Some((line, message));
        }
        for usual in USUAL_BLOCKS {
            *self.others.entry(usual).or_default() += u64::from(ids == input.div_ceil(usual));
        }
    }

    fn verdict(&self, name: &str, notes: &mut Vec<String>) -> Result<()> {
        let Some((line, message)) = &self.first else { return Ok(()) };
        let fits_all = self.others.iter().find(|(_, agree)| **agree == self.rows).map(|(size, _)| *size);
        if let (Some(other), true) = (fits_all, self.agree == 0 && self.rows > 2) {
            let message =
                format!("{message}; blocks of {other} tokens fit every row: give block_tokens = {other}");
            return Err(Collector::wrong(name, *line, message));
        }
        let others = self.rows - self.agree - 1;
        let more = if others == 0 { String::new() } else { format!(" (and {others} more rows like it)") };
        notes.push(format!("line {line}: {message}{more}"));
        Ok(())
    }
}
