//! `completions` and `man`, made from the same definition as the parser.

use std::path::PathBuf;

use clap::{Args, CommandFactory as _};

use super::Cli;
use super::out::OutputArgs;
use crate::error::{Error, ErrorKind, Result, write_atomic};

#[derive(Debug, Args)]
#[command(after_help = "Example:
  inferometer completions bash > /etc/bash_completion.d/inferometer")]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  inferometer man ~/.local/share/man/man1")]
pub(super) struct ManArgs {
    /// Folder that receives one page a command
    dir: PathBuf,
}

pub(super) fn completions(args: &CompletionsArgs, output: &OutputArgs) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "inferometer", &mut text);
    output.write(&String::from_utf8_lossy(&text))
}

pub(super) fn man(args: &ManArgs) -> Result<()> {
    let fail = |e: std::io::Error| Error::new(ErrorKind::Internal, format!("{}: {e}", args.dir.display()));
    std::fs::create_dir_all(&args.dir).map_err(fail)?;
    let root = Cli::command();
    let mut pages = vec![("inferometer".to_owned(), root.clone())];
    pages.extend(root.get_subcommands().map(|c| (format!("inferometer-{}", c.get_name()), c.clone())));
    for (name, command) in pages {
        let mut page = Vec::new();
        clap_mangen::Man::new(command.name(name.clone())).render(&mut page).map_err(fail)?;
        write_atomic(&args.dir.join(format!("{name}.1")), &page)?;
    }
    Ok(())
}
