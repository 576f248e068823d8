//! What others say about GPU interconnects, checked: docs/claims.toml holds the claims, and this test runs the command of
//! each, works out the verdict, fails where it is not the recorded one, and keeps docs/claims.md as it should be.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod common;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::{env, fs};

use common::{assert_current, root, scratch, shell};
use serde::Deserialize;
use serde_json::Value as Json;

/// What the documents are; a claim's `document` counts from 1.
const DOCUMENTS: [&str; 3] = [
    "A hands-on guide to NVLink",
    "A glossary entry on NVLink",
    "\"Multi-GPU Communication: NVLink, PCIe, and NCCL\"",
];

const INTRODUCTION: &str = "\
# Claims, checked

Three introductions to GPU interconnects, taken at their word. Each claim that can be checked is quoted, with what
Weft computes and the command that computes it; `make test` runs them all and this page is written by that test from
[claims.toml](claims.toml). Most of what is refuted mixes two things that a data sheet prints alike: one way and both ways,
or a link and a whole GPU.

A verdict is about the wiring: rates are what the wires signal unless a note says otherwise. What needs more than wiring
is open, and says what it waits for: `plans` (what an algorithm moves), the `simulator` (how long it takes), `training`
(a predicted training step), the `library` (ranks that run), a `gpu`. Left out are opinions, advice on screws and slots,
and when a technology became common.
";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Book {
    claim: Vec<Claim>,
}

#[derive(Deserialize)]
#[serde(try_from = "Row")]
struct Claim {
    id: String,
    document: usize,
    quote: String,
    state: State,
}

enum State {
    Open { need: Need, why: String },
    Checked(Check),
}

