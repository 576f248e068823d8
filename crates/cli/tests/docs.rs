//! The documents are true: this test runs every command they show and compares the output.
//!
//! A fenced `console` block holds commands after `$ ` and below each what it prints, standard error included. A line of
//! three dots stands for any number of lines; `[exit code 2]` closes the output of a command that fails. All commands of
//! a document run in one folder, in order, so that one may read what another wrote. At first the folder holds the
//! document's files: a fenced block whose info string has a second word, as in `toml slow.toml`, is a file of that name. The repository's
//! `testdata` is there, too.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod common;

use std::fs;
use std::path::Path;

use common::{assert_current, c_library, example, root, scratch, shell};

/// Commands that are shown but not run here, and why.
const SKIPPED: [(&str, &str); 8] = [
    ("make check", "this test may be a part of it"),
    ("make test", "this test is a part of it"),
    ("make bench", "takes minutes"),
    ("make bless", "would bless while checking"),
    ("cargo build", "whatever runs this test has built it"),
    ("cargo install", "needs the network"),
    ("git clone", "needs the network"),
    ("nvidia-smi", "needs a GPU"),
];

/// Where people find the examples they have built.
const EXAMPLES: &str = "target/release/examples/";

/// Systems that documents show a picture of, as docs/img/NAME.svg.
const PICTURES: [&str; 2] = ["hgx-h100", "dgx-1-v100"];

#[test]
fn commands_print_what_the_documents_show() {
    let mut ran = 0;
    for file in documents() {
        let text = fs::read_to_string(root().join(&file)).unwrap();
        let folder = scratch(&file.replace(['/', '.'], "-"));
        std::os::unix::fs::symlink(root().join("testdata").canonicalize().unwrap(), folder.join("testdata"))
            .unwrap();
        for (name, content) in files_in(&text) {
            fs::write(folder.join(name), content).unwrap();
        }
        let now = replay(&text, |command| {
            if let Some((_, why)) = SKIPPED.iter().find(|(prefix, _)| command.starts_with(prefix)) {
                println!("skipped {file}: `{command}`: {why}");
                return None;
            }
            ran += 1;
            Some(transcript(&folder, command))
        });
        assert_current(&file, &now);
    }
    assert!(ran > 0, "the documents show no command");
    println!("ran {ran} commands");
}

#[test]
fn pictures_are_current() {
    for target in PICTURES {
        let folder = scratch("pictures");
        let outcome = shell(&folder, &format!("weft topo {target} --svg picture.svg"));
        assert_eq!(outcome.code, Some(0), "{}", outcome.errors);
        let picture = fs::read_to_string(folder.join("picture.svg")).unwrap();
        assert_current(&format!("docs/img/{target}.svg"), &picture);
    }
}

#[test]
fn relative_links_resolve() {
    for file in documents() {
        let text = fs::read_to_string(root().join(&file)).unwrap();
        // Formulas in code may look like links: every second stretch between backticks is code.
        let prose: String = text.split('`').step_by(2).collect();
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (target, heading) = link.split_once('#').unwrap_or((link, ""));
            if target.contains("://") {
                continue;
            }
            let path = match target {
                "" => root().join(&file),
                target => root().join(&file).parent().unwrap().join(target),
            };
            assert!(path.exists(), "{file} links to {target}, which does not exist");
            if !heading.is_empty() && path.extension().is_some_and(|ending| ending == "md") {
                let text = fs::read_to_string(&path).unwrap();
                let mut headings = text.lines().filter(|line| line.starts_with('#')).map(anchor);
                assert!(headings.any(|anchor| anchor == heading), "{file} links to {link}: no such heading");
            }
        }
    }
}

/// The anchor that GitHub gives to a heading.
fn anchor(heading: &str) -> String {
    let kept = |c: char| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || matches!(c, '-' | '_') => Some(c.to_ascii_lowercase()),
        _ => None,
    };
    heading.trim_start_matches('#').trim().chars().filter_map(kept).collect()
}

/// Markdown files at the root and in docs/.
fn documents() -> Vec<String> {
    let mut files = Vec::new();
    for folder in ["", "docs/"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                files.push(format!("{folder}{name}"));
            }
        }
    }
    files.sort();
    assert!(files.contains(&"README.md".to_owned()));
    files
}

