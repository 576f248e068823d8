//! docs/algorithms.md and its pictures are generated from the headers of the algorithms' files and from their plans. `make bless`
//! updates them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use weftlink_plan::algorithms::header::{Amount, Header};
use weftlink_plan::draw::{dot, svg};
use weftlink_plan::{Algorithm, Collective, Layout, Plan, WellFormed};

const INTRODUCTION: &str = "\
# Algorithms

<!-- Written by `make bless` from the headers of crates/plan/src/algorithms/*.rs; change those. -->

Every algorithm is one file that writes plans. This page is generated from the headers of these files. A test counts hops and
bytes on the plans and compares them with the formulas below; the pictures are drawn from the plans too.

Formulas are for one tile along one ring, on m equal islands of g ranks, n = m g in all, with the root at rank 0. S is the size
that nccl-tests shows: the buffer of an all-reduce, reduce, broadcast or scan, all n blocks of the others; one rank's blocks
for neighbours (on a torus of m x g) and messages (each rank sends one to the next).

- **hops inside, hops across**: messages from another rank, or waits for one, on the longest path through the plan: the path
  with the most hops between islands, and of those the one with the most inside them.
- **bytes of a rank**: the most that a rank sends, or receives, inside its island. For a sum by a switch every member sends; for
  a multicast every member receives.
- **bytes of an island**: the most that an island sends to others, or receives.

`[m>1]` is 1 if m > 1 and else 0; `log2` rounds up; `pow2(x)` is the largest power of two not above x; `<=` is an upper bound.

In the pictures a column is a hop and an arrow is one or more chunks, labelled with the chunk's number if ranks add, and with its
owner if they only forward.
";

#[test]
fn the_page_is_current() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut page = INTRODUCTION.to_owned();
    let mut pictures = BTreeSet::new();
    for algorithm in Algorithm::ALL {
        let file = algorithm.source().0;
        let names: Vec<_> = Algorithm::ALL.into_iter().filter(|other| other.source().0 == file).collect();
        // A file with two algorithms has one section, under the shorter name.
        if names.last() != Some(&algorithm) {
            continue;
        }
        let (plan, picture) = example(algorithm);
        assert!(picture.len() < 30_000, "{algorithm}: a picture of {} bytes", picture.len());
        let path = docs.join("algorithms").join(format!("{algorithm}.svg"));
        check(&path, &picture);
        pictures.insert(path);
        let about = format!("{algorithm}: {} on {} ranks", plan.collective, plan.ranks);
        section(&mut page, &names, algorithm.header(), &format!("![{about}](algorithms/{algorithm}.svg)"));
    }
    check(&docs.join("algorithms.md"), &page);
    let found: BTreeSet<PathBuf> =
        std::fs::read_dir(docs.join("algorithms")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(found, pictures, "docs/algorithms holds these pictures and nothing else");
}

/// The maximum number of arrows between two columns of a readable picture.
const ARROWS_MAX: usize = 30;

/// The plan to draw: for the first collective of the table, on two islands of four ranks if that is possible and readable.
fn example(algorithm: Algorithm) -> (Plan, String) {
    let name = algorithm.header().rows[0].collective;
    let mut drawn = Vec::new();
    for (islands, per_island) in [(2, 4), (1, 8), (4, 2), (2, 2), (1, 4)] {
        let layout = Layout::grid(islands, per_island, 1);
        let others = [Collective::Neighbours { torus: [1, islands, per_island] }];
        let mut all = Collective::KINDS.into_iter().chain(others);
        let collective = all.find(|collective| collective.name() == name).unwrap();
        if let Ok(recipe) = algorithm.recipe(&collective, &layout) {
            let islands: Vec<u32> = layout.places().into_iter().map(|(island, _)| island).collect();
            let plan = recipe.plan();
            let picture = svg(WellFormed::check(&plan).unwrap(), &islands).unwrap();
            drawn.push((plan, picture));
        }
    }
    let thickness = |picture: &str| {
        let columns = picture.matches("class=\"c\"").count() - 1;
        picture.matches('z').count() / columns
    };
    let clear = drawn.iter().position(|(_, picture)| thickness(picture) <= ARROWS_MAX);
    drawn.swap_remove(clear.unwrap_or(0))
}

fn section(page: &mut String, names: &[Algorithm], header: &Header, picture: &str) {
    let file = names[0].source().0;
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    writeln!(page, "\n## {}\n\n{}\n", header.title, plain(&header.idea)).unwrap();
    writeln!(
        page,
        "Called {} in commands; [{file}](../crates/plan/src/algorithms/{file}).",
        names.join(" and ")
    )
    .unwrap();
    for (name, text) in &header.sections {
        writeln!(page, "\n**{name}.** {}", plain(text)).unwrap();
    }
    writeln!(
        page,
        "\n| collective | hops inside | hops across | bytes of a rank | bytes of an island |\n|---|---|---|---|---|"
    )
    .unwrap();
    for row in &header.rows {
        let cells = [&row.inside, &row.across, &row.rank, &row.island].map(cell).join(" | ");
        writeln!(page, "| {} | {cells} |", row.collective).unwrap();
    }
    writeln!(page, "\n{picture}").unwrap();
}

fn cell(amount: &Amount) -> String {
    format!("`{}{}`", if amount.is_bound { "<= " } else { "" }, amount.formula.text())
}

/// Prose without rustdoc links: ``[`X`]`` and `[text](crate::X)` become their text.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        plain += before;
        let link =
            after.split_once(']').filter(|(inner, behind)| inner.starts_with('`') || behind.starts_with('('));
        let Some((inner, behind)) = link else {
            plain.push('[');
            rest = after;
            continue;
        };
        plain += inner;
        rest =
            behind.strip_prefix('(').and_then(|link| link.split_once(')')).map_or(behind, |(_, rest)| rest);
    }
    plain + rest
}

/// Compares a file with its expected content, or writes it.
fn check(path: &Path, text: &str) {
    if std::env::var_os("WEFT_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == text,
        "{} does not match the algorithms' files; `make bless` updates it",
        path.display()
    );
}

#[test]
fn traffic_as_a_graph() {
    let plan = Algorithm::Ring.plan(4, 1);
    let graph = dot(WellFormed::check(&plan).unwrap(), &[0, 0, 1, 1]);
    assert!(graph.contains("subgraph cluster_1 {"));
    assert!(graph.contains("  0 -> 1 [label=\"3/2 S\", color=\"#3d7a00\"];"));
    assert!(graph.contains("  1 -> 2 [label=\"3/2 S\", color=\"#c2560a\"];"));
    assert_eq!(graph.matches("->").count(), 4);
}
