//! What a plan lets a fit see.

use crate::error::{Error, Result};
use crate::record::{Cell, Measurement, Plan, Status, TotalSource};

/// A decode cell of the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeObservation {
    /// Context of the label, tokens.
    pub context_tokens: u64,
    /// Streams.
    pub concurrency: u32,
    /// Tokens per second.
    pub total_tok_s: f64,
    /// Median TTFT, milliseconds, if the plan allows its use.
    pub ttft_ms: Option<f64>,
    /// Whether it was the first cell at its context, with the cold scout.
    pub first_at_context: bool,
}

/// A time to first token of a single request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SingleTtft {
    /// Context of the label, tokens.
    pub context_tokens: u64,
    /// Milliseconds.
    pub ttft_ms: f64,
}

/// Everything that a fit may look at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observations {
    /// Valid decode cells.
    pub decode: Vec<DecodeObservation>,
    /// Cold prompts.
    pub prefill: Vec<SingleTtft>,
    /// Median TTFTs of the cells with one stream, whose prompts are cached.
    pub warm: Vec<SingleTtft>,
    /// Demands (concurrency x (context + max tokens)) of plan cells that ran.
    pub ran_tokens: Option<u64>,
    /// The smallest demand of a plan cell over capacity.
    pub skipped_tokens: Option<u64>,
    /// Output limit of the protocol, tokens.
    pub max_tokens: u64,
    /// Length of the window, seconds.
    pub duration_s: f64,
    /// What kept a cell of the plan from being used.
    pub notes: Vec<String>,
}

/// The reference tool's defaults, where a measurement does not say.
const DEFAULT_MAX_TOKENS: u64 = 4_096;
const DEFAULT_DURATION_S: f64 = 30.0;

impl Observations {
    /// Takes from `measurement` what `plan` names.
    ///
    /// # Errors
    /// If a cell of the plan runs below one that is over capacity.
    pub fn gather(measurement: &Measurement, plan: &Plan) -> Result<Self> {
        let protocol = &measurement.meta.protocol;
        let mut seen = Self {
            max_tokens: protocol.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
            duration_s: protocol.duration_s.unwrap_or(DEFAULT_DURATION_S),
            ..Self::default()
        };
        for (context, concurrency) in plan.decode_cells() {
            seen.add_decode(measurement, plan, context, concurrency);
        }
        for cell in &measurement.cells {
            seen.add_single(cell, plan, measurement);
        }
        if let (Some(ran), Some(skipped)) = (seen.ran_tokens, seen.skipped_tokens)
            && ran >= skipped
            && protocol.skip_rule_kv_tokens.is_none()
        {
            return Err(Error::input(
                measurement.origin.display(),
                format!(
                    "a cell that needs {skipped} KV tokens is over capacity, yet one that needs {ran} ran; \
                     mend the statuses or set protocol.skip_rule_kv_tokens"
                ),
            ));
        }
        Ok(seen)
    }

    fn add_decode(&mut self, measurement: &Measurement, plan: &Plan, context: u64, concurrency: u32) {
        let name = format!("decode {} x {concurrency}", crate::record::format_context(context));
        let Some(cell) = measurement.decode(context, concurrency) else {
            self.notes.push(format!("{name} is in the plan but not in the measurement"));
            return;
        };
        let demand = u64::from(concurrency) * (context + self.max_tokens);
        match cell.status {
            Status::OverCapacity => {
                self.skipped_tokens = Some(self.skipped_tokens.map_or(demand, |s| s.min(demand)));
                return;
            }
            Status::Invalid => {
                self.notes.push(format!("{name} is marked invalid and was not used"));
                return;
            }
            Status::Valid => {}
        }
        self.ran_tokens = Some(self.ran_tokens.map_or(demand, |r| r.max(demand)));
        let least = measurement.concurrencies().first().copied();
        let Some(total_tok_s) = throughput(cell, measurement) else {
            self.notes.push(format!("{name} gives no throughput"));
            return;
        };
        self.decode.push(DecodeObservation {
            context_tokens: context,
            concurrency,
            total_tok_s,
            // A plan without warm TTFTs says that this measurement's TTFTs are not to be used.
            ttft_ms: cell.columns.ttft_ms.filter(|_| !plan.warm_ttft.is_empty()),
            first_at_context: Some(concurrency) == least,
        });
    }

    fn add_single(&mut self, cell: &Cell, plan: &Plan, measurement: &Measurement) {
        use crate::record::Phase;
        if cell.status != Status::Valid {
            return;
        }
        let Some(ttft_ms) = cell.columns.ttft_ms else { return };
        let single = SingleTtft { context_tokens: cell.context_tokens, ttft_ms };
        let least = measurement.concurrencies().first().copied();
        match cell.phase {
            Phase::Prefill if plan.has_prefill(cell.context_tokens) => self.prefill.push(single),
            Phase::Decode
                if cell.concurrency == 1 && least == Some(1) && plan.has_warm_ttft(cell.context_tokens) =>
            {
                self.warm.push(single);
            }
            _ => {}
        }
    }
}

/// Throughput in full precision: a page rounds its totals, the token count does not.
pub(crate) fn throughput(cell: &Cell, measurement: &Measurement) -> Option<f64> {
    let c = &cell.columns;
    let from_usage = measurement.meta.protocol.total_tok_s.unwrap_or_default() == TotalSource::WindowUsage;
    match (c.output_tokens, c.measured_s) {
        (Some(tokens), Some(span)) if from_usage && tokens > 0.0 => {
            let exact = tokens / span;
            // The count stands for the printed total only where rounding explains the difference.
            let printed = c.total_tok_s.unwrap_or(exact);
            Some(if (exact / printed - 1.0).abs() < 0.01 { exact } else { printed })
        }
        _ => c.total_tok_s,
    }
}