/// The files that a document shows, by name.
fn files_in(text: &str) -> Vec<(&str, String)> {
    let mut files: Vec<(&str, String)> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let content = lines.by_ref().take_while(|line| !line.starts_with("```"));
        let content = content.fold(String::new(), |all, line| all + line + "\n");
        if let Some(name) = info.split_whitespace().nth(1) {
            files.push((name, content));
        }
    }
    files
}

/// What a person would see below the command.
fn transcript(folder: &Path, command: &str) -> Vec<String> {
    let command = match command.strip_prefix("cargo run --release --") {
        Some(arguments) => format!("weft{arguments}"),
        None => command.to_owned(),
    };
    // Examples are where this test has them.
    let command = match command.split_once(EXAMPLES) {
        Some((before, after)) => {
            let (name, rest) = after.split_at(after.find([' ', '\'', ';']).unwrap_or(after.len()));
            format!("{before}{}{rest}", example(name).display())
        }
        None => command,
    };
    // So is the C library.
    let command = match command.contains(" -lweft ") {
        true => command.replace("target/release", c_library().to_str().unwrap()),
        false => command,
    };
    let outcome = shell(folder, &format!("{{ {command}\n}} 2>&1"));
    let mut lines: Vec<String> =
        outcome.output.trim_end().lines().map(|line| line.trim_end().to_owned()).collect();
    match outcome.code {
        Some(0) => {}
        Some(code) => lines.push(format!("[exit code {code}]")),
        None => lines.push("[killed]".to_owned()),
    }
    lines
}

/// The document with the output of each command as it is now; `run` returns nothing for a command to leave alone.
fn replay(text: &str, mut run: impl FnMut(&str) -> Option<Vec<String>>) -> String {
    let mut now = String::new();
    let mut lines = text.lines().peekable();
    let mut in_console = false;
    while let Some(line) = lines.next() {
        now += &format!("{line}\n");
        if line.starts_with("```") {
            in_console = !in_console && line == "```console";
        }
        let Some(first) = line.strip_prefix("$ ").filter(|_| in_console) else {
            continue;
        };
        let mut command = first.to_owned();
        while command.ends_with('\\') {
            let more = lines.next().expect("a command goes on after a backslash");
            now += &format!("{more}\n");
            command = format!("{command}\n{more}");
        }
        let mut shown = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with("$ ") && !line.starts_with("```")) {
            shown.push(line.to_owned());
        }
        let printed = match run(&command) {
            Some(printed) if !matches(&shown, &printed) => {
                // Blessing must not turn a broken command into documentation.
                let failure = |lines: &[String]| lines.last().filter(|line| line.starts_with('[')).cloned();
                assert_eq!(
                    failure(&shown),
                    failure(&printed),
                    "`{command}` ends so, and is not shown to:\n{printed:#?}"
                );
                printed
            }
            _ => shown,
        };
        printed.iter().for_each(|line| now += &format!("{line}\n"));
    }
    now
}

/// Whether output is as shown, where a shown line `...` stands for any lines.
fn matches(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first == "..." => {
            (0..=printed.len()).any(|skip| matches(rest, &printed[skip..]))
        }
        Some((first, rest)) => printed.first() == Some(first) && matches(rest, &printed[1..]),
    }
}

#[test]
fn files_in_documents_are_extracted() {
    let text = "```toml\nno = 1\n```\n```toml a.toml\nx = 1\ny = 2\n```\n```console\n$ cat a.toml\n```\n";
    assert_eq!(files_in(text), [("a.toml", "x = 1\ny = 2\n".to_owned())]);
}

#[test]
fn replay_updates_stale_output_and_keeps_ellipses() {
    let text = "# A\n$ not a command\n```console\n$ one\nold\n$ two \\\n  more\nkept\n...\nend\n```\nend\n";
    let mut commands = Vec::new();
    let now = replay(text, |command| {
        commands.push(command.to_owned());
        let printed = if command == "one" { "new" } else { "kept\nx\ny\nend" };
        Some(printed.lines().map(str::to_owned).collect())
    });
    assert_eq!(commands, ["one", "two \\\n  more"]);
    assert_eq!(now, text.replace("old", "new"));
}
