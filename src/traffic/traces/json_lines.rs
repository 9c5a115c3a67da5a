//! Traces as one JSON object a line.
//!
//! Knows the keys of Mooncake and of the plain form. Knows no rule about rows.

use std::io::BufRead;

use serde_json::{Map, Value};

use super::collect::{Collector, Row};
use super::csv_form::Times;
use super::{TimeUnit, Trace, TraceForm, TraceOptions};
use crate::error::{Error, Result};

const INPUT: &[&str] = &["input_length", "prompt_tokens", "input_tokens", "prompt_len"];
const OUTPUT: &[&str] = &["output_length", "output_tokens", "completion_tokens", "output_len"];
const SECONDS: &[&str] = &["arrival_s", "arrival", "arrival_time", "timestamp_s"];
const MILLIS: &[&str] = &["arrival_ms", "timestamp_ms"];

/// What was met besides rows.
#[derive(Default)]
struct Seen {
    numeric_times: bool,
    text_times: bool,
    objects: u64,
    times: Times,
}

pub(super) fn read(name: &str, reader: impl BufRead, options: &TraceOptions) -> Result<Trace> {
    let mut collector: Option<Collector<'_>> = None;
    let mut seen = Seen::default();
    for (index, line) in reader.lines().enumerate() {
        let number = index as u64 + 1;
        let line = line.map_err(|e| Collector::wrong(name, number, format!("cannot read: {e}")))?;
        let text = line.trim_start_matches('\u{feff}').trim();
        if text.is_empty() {
            continue;
        }
        let row: Map<String, Value> = serde_json::from_str(text)
            .map_err(|e| Collector::wrong(name, number, format!("not a JSON object: {e}")))?;
        let form = if row.contains_key("input_length") { TraceForm::Mooncake } else { TraceForm::Plain };
        let collector = collector.get_or_insert_with(|| Collector::new(name, form, options));
        let row = read_row(name, number, &row, options, &mut seen)?;
        collector.add(row)?;
    }
    let mut collector = collector.ok_or_else(|| Error::input(name, "the trace is empty"))?;
    if seen.numeric_times && options.time_unit.is_none() {
        collector.note(
            "timestamp is read as milliseconds, as Mooncake writes it; time_unit says otherwise".to_owned(),
        );
    }
    seen.times.note(&mut collector);
    if seen.text_times && options.time_unit.is_none() && !seen.times.is_wall_clock() {
        collector.note("timestamp is a text: read as seconds".to_owned());
    }
    if seen.objects > 0 {
        collector.note(format!(
            "hash_ids of {} rows are objects, not lists: ignored, no reuse is assumed",
            seen.objects
        ));
    }
    collector.finish(seen.times.is_wall_clock())
}

fn read_row(
    name: &str,
    line: u64,
    row: &Map<String, Value>,
    options: &TraceOptions,
    seen: &mut Seen,
) -> Result<Row> {
    let session = match row.get("session_id") {
        Some(Value::String(text)) if !text.is_empty() => Some(text.as_str().into()),
        Some(Value::Number(number)) => Some(number.to_string().into()),
        _ => None,
    };
    Ok(Row {
        line,
        nanos: time(name, line, row, options, seen)?,
        input: tokens(name, line, row, INPUT)?,
        output: tokens(name, line, row, OUTPUT)?,
        hash_ids: hash_ids(name, line, row, seen)?,
        session,
    })
}

/// The first of the keys that is there and not null.
fn get<'a>(row: &'a Map<String, Value>, keys: &[&'static str]) -> Option<(&'static str, &'a Value)> {
    keys.iter().find_map(|k| row.get(*k).map(|v| (*k, v))).filter(|(_, v)| !v.is_null())
}

fn time(
    name: &str,
    line: u64,
    row: &Map<String, Value>,
    options: &TraceOptions,
    seen: &mut Seen,
) -> Result<Option<i128>> {
    let (key, value, unit) = if let Some((key, value)) = get(row, SECONDS) {
        (key, value, TimeUnit::Seconds)
    } else if let Some((key, value)) = get(row, MILLIS) {
        (key, value, TimeUnit::Milliseconds)
    } else if let Some((key, value)) = get(row, &["timestamp"]) {
        let text = value.is_string();
        if (text && seen.numeric_times) || (value.is_number() && seen.text_times) {
            let message = "timestamp: a text (seconds) among numbers (milliseconds): give all in one form";
            return Err(Collector::wrong(name, line, message));
        }
        seen.text_times |= text;
        seen.numeric_times |= value.is_number();
        (key, value, if text { TimeUnit::Seconds } else { TimeUnit::Milliseconds })
    } else {
        return Ok(None);
    };
    let text = match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.trim().to_owned(),
        other => return Err(Collector::wrong(name, line, format!("{key}: {other} is no number"))),
    };
    let nanos = seen
        .times
        .read(&text, TraceForm::Plain, options.time_unit.unwrap_or(unit))
        .map_err(|what| Collector::wrong(name, line, format!("{key}: {text:?} is no {what}")))?;
    Ok(Some(nanos))
}

/// A whole number of tokens, also written `5.0`; zero and negative ones are judged later.
fn tokens(name: &str, line: u64, row: &Map<String, Value>, keys: &[&'static str]) -> Result<i64> {
    let (key, value) = get(row, keys)
        .ok_or_else(|| Collector::wrong(name, line, format!("the key {:?} is missing", keys[0])))?;
    #[expect(clippy::cast_possible_truncation, reason = "checked to be a whole number below 2^53")]
    let rounded = |x: f64| (x.fract() == 0.0 && x.abs() < 9e15).then_some(x as i64);
    value
        .as_i64()
        .or_else(|| value.as_f64().and_then(rounded))
        .ok_or_else(|| Collector::wrong(name, line, format!("{key}: {value} is no whole number of tokens")))
}

/// Missing, null and empty lists all say that no reuse is known.
fn hash_ids(name: &str, line: u64, row: &Map<String, Value>, seen: &mut Seen) -> Result<Vec<u64>> {
    match row.get("hash_ids") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Object(_)) => {
            seen.objects += 1;
            Ok(Vec::new())
        }
        Some(Value::Array(list)) => list
            .iter()
            .map(|id| match id {
                Value::String(text) => Ok(fnv(text.as_bytes())),
                _ => id.as_u64().or_else(|| id.as_i64().map(i64::cast_unsigned)).ok_or_else(|| {
                    Collector::wrong(name, line, format!("hash_ids: {id} is no whole number of 64 bits"))
                }),
            })
            .collect(),
        Some(other) => Err(Collector::wrong(name, line, format!("hash_ids: {other} is no list"))),
    }
}

/// FNV-1a, for ids that are texts.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}
