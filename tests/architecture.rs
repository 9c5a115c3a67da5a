//! Reads `src/` and holds it to the map of `ARCHITECTURE.md`: which room may name which, and how long a file or a
//! function may be.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its own sources should stop")]

use std::path::{Path, PathBuf};

/// The rooms from the ground up. A room may name rooms that stand earlier in this list, and those it is allowed below.
const ROOMS: &[&str] = &[
    "units", "error", "rng", "metrics", "record", "costs", "engine", "traffic", "estimate", "interop",
    "profile", "simulate", "fit", "matrix", "check", "shipped", "live", "emulate", "report", "cli",
];

/// Rooms that must not be named although they stand lower: `live` never interprets, so it knows no engine.
const FORBIDDEN: &[(&str, &str)] = &[
    ("live", "engine"),
    ("live", "simulate"),
    ("live", "fit"),
    ("engine", "record"),
    ("engine", "metrics"),
    ("costs", "record"),
    ("costs", "metrics"),
    ("traffic", "engine"),
    ("report", "fit"),
    ("fit", "shipped"),
];

/// What no room below `cli`, `live` and `emulate` may use: clocks, threads of its own, terminals, the network.
const FOREIGN: &[&str] = &[
    "std::time::Instant",
    "std::time::SystemTime",
    "tokio::",
    "reqwest::",
    "axum::",
    "clap::",
    "indicatif::",
    "println!",
    "eprintln!",
];

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

fn all() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 30, "the walk found {} files", files.len());
    files
        .into_iter()
        .map(|p| {
            let text = std::fs::read_to_string(&p).unwrap();
            (p.strip_prefix(&root).unwrap().to_path_buf(), text)
        })
        .collect()
}

fn room(path: &Path) -> String {
    let first = path.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// The code of a file without its comments and its unit tests.
fn code(text: &str) -> String {
    let end = text.find("#[cfg(test)]").unwrap_or(text.len());
    text[..end].lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_room_names_only_rooms_on_lower_ground() {
    let mut wrong = Vec::new();
    for (path, text) in all() {
        let own = room(&path);
        if own == "lib" || own == "main" {
            continue;
        }
        let height = |name: &str| ROOMS.iter().position(|r| *r == name);
        let Some(mine) = height(&own) else {
            wrong.push(format!("{}: the room {own} is not on the map", path.display()));
            continue;
        };
        let text = code(&text);
        for (at, _) in text.match_indices("crate::") {
            let rest = &text[at + 7..];
            let named: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            let Some(other) = height(&named) else { continue };
            if other > mine {
                wrong.push(format!("{}: {own} names {named}, which stands above it", path.display()));
            }
            if FORBIDDEN.contains(&(own.as_str(), named.as_str())) {
                wrong.push(format!("{}: {own} must not know {named}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_core_knows_no_clock_no_network_and_no_terminal() {
    for (path, text) in all() {
        if ["cli", "live", "emulate", "main"].contains(&room(&path).as_str()) {
            continue;
        }
        let text = code(&text);
        for word in FOREIGN {
            assert!(!text.contains(word), "{}: uses {word}", path.display());
        }
    }
}

#[test]
fn files_stay_under_400_lines_and_functions_under_70() {
    let mut wrong = Vec::new();
    for (path, text) in all() {
        let lines = text.lines().count();
        if lines >= 400 {
            wrong.push(format!("{}: {lines} lines", path.display()));
        }
        let mut open: Option<(usize, usize, String)> = None;
        for (number, line) in text.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let starts = [
                "fn ",
                "pub fn ",
                "pub(crate) fn ",
                "pub(super) fn ",
                "async fn ",
                "pub async fn ",
                "pub const fn ",
            ];
            if open.is_none()
                && starts.iter().any(|s| line.trim_start().starts_with(s))
                && !line.trim_end().ends_with('}')
            {
                open = Some((indent, number, line.trim().to_owned()));
            } else if let Some((at, from, name)) = &open
                && indent == *at
                && line.trim() == "}"
            {
                let length = number - from + 1;
                if length >= 70 {
                    wrong.push(format!("{}:{}: {length} lines: {name}", path.display(), from + 1));
                }
                open = None;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let main = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/main.rs");
    assert!(std::fs::read_to_string(main).unwrap().lines().count() < 60);
}
