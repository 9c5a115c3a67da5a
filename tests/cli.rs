//! The command line as a user meets it: answers, bad input with its one clear error and exit code, atomic files.

#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::path::Path;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

fn inferometer() -> Command {
    let mut command = Command::cargo_bin("inferometer").unwrap();
    command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env_remove("COLUMNS");
    command
}

fn json(command: &mut Command) -> serde_json::Value {
    let output = command.assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).unwrap()
}

/// A folder with the reference measurement, changed by `edit`.
fn reference(edit: impl Fn(&str) -> String) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("calibration/ling-3.0-tiny-h200-nvl");
    for file in ["measured.csv", "measurement.toml", "plan.toml"] {
        let text = std::fs::read_to_string(from.join(file)).unwrap();
        let text = if file == "measured.csv" { edit(&text) } else { text };
        std::fs::write(dir.path().join(file), text).unwrap();
    }
    dir
}

#[test]
fn predict_prints_the_reference_matrix() {
    inferometer()
        .arg("predict")
        .assert()
        .success()
        .stdout(
            contains("Ling-3.0-tiny")
                .and(contains("123K"))
                .and(contains("over capacity"))
                .and(contains("\u{1b}").not()),
        )
        .stderr("");
    let answer = json(inferometer().args(["predict", "--format", "json"]));
    assert_eq!(answer["cells"].as_array().unwrap().len(), 46);
    let again = json(inferometer().args(["predict", "--format", "json"]).env("RAYON_NUM_THREADS", "1"));
    assert_eq!(answer, again, "the same bytes whatever the thread count");
}

