//! Reads the header of an algorithm's file: the text of docs/algorithms.md, and formulas that a test compares with the plans.
//!
//! A header has a title, the idea in a sentence or two, sections that open with a bold word (`**Steps.**`), and a table with
//! a row for each collective:
//!
//! ```text
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-gather | ... | ... | ... | ... |
//! ```
//!
//! The columns are [formulas](crate::formula) for one tile along one ring, on m equal islands of g ranks, n = m g in all,
//! with the root, if there is one, at rank 0. S is the size that nccl-tests shows: the buffer of an all-reduce, reduce,
//! broadcast or scan, all n blocks of the others; one rank's blocks for neighbours (on a torus of m x g) and messages (each
//! rank sends one to the next).
//!
//! - *inside*, *across*: the hops on the longest path through the plan, inside an island or between islands. A hop is a
//!   message from another rank, or a wait for one; waiting for a free slot is not. The longest path is the one with the most
//!   hops across, and of those the one with the most inside.
//! - *rank*: the most bytes that a rank sends, or receives, inside its island.
//! - *island*: the most bytes that an island sends, or receives.
//!
//! A cell that begins with `<=` is an upper bound, where no formula is exact. `tests/headers.rs` counts on the plans
//! ([`hops`](crate::domain::hops), [`traffic`](crate::traffic)) and compares.

use std::sync::OnceLock;

use super::Algorithm;
use crate::collective::Collective;
use crate::formula::{Formula, ValueError, Values};
use crate::ratio::Ratio;

/// The header of an algorithm's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The algorithm's name in prose.
    pub title: String,
    /// The idea, in a sentence or two.
    pub idea: String,
    /// The other sections: heading and text.
    pub sections: Vec<(String, String)>,
    /// The costs of each collective.
    pub rows: Vec<Row>,
}

/// The costs of one collective, as formulas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The collective's [name](Collective::name).
    pub collective: &'static str,
    /// Hops on the longest path, inside islands.
    pub inside: Amount,
    /// Hops on the longest path, between islands.
    pub across: Amount,
    /// The most bytes a rank sends or receives inside its island.
    pub rank: Amount,
    /// The most bytes an island sends or receives.
    pub island: Amount,
}

/// A number that depends on the ranks and the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amount {
    /// The number.
    pub formula: Formula,
    /// Whether it is an upper bound only.
    pub is_bound: bool,
}

/// The costs of a plan, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Hops on the longest path, inside islands.
    pub inside: Ratio,
    /// Hops on the longest path, between islands.
    pub across: Ratio,
    /// The most bytes a rank sends or receives inside its island.
    pub rank_bytes: Ratio,
    /// The most bytes an island sends or receives.
    pub island_bytes: Ratio,
}

/// The costs of a plan, rounded up to integers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Work {
    /// Hops inside islands, on the path with the most hops between islands.
    pub hops_inside: u64,
    /// Hops on the longest path, between islands.
    pub hops_across: u64,
    /// The most bytes a rank sends or receives inside its island.
    pub rank_bytes: u64,
    /// The most bytes an island sends or receives.
    pub island_bytes: u64,
}

/// Why a header cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("crates/plan/src/algorithms/{file}:{line}:{column}: {what}")]
pub struct HeaderError {
    /// The file.
    pub file: String,
    /// The line in it, from 1.
    pub line: usize,
    /// The column, in characters from 1.
    pub column: usize,
    /// What is wrong there.
    pub what: String,
}

