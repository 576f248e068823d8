//! The command `weft`: parses, calls, prints. Whatever is worth knowing is worked out in the libraries.
//!
//! Exit codes: 0 fine, 1 a finding or a failed check, 2 misuse, 128 and the signal's number if one ended it; `weft run` has
//! that of the rank that failed.
//!
//! Standard output that cannot be written to is an error, but for a reader that has seen enough. One that is closed from the
//! start is none: before `main`, Rust opens /dev/null in its place, which is then no different from what Python's DEVNULL is.

mod bench;
mod knobs;
mod limits;
mod manual;
mod names;
mod plan;
mod plot;
mod progress;
mod run;
mod sim;
mod spellings;
mod table;
mod topo;
mod why;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::anyhow;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// What is built, and from which commit.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("WEFT_BUILT_COMMIT"), ")");
/// The same, with what else tells builds apart. NVIDIA's driver is looked for at run time, so it is part of every build.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("WEFT_BUILT_COMMIT"),
    ")\ntarget: ",
    env!("WEFT_BUILT_TARGET"),
    "\nprofile: ",
    env!("WEFT_BUILT_PROFILE"),
    "\nfeatures: shared memory, TCP, NVML (loaded at run time)"
);

/// Multi-GPU communication, planned from the wiring.
#[derive(Parser)]
#[command(name = "weft", version = VERSION, long_version = LONG_VERSION, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Topo(topo::Args),
    Plan(plan::Args),
    Bench(Box<bench::Args>),
    Sim(Box<sim::Args>),
    Knobs(knobs::Args),
    Why(why::Args),
    /// What `weft bench` starts for each rank
    #[command(name = bench::RANK_COMMAND, hide = true)]
    BenchRank {
        /// Only for those who look at a list of processes; the orders come on standard input
        #[arg(value_name = "RANK")]
        _rank: u32,
    },
    Run(Box<run::Args>),
    Completions(manual::CompletionsArgs),
    Man(manual::ManArgs),
    /// What `weft run` starts for each rank, which becomes the program
    #[command(name = run::RANK_COMMAND, hide = true)]
    RunRank(run::RankArgs),
}

/// What went wrong, by who has to act.
enum Failure {
    /// The call makes no sense: the user has to call differently.
    Misuse(anyhow::Error),
    /// The call was fine; what it looked at is not.
    Finding(anyhow::Error),
    /// The same, and all that is to be said of it has been printed.
    Found,
    /// What was found could not be told.
    Output(io::Error),
    /// A signal ended it early; what was known by then has been printed.
    Interrupted(i32),
    /// All has been said; this is the exit code.
    Told(u8),
}

impl Failure {
    fn misuse(error: impl Into<anyhow::Error>) -> Self {
        Self::Misuse(error.into())
    }

    fn finding(error: impl Into<anyhow::Error>) -> Self {
        Self::Finding(error.into())
    }
}

/// Of standard output only: whatever else is read or written says which it is where that fails.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn main() -> ExitCode {
    if let Err(shortage) = limits::prepare() {
        eprintln!("weft: {shortage}");
        return ExitCode::FAILURE;
    }
    let command = spellings::with_aliases(Cli::command());
    let words = run::spelled(std::env::args_os().collect(), &command);
    let parsed = command.try_get_matches_from(&words).and_then(|found| Cli::from_arg_matches(&found));
    let outcome = match parsed.map(|cli| cli.command) {
        Ok(Command::Topo(args)) => topo::run(&args),
        Ok(Command::Plan(args)) => plan::run(&args),
        Ok(Command::Bench(args)) => bench::run(&args),
        Ok(Command::Sim(args)) => sim::run(&args),
        Ok(Command::Knobs(args)) => knobs::run(&args),
        Ok(Command::Why(args)) => why::run(&args),
        Ok(Command::Completions(args)) => manual::completions(&args, spellings::with_aliases(Cli::command())),
        Ok(Command::Man(args)) => manual::man(&args, Cli::command()),
        Ok(Command::BenchRank { .. }) => return bench::rank_main(),
        Ok(Command::Run(args)) if args.is_for_a_host() => return run::host_main(),
        Ok(Command::Run(args)) => run::run(&args),
        Ok(Command::RunRank(args)) => return run::rank_main(&args),
        Err(misuse) if misuse.use_stderr() => {
            if let Some(what) = spellings::negative(&misuse, &words) {
                eprintln!("weft: {what}");
                return ExitCode::from(2);
            }
            // Where standard error is gone there is nobody left to tell.
            let _ = without_hidden(without_tip_to_escape(misuse)).print();
            return ExitCode::from(2);
        }
        Err(help) => help.print().map_err(Failure::Output),
    };
    let (error, code) = match outcome.and_then(|()| Ok(io::stdout().flush()?)) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Found) => return ExitCode::FAILURE,
        // A reader that has seen enough, such as `head`, is no failure.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
        Err(Failure::Output(error)) => (anyhow!(error).context("cannot write to standard output"), 1),
        Err(Failure::Told(code)) => return ExitCode::from(code),
        Err(Failure::Finding(error)) => (error, 1),
        Err(Failure::Misuse(error)) => (error, 2),
        Err(Failure::Interrupted(signal)) => (anyhow!("interrupted"), 128 + signal as u8),
    };
    eprintln!("weft: {error:#}");
    ExitCode::from(code)
}

/// Prints a value, indented.
fn print_json(value: &serde_json::Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)
}

/// So many of something: `1 rank`, `2 ranks`.
fn counted<N: Display + PartialEq + From<u8>>(count: N, what: &str) -> String {
    let ending = if count == N::from(1) { "" } else { "s" };
    format!("{count} {what}{ending}")
}

/// Leaves out clap's advice to write `-- -x` for an option that there is not: nobody who types one means a file.
fn without_tip_to_escape(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().contains("as a value"));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    error
}

/// Leaves out commands that are not for people, where one was mistyped.
fn without_hidden(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::Strings(mut names)) = error.remove(ContextKind::SuggestedSubcommand) {
        names.retain(|name| ![bench::RANK_COMMAND, run::RANK_COMMAND].contains(&name.as_str()));
        if !names.is_empty() {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
        }
    }
    error
}