#[test]
fn predict_answers_anything_else() {
    let answer = json(inferometer().args([
        "predict",
        "--contexts",
        "8K,200K",
        "--concurrency",
        "1,3,12,256",
        "--max-tokens",
        "512",
        "--duration",
        "10s",
        "--format",
        "json",
    ]));
    let cells = answer["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 2 + 8);
    let notes = serde_json::to_string(&cells[cells.len() - 1]["notes"]).unwrap();
    assert!(notes.contains("KV tokens") || notes.contains("max_model_len"), "{notes}");
    for format in ["csv", "markdown"] {
        inferometer().args(["predict", "--format", format]).assert().success().stdout(contains("total"));
    }
}

#[test]
fn colours_come_and_go() {
    inferometer().args(["predict", "--color", "always"]).assert().success().stdout(contains("\u{1b}[48;5;"));
    inferometer().arg("predict").env("NO_COLOR", "1").assert().success().stdout(contains("\u{1b}").not());
    inferometer().arg("predict").env("COLUMNS", "60").assert().success().stdout(contains("x128"));
}

#[test]
fn fit_then_check_then_predict_in_a_folder() {
    let dir = reference(str::to_owned);
    let profile = dir.path().join("profile.toml");
    inferometer().arg("fit").arg(dir.path()).arg("--out").arg(&profile).assert().success();
    let answer = json(
        inferometer().arg("check").arg(dir.path()).arg("--profile").arg(&profile).args(["--format", "json"]),
    );
    assert_eq!(answer["cells"].as_array().unwrap().len(), 46);
    assert_eq!(answer["summary"]["over_capacity"]["of"], 1);
    for key in [
        "total_tok_s",
        "per_request_tok_s",
        "ttft_ms",
        "inter_token_ms",
        "avg_active",
        "completed",
        "output_tokens",
    ] {
        assert!(
            answer["cells"][20]["measured"].get(key).is_some()
                && answer["cells"][20]["predicted"][key]["low"].is_number()
        );
    }
    inferometer().arg("predict").arg("--profile").arg(dir.path()).assert().success();
    inferometer()
        .arg("check")
        .arg(dir.path())
        .arg("--profile")
        .arg(&profile)
        .args(["--fail-above", "0.01%"])
        .assert()
        .code(6)
        .stderr(contains("the limit is 0.01 %"));
}

#[test]
fn simulate_shows_what_happened() {
    inferometer().args(["simulate", "--context", "8K", "--concurrency", "4"]).assert().success().stdout(
        contains("window opens")
            .and(contains("admitted, 7680 prompt tokens cached"))
            .and(contains("restart")),
    );
    let answer =
        json(inferometer().args(["simulate", "--context", "8K", "--concurrency", "2", "--format", "json"]));
    let slow = json(inferometer().args([
        "simulate",
        "--context",
        "8K",
        "--concurrency",
        "2",
        "--format",
        "json",
        "--step-by-step",
    ]));
    assert_eq!(answer["requests"], slow["requests"]);
}

#[test]
fn bad_command_lines_say_what_is_wrong() {
    let cases: &[(&[&str], &str)] = &[
        (&["predict", "--contexts", "8Q"], "unknown unit \"Q\""),
        (&["predict", "--concurrency", "0"], "concurrency 0 is outside"),
        (&["predict", "--concurrency", "99999999"], "outside 1..="),
        (&["predict", "--duration", "30 parsecs"], "is not a duration"),
        (&["predict", "--max-tokens", "0"], "max-tokens 0"),
        (&["predict", "--nonsense"], "--nonsense"),
        (&["simulate", "--context", "8K", "--concurrency", "0"], "0"),
        (&["simulate", "--context", "8K", "--concurrency", "1", "--max-tokens", "0"], "--max-tokens 0"),
        (&["check", "--fail-above", "much"], "is not a percentage"),
    ];
    for (args, message) in cases {
        inferometer().args(*args).assert().code(2).stdout("").stderr(contains(*message));
    }
}

#[test]
fn bad_files_are_named_with_their_line() {
    let cases: &[(&str, &str, &str)] = &[
        ("decode,16K,16384,2,valid,574,", "decode,16K,16384,2,valid,fast,", "measured.csv:17"),
        ("decode,16K,16384,2,valid,", "decode,16K,16384,2,splendid,", "splendid"),
        ("decode,16K,16384,2,valid,", "decode,16K,16384,0,valid,", "concurrency"),
        ("decode,16K,16384,2,valid,", "decode,16K,16384,1,valid,", "second time"),
        ("30059,30.0", "300590,30.0", "contradicts"),
        ("phase,context_label", "phase,colour,context_label", "colour"),
        (
            "decode,123K,125952,64,valid,3677.2,55.9,5236,17.9,64,0,110337,30.0",
            "decode,123K,125952,64,val",
            "truncated",
        ),
    ];
    for (from, to, message) in cases {
        let dir = reference(|text| {
            assert!(text.contains(from), "{from}");
            text.replacen(from, to, 1)
        });
        inferometer().arg("check").arg(dir.path()).assert().code(3).stdout("").stderr(contains(*message));
    }
    inferometer()
        .args(["check", "no-such-folder"])
        .assert()
        .code(3)
        .stderr(contains("no such file").and(contains("ling-3.0")));
}

#[test]
fn bad_plans_and_profiles_are_refused() {
    let dir = reference(str::to_owned);
    let plan = dir.path().join("bad.toml");
    for (text, code, message) in [
        ("decode = [{ context = \"8Q\", concurrency = [1] }]", 3, "unknown unit"),
        ("decode = [{ context = \"8K\", concurrency = [0] }]", 3, "0 streams"),
        ("decod = []", 3, "decod"),
        ("decode = []", 4, "no valid decode cell"),
    ] {
        std::fs::write(&plan, text).unwrap();
        inferometer()
            .arg("check")
            .arg(dir.path())
            .arg("--plan")
            .arg(&plan)
            .assert()
            .code(code)
            .stderr(contains(message));
    }
    let profile = dir.path().join("profile.toml");
    let good = include_str!("../calibration/ling-3.0-tiny-h200-nvl/profile.toml");
    for (from, to, message) in [
        ("inferometer-profile-1", "inferometer-profile-9", "inferometer-profile-9"),
        ("slope_ns = [", "slope_ns = [1.0, ", "entries"),
        ("batch = [1, 2", "batch = [2, 1", "ascending"),
        ("[engine]", "[engine]\ncolour = 3", "colour"),
        ("duration_s = 30.0", "duration_s = -1.0", "duration_s"),
    ] {
        assert!(good.contains(from), "{from}");
        std::fs::write(&profile, good.replacen(from, to, 1)).unwrap();
        inferometer()
            .arg("predict")
            .arg("--profile")
            .arg(&profile)
            .assert()
            .code(3)
            .stderr(contains(message));
    }
    std::fs::write(&profile, &good[..good.len() / 2]).unwrap();
    inferometer().arg("predict").arg("--profile").arg(&profile).assert().code(3);
}

#[test]
fn a_bare_csv_is_a_measurement() {
    let dir = reference(str::to_owned);
    let csv = dir.path().join("measured.csv");
    let answer = json(inferometer().arg("check").arg(&csv).args(["--format", "json", "-q"]));
    assert!(answer["summary"]["held_out"]["total_tok_s"]["mape"].as_f64().unwrap() < 3.0);
}

#[test]
fn a_failed_write_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("answer.csv");
    std::fs::write(&out, "old").unwrap();
    inferometer().args(["predict", "--contexts", "8Q", "--out"]).arg(&out).assert().code(2);
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "old");
    inferometer()
        .args(["predict", "--format", "csv", "--out"])
        .arg(dir.path().join("none/answer.csv"))
        .assert()
        .code(1);
    inferometer().args(["predict", "--format", "csv", "--out"]).arg(&out).assert().success().stdout("");
    assert!(std::fs::read_to_string(&out).unwrap().starts_with("phase,"));
}

#[test]
fn help_completions_and_man_pages() {
    for command in ["predict", "fit", "check", "simulate", "completions", "man"] {
        inferometer().args([command, "--help"]).assert().success().stdout(contains("Example"));
    }
    inferometer().arg("--version").assert().success().stdout(contains(env!("CARGO_PKG_VERSION")));
    inferometer().args(["completions", "bash"]).assert().success().stdout(contains("predict"));
    let dir = tempfile::tempdir().unwrap();
    inferometer().arg("man").arg(dir.path()).assert().success();
    assert!(
        std::fs::read_to_string(dir.path().join("inferometer-check.1"))
            .unwrap()
            .contains("inferometer\\-check")
    );
}
