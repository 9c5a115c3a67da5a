//! `simulate`: one cell with its timeline.

use std::path::PathBuf;

use clap::Args;

use super::args;
use super::out::OutputArgs;
use crate::engine::Mode;
use crate::error::{Error, Result};
use crate::report::cell_report;
use crate::simulate::{CellRequest, Options, simulate_cell};
use crate::units::SimSpan;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  inferometer simulate --context 8K --concurrency 4
  inferometer simulate --context 123K --concurrency 16 --format csv     one line a request")]
pub(super) struct SimulateArgs {
    /// Profile file, folder with profile.toml, or the name of a shipped calibration [default: the reference]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Context, tokens or with K or M
    #[arg(long, value_parser = args::context)]
    context: u64,
    /// Simultaneous streams
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    concurrency: u32,
    /// Output limit of a request, tokens
    #[arg(long, value_name = "N")]
    max_tokens: Option<u64>,
    /// Length of the window
    #[arg(long, value_parser = args::duration, value_name = "TIME")]
    duration: Option<SimSpan>,
    /// As the first cell of its context: nothing cached, the scout stands between idle waits
    #[arg(long)]
    first: bool,
    /// One engine step at a time instead of in closed form; the answer is the same
    #[arg(long)]
    step_by_step: bool,
}

pub(super) fn run(args: &SimulateArgs, output: &OutputArgs) -> Result<()> {
    let profile = args::profile(args.profile.as_deref())?;
    let request = CellRequest {
        context_tokens: args.context,
        concurrency: args.concurrency,
        max_tokens: args.max_tokens.unwrap_or(profile.matrix.max_tokens),
        duration: args.duration.unwrap_or_else(|| SimSpan::from_secs_f64(profile.matrix.duration_s)),
        first_at_context: args.first,
    };
    if request.max_tokens == 0 {
        return Err(Error::usage("--max-tokens 0: a request generates at least one token"));
    }
    let mode = if args.step_by_step { Mode::StepByStep } else { Mode::FastForward };
    let options = Options { mode, keep_events: true, ..Options::default() };
    let outcome = output.waiting("simulating", || simulate_cell(&profile, &request, options))?;
    output.write(&cell_report(&request, &outcome, output.format(), output.style()))
}