impl Algorithm {
    /// The header of the algorithm's file, parsed once.
    ///
    /// # Panics
    /// If the header is invalid, which a test of this crate excludes.
    pub fn header(self) -> &'static Header {
        static HEADERS: [OnceLock<Header>; Algorithm::ALL.len()] =
            [const { OnceLock::new() }; Algorithm::ALL.len()];
        HEADERS[self as usize].get_or_init(|| {
            let (file, text) = self.source();
            Header::parse(file, text).unwrap_or_else(|error| panic!("{error}"))
        })
    }

    /// The costs of a collective of `bytes` (the size that nccl-tests shows) on equal islands; nothing if the header has no row
    /// for it, or on overflow. Does not check whether it is possible on a layout.
    pub fn work(self, collective: &Collective, islands: u32, per_island: u32, bytes: u64) -> Option<Work> {
        let cost = self.header().row(collective)?.cost(Values { islands, per_island, bytes }).ok()?;
        Some(Work {
            hops_inside: cost.inside.count()?,
            hops_across: cost.across.count()?,
            rank_bytes: cost.rank_bytes.count()?,
            island_bytes: cost.island_bytes.count()?,
        })
    }

    /// Whether it implements a collective on some layout.
    pub fn does(self, collective: &Collective) -> bool {
        self.header().row(collective).is_some()
    }

    /// The name of the algorithm's file, and its text.
    pub fn source(self) -> (&'static str, &'static str) {
        macro_rules! file {
            ($name:literal) => {
                ($name, include_str!($name))
            };
        }
        match self {
            Algorithm::ExchangeLl | Algorithm::Exchange => file!("exchange.rs"),
            Algorithm::OneShot => file!("one_shot.rs"),
            Algorithm::TwoShot => file!("two_shot.rs"),
            Algorithm::Pull => file!("pull.rs"),
            Algorithm::Staged => file!("staged.rs"),
            Algorithm::Ring => file!("ring.rs"),
            Algorithm::Chain => file!("chain.rs"),
            Algorithm::Linear => file!("linear.rs"),
            Algorithm::Pairwise => file!("pairwise.rs"),
            Algorithm::Tree => file!("tree.rs"),
            Algorithm::Hierarchical => file!("hierarchical.rs"),
            Algorithm::RecursiveDoubling => file!("recursive_doubling.rs"),
            Algorithm::HalvingDoubling => file!("halving_doubling.rs"),
            Algorithm::Bruck => file!("bruck.rs"),
            Algorithm::Pat => file!("pat.rs"),
            Algorithm::Dissemination => file!("dissemination.rs"),
            Algorithm::Nvls => file!("nvls.rs"),
            Algorithm::NvlsTree => file!("nvls_tree.rs"),
            Algorithm::CollnetDirect => file!("collnet_direct.rs"),
            Algorithm::CollnetChain => file!("collnet_chain.rs"),
        }
    }
}

impl Header {
    /// Reads the header of a file.
    pub fn parse(file: &str, text: &str) -> Result<Self, HeaderError> {
        let mut header = Self { title: String::new(), idea: String::new(), sections: vec![], rows: vec![] };
        let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
        let mut table_lines = 0;
        for (number, line) in (1..).zip(lines) {
            let error = |column, what| HeaderError { file: file.to_owned(), line: number, column, what };
            let content = line.trim();
            if let Some(title) = content.strip_prefix("# ") {
                header.title = title.to_owned();
            } else if content.starts_with('|') {
                table_lines += 1;
                // Formulas may be set as code.
                let content = &content.replace('`', " ");
                let rows = match table_lines {
                    1 => columns(content),
                    2 => Ok(vec![]),
                    _ => rows(content),
                };
                let indent = "//!".len() + line.len() - line.trim_start().len();
                header.rows.extend(rows.map_err(|(column, what)| error(indent + column, what))?);
            } else if header.title.is_empty() {
                return Err(error(1, "a header begins with its title: `//! # Ring`".to_owned()));
            } else {
                header.prose(content);
            }
        }
        let paragraphs = header.sections.iter_mut().map(|(_, text)| text);
        for text in paragraphs.chain([&mut header.idea]) {
            text.truncate(text.trim_end().len());
        }
        Ok(header)
    }

    /// The costs of a collective, if the algorithm implements it.
    pub fn row(&self, collective: &Collective) -> Option<&Row> {
        self.rows.iter().find(|row| row.collective == collective.name())
    }

    /// The text of a section.
    pub fn section(&self, name: &str) -> Option<&str> {
        self.sections.iter().find(|(of, _)| of == name).map(|(_, text)| text.as_str())
    }

    /// Adds a line of prose: to a new section, or to the current paragraph.
    fn prose(&mut self, line: &str) {
        let opening = line.strip_prefix("**").and_then(|rest| rest.split_once(".**"));
        if let Some((name, rest)) = opening {
            self.sections.push((name.to_owned(), rest.trim_start().to_owned() + "\n"));
            return;
        }
        let text = self.sections.last_mut().map_or(&mut self.idea, |(_, text)| text);
        if !(line.is_empty() && text.is_empty()) {
            text.push_str(line);
            text.push('\n');
        }
    }
}

impl Row {
    /// Its formulas' values.
    pub fn cost(&self, values: Values) -> Result<Cost, ValueError> {
        Ok(Cost {
            inside: self.inside.formula.value(values)?,
            across: self.across.formula.value(values)?,
            rank_bytes: self.rank.formula.value(values)?,
            island_bytes: self.island.formula.value(values)?,
        })
    }
}

const COLUMNS: [&str; 5] = ["collective", "inside", "across", "rank", "island"];

/// An error, and its column.
type Mistake = (usize, String);

