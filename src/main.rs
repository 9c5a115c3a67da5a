//! The `inferometer` command: parse, dispatch, error to exit code.

use std::io::Write as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    match inferometer::cli::run(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr is gone there is nobody left to tell.
            let _ = writeln!(anstream::stderr(), "\u{1b}[1;31merror\u{1b}[0m: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}
