//! `predict`: the matrix.

use std::path::PathBuf;

use clap::Args;

use super::args;
use super::out::OutputArgs;
use crate::error::Result;
use crate::matrix::{MatrixSpec, predict};
use crate::report::matrix_report;
use crate::units::SimSpan;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  inferometer predict
  inferometer predict --contexts 8K,200K --concurrency 1,3,12,256 --format csv
  inferometer predict --profile qwen3.5-397b-awq-4x-rtx-pro-6000 --max-tokens 1024 --duration 60s")]
pub(super) struct PredictArgs {
    /// Profile file, folder with profile.toml, or the name of a shipped calibration [default: the reference]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Contexts of the decode cells, tokens or with K or M [default: the profile's]
    #[arg(long, value_delimiter = ',', value_parser = args::context, value_name = "LIST")]
    contexts: Vec<u64>,
    /// Simultaneous streams [default: the profile's]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    concurrency: Vec<u32>,
    /// Contexts of the prefill rows [default: the profile's, or those of --contexts]
    #[arg(long, value_delimiter = ',', value_parser = args::context, value_name = "LIST")]
    prefill: Vec<u64>,
    /// Output limit of a request, tokens
    #[arg(long, value_name = "N")]
    max_tokens: Option<u64>,
    /// Length of the window
    #[arg(long, value_parser = args::duration, value_name = "TIME")]
    duration: Option<SimSpan>,
}

pub(super) fn run(args: &PredictArgs, output: &OutputArgs) -> Result<()> {
    let profile = args::profile(args.profile.as_deref())?;
    let mut spec = MatrixSpec::of(&profile);
    if !args.contexts.is_empty() {
        spec.contexts.clone_from(&args.contexts);
        spec.prefill = args.contexts.iter().copied().filter(|c| *c > 0).collect();
    }
    if !args.prefill.is_empty() {
        spec.prefill.clone_from(&args.prefill);
    }
    if !args.concurrency.is_empty() {
        spec.concurrency.clone_from(&args.concurrency);
    }
    spec.max_tokens = args.max_tokens.unwrap_or(spec.max_tokens);
    spec.duration = args.duration.unwrap_or(spec.duration);
    let matrix = output.waiting("simulating the matrix", || predict(&profile, &spec))?;
    output.write(&matrix_report(&profile, &matrix, output.format(), output.style()))
}
