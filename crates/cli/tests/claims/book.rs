//! docs/claims.toml, read: every claim either checked, shown or open, and complete.

use std::collections::BTreeSet;
use std::fs;

use serde::Deserialize;

use crate::common::root;

/// What the documents are; a claim's `document` counts from 1.
pub(super) const DOCUMENTS: [&str; 3] = [
    "A hands-on guide to NVLink",
    "A glossary entry on NVLink",
    "\"Multi-GPU Communication: NVLink, PCIe, and NCCL\"",
];

pub(super) fn claims() -> Vec<Claim> {
    let text = fs::read_to_string(root().join("docs/claims.toml")).unwrap();
    let book: Book = toml::from_str(&text).unwrap_or_else(|error| panic!("docs/claims.toml: {error}"));
    let ids: BTreeSet<_> = book.claim.iter().map(|claim| &claim.id).collect();
    assert_eq!(ids.len(), book.claim.len(), "two claims have one id");
    book.claim
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Book {
    claim: Vec<Claim>,
}

#[derive(Deserialize)]
#[serde(try_from = "Row")]
pub(super) struct Claim {
    pub(super) id: String,
    pub(super) document: usize,
    pub(super) quote: String,
    pub(super) state: State,
}

pub(super) enum State {
    Open { need: Need, why: String },
    Checked(Check),
    Shown(Shown),
}

/// A verdict of a test, of a measurement or of the code, which no command prints.
pub(super) struct Shown {
    pub(super) evidence: Vec<Evidence>,
    pub(super) verdict: Verdict,
    pub(super) note: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Evidence {
    /// From the root of the repository.
    pub(super) file: String,
    /// What a line of it has: parts in this order, separated by ` ... `.
    pub(super) has: String,
}

impl Evidence {
    /// Whether the file has such a line.
    pub(super) fn stands(&self) -> bool {
        fs::read_to_string(root().join(&self.file)).is_ok_and(|text| has_line(&text, &self.has))
    }
}

/// Whether a line of a text has all parts of a quote, in this order.
pub(super) fn has_line(text: &str, quote: &str) -> bool {
    text.lines().any(|line| {
        let mut rest = line;
        quote.split(" ... ").all(|part| {
            let found = rest.find(part);
            rest = found.map_or("", |at| &rest[at + part.len()..]);
            found.is_some()
        })
    })
}

pub(super) struct Check {
    pub(super) command: String,
    pub(super) pick: String,
    pub(super) over: Option<Over>,
    pub(super) times: f64,
    pub(super) value: Said,
    pub(super) unit: String,
    pub(super) tolerance: f64,
    pub(super) verdict: Verdict,
    pub(super) note: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Over {
    pub(super) command: Option<String>,
    pub(super) pick: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Said {
    Number(f64),
    Range([f64; 2]),
    Word(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Holds,
    Refuted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Need {
    Plans,
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
    shown: Option<Vec<Evidence>>,
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
        let state = match (row.open, row.why, row.shown, row.command, row.pick, row.value, row.verdict) {
            (Some(need), Some(why), None, None, None, None, None) => State::Open { need, why },
            (None, None, Some(evidence), None, None, None, Some(verdict)) => {
                let Some(note) = row.note.filter(|_| !evidence.is_empty()) else {
                    return Err(wrong("shown, without a note or without a file"));
                };
                State::Shown(Shown { evidence, verdict, note })
            }
            (None, None, None, Some(command), Some(pick), Some(value), Some(verdict)) => {
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
            _ => {
                return Err(wrong(
                    "either open and why, or shown and verdict, or command, pick, value and verdict",
                ));
            }
        };
        Ok(Self { id: row.id, document: row.document, quote: row.quote, state })
    }
}
