//! What is kept of a request, and the columns that follow from it.

use crate::record::Columns;
use crate::units::SimTime;

/// One request of a cell as the client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestSample {
    /// Which of the C streams sent it.
    pub stream: u32,
    /// Whether it was the stream's first.
    pub launch: bool,
    /// When it was sent.
    pub posted: SimTime,
    /// When its first text arrived.
    pub first: Option<SimTime>,
    /// When its last text arrived.
    pub last: SimTime,
    /// Output tokens received.
    pub tokens: u64,
    /// Whether it ran to its end (otherwise it was cut or failed).
    pub completed: bool,
}

impl RequestSample {
    /// Time to first token, milliseconds.
    pub fn ttft_ms(&self) -> Option<f64> {
        Some(self.first?.since(self.posted).as_millis_f64())
    }

    /// Mean inter-token latency, milliseconds: (last - first) / (tokens - 1).
    pub fn itl_ms(&self) -> Option<f64> {
        let first = self.first?;
        (self.tokens > 1).then(|| self.last.since(first).as_millis_f64() / (self.tokens - 1) as f64)
    }
}

/// What a cell measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CellSummary {
    /// The page's columns.
    pub columns: Columns,
    /// TTFT of the scout, milliseconds.
    pub scout_ttft_ms: Option<f64>,
    /// Median TTFT of each stream's first request, milliseconds.
    pub launch_ttft_ms: Option<f64>,
    /// Median TTFT of the restarted requests, milliseconds.
    pub restart_ttft_ms: Option<f64>,
    /// Requests in the TTFT median.
    pub samples: usize,
    /// When the window opened, after the launch, seconds.
    pub window_opens_s: f64,
    /// Most requests seen running by a scrape of the window.
    pub max_running: u32,
    /// Whether a scrape of the window saw a request waiting.
    pub saw_waiting: bool,
    /// Whether the window opened because the warm-up limit was reached.
    pub warmup_timed_out: bool,
    /// Requests that failed.
    pub failed: usize,
    /// Time between the end of a stream's last request that ended near the edge and the edge of the window,
    /// seconds; how near the completed count is to another value.
    pub nearest_finish_s: Option<f64>,
}

/// The median by linear interpolation: of an even count, the mean of the middle two. `None` of nothing.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => Some(values[n / 2]),
        _ => Some(f64::midpoint(values[n / 2 - 1], values[n / 2])),
    }
}

/// The median of what `f` gives for the samples; values that are missing or not positive are dropped, as the
/// reference tool does.
pub(super) fn median_of<'a>(
    samples: impl Iterator<Item = &'a RequestSample>,
    f: impl Fn(&RequestSample) -> Option<f64>,
) -> Option<f64> {
    let mut values: Vec<f64> = samples.filter_map(f).filter(|v| *v > 0.0).collect();
    median(&mut values)
}
