//! The engine decides as vLLM's own scheduler does, in every step of every recording.

mod vllm;

use std::path::{Path, PathBuf};

use vllm::compare::{Pace, compare};
use vllm::recording;
use vllm::workload::Workload;

/// Folders that hold `workloads` and `recordings`: the project's, and any below the directories that the
/// environment names.
fn sets() -> Vec<PathBuf> {
    let mut sets = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vllm/golden")];
    let named = std::env::var("INFEROMETER_RECORDINGS").unwrap_or_default();
    for directory in named.split(':').filter(|d| !d.is_empty()) {
        let before = sets.len();
        find_sets(Path::new(directory), &mut sets);
        assert!(
            sets.len() > before,
            "INFEROMETER_RECORDINGS: no workloads/ and recordings/ below {directory}"
        );
    }
    sets
}

fn find_sets(directory: &Path, sets: &mut Vec<PathBuf>) {
    if directory.join("workloads").is_dir() && directory.join("recordings").is_dir() {
        sets.push(directory.to_owned());
        return;
    }
    let entries = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let mut below: Vec<PathBuf> =
        entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_dir()).collect();
    below.sort();
    for directory in below {
        find_sets(&directory, sets);
    }
}

fn cases(set: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mut names: Vec<PathBuf> = std::fs::read_dir(set.join("workloads"))
        .expect("a folder of workloads")
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .collect();
    names.sort();
    names
        .into_iter()
        .map(|workload| {
            let stem = workload.file_stem().expect("a name").to_string_lossy().into_owned();
            let recording = ["jsonl.gz", "jsonl"]
                .map(|ending| set.join("recordings").join(format!("{stem}.{ending}")))
                .into_iter()
                .find(|p| p.exists())
                .unwrap_or_else(|| panic!("{}: no recording of it", workload.display()));
            (workload, recording)
        })
        .collect()
}

fn all_agree(pace: Pace) {
    let mut differences = Vec::new();
    let (mut steps, mut leapt, mut count) = (0, 0, 0);
    for set in sets() {
        for (workload, recording) in cases(&set) {
            let text = std::fs::read_to_string(&workload).expect("a workload");
            let parsed: Workload =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", workload.display()));
            let lines = recording::read(&recording);
            count += 1;
            steps += lines.len() as u64;
            match compare(&parsed, &lines, pace) {
                Ok(n) => leapt += n,
                Err(difference) => differences.push(difference),
            }
        }
    }
    println!("{count} recordings, {steps} steps, {leapt} of them leapt over");
    assert!(differences.is_empty(), "{} recordings differ:\n{}", differences.len(), differences.join("\n\n"));
    assert!(count >= 37, "the project's own recordings are there");
}

#[test]
fn every_step_of_every_recording_agrees() {
    all_agree(Pace::StepByStep);
}

#[test]
fn every_step_of_every_recording_agrees_when_decode_steps_are_taken_at_once() {
    all_agree(Pace::Leaping);
}
