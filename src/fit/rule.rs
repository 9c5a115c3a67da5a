//! Which cells to fit on, where nobody has said: the rule of the module above, applied to the grid of a measurement.
//!
//! Looks at coordinates and statuses, never at a measured number.

use crate::record::{DecodeCells, Measurement, Phase, Plan, Status, distinct, format_context};

/// From this batch on reading the KV cache is taken to be bandwidth-bound.
const BANDWIDTH_BOUND: u32 = 8;

/// A plan for `measurement` by the stated rule: every batch at the shortest context; the smallest, a middle
/// bandwidth-bound and the largest batch at the longest; the first cell over capacity there; the two shortest prefill
/// rows, the longest and the one nearest half of it; the single-request TTFT of every context.
pub fn plan_by_rule(measurement: &Measurement) -> Plan {
    let with = |phase: Phase, status: Status| {
        measurement.cells.iter().filter(move |c| c.phase == phase && c.status == status)
    };
    let contexts = distinct(with(Phase::Decode, Status::Valid).map(|c| c.context_tokens));
    let sizes = |context: u64, status: Status| -> Vec<u32> {
        distinct(with(Phase::Decode, status).filter(|c| c.context_tokens == context).map(|c| c.concurrency))
    };
    let mut decode = Vec::new();
    let mut add = |context: u64, concurrency: Vec<u32>| {
        if !concurrency.is_empty() {
            decode.push(DecodeCells { context: format_context(context), concurrency });
        }
    };
    if let Some(shortest) = contexts.first() {
        add(*shortest, sizes(*shortest, Status::Valid));
    }
    if let Some(longest) = contexts.last().filter(|_| contexts.len() > 1) {
        let ran = sizes(*longest, Status::Valid);
        let large: Vec<u32> = ran.iter().copied().filter(|c| *c >= BANDWIDTH_BOUND).collect();
        let middle = large.get(large.len().saturating_sub(1) / 2).copied();
        let edge = sizes(*longest, Status::OverCapacity).first().copied();
        let chosen = [ran.first().copied(), middle, ran.last().copied(), edge];
        add(*longest, distinct(chosen.into_iter().flatten()));
    }
    let rows = distinct(with(Phase::Prefill, Status::Valid).map(|c| c.context_tokens));
    let half = rows.last().and_then(|last| rows.iter().min_by_key(|c| c.abs_diff(last / 2)));
    let chosen = [rows.first(), rows.get(1), half, rows.last()];
    let prefill = distinct(chosen.into_iter().flatten().copied()).into_iter().map(format_context).collect();
    let warm = contexts.iter().filter(|c| {
        measurement
            .decode(**c, 1)
            .is_some_and(|cell| cell.status == Status::Valid && cell.columns.ttft_ms.is_some())
    });
    Plan { decode, prefill, warm_ttft: warm.map(|c| format_context(*c)).collect() }
}
