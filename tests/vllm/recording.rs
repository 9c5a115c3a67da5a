//! A recording: one line per step of the real engine.

use std::io::Read;
use std::path::Path;

use serde::Deserialize;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Line {
    pub step: u64,
    pub add: Vec<String>,
    pub abort: Vec<String>,
    pub sched: Option<Vec<(String, u64, u64, String)>>,
    pub pre: Vec<String>,
    pub pc: [u64; 6],
    pub s: Option<[u64; 3]>,
    pub upd: Option<u64>,
    pub tok: u64,
    pub fin: Vec<(String, String, u64)>,
    pub u: Option<[u64; 3]>,
    pub blocks: serde_json::Value,
}

/// Reads the steps of a recording, plain or gzipped.
pub fn read(path: &Path) -> Vec<Line> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut text = String::new();
    if path.extension().is_some_and(|e| e == "gz") {
        flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).expect("a gzipped recording");
    } else {
        text = String::from_utf8(bytes).expect("a recording is text");
    }
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() >= 2, "{}: a recording has a head and an end", path.display());
    lines[1..lines.len() - 1]
        .iter()
        .enumerate()
        .map(|(i, line)| {
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{}:{}: {e}", path.display(), i + 2))
        })
        .collect()
}