/// Checks the line that names the columns.
fn columns(line: &str) -> Result<Vec<Row>, Mistake> {
    let cells = cells(line)?;
    match cells.iter().zip(COLUMNS).find(|((_, cell), name)| cell != name) {
        Some(((column, cell), name)) => Err((*column, format!("the column is {name:?}, not {cell:?}"))),
        None => Ok(vec![]),
    }
}

/// A line of formulas; several collectives may share it.
fn rows(line: &str) -> Result<Vec<Row>, Mistake> {
    let [(at, names), inside, across, rank, island] = cells(line)?;
    let amount = |(column, text): (usize, &str)| {
        let (is_bound, formula) = text.strip_prefix("<=").map_or((false, text), |rest| (true, rest));
        let skipped = text.len() - formula.trim_start().len();
        let formula =
            Formula::parse(formula).map_err(|error| (column + skipped + error.column - 1, error.what))?;
        Ok(Amount { formula, is_bound })
    };
    let row = |name: &str| {
        let known = names_of_collectives().find(|known| *known == name);
        let collective = known.ok_or_else(|| (at, format!("unknown collective {name:?}")))?;
        let [inside, across, rank, island] =
            [amount(inside)?, amount(across)?, amount(rank)?, amount(island)?];
        Ok(Row { collective, inside, across, rank, island })
    };
    names.split(',').map(str::trim).map(row).collect()
}

/// The cells of a line of a table, with the column each begins at.
fn cells(line: &str) -> Result<[(usize, &str); 5], Mistake> {
    let mut cells = Vec::new();
    let mut column = 1;
    for piece in line.split('|') {
        let indent = piece.len() - piece.trim_start().len();
        cells.push((column + indent, piece.trim()));
        column += piece.chars().count() + 1;
    }
    let inner = cells.get(1..cells.len() - 1).unwrap_or_default();
    inner.try_into().map_err(|_| (1, format!("a row has {} cells, not {}", COLUMNS.len(), inner.len())))
}

fn names_of_collectives() -> impl Iterator<Item = &'static str> {
    let parametrised =
        [Collective::SendReceive { messages: vec![] }, Collective::Neighbours { torus: [1; 3] }];
    Collective::KINDS.into_iter().chain(parametrised).map(|collective| collective.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "//! | collective | inside | across | rank | island |\n//! |---|---|---|---|---|\n";

    #[test]
    fn a_header_is_read_in_parts() {
        let text = format!(
            "//! # Ring\n//!\n//! The idea,\n//! in short.\n//!\n//! **Steps.** One.\n//! Two.\n//!\n//! Three.\n//!\n\
             {TABLE}//! | all-reduce | 2(n-1) | <= `n` | `S/3` | 0 |\n//! | reduce, scan | 0 | 0 | 0 | S |\nuse x;\n"
        );
        let header = Header::parse("ring.rs", &text).unwrap();
        assert_eq!((header.title.as_str(), header.idea.as_str()), ("Ring", "The idea,\nin short."));
        assert_eq!(header.section("Steps"), Some("One.\nTwo.\n\nThree."));
        let names: Vec<_> = header.rows.iter().map(|row| row.collective).collect();
        assert_eq!(names, ["all-reduce", "reduce", "scan"]);
        let row = header.row(&Collective::AllReduce).unwrap();
        assert_eq!((row.across.is_bound, row.rank.formula.text()), (true, "S/3"));
        let cost = row.cost(Values { islands: 2, per_island: 2, bytes: 4 }).unwrap();
        assert_eq!([cost.inside, cost.rank_bytes].map(|value| value.to_string()), ["6", "4/3"]);
    }

    #[test]
    fn errors_show_their_position() {
        for (text, expected) in [
            ("//! Ring".to_owned(), "x.rs:1:1: a header begins with its title"),
            (format!("//! # X\n{TABLE}//! | all-reduce | 2k | 0 | 0 | 0 |"), "x.rs:4:21: unknown name \"k\""),
            (format!("//! # X\n{TABLE}//! | scan | 0 | <= (n | 0 | 0 |"), "x.rs:4:23: expected ')', but"),
            (format!("//! # X\n{TABLE}//! | scam | 0 | 0 | 0 | 0 |"), "x.rs:4:7: unknown collective"),
            (format!("//! # X\n{TABLE}//! | scan | 0 |"), "x.rs:4:5: a row has 5 cells, not 2"),
            ("//! # X\n//! | a | b | c | d | e |".to_owned(), "x.rs:2:7: the column is \"collective\""),
        ] {
            let error = Header::parse("x.rs", &text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("crates/plan/src/algorithms/{expected}")), "{error}");
        }
    }
}
