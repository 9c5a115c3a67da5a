//! One simulated cell: what happened when, and what it measured.

use super::table::Table;
use super::{Format, Style, json, short};
use crate::engine::EventKind;
use crate::record::{COLUMN_NAMES, format_context};
use crate::simulate::{CellOutcome, CellRequest, PRIMER};
use crate::units::SimTime;

/// Writes a simulated cell with its requests (`--format csv`: the requests alone).
pub fn cell_report(request: &CellRequest, outcome: &CellOutcome, format: Format, style: Style) -> String {
    match format {
        Format::Json => as_json(request, outcome),
        Format::Csv => requests(outcome).render(format, style),
        Format::Text | Format::Markdown => {
            let mut out = format!(
                "{} x {}, up to {} output tokens, window {}\n\n",
                format_context(request.context_tokens),
                request.concurrency,
                request.max_tokens,
                request.duration
            );
            out += &steps(outcome).render(format, style);
            out.push('\n');
            out += &requests(outcome).render(format, style);
            out.push('\n');
            let mut columns = Table::new(&["column", "value"], 1);
            for name in COLUMN_NAMES {
                let value = outcome.summary.columns.get(name).map_or_else(String::new, short);
                columns.rows.push(vec![name.to_owned(), value]);
            }
            out += &columns.render(format, style);
            out
        }
    }
}

/// Seconds before or after the launch of the streams.
fn relative(at: SimTime, launched: SimTime) -> f64 {
    at.as_secs_f64() - launched.as_secs_f64()
}

/// What the replica and the protocol did, in order; times in seconds from the launch.
fn steps(outcome: &CellOutcome) -> Table {
    let mut table = Table::new(&["s after launch", "what"], 0);
    let mut lines: Vec<(SimTime, String)> = vec![
        (outcome.launched, "streams launched".to_owned()),
        (outcome.window.0, "window opens".to_owned()),
        (outcome.window.1, "window closes, streams are cut".to_owned()),
    ];
    for event in &outcome.events {
        let who =
            if event.request == PRIMER { "primer".to_owned() } else { format!("request {}", event.request) };
        let what = match event.kind {
            EventKind::Queued => format!("{who} reaches the scheduler"),
            EventKind::Scheduled { hit_tokens } => {
                format!("{who} admitted, {hit_tokens} prompt tokens cached")
            }
            EventKind::Tokens { first_index: 0, first_at, .. } => {
                lines.push((first_at, format!("{who} gives its first token")));
                continue;
            }
            EventKind::Tokens { .. } => continue,
            EventKind::Preempted => format!("{who} preempted"),
            EventKind::Finished { .. } => format!("{who} finished"),
        };
        lines.push((event.at, what));
    }
    lines.sort_by_key(|(at, _)| *at);
    for (at, what) in lines {
        table.rows.push(vec![format!("{:+.4}", relative(at, outcome.launched)), what]);
    }
    table
}

fn requests(outcome: &CellOutcome) -> Table {
    let mut table =
        Table::new(&["stream", "kind", "posted s", "TTFT ms", "ITL ms", "tokens", "completed"], 2);
    for sample in &outcome.samples {
        table.rows.push(vec![
            sample.stream.to_string(),
            if sample.launch { "launch" } else { "restart" }.to_owned(),
            format!("{:.4}", relative(sample.posted, outcome.launched)),
            sample.ttft_ms().map_or_else(String::new, |v| format!("{v:.2}")),
            sample.itl_ms().map_or_else(String::new, |v| format!("{v:.3}")),
            sample.tokens.to_string(),
            if sample.completed { "yes" } else { "cut" }.to_owned(),
        ]);
    }
    table
}

fn as_json(request: &CellRequest, outcome: &CellOutcome) -> String {
    let mut samples = Vec::new();
    for s in &outcome.samples {
        samples.push(serde_json::json!({
            "stream": s.stream, "launch": s.launch, "posted_s": relative(s.posted, outcome.launched),
            "ttft_ms": s.ttft_ms(), "itl_ms": s.itl_ms(), "tokens": s.tokens, "completed": s.completed,
        }));
    }
    let rows = steps(outcome).rows;
    json(&serde_json::json!({
        "kind": "simulated_cell",
        "context_tokens": request.context_tokens, "concurrency": request.concurrency,
        "max_tokens": request.max_tokens, "duration_s": request.duration.as_secs_f64(),
        "columns": outcome.summary.columns,
        "scout_ttft_ms": outcome.summary.scout_ttft_ms,
        "window_opens_s": outcome.summary.window_opens_s,
        "requests": samples,
        "timeline": rows.iter().map(|r| serde_json::json!({"s": r[0].parse::<f64>().ok(), "what": r[1]})).collect::<Vec<_>>(),
    }))
}
