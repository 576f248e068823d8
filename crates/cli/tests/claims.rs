//! What others say about GPU interconnects, checked: docs/claims.toml holds the claims, and this test runs the command of
//! each, works out the verdict, fails where it is not the recorded one, and keeps docs/claims.md as it should be. A claim that
//! no command answers names lines of files (tests, measurements), and this test fails where such a line is gone.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

#[path = "claims/book.rs"]
mod book;
mod common;
#[path = "claims/page.rs"]
mod page;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::{env, fs};

use book::{Check, DOCUMENTS, Said, State, Verdict, claims, has_line};
use common::{assert_current, scratch, shell};
use page::{Section, cell, page, row, shown, shown_row};
use serde_json::Value as Json;

/// What a check came to.
enum Found {
    Number(f64),
    Word(String),
}

/// Runs each command once.
#[derive(Default)]
struct Runner {
    printed: HashMap<String, Json>,
}

impl Runner {
    fn pick(&mut self, command: &str, pointer: &str) -> Result<Json, String> {
        if !self.printed.contains_key(command) {
            let outcome = shell(&scratch("claims"), command);
            if outcome.code != Some(0) {
                return Err(format!("`{command}` failed: {}", outcome.errors.trim()));
            }
            let json = serde_json::from_str(&outcome.output)
                .map_err(|error| format!("`{command}` does not print JSON: {error}"))?;
            self.printed.insert(command.to_owned(), json);
        }
        let found = self.printed[command].pointer(pointer);
        found.cloned().ok_or_else(|| format!("`{command}` prints nothing at {pointer}"))
    }

    fn number(&mut self, command: &str, pointer: &str) -> Result<f64, String> {
        let found = self.pick(command, pointer)?;
        found.as_f64().ok_or_else(|| format!("`{command}` has no number at {pointer} but {found}"))
    }

    fn compute(&mut self, check: &Check) -> Result<Found, String> {
        if let Said::Word(_) = check.value {
            let found = self.pick(&check.command, &check.pick)?;
            let word =
                found.as_str().ok_or_else(|| format!("`{}` has no word at {}", check.command, check.pick))?;
            return Ok(Found::Word(word.to_owned()));
        }
        let mut number = self.number(&check.command, &check.pick)?;
        if let Some(over) = &check.over {
            number /= self.number(over.command.as_ref().unwrap_or(&check.command), &over.pick)?;
        }
        if !number.is_finite() {
            return Err(format!("`{}` at {} comes to {number}", check.command, check.pick));
        }
        Ok(Found::Number(number * check.times))
    }
}

fn judge(check: &Check, found: &Found) -> Verdict {
    // Room for the last bit of a float, where a claim leaves no other.
    let slack = check.tolerance + 1e-9;
    let holds = match (&check.value, found) {
        (Said::Number(said), Found::Number(found)) => (found - said).abs() <= slack * said.abs(),
        (Said::Range([low, high]), Found::Number(found)) => {
            (low * (1.0 - slack)..=high * (1.0 + slack)).contains(found)
        }
        (Said::Word(said), Found::Word(found)) => said == found,
        _ => false,
    };
    if holds { Verdict::Holds } else { Verdict::Refuted }
}

#[test]
fn verdicts_match_the_computed_values() {
    let claims = claims();
    let mut runner = Runner::default();
    let mut wrong = Vec::new();
    let mut sections: [Section; DOCUMENTS.len()] = Default::default();
    let mut counts: BTreeMap<(usize, &str), usize> = BTreeMap::new();
    for claim in &claims {
        let section = &mut sections[claim.document - 1];
        let verdict = match &claim.state {
            State::Open { need, why } => {
                let need = format!("{need:?}").to_lowercase();
                writeln!(section.open, "| {} | {need} | {why} |", cell(&claim.quote)).unwrap();
                None
            }
            State::Shown(answer) => {
                for gone in answer.evidence.iter().filter(|evidence| !evidence.stands()) {
                    wrong.push(format!("{}: no line of {} has `{}`", claim.id, gone.file, gone.has));
                }
                section.shown.push_str(&shown_row(claim, answer));
                Some(answer.verdict)
            }
            State::Checked(check) => {
                match runner.compute(check) {
                    Ok(found) => {
                        if judge(check, &found) != check.verdict {
                            let found = shown(&found);
                            wrong.push(format!(
                                "{}: Weft computes {found}, recorded is {:?}",
                                claim.id, check.verdict
                            ));
                        }
                        section.checked.push_str(&row(claim, check, &found));
                    }
                    Err(error) => wrong.push(format!("{}: {error}", claim.id)),
                }
                Some(check.verdict)
            }
        };
        let word = match verdict {
            None => "open",
            Some(Verdict::Holds) => "hold",
            Some(Verdict::Refuted) => "refuted",
        };
        *counts.entry((claim.document, word)).or_default() += 1;
    }
    assert!(wrong.is_empty(), "{} of {} claims:\n{}", wrong.len(), claims.len(), wrong.join("\n"));
    assert_current("docs/claims.md", &page(&sections, &counts));
}

#[test]
fn quotes_occur_in_the_shared_documents() {
    let Some(shared) = env::var_os("WEFT_SHARED") else {
        println!("skipped: WEFT_SHARED does not say where the documents are");
        return;
    };
    let folder = std::path::Path::new(&shared).join("seeds");
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let texts: Vec<_> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    assert_eq!(texts.len(), DOCUMENTS.len(), "in {}", folder.display());
    for claim in claims() {
        let stands = has_line(&texts[claim.document - 1], &claim.quote);
        assert!(stands, "{}: document {} does not say `{}`", claim.id, claim.document, claim.quote);
    }
}
