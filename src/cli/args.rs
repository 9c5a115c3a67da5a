//! Values that several commands take.

use std::path::Path;

use crate::error::{Error, Result};
use crate::profile::Profile;
use crate::record::{Measurement, Plan, parse_context};
use crate::shipped::{SHIPPED, Shipped};
use crate::units::SimSpan;

/// Reads "8K" for clap.
pub(super) fn context(text: &str) -> std::result::Result<u64, String> {
    parse_context(text).map_err(|e| e.to_string())
}

/// Reads "30s", "5m", "500ms", "1h" or seconds.
pub(super) fn duration(text: &str) -> std::result::Result<SimSpan, String> {
    let bad = || format!("\"{text}\" is not a duration; write 30s, 500ms, 5m or 1h");
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let factor = match &text[split..] {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" => 60.0,
        "h" => 3_600.0,
        _ => return Err(bad()),
    };
    let value: f64 = text[..split].trim().parse().map_err(|_| bad())?;
    let seconds = value * factor;
    if !(0.1..=1e7).contains(&seconds) {
        return Err(format!("\"{text}\" is outside 0.1 s to 1e7 s"));
    }
    Ok(SimSpan::from_secs_f64(seconds))
}

/// The profile that was named: a file, a folder with `profile.toml`, a shipped one, or the reference.
pub(super) fn profile(named: Option<&Path>) -> Result<Profile> {
    let Some(path) = named else { return Shipped::reference().profile() };
    match shipped(path) {
        Some(shipped) => shipped.profile(),
        None => Profile::read(path).map_err(|e| hint(path, e)),
    }
}

/// The measurement that was named, in the same way.
pub(super) fn measurement(named: Option<&Path>) -> Result<Measurement> {
    let Some(path) = named else { return Shipped::reference().measurement() };
    match shipped(path) {
        Some(shipped) => shipped.measurement(),
        None => Measurement::read(path).map_err(|e| hint(path, e)),
    }
}

/// The plan that was named, else the measurement's own, else the one by rule. The sentence says which.
pub(super) fn plan(named: Option<&Path>, measurement: &Measurement) -> Result<(Plan, &'static str)> {
    if let Some(path) = named {
        return Ok((Plan::parse(path, &crate::error::read_text(path)?)?, "the plan given"));
    }
    Ok(match &measurement.plan {
        Some(plan) => (plan.clone(), "the plan beside the measurement"),
        None => (crate::fit::plan_by_rule(measurement), "a plan chosen by rule"),
    })
}

/// A shipped folder, if `path` is its name and nothing on disk bears that name.
fn shipped(path: &Path) -> Option<&'static Shipped> {
    path.to_str().filter(|_| !path.exists()).and_then(Shipped::named)
}

fn hint(path: &Path, error: Error) -> Error {
    if path.exists() {
        return error;
    }
    let names: Vec<&str> = SHIPPED.iter().map(|s| s.name).collect();
    Error::new(error.kind(), format!("{error}; shipped ones are {}", names.join(", ")))
}
