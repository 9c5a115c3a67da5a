//! `check`: predictions beside a measurement.

use std::path::PathBuf;

use clap::Args;

use super::args;
use super::out::OutputArgs;
use crate::check::check;
use crate::error::{Error, ErrorKind, Result};
use crate::fit::fit;
use crate::report::check_report;

#[derive(Debug, Args)]
#[command(after_help = "\
Without --profile the plan's cells are fitted first, so that the other cells are a blind test.

Examples:
  inferometer check
  inferometer check my-server --format json
  inferometer check my-server --profile my-server/profile.toml --fail-above 5%")]
pub(super) struct CheckArgs {
    /// Folder or CSV file, or the name of a shipped calibration [default: the reference]
    measurement: Option<PathBuf>,
    /// Which cells may be used to fit
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// A profile to judge, instead of fitting one
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Exit with 6 if the mean error of total tok/s over the held-out cells is larger
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    fail_above: Option<f64>,
}

fn percent(text: &str) -> std::result::Result<f64, String> {
    let value = text.trim_end_matches('%').parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0);
    value.ok_or_else(|| format!("\"{text}\" is not a percentage; write 5%"))
}

pub(super) fn run(args: &CheckArgs, output: &OutputArgs) -> Result<()> {
    let measurement = args::measurement(args.measurement.as_deref())?;
    let (plan, which) = args::plan(args.plan.as_deref(), &measurement)?;
    let profile = match &args.profile {
        Some(path) => args::profile(Some(path))?,
        None => output.waiting("fitting", || fit(&measurement, &plan))?,
    };
    if args.profile.is_none() {
        output.remark(&format!("fitted on {which}"));
    }
    let result = output.waiting("simulating every cell", || check(&measurement, &plan, &profile))?;
    let title = measurement.origin.display().to_string();
    output.write(&check_report(&title, &result, output.format(), output.style()))?;
    let mape = result.summary.held_out.get("total_tok_s").map(|e| e.mape);
    match (args.fail_above, mape) {
        (Some(limit), Some(mape)) if mape > limit => Err(Error::new(
            ErrorKind::CheckFailed,
            format!(
                "total tok/s is off by {mape:.2} % on average over the held-out cells; the limit is {limit} %"
            ),
        )),
        (Some(_), None) => Err(Error::new(
            ErrorKind::CheckFailed,
            "no held-out decode cell gives a total tok/s, so --fail-above cannot be judged",
        )),
        _ => Ok(()),
    }
}
