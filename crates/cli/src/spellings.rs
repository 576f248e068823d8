//! Other spellings of options, the same in every command: those of NCCL, nccl-tests, mpirun and PyTorch, and those of the other
//! commands of `weft`.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ColorChoice, Command, ValueEnum};

/// Options by name, each with other names.
const SPELLINGS: &[(&str, &[&str])] = &[
    ("algorithm", &["algo"]),
    ("protocol", &["proto"]),
    ("ranks", &["np", "nranks"]),
    ("datatype", &["dtype"]),
    ("op", &["operation", "reduction"]),
    ("bytes", &["size"]),
    ("out", &["output"]),
    ("minbytes", &["min-bytes"]),
    ("maxbytes", &["max-bytes"]),
    ("stepfactor", &["step-factor"]),
    ("stepbytes", &["step-bytes"]),
    ("iters", &["iterations"]),
    ("warmup-iters", &["warmup"]),
    ("hosts", &["host"]),
    ("workdir", &["wdir", "chdir"]),
];

/// Adds the other spellings to a command and its subcommands, and underscores wherever there are dashes.
pub(crate) fn with_aliases(command: Command) -> Command {
    let taken: Vec<String> = command
        .get_arguments()
        .flat_map(|arg| [arg.get_long().map(str::to_owned)])
        .flatten()
        .chain(
            command
                .get_arguments()
                .flat_map(|arg| arg.get_all_aliases().unwrap_or_default())
                .map(str::to_owned),
        )
        .collect();
    let command = command.mut_args(|arg| aliased(arg, &taken));
    command.mut_subcommands(with_aliases)
}

fn aliased(arg: Arg, taken: &[String]) -> Arg {
    // The value's parser reports a negative number better than "unexpected argument".
    let takes_number = !arg.is_positional() && arg.get_action().takes_values();
    let arg = if takes_number { arg.allow_negative_numbers(true) } else { arg };
    let Some(long) = arg.get_long().map(str::to_owned) else { return arg };
    let others = SPELLINGS.iter().find(|(name, _)| *name == long).map_or(&[][..], |(_, others)| others);
    let dashed = others.iter().map(|other| (*other).to_owned()).chain([long.clone()]);
    let mut names: Vec<String> = dashed.flat_map(|name| [name.replace('-', "_"), name]).collect();
    names.retain(|name| *name != long && !taken.contains(name));
    names.sort();
    names.dedup();
    arg.aliases(names)
}

/// Reads `weft help --help` as `weft --help`.
pub(crate) fn with_help(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.len() == 3 && words[1] == "help" && (words[2] == "--help" || words[2] == "-h") {
        words.remove(1);
    }
    words
}

/// Replaces mpirun's `-np` by `-n`, which clap would parse as `-n p`. Options of a program that `weft run` starts are left alone.
pub(crate) fn with_np(mut words: Vec<OsString>, weft: &Command) -> Vec<OsString> {
    let command = words.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    if command != "run" {
        let counts = ["bench", "plan", "sim"].contains(&command);
        words.iter_mut().filter(|word| counts && *word == "-np").for_each(|word| *word = "-n".into());
        return words;
    }
    let Some(run) = weft.find_subcommand("run") else { return words };
    let takes_value = |word: &str| {
        let is = |option: &&Arg| match word.strip_prefix("--") {
            Some(long) => {
                option.get_long_and_visible_aliases().is_some_and(|names| names.contains(&long))
                    || option.get_all_aliases().is_some_and(|names| names.contains(&long))
            }
            None => {
                let aliases = option.get_all_short_aliases().unwrap_or_default();
                let mut shorts = option.get_short().into_iter().chain(aliases);
                shorts.any(|short| word.strip_prefix('-') == Some(short.to_string().as_str()))
            }
        };
        run.get_arguments().find(is).is_some_and(|option| option.get_action().takes_values())
    };
    let mut at = 2;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()).map(str::to_owned) {
        match word.as_str() {
            "--" => break,
            "-np" => {
                words[at] = "-n".into();
                at += 2;
            }
            option if option.starts_with('-') => at += 1 + usize::from(takes_value(option)),
            _ => break,
        }
    }
    words
}

/// The value of `--color` before the program of `weft run`, if it is a valid one; the parser reports others.
pub(crate) fn color(words: &[OsString]) -> ColorChoice {
    let words: Vec<&str> =
        words.iter().map_while(|word| word.to_str().filter(|word| *word != "--")).collect();
    let is_run = words.get(1) == Some(&"run");
    let value = |at: usize| match words[at].strip_prefix("--color") {
        Some("") => words.get(at + 1).copied(),
        Some(value) => value.strip_prefix('='),
        None => None,
    };
    // Without `--`, the words after the program's name are the program's.
    let last = if is_run { words.len().min(3) } else { words.len() };
    let found = (1..last).find_map(value).and_then(|value| ColorChoice::from_str(value, true).ok());
    found.unwrap_or(ColorChoice::Auto)
}

/// The message for a negative size or count, `-1MiB` or `-2x hgx-h100`, which clap reports as an unknown option.
pub(crate) fn negative(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_negative = |word: &str| {
        word.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
    };
    if error.kind() != ErrorKind::UnknownArgument || !is_negative(unknown) {
        return None;
    }
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let at = words.iter().position(|word| word.starts_with(unknown))?;
    let option = at.checked_sub(1).map(|before| words[before].as_str()).filter(|word| word.starts_with('-'));
    let whose = option.map_or_else(String::new, |option| format!(" for {option}"));
    Some(format!("`{}`{whose} is negative; give a positive number", words[at]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    /// clap's own check: no name twice, no conflict with what is not there.
    #[test]
    fn names_are_unique() {
        with_aliases(Cli::command()).debug_assert();
    }

    #[test]
    fn every_dash_may_be_an_underscore() {
        let command = with_aliases(Cli::command());
        let run = command.find_subcommand("run").unwrap();
        let has = |name: &str| {
            let all = run.get_arguments().filter_map(|arg| arg.get_all_aliases());
            all.flatten().any(|alias| alias == name)
        };
        assert!(has("max_restarts") && has("np") && has("keep_going"));
    }

    #[test]
    fn np_is_n_before_the_program() {
        let weft = Cli::command();
        let of = |line: &str| {
            let words = with_np(line.split(' ').map(OsString::from).collect(), &weft);
            words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("weft run -np 2 -- prog -np 3"), "weft run -n 2 -- prog -np 3");
        assert_eq!(of("weft run --json -np 2 prog -np 3"), "weft run --json -n 2 prog -np 3");
        assert_eq!(of("weft run --name -np -np 2 prog"), "weft run --name -np -n 2 prog");
        assert_eq!(of("weft run --hosts=a,b -x A -np 2 prog"), "weft run --hosts=a,b -x A -n 2 prog");
        assert_eq!(of("weft run -H a,b -np 2 prog"), "weft run -H a,b -n 2 prog");
        assert_eq!(of("weft run --json prog -np 3"), "weft run --json prog -np 3");
        assert_eq!(of("weft bench -np 3"), "weft bench -n 3");
    }
}