struct Check {
    command: String,
    pick: String,
    over: Option<Over>,
    times: f64,
    value: Said,
    unit: String,
    tolerance: f64,
    verdict: Verdict,
    note: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Over {
    command: Option<String>,
    pick: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Said {
    Number(f64),
    Range([f64; 2]),
    Word(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Holds,
    Refuted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Need {
    Plans,
    Simulator,
    Training,
    Library,
    Gpu,
}

/// A claim as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: String,
    document: usize,
    quote: String,
    open: Option<Need>,
    why: Option<String>,
    command: Option<String>,
    pick: Option<String>,
    over: Option<Over>,
    times: Option<f64>,
    value: Option<Said>,
    unit: Option<String>,
    tolerance: Option<f64>,
    verdict: Option<Verdict>,
    note: Option<String>,
}

impl TryFrom<Row> for Claim {
    type Error = String;

    fn try_from(row: Row) -> Result<Self, String> {
        let wrong = |what: &str| format!("claim {}: {what}", row.id);
        if !(1..=DOCUMENTS.len()).contains(&row.document) {
            return Err(wrong("no such document"));
        }
        if row.quote.split_whitespace().count() > 15 {
            return Err(wrong("the quote has more than 15 words"));
        }
        let state = match (row.open, row.why, row.command, row.pick, row.value, row.verdict) {
            (Some(need), Some(why), None, None, None, None) => State::Open { need, why },
            (None, None, Some(command), Some(pick), Some(value), Some(verdict)) => {
                if matches!(value, Said::Word(_)) == row.tolerance.is_some() {
                    return Err(wrong("a number has a tolerance and a word has none"));
                }
                if verdict == Verdict::Refuted && row.note.is_none() {
                    return Err(wrong("refuted, without a note on what is right"));
                }
                State::Checked(Check {
                    command,
                    pick,
                    over: row.over,
                    times: row.times.unwrap_or(1.0),
                    value,
                    unit: row.unit.unwrap_or_default(),
                    tolerance: row.tolerance.unwrap_or(0.0),
                    verdict,
                    note: row.note.unwrap_or_default(),
                })
            }
            _ => return Err(wrong("either open and why, or command, pick, value and verdict")),
        };
        Ok(Self {
            id: row.id,
            document: row.document,
            quote: row.quote,
            state,
        })
    }
}

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
        found
            .cloned()
            .ok_or_else(|| format!("`{command}` prints nothing at {pointer}"))
    }

    fn number(&mut self, command: &str, pointer: &str) -> Result<f64, String> {
        let found = self.pick(command, pointer)?;
        found
            .as_f64()
            .ok_or_else(|| format!("`{command}` has no number at {pointer} but {found}"))
    }

    fn compute(&mut self, check: &Check) -> Result<Found, String> {
        if let Said::Word(_) = check.value {
            let found = self.pick(&check.command, &check.pick)?;
            let word = found
                .as_str()
                .ok_or_else(|| format!("`{}` has no word at {}", check.command, check.pick))?;
            return Ok(Found::Word(word.to_owned()));
        }
        let mut number = self.number(&check.command, &check.pick)?;
        if let Some(over) = &check.over {
            number /= self.number(over.command.as_ref().unwrap_or(&check.command), &over.pick)?;
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
fn verdicts_are_what_weft_computes() {
    let claims = claims();
    let mut runner = Runner::default();
    let mut wrong = Vec::new();
    let mut sections: [(String, String); DOCUMENTS.len()] = Default::default();
    let mut counts: BTreeMap<(usize, &str), usize> = BTreeMap::new();
    for claim in &claims {
        let (checked, open) = &mut sections[claim.document - 1];
        let word = match &claim.state {
            State::Open { need, why } => {
                let need = format!("{need:?}").to_lowercase();
                writeln!(open, "| {} | {need} | {why} |", cell(&claim.quote)).unwrap();
                "open"
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
                        checked.push_str(&row(claim, check, &found));
                    }
                    Err(error) => wrong.push(format!("{}: {error}", claim.id)),
                }
                if check.verdict == Verdict::Holds {
                    "hold"
                } else {
                    "refuted"
                }
            }
        };
        *counts.entry((claim.document, word)).or_default() += 1;
    }
    assert!(
        wrong.is_empty(),
        "{} of {} claims:\n{}",
        wrong.len(),
        claims.len(),
        wrong.join("\n")
    );
    assert_current("docs/claims.md", &page(&sections, &counts));
}

#[test]
fn quotes_stand_in_the_shared_documents() {
    let Some(shared) = env::var_os("WEFT_SHARED") else {
        println!("skipped: WEFT_SHARED does not say where the documents are");
        return;
    };
    let folder = std::path::Path::new(&shared).join("seeds");
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let texts: Vec<_> = files
        .iter()
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    assert_eq!(texts.len(), DOCUMENTS.len(), "in {}", folder.display());
    for claim in claims() {
        let stands = texts[claim.document - 1].lines().any(|line| {
            let mut rest = line;
            claim.quote.split(" ... ").all(|part| {
                let found = rest.find(part);
                rest = found.map_or("", |at| &rest[at + part.len()..]);
                found.is_some()
            })
        });
        assert!(
            stands,
            "{}: document {} does not say `{}`",
            claim.id, claim.document, claim.quote
        );
    }
}

fn claims() -> Vec<Claim> {
    let text = fs::read_to_string(root().join("docs/claims.toml")).unwrap();
    let book: Book = toml::from_str(&text).unwrap_or_else(|error| panic!("docs/claims.toml: {error}"));
    let ids: BTreeSet<_> = book.claim.iter().map(|claim| &claim.id).collect();
    assert_eq!(ids.len(), book.claim.len(), "two claims have one id");
    book.claim
}

fn page(sections: &[(String, String)], counts: &BTreeMap<(usize, &str), usize>) -> String {
    let count = |document, word| counts.get(&(document, word)).copied().unwrap_or(0);
    let mut page = format!("{INTRODUCTION}\n| | hold | refuted | open |\n|---|---:|---:|---:|\n");
    for (number, name) in (1..).zip(DOCUMENTS) {
        let [hold, refuted, open] = ["hold", "refuted", "open"].map(|word| count(number, word));
        writeln!(page, "| {number}. {name} | {hold} | {refuted} | {open} |").unwrap();
    }
    for ((number, name), (checked, open)) in (1..).zip(DOCUMENTS).zip(sections) {
        write!(
            page,
            "\n## {number}. {name}\n\n| It says | that is | Weft computes | verdict | what is right | command |\n\
             |---|---|---|---|---|---|\n{checked}\n### Open\n\n| It says | waits for | why |\n|---|---|---|\n{open}"
        )
        .unwrap();
    }
    page
}

fn row(claim: &Claim, check: &Check, found: &Found) -> String {
    let said = match &check.value {
        Said::Number(said) => number(*said),
        Said::Range([low, high]) if *high == f64::INFINITY => format!("at least {}", number(*low)),
        Said::Range([low, high]) => format!("{} to {}", number(*low), number(*high)),
        Said::Word(said) => said.clone(),
    };
    let verdict = match check.verdict {
        Verdict::Holds => "holds",
        Verdict::Refuted => "**refuted**",
    };
    let mut command = format!("`{}` `{}`", check.command, check.pick);
    if let Some(over) = &check.over {
        let other = over
            .command
            .as_ref()
            .map(|command| format!("`{command}` "))
            .unwrap_or_default();
        write!(command, " / {other}`{}`", over.pick).unwrap();
    }
    if check.times != 1.0 {
        write!(command, " x {}", check.times).unwrap();
    }
    format!(
        "| {} | {} | {} | {verdict} | {} | {command} |\n",
        cell(&claim.quote),
        format!("{said} {}", check.unit).trim_end(),
        shown(found),
        cell(&check.note),
    )
}

fn shown(found: &Found) -> String {
    match found {
        Found::Number(found) => number(*found),
        Found::Word(found) => found.clone(),
    }
}

/// Four significant digits, and no more than it takes.
fn number(value: f64) -> String {
    if value == 0.0 || value.fract() == 0.0 {
        return format!("{value}");
    }
    let digits = (3 - value.abs().log10().floor() as i32).max(0) as usize;
    let text = format!("{value:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
