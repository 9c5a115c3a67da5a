//! Where answers go and what they may look like.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::error::{Error, ErrorKind, Result, write_atomic};
use crate::report::{Format, Style};

/// Flags of every command.
#[derive(Debug, Args)]
pub(super) struct OutputArgs {
    /// How the answer is written
    #[arg(long, global = true, value_enum, default_value_t = FormatArg::Text)]
    format: FormatArg,
    /// Write the answer to this file (replaced atomically) instead of stdout
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// No progress and no remarks on stderr
    #[arg(long, short, global = true)]
    quiet: bool,
    /// When to use colours; `auto` honours NO_COLOR and CLICOLOR_FORCE
    #[arg(long, global = true, value_enum, default_value_t = ColourArg::Auto)]
    color: ColourArg,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatArg {
    Text,
    Markdown,
    Csv,
    Json,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ColourArg {
    Auto,
    Always,
    Never,
}

impl OutputArgs {
    pub(super) fn format(&self) -> Format {
        match self.format {
            FormatArg::Text => Format::Text,
            FormatArg::Markdown => Format::Markdown,
            FormatArg::Csv => Format::Csv,
            FormatArg::Json => Format::Json,
        }
    }

    pub(super) fn style(&self) -> Style {
        let terminal = self.out.is_none() && std::io::stdout().is_terminal();
        let colour = match self.color {
            ColourArg::Always => true,
            ColourArg::Never => false,
            ColourArg::Auto => {
                self.out.is_none()
                    && anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never
            }
        };
        let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
        let width = if terminal { columns.unwrap_or(120) } else { columns.unwrap_or(0) };
        Style { colour, width }
    }

    /// Writes an answer. A reader that closed the pipe has seen enough: no error.
    pub(super) fn write(&self, text: &str) -> Result<()> {
        if let Some(path) = &self.out {
            write_atomic(path, text.as_bytes())?;
            self.remark(&format!("wrote {}", path.display()));
            return Ok(());
        }
        let mut stdout = std::io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Error::new(ErrorKind::Internal, format!("stdout: {e}")))
            }
            _ => Ok(()),
        }
    }

    /// Says something beside the answer.
    pub(super) fn remark(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    /// Runs something that may take seconds behind a spinner; shown on terminals only.
    pub(super) fn waiting<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        let spinner =
            if self.quiet { indicatif::ProgressBar::hidden() } else { indicatif::ProgressBar::new_spinner() };
        spinner.set_message(what);
        spinner.enable_steady_tick(Duration::from_millis(120));
        let result = work();
        spinner.finish_and_clear();
        result
    }
}
