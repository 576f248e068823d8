//! The command `weft`: parses arguments, calls the libraries, prints results.
//!
//! Exit codes: 0 success, 1 a finding or a failed check, 2 misuse, 3 something could not be inspected (`weft doctor`), 128 plus the number of the signal that ended it; `weft run`
//! returns the exit code of the rank that failed.
//!
//! A write error on standard output is an error, except a broken pipe (`weft ... | head`). Standard output that was closed before
//! the start is not: Rust opens /dev/null in its place before `main`, and the two look the same.

mod advice;
mod bench;
mod calibration;
mod doctor;
mod knobs;
mod limits;
mod links;
mod manual;
mod names;
mod plan;
mod plot;
mod progress;
mod run;
mod screen;
mod sim;
mod spellings;
mod table;
mod topo;
mod units;
mod why;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::anyhow;
use clap::error::{ContextKind, ContextValue};
use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};

/// The version, and the commit it was built from.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("WEFT_BUILT_COMMIT"), ")");
/// The same with target, profile and features. Every build has CUDA and NVML: the libraries of the driver are loaded at run time.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("WEFT_BUILT_COMMIT"),
    ")\ntarget: ",
    env!("WEFT_BUILT_TARGET"),
    "\nprofile: ",
    env!("WEFT_BUILT_PROFILE"),
    "\nfeatures: shared memory, TCP, CUDA and NVML (loaded at run time)"
);

/// Plan, prove, predict and run collective communication between GPUs.
#[derive(Parser)]
#[command(
    name = "weft",
    version = VERSION,
    long_version = LONG_VERSION,
    arg_required_else_help = true,
    after_help = "\
Examples:
  weft topo hgx-h100                           draw a machine
  weft plan all-reduce hgx-h100 --size 64MiB   choose an algorithm, and say why
  weft sim all-reduce hgx-h100                 predict the time at many sizes
  weft bench all-reduce                        measure on this host
  weft run -n 4 -- python train.py             start four ranks
  weft doctor                                  find what is wrong with this machine

`weft help COMMAND` has examples of each. Exit codes: 0 success, 1 a failed check or run, \
2 wrong arguments."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Colour the output; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", display_order = 900)]
    color: ColorChoice,
}

#[derive(Subcommand)]
enum Command {
    Topo(topo::Args),
    Plan(plan::Args),
    Bench(Box<bench::Args>),
    Sim(Box<sim::Args>),
    Knobs(knobs::Args),
    Why(why::Args),
    Doctor(Box<doctor::Args>),
    Links(links::Args),
    /// The process that `weft bench` starts for each rank
    #[command(name = bench::RANK_COMMAND, hide = true)]
    BenchRank {
        /// Shown in process lists only; the orders come on standard input
        #[arg(value_name = "RANK")]
        _rank: u32,
    },
    Run(Box<run::Args>),
    Completions(manual::CompletionsArgs),
    Man(manual::ManArgs),
    /// The process that `weft run` starts for each rank; it becomes the program
    #[command(name = run::RANK_COMMAND, hide = true)]
    RunRank(run::RankArgs),
}

/// Why a command fails.
enum Failure {
    /// Wrong arguments: the user has to call differently.
    Misuse(anyhow::Error),
    /// The arguments are fine; what the command examined is not.
    Finding(anyhow::Error),
    /// A finding that is already printed.
    Found,
    /// Standard output cannot be written.
    Output(io::Error),
    /// A signal ended the command early; results so far are printed.
    Interrupted(i32),
    /// The report is printed; this is the exit code.
    ExitCode(u8),
}

impl Failure {
    fn misuse(error: impl Into<anyhow::Error>) -> Self {
        Self::Misuse(error.into())
    }

    fn finding(error: impl Into<anyhow::Error>) -> Self {
        Self::Finding(error.into())
    }
}

