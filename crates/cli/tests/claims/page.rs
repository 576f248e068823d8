//! docs/claims.md, written.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::Found;
use crate::book::{Check, Claim, DOCUMENTS, Said, Shown, Verdict};

const INTRODUCTION: &str = "\
# Claims, checked

This page checks the claims of three introductions to GPU interconnects. It quotes each claim that can be checked, with Weft's result and the
command that computes it. `make test` runs all of them and generates this page from [claims.toml](claims.toml). Most refuted claims confuse two
figures that a data sheet prints alike: one way and both ways, or a link and a whole GPU.

A verdict is about the wiring: rates are nominal unless a note says otherwise. Times are predicted by `weft sim`, with the error that
[accuracy.md](accuracy.md) reports. Claims about libraries are shown by tests of Weft and by measurements, its own and published ones: `make test`
runs these tests, and checks that the files still have the lines that the page names. Claims that need more are open and name it: `plans` (what an algorithm
moves), `training` (a predicted training step), the `library` (a run of it on a machine that the row names), a `gpu`. The page omits opinions, advice on
screws and slots, and dates of adoption.
";

/// The rows of a document.
#[derive(Default)]
pub(super) struct Section {
    pub(super) checked: String,
    pub(super) shown: String,
    pub(super) open: String,
}

pub(super) fn page(sections: &[Section], counts: &BTreeMap<(usize, &str), usize>) -> String {
    let count = |document, word| counts.get(&(document, word)).copied().unwrap_or(0);
    let mut page = format!("{INTRODUCTION}\n| | hold | refuted | open |\n|---|---:|---:|---:|\n");
    for (number, name) in (1..).zip(DOCUMENTS) {
        let [hold, refuted, open] = ["hold", "refuted", "open"].map(|word| count(number, word));
        writeln!(page, "| {number}. {name} | {hold} | {refuted} | {open} |").unwrap();
    }
    for ((number, name), Section { checked, shown, open }) in (1..).zip(DOCUMENTS).zip(sections) {
        write!(
            page,
            "\n## {number}. {name}\n\n| It says | that is | Weft computes | verdict | what is right | command |\n\
             |---|---|---|---|---|---|\n{checked}\n### Shown by tests and measurements\n\n\
             | It says | verdict | what is right | where |\n|---|---|---|---|\n{shown}\n\
             ### Open\n\n| It says | waits for | why |\n|---|---|---|\n{open}"
        )
        .unwrap();
    }
    page
}

pub(super) fn row(claim: &Claim, check: &Check, found: &Found) -> String {
    let said = match &check.value {
        Said::Number(said) => number(*said),
        Said::Range([low, high]) if *high == f64::INFINITY => format!("{} or more", number(*low)),
        Said::Range([low, high]) => format!("{} to {}", number(*low), number(*high)),
        Said::Word(said) => said.clone(),
    };
    let verdict = word(check.verdict);
    let mut command = format!("`{}` `{}`", check.command, check.pick);
    if let Some(over) = &check.over {
        let other = over.command.as_ref().map(|command| format!("`{command}` ")).unwrap_or_default();
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

pub(super) fn shown_row(claim: &Claim, answer: &Shown) -> String {
    let places: Vec<_> = answer
        .evidence
        .iter()
        .map(|evidence| {
            let name = evidence.file.rsplit('/').next().unwrap_or_default();
            format!("[{name}](../{}) `{}`", evidence.file, evidence.has)
        })
        .collect();
    let [quote, note, places] = [&claim.quote, &answer.note, &places.join("; ")].map(|text| cell(text));
    format!("| {quote} | {} | {note} | {places} |\n", word(answer.verdict))
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::Refuted => "**refuted**",
    }
}

pub(super) fn shown(found: &Found) -> String {
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

pub(super) fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
