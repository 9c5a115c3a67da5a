//! The command line: what was typed, what it means, call, print.
//!
//! One file a command. Nothing here computes; results go to stdout, everything else to stderr.

mod args;
mod check;
mod fit;
mod out;
mod predict;
mod shell;
mod simulate;

use std::ffi::OsString;

use clap::{Parser, Subcommand};

use crate::error::{Error, ErrorKind, Result};

use out::OutputArgs;

/// Predict a whole vLLM benchmark matrix from a few measured cells.
#[derive(Debug, Parser)]
#[command(name = "inferometer", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  inferometer predict                            the reference matrix, from the embedded profile
  inferometer check                              the same beside what was measured
  inferometer fit my-server --out my-server/profile.toml
  inferometer predict --profile my-server --contexts 8K,200K --concurrency 1,3,12,256

Exit codes: 0 success; 1 the program or the machine failed; 2 wrong command line; 3 bad input file;
4 the input does not determine what was asked; 5 a live server could not be measured; 6 a check failed.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Predict a matrix of contexts and concurrencies from a profile
    Predict(predict::PredictArgs),
    /// Fit a profile to the cells that a plan names
    Fit(fit::FitArgs),
    /// Set predictions beside a measurement, cell by cell
    Check(check::CheckArgs),
    /// Simulate one cell and show what happened when
    Simulate(simulate::SimulateArgs),
    /// Print a shell completion script
    Completions(shell::CompletionsArgs),
    /// Write man pages
    Man(shell::ManArgs),
}

/// Runs the program on `args`, the first of which is its name.
///
/// # Errors
/// Whatever went wrong, with the exit code of its kind.
pub fn run(args: impl IntoIterator<Item = OsString>) -> Result<()> {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // Help and version are answers, not failures.
            return error.print().map_err(|e| Error::new(ErrorKind::Internal, e.to_string()));
        }
        Err(error) => {
            let text = error.render().to_string();
            let text = text.trim_end().trim_start_matches("error: ");
            return Err(Error::usage(text));
        }
    };
    let output = cli.output;
    match cli.command {
        Command::Predict(args) => predict::run(&args, &output),
        Command::Fit(args) => fit::run(&args, &output),
        Command::Check(args) => check::run(&args, &output),
        Command::Simulate(args) => simulate::run(&args, &output),
        Command::Completions(args) => shell::completions(&args, &output),
        Command::Man(args) => shell::man(&args),
    }
}
