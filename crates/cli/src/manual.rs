//! `weft completions` and `weft man`: files for shells and for `man`.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;

use crate::Failure;

/// Print a completion script for a shell
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft completions bash > ~/.local/share/bash-completion/completions/weft
  weft completions zsh > ~/.zfunc/_weft
  weft completions fish > ~/.config/fish/completions/weft.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell that reads the script
    shell: Shell,
}

/// Write manual pages: weft.1 and one for each command
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft man ~/.local/share/man/man1
  weft man pages && man ./pages/weft-sim.1")]
pub(crate) struct ManArgs {
    /// The folder to write to; created if it is missing
    dir: PathBuf,
}

pub(crate) fn completions(args: &CompletionsArgs, mut weft: Command) -> Result<(), Failure> {
    // The generator panics on a write error, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut weft, "weft", &mut script);
    Ok(io::stdout().write_all(&script)?)
}

pub(crate) fn man(args: &ManArgs, weft: Command) -> Result<(), Failure> {
    let written = std::fs::create_dir_all(&args.dir).and_then(|()| clap_mangen::generate_to(weft, &args.dir));
    written.with_context(|| format!("cannot write to {}", args.dir.display())).map_err(Failure::Finding)
}
