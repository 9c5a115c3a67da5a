//! What is suspicious about a measured cell, judged by itself and by the prediction beside it.

use serde::Serialize;

use crate::matrix::{PredictedCell, PredictedStatus};
use crate::profile::Profile;
use crate::record::{Cell, Measurement, Phase, Status};

/// A suspicion.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flag {
    /// A stable name.
    pub kind: &'static str,
    /// One sentence with the numbers.
    pub message: String,
}

/// Beyond this many 90 % half-widths a throughput is an outlier.
const OUTLIER_WIDTHS: f64 = 2.0;
/// A TTFT this many times its prediction was spoilt (compilation, a cold cache) or was not measured from the post.
const TTFT_FACTOR: f64 = 2.5;
/// Columns that follow from one another may differ by this much, relative.
const CONSISTENT: f64 = 0.05;

pub(super) fn of(
    measurement: &Measurement,
    profile: &Profile,
    cell: &Cell,
    predicted: &PredictedCell,
) -> Vec<Flag> {
    let mut flags = Vec::new();
    if cell.status == Status::Invalid {
        flags.push(Flag {
            kind: "invalid",
            message: "marked invalid by its source: shown, not used".to_owned(),
        });
    }
    by_status(cell, predicted, &mut flags);
    if cell.status == Status::OverCapacity {
        return flags;
    }
    by_prediction(cell, predicted, &mut flags);
    if cell.phase == Phase::Decode {
        by_itself(cell, profile, &mut flags);
        against_neighbours(measurement, cell, &mut flags);
    }
    flags
}

fn by_status(cell: &Cell, predicted: &PredictedCell, flags: &mut Vec<Flag>) {
    let message = match (cell.status, predicted.status) {
        (Status::Valid, PredictedStatus::OverCapacity) => "it ran, although the rule would have skipped it",
        (Status::OverCapacity, PredictedStatus::Valid) => {
            "it was skipped, although the rule would have run it"
        }
        _ => return,
    };
    flags.push(Flag { kind: "capacity_disagrees", message: message.to_owned() });
}

fn by_prediction(cell: &Cell, predicted: &PredictedCell, flags: &mut Vec<Flag>) {
    if let (Some(m), Some(p)) = (cell.columns.total_tok_s, predicted.columns.total_tok_s) {
        let width = if m > p.value { p.high - p.value } else { p.value - p.low };
        if (m - p.value).abs() > OUTLIER_WIDTHS * width {
            let percent = (m / p.value - 1.0) * 100.0;
            let message = format!(
                "measured {m:.1} tok/s is {percent:+.1} % of the predicted {:.1}, beyond twice its interval",
                p.value
            );
            flags.push(Flag { kind: "throughput_outlier", message });
        }
    }
    if let (Some(m), Some(p)) = (cell.columns.ttft_ms, predicted.columns.ttft_ms) {
        if m > TTFT_FACTOR * p.value {
            let message = format!(
                "TTFT of {m:.0} ms is {:.1} times the predicted {:.0} ms: a cold cache or compilation at first use?",
                m / p.value,
                p.value
            );
            flags.push(Flag { kind: "ttft_spoilt", message });
        } else if m * TTFT_FACTOR < p.value {
            let message = format!(
                "TTFT of {m:.0} ms is far below the predicted {:.0} ms: is it counted from the post?",
                p.value
            );
            flags.push(Flag { kind: "ttft_too_low", message });
        }
    }
}

/// Columns of one cell that contradict each other.
fn by_itself(cell: &Cell, profile: &Profile, flags: &mut Vec<Flag>) {
    let c = &cell.columns;
    let streams = f64::from(cell.concurrency);
    if let (Some(rate), Some(itl)) = (c.per_request_tok_s, c.inter_token_ms) {
        // The page rounds the latency to 0.1 ms.
        let implied = 1e3 / rate;
        if (implied - itl).abs() > 0.06 + CONSISTENT * itl {
            let message =
                format!("1 / {rate} tok/s is {implied:.2} ms, yet the inter-token latency is {itl} ms");
            flags.push(Flag { kind: "itl_contradicts_rate", message });
        }
    }
    if let (Some(total), Some(rate)) = (c.total_tok_s, c.per_request_tok_s)
        && total > (1.0 + CONSISTENT) * streams * rate
    {
        let message = format!("{total} tok/s exceed {streams} streams x {rate} tok/s");
        flags.push(Flag { kind: "total_exceeds_streams", message });
    }
    if let Some(active) = c.avg_active {
        if active < 0.95 * streams {
            let message = format!("on average {active} of {streams} streams ran: the cell was not full");
            flags.push(Flag { kind: "underfilled", message });
        } else if active > 1.02 * streams {
            let message = format!("{active} requests ran where {streams} were sent: other traffic?");
            flags.push(Flag { kind: "foreign_traffic", message });
        }
    }
    if let (Some(tokens), Some(total)) = (c.output_tokens, c.total_tok_s) {
        let implied = tokens / c.measured_s.unwrap_or(profile.matrix.duration_s);
        if (implied / total - 1.0).abs() > CONSISTENT {
            let message =
                format!("output tokens over the window give {implied:.1} tok/s, the total says {total}");
            flags.push(Flag { kind: "tokens_contradict_total", message });
        }
    }
    if let Some(window) = c.measured_s
        && (window / profile.matrix.duration_s - 1.0).abs() > CONSISTENT
    {
        let message = format!("the window took {window} s instead of {}", profile.matrix.duration_s);
        flags.push(Flag { kind: "window_length", message });
    }
}

/// More context in the same batch, or fewer streams at the same context, should not be faster in total.
fn against_neighbours(measurement: &Measurement, cell: &Cell, flags: &mut Vec<Flag>) {
    let Some(total) = cell.columns.total_tok_s.filter(|_| cell.status == Status::Valid) else { return };
    let shorter = measurement
        .contexts()
        .into_iter()
        .filter(|c| *c < cell.context_tokens)
        .filter_map(|c| measurement.decode(c, cell.concurrency))
        .filter(|c| c.status == Status::Valid)
        .filter_map(|c| Some((c, c.columns.total_tok_s?)))
        .next_back();
    if let Some((other, slower)) = shorter.filter(|(_, t)| *t * (1.0 + CONSISTENT) < total) {
        let message =
            format!("{total} tok/s at more context than {}, which gave only {slower}", other.context_label);
        flags.push(Flag { kind: "faster_with_context", message });
    }
}
