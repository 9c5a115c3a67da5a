//! Recorded traffic: when requests came, how long they were, and which prefixes they shared.
//!
//! Knows the public forms (Azure, `BurstGPT`, Mooncake) and a plain one, as CSV or as one JSON object a line, and
//! recognises them by their content. Knows no engine and no clock; never invents arrivals, tokens or cache hits.
//!
//! | form | time | tokens | prefixes |
//! |---|---|---|---|
//! | Azure | `TIMESTAMP`, wall clock, without a zone UTC | `ContextTokens`, `GeneratedTokens` | none |
//! | `BurstGPT` | `Timestamp`, seconds | `Request tokens`, `Response tokens` | none |
//! | Mooncake | `timestamp`, milliseconds; a text is seconds | `input_length`, `output_length` | `hash_ids` of blocks |
//! | plain | `arrival_s` or `arrival_ms`, or stamps | `prompt_tokens`, `output_tokens` | `hash_ids` |

mod collect;
mod csv_form;
mod json_lines;
mod stamp;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::content::{Content, ContentId, Segment};
use crate::error::{Error, Result};
use crate::units::SimSpan;

/// Tokens in a block of Mooncake's traces.
pub const MOONCAKE_BLOCK_TOKENS: u64 = 512;

/// How a trace is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// Tokens that one hash id stands for.
    pub block_tokens: u64,
    /// The unit of numeric times, where it is not the form's own.
    pub time_unit: Option<TimeUnit>,
    /// Accept a trace without arrival times, since the caller brings a rate or a concurrency.
    pub untimed: bool,
    /// Keep failed requests (no response tokens) as requests of one output token.
    pub keep_failures: bool,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self { block_tokens: MOONCAKE_BLOCK_TOKENS, time_unit: None, untimed: false, keep_failures: false }
    }
}

/// The unit of a numeric time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum TimeUnit {
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
}

/// The form that was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceForm {
    /// Azure Public Dataset.
    Azure,
    /// `BurstGPT`.
    BurstGpt,
    /// Mooncake.
    Mooncake,
    /// The plain form.
    Plain,
}

/// Why a row is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dropped {
    /// No prompt tokens.
    ZeroInput,
    /// No output tokens: a failed request.
    ZeroOutput,
    /// Neither.
    ZeroInputAndOutput,
    /// A negative number of tokens.
    Negative,
}

/// One request of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// After the first request of the trace; zero in a trace without times.
    pub offset: SimSpan,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Output tokens, at least one.
    pub output_tokens: u64,
    /// Identities of the blocks from the prompt's start; what they do not cover is the request's own.
    pub hash_ids: Vec<u64>,
    /// The session it belongs to, if the trace says.
    pub session: Option<Box<str>>,
    /// Whether it failed when it was recorded.
    pub failed: bool,
    /// Its line in the file.
    pub line: u64,
}

/// A trace, in order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The form that was recognised.
    pub form: TraceForm,
    /// The requests that are used.
    pub requests: Vec<TraceRequest>,
    /// Rows in the file.
    pub rows: u64,
    /// Rows that are not used, by reason.
    pub dropped: BTreeMap<Dropped, u64>,
    /// Tokens that one hash id stands for.
    pub block_tokens: u64,
    /// Whether the trace has arrival times.
    pub timed: bool,
    /// Wall-clock time of the first request, nanoseconds since 1970, where the stamps say it.
    pub start_nanos: Option<i128>,
    /// What a reader should know: assumptions, repairs, contradictions, each with its line.
    pub notes: Vec<String>,
}

impl Trace {
    /// Reads a file, recognising its form.
    ///
    /// # Errors
    /// What cannot be read, understood or used, with file, line, field and remedy.
    pub fn open(path: &Path, options: &TraceOptions) -> Result<Self> {
        let file = std::fs::File::open(path)
            .map_err(|e| Error::input(path.display(), format!("cannot read: {e}")))?;
        Self::read(&path.display().to_string(), BufReader::new(file), options)
    }

