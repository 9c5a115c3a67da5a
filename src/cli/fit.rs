//! `fit`: measurement and plan in, profile out.

use std::path::PathBuf;

use clap::Args;

use super::args;
use super::out::OutputArgs;
use crate::error::Result;
use crate::fit::fit;

#[derive(Debug, Args)]
#[command(after_help = "\
A measurement is a folder with measured.csv, measurement.toml and usually plan.toml, or a bare CSV. Without a plan the
cells are chosen by rule. The profile goes to stdout, or to --out.

Examples:
  inferometer fit my-server --out my-server/profile.toml
  inferometer fit measured.csv --plan plan.toml")]
pub(super) struct FitArgs {
    /// Folder or CSV file, or the name of a shipped calibration
    measurement: PathBuf,
    /// Which cells may be used
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
}

pub(super) fn run(args: &FitArgs, output: &OutputArgs) -> Result<()> {
    let measurement = args::measurement(Some(&args.measurement))?;
    let (plan, which) = args::plan(args.plan.as_deref(), &measurement)?;
    let profile = output.waiting("fitting", || fit(&measurement, &plan))?;
    output.remark(&format!("fitted on {which}: {}", profile.origin.fitted_on));
    for note in &profile.notes {
        output.remark(&format!("note: {note}"));
    }
    let text = match output.format() {
        crate::report::Format::Json => {
            let mut text = serde_json::to_string_pretty(&profile).unwrap_or_default();
            text.push('\n');
            text
        }
        _ => profile.to_toml(),
    };
    output.write(&text)
}
