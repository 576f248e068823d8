//! `weft completions` and `weft man`: files for shells and for `man`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

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
    let cannot = || format!("cannot write to {}", args.dir.display());
    std::fs::create_dir_all(&args.dir).with_context(cannot).map_err(Failure::Misuse)?;
    let mut weft = weft.disable_help_subcommand(true);
    // Building gives subcommands their full names and usages.
    weft.build();
    pages(&weft, "weft", &args.dir).with_context(cannot).map_err(Failure::Finding)
}

/// The page of a command and those of its subcommands.
fn pages(command: &Command, name: &str, dir: &Path) -> io::Result<()> {
    std::fs::write(dir.join(format!("{name}.1")), page(command, name)?)?;
    let subcommands = command.get_subcommands().filter(|command| !command.is_hide_set());
    subcommands
        .into_iter()
        .try_for_each(|command| pages(command, &format!("{name}-{}", command.get_name()), dir))
}

fn page(command: &Command, name: &str) -> io::Result<Vec<u8>> {
    let usage = command.clone().render_usage().to_string();
    let man = Man::new(command.clone().name(name.to_owned()))
        .title(name.to_uppercase())
        // groff drops an empty argument, and the next would become the date.
        .date(" ")
        .source(concat!("weft ", env!("CARGO_PKG_VERSION")))
        .manual("Weft");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).control("nf", []);
    for line in usage.trim_start_matches("Usage:").trim().lines() {
        roff.text([roman(line.trim())]);
    }
    roff.control("fi", []);
    roff.to_writer(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.get_subcommands().any(|command| !command.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(notes) = command.get_after_help() {
        after_help(&notes.to_string()).to_writer(&mut text)?;
    }
    Ok(text)
}

/// The text below the options: examples keep their lines, paragraphs are filled.
fn after_help(notes: &str) -> Roff {
    let mut roff = Roff::new();
    let mut notes_begun = false;
    for paragraph in notes.split("\n\n") {
        if let Some(examples) = paragraph.strip_prefix("Examples:\n") {
            // Examples fill 80 columns, which the usual indent of 7 would exceed.
            roff.control("SH", ["EXAMPLES"]).control("in", ["2n"]).control("nf", []);
            for line in examples.lines() {
                roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
            }
            roff.control("fi", []).control("in", []);
        } else {
            let heading = if std::mem::replace(&mut notes_begun, true) {
                ("PP", vec![])
            } else {
                ("SH", vec!["NOTES"])
            };
            roff.control(heading.0, heading.1).text([roman(paragraph)]);
        }
    }
    roff
}