    /// Reads from `reader`, recognising the form; `name` is how errors name it.
    ///
    /// # Errors
    /// As [`Trace::open`].
    pub fn read(name: &str, mut reader: impl BufRead, options: &TraceOptions) -> Result<Self> {
        if options.block_tokens == 0 {
            return Err(Error::usage("block_tokens must be positive, is 0"));
        }
        let first = first_byte(name, &mut reader)?;
        match first {
            None => Err(Error::input(name, "the trace is empty")),
            Some(b'{') => json_lines::read(name, reader, options),
            Some(b'[') => Err(Error::input(name, "a JSON array: one object a line (JSONL) is expected")),
            Some(_) => csv_form::read(name, reader, options),
        }
    }

    /// Puts traces of one service into one, on a common clock.
    ///
    /// # Errors
    /// An input error where a trace has no wall-clock times, or hash ids, which mean nothing in another trace.
    pub fn merge(traces: Vec<Self>) -> Result<Self> {
        let start = |t: &Self| {
            t.start_nanos.filter(|_| t.requests.iter().all(|r| r.hash_ids.is_empty())).ok_or_else(|| {
                Error::input(
                    "merged traces",
                    "only traces with wall-clock times and without hash ids can be merged",
                )
            })
        };
        let starts = traces.iter().map(start).collect::<Result<Vec<_>>>()?;
        let zero = starts.iter().copied().min().unwrap_or(0);
        let mut traces = traces.into_iter().zip(starts);
        let shift = |(mut trace, start): (Self, i128)| -> Self {
            let shift = SimSpan::from_nanos(u64::try_from(start - zero).unwrap_or(u64::MAX / 4));
            for request in &mut trace.requests {
                request.offset = request.offset + shift;
            }
            trace
        };
        let first = traces.next().ok_or_else(|| Error::usage("there is no trace to merge"))?;
        let mut merged = shift(first);
        for part in traces.map(shift) {
            merged.requests.extend(part.requests);
            merged.rows += part.rows;
            for (reason, count) in part.dropped {
                *merged.dropped.entry(reason).or_default() += count;
            }
            merged.notes.extend(part.notes);
        }
        merged.requests.sort_by_key(|r| r.offset);
        merged.start_nanos = Some(zero);
        Ok(merged)
    }

    /// Requests that a server with `max_model_len` refuses, since prompt and output together are longer. They are
    /// never clipped here: a shorter request is another request.
    pub fn longer_than(&self, max_model_len: u64) -> impl Iterator<Item = &TraceRequest> {
        self.requests.iter().filter(move |r| r.prompt_tokens + r.output_tokens > max_model_len)
    }

    /// From the first to the last arrival.
    pub fn duration(&self) -> SimSpan {
        self.requests.last().map_or(SimSpan::ZERO, |r| r.offset)
    }

    /// The prompt of request `index`: its blocks, and after them its own content.
    ///
    /// # Panics
    /// If there is no such request.
    pub fn content(&self, index: usize) -> Content {
        let request = &self.requests[index];
        let mut content = Content::default();
        let mut left = request.prompt_tokens;
        for id in &request.hash_ids {
            let tokens = left.min(self.block_tokens);
            content.push(Segment { id: ContentId::Shared(*id), tokens });
            left -= tokens;
        }
        content.push(Segment { id: ContentId::Own(index as u64), tokens: left });
        content
    }
}

/// The first byte that is neither white space nor a byte-order mark. Nothing is consumed.
fn first_byte(name: &str, reader: &mut impl BufRead) -> Result<Option<u8>> {
    let buffer = reader.fill_buf().map_err(|e| Error::input(name, format!("cannot read: {e}")))?;
    let text = buffer.strip_prefix(b"\xef\xbb\xbf").unwrap_or(buffer);
    Ok(text.iter().copied().find(|b| !b.is_ascii_whitespace()))
}