/// For standard output only; errors of other files name the file.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn main() -> ExitCode {
    if let Err(shortage) = limits::prepare() {
        screen::complain("weft", &shortage);
        return ExitCode::FAILURE;
    }
    let command = spellings::with_aliases(Cli::command()).term_width(screen::help_columns());
    let words = spellings::with_np(spellings::with_help(std::env::args_os().collect()), &command);
    // Parsing prints help and errors, so their colours are chosen before it.
    screen::choose_colours(spellings::color(&words));
    if let Some(advice) = advice::before_parsing(&words) {
        screen::complain("weft", &advice);
        return ExitCode::from(2);
    }
    let parsed = command.try_get_matches_from(&words).and_then(|found| Cli::from_arg_matches(&found));
    let outcome = match parsed.map(|cli| cli.command) {
        Ok(Command::Topo(args)) => topo::run(&args),
        Ok(Command::Plan(args)) => plan::run(&args),
        Ok(Command::Bench(args)) => bench::run(&args),
        Ok(Command::Sim(args)) => sim::run(&args),
        Ok(Command::Knobs(args)) => knobs::run(&args),
        Ok(Command::Why(args)) => why::run(&args),
        Ok(Command::Doctor(args)) => doctor::run(&args),
        Ok(Command::Links(args)) => links::run(&args),
        Ok(Command::Completions(args)) => manual::completions(&args, spellings::with_aliases(Cli::command())),
        Ok(Command::Man(args)) => manual::man(&args, Cli::command()),
        Ok(Command::BenchRank { .. }) => return bench::rank_main(),
        Ok(Command::Run(args)) if args.is_for_a_host() => return run::host_main(),
        Ok(Command::Run(args)) => run::run(&args),
        Ok(Command::RunRank(args)) => return run::rank_main(&args),
        Err(misuse) if misuse.use_stderr() => {
            if let Some(what) =
                spellings::negative(&misuse, &words).or_else(|| advice::instead_of(&misuse, &words))
            {
                screen::complain("weft", &what);
                return ExitCode::from(2);
            }
            let error = without_hidden(without_wrong_tips(misuse)).render().ansi().to_string();
            // All errors begin alike.
            screen::complain_as(&with_command(&error.replacen("error:", "weft:", 1), &words));
            return ExitCode::from(2);
        }
        Err(help) => help.print().map_err(Failure::Output),
    };
    let (error, code) = match outcome.and_then(|()| Ok(io::stdout().flush()?)) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Found) => return ExitCode::FAILURE,
        // `weft ... | head` is not a failure.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
        Err(Failure::Output(error)) => (anyhow!(error).context("cannot write to standard output"), 1),
        Err(Failure::ExitCode(code)) => return ExitCode::from(code),
        Err(Failure::Finding(error)) => (error, 1),
        Err(Failure::Misuse(error)) => (error, 2),
        Err(Failure::Interrupted(signal)) => (anyhow!("interrupted"), 128 + signal as u8),
    };
    screen::complain("weft", &format!("{error:#}"));
    ExitCode::from(code)
}

/// Prints a value, indented.
fn print_json(value: &serde_json::Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)
}

/// A count with its noun: `1 rank`, `2 ranks`.
fn counted<N: Display + PartialEq + From<u8>>(count: N, what: &str) -> String {
    let ending = if count == N::from(1) { "" } else { "s" };
    format!("{count} {what}{ending}")
}

/// Names the command in clap's last line, which says to try `--help`.
fn with_command(error: &str, words: &[OsString]) -> String {
    let weft = Cli::command();
    let (mut at, mut path) = (&weft, "weft".to_owned());
    for word in words.iter().skip(1).map_while(|word| word.to_str()) {
        let Some(next) = at.find_subcommand(word) else { break };
        path = format!("{path} {word}");
        at = next;
    }
    // The list of options names --help, too.
    match error.rsplit_once("try '--help'").or_else(|| error.rsplit_once("try '\u{1b}[1m--help\u{1b}[0m'")) {
        Some((before, after)) => format!("{before}try '{path} --help'{after}"),
        None => error.to_owned(),
    }
}

/// Removes two tips of clap that mislead: to write `-- -x` for an unknown option, and to use another shell with a similar name. Options are
/// spelled with dashes, as in the help.
fn without_wrong_tips(mut error: clap::Error) -> clap::Error {
    if matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(arg)) if arg == "<SHELL>") {
        error.remove(ContextKind::SuggestedValue);
    }
    if let Some(ContextValue::StyledStrs(tips)) = error.remove(ContextKind::Suggested) {
        let tips = tips.iter().map(|tip| tip.ansi().to_string().replace('_', "-"));
        let tips: Vec<_> = tips.filter(|tip| !tip.contains("as a value")).map(Into::into).collect();
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    error
}

/// Removes internal commands from the suggestions for a mistyped one.
fn without_hidden(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::Strings(mut names)) = error.remove(ContextKind::SuggestedSubcommand) {
        names.retain(|name| ![bench::RANK_COMMAND, run::RANK_COMMAND].contains(&name.as_str()));
        if !names.is_empty() {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
        }
    }
    error
}
