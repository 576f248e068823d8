//! Recorded machines of `testdata/doctor`, with single lines changed.

#![allow(dead_code, reason = "each test file uses some of them")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use weftlink_doctor::{Finding, Machine, Outcome, Severity, checks};
use weftlink_probe::{Recording, probe};

/// The text of a recording.
pub(crate) fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/doctor").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// A text with changes: `path = value` replaces or adds a file, `path -> target` a link, and `-prefix` removes all paths that start so.
/// `*` in a path stands for any one component of paths that exist.
pub(crate) fn changed(text: &str, changes: &[&str]) -> Recording {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for change in changes {
        if let Some(prefix) = change.strip_prefix('-') {
            let before = lines.len();
            lines.retain(|line| !fits(prefix, line, true));
            assert!(lines.len() < before, "nothing starts with {prefix}");
            continue;
        }
        let path = change.split_once(" = ").or_else(|| change.split_once(" -> ")).unwrap().0;
        let rest = &change[path.len()..];
        let mut found = false;
        for line in &mut lines {
            if fits(path, line, false) {
                let own = line.split(" = ").next().unwrap().split(" -> ").next().unwrap().to_owned();
                *line = own + rest;
                found = true;
            }
        }
        if !found {
            assert!(!path.contains('*'), "no path is like {path}");
            lines.push((*change).to_owned());
        }
    }
    lines.join("\n").parse().unwrap()
}

fn fits(pattern: &str, line: &str, is_prefix: bool) -> bool {
    if line.starts_with('#') {
        return false;
    }
    let path = line.split(" = ").next().unwrap().split(" -> ").next().unwrap();
    let (pattern, path): (Vec<&str>, Vec<&str>) = (pattern.split('/').collect(), path.split('/').collect());
    let same = |(pattern, part): (&&str, &&str)| {
        *pattern == "*" || pattern == part || (is_prefix && part.starts_with(pattern))
    };
    let lengths = if is_prefix { path.len() >= pattern.len() } else { path.len() == pattern.len() };
    lengths && pattern.iter().zip(&path).all(same)
}

/// What one check says about a recording.
pub(crate) fn run(id: &str, recording: &Recording) -> Vec<Outcome> {
    let fabric = probe(recording, recording).unwrap();
    let check = checks::all().find(|check| check.id == id).unwrap_or_else(|| panic!("no check {id}"));
    (check.run)(&Machine { tree: recording, fabric: &fabric })
}

/// The findings of one check on a changed recording.
pub(crate) fn findings(id: &str, base: &str, changes: &[&str]) -> Vec<Finding> {
    let outcomes = run(id, &changed(&text(base), changes));
    outcomes
        .into_iter()
        .filter_map(|outcome| if let Outcome::Found(finding) = outcome { Some(finding) } else { None })
        .collect()
}

/// Expects one finding, and returns it.
#[track_caller]
pub(crate) fn fires(id: &str, base: &str, changes: &[&str], severity: Severity, words: &[&str]) -> Finding {
    let mut found = findings(id, base, changes);
    assert_eq!(found.len(), 1, "{id}: {found:#?}");
    let finding = found.remove(0);
    let shown = format!("{finding:#?}");
    assert_eq!((finding.id, finding.severity), (id, severity), "{shown}");
    assert!(!finding.evidence.is_empty() && !finding.fixes.is_empty(), "{shown}");
    for word in words {
        assert!(shown.contains(word), "`{word}` is missing in {shown}");
    }
    finding
}

/// Expects that a check finds nothing and that nothing is unknown to it.
#[track_caller]
pub(crate) fn quiet(id: &str, base: &str, changes: &[&str]) {
    let outcomes = run(id, &changed(&text(base), changes));
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Fine(_))), "{id}: {outcomes:#?}");
}

/// Expects that something is unknown to a check, that it says what it needs, and that it finds nothing.
#[track_caller]
pub(crate) fn unknown(id: &str, base: &str, changes: &[&str], needs_words: &str) {
    let outcomes = run(id, &changed(&text(base), changes));
    assert!(!outcomes.iter().any(|outcome| matches!(outcome, Outcome::Found(_))), "{id}: {outcomes:#?}");
    let fits = |outcome: &Outcome| matches!(outcome, Outcome::Unknown { needs, what } if needs.contains(needs_words) && !what.is_empty());
    assert!(outcomes.iter().any(fits), "{id}: {outcomes:#?}");
}
