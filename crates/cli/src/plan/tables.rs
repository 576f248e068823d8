//! Choices as tables and sentences. The JSON of the same answers is in the library.

use std::io::{self, Write};

use weftlink_fabric::bytes::Bytes;
use weftlink_plan::choose::{Built, Chosen, ChosenSizes, RankedCandidate, Subject, Verdict};
use weftlink_plan::cost::{Picoseconds, Prediction};
use weftlink_plan::plan::{Protocol, Switch};
use weftlink_plan::{Algorithm, Collective, Recipe};

use super::ask::Sizes;
use crate::calibration::CalibrationArgs;
use crate::screen::{self, say};
use crate::table::Table;
use crate::{Failure, counted};

/// Every candidate, and why it lost.
pub(super) fn print_choice(chosen: &Chosen, as_json: bool, by: &CalibrationArgs) -> io::Result<()> {
    if as_json {
        let mut value = chosen.to_json();
        by.add_to(&mut value);
        return crate::print_json(&value);
    }
    let Chosen { subject: about, choice } = chosen;
    let mut out = screen::stdout();
    say!(out, "{}", subject(about, choice.bytes))?;
    writeln!(out)?;
    let mut table = Table::new([
        "algorithm",
        "protocol",
        "blocks",
        "time",
        "algbw GB/s",
        "busbw GB/s",
        "of bound",
        "why not",
    ])
    .optional(&["blocks", "algbw GB/s"]);
    let does = |candidate: &&RankedCandidate| candidate.algorithm.does(&about.collective);
    for candidate in choice.candidates.iter().filter(does) {
        let shown = |text: String| if candidate.cost.is_some() { text } else { "-".to_owned() };
        let why = match &candidate.verdict {
            Verdict::Chosen => "chosen",
            Verdict::Lost(why) | Verdict::RuledOut(why) => why,
        };
        table.row([
            candidate.algorithm.name().to_owned(),
            shown(protocol(candidate.protocol)),
            shown(candidate.thread_blocks.to_string()),
            time(candidate.time()),
            rate(candidate.algbw),
            rate(candidate.busbw),
            candidate.bound_thousandths.map_or("-".to_owned(), percent),
            why.to_owned(),
        ]);
        if matches!(candidate.verdict, Verdict::Chosen) {
            table.mark();
        }
    }
    writeln!(out, "{table}")?;
    let others: Vec<&str> = Algorithm::ALL
        .into_iter()
        .filter(|algorithm| !algorithm.does(&about.collective))
        .map(Algorithm::name)
        .collect();
    if !others.is_empty() {
        say!(out, "Not for {}: {}.", about.collective.name(), others.join(", "))?;
    }
    print_switches(&mut out, &choice.candidates)?;
    print_basis(&mut out, about, by)
}

/// Which algorithm for which size.
pub(super) fn print_sizes(
    found: &ChosenSizes,
    sizes: Sizes,
    as_json: bool,
    by: &CalibrationArgs,
) -> io::Result<()> {
    if as_json {
        let mut value = found.to_json();
        by.add_to(&mut value);
        return crate::print_json(&value);
    }
    let about = &found.subject;
    let mut out = screen::stdout();
    say!(out, "{}; {} to {}", ranks(about), size(sizes.0), size(sizes.1))?;
    writeln!(out)?;
    let mut table = Table::new(["algorithm", "protocol", "from", "to", "time", "busbw GB/s at the end"]);
    for (range, ends) in found.breakpoints.ranges.iter().zip(&found.ends) {
        table.row([
            range.algorithm.name().to_owned(),
            protocol(range.protocol),
            size(range.from),
            size(range.to),
            ends.each_ref().map(|end| time(end.time())).join(" to "),
            rate(ends[1].busbw),
        ]);
    }
    writeln!(out, "{table}")?;
    say!(
        out,
        "Digest {:016x}: ranks compare it to check that they choose alike.",
        found.breakpoints.digest()
    )?;
    let chosen = found.ends.concat();
    print_switches(&mut out, &chosen)?;
    print_basis(&mut out, about, by)
}

/// One candidate, and the terms of its predicted time.
pub(super) fn print_summary(
    built: &Built,
    recipe: &Recipe<'_>,
    as_json: bool,
    by: &CalibrationArgs,
) -> Result<(), Failure> {
    if as_json {
        let mut value = built.to_json().map_err(Failure::misuse)?;
        by.add_to(&mut value);
        return Ok(crate::print_json(&value)?);
    }
    let Built { subject: about, candidate, bytes, .. } = built;
    let mut out = screen::stdout();
    let outline = recipe.outline();
    let with = candidate.protocol.map_or(String::new(), |protocol| format!(" with {protocol}"));
    say!(out, "{}{with}: {}", candidate.algorithm, candidate.algorithm.about())?;
    say!(out, "{}", subject(about, *bytes))?;
    let lanes = recipe.program(0).lanes.len() as u64;
    let chunks = outline.chunks;
    let scratch = if chunks.scratch > 0 { format!(", scratch {}", chunks.scratch) } else { String::new() };
    say!(
        out,
        "  plan: {}, {} of each rank; chunks: input {}, output {}{scratch}",
        super::text::ways(outline),
        counted(lanes, "lane"),
        chunks.input,
        chunks.output
    )?;
    if let Some(cost) = &candidate.cost {
        print_cost(&mut out, cost)?;
    }
    if candidate.algbw > 0 {
        let (algbw, busbw) = (rate(candidate.algbw), rate(candidate.busbw));
        writeln!(out, "  predicted: algbw {algbw} GB/s, busbw {busbw} GB/s")?;
    }
    match &candidate.verdict {
        Verdict::Chosen => writeln!(out, "  chosen")?,
        Verdict::Lost(why) | Verdict::RuledOut(why) => say!(out, "  not chosen: {why}")?,
    }
    print_switches(&mut out, std::slice::from_ref(candidate))?;
    Ok(print_basis(&mut out, about, by)?)
}

/// `all-reduce on 16 ranks of x, in 2 islands of 8; 64 MiB`
fn subject(about: &Subject, bytes: u64) -> String {
    match about.collective {
        Collective::Barrier => ranks(about),
        _ => format!("{}; {}", ranks(about), size(bytes)),
    }
}

/// `all-reduce on 16 ranks of x, in 2 islands of 8`
fn ranks(about: &Subject) -> String {
    let uneven = if about.uneven { " with blocks of different lengths" } else { "" };
    let in_islands = match (about.islands, about.per_island) {
        (1, _) => "in one island".to_owned(),
        (islands, Some(each)) => format!("in {islands} islands of {each}"),
        (islands, None) => format!("in {islands} islands of up to {}", about.largest_island),
    };
    let ranks = counted(about.ranks, "rank");
    format!("{}{uneven} on {ranks} of {}, {in_islands}", about.collective, about.fabric)
}

/// Names the algorithms that need switches to reduce: a machine may have such switches and not use them.
fn print_switches(out: &mut impl Write, candidates: &[RankedCandidate]) -> io::Result<()> {
    for (switch, what) in [
        (Switch::Nvswitch, "NVSwitches that reduce and multicast (NVLink SHARP)"),
        (Switch::Network, "network switches that reduce and multicast (SHARP)"),
    ] {
        let uses = |algorithm: &Algorithm| {
            let found = candidates.iter().find(|candidate| candidate.algorithm == *algorithm);
            found.is_some_and(|candidate| candidate.switch == Some(switch))
        };
        let names: Vec<&str> = Algorithm::ALL.into_iter().filter(uses).map(Algorithm::name).collect();
        if !names.is_empty() {
            let need = if names.len() == 1 { "needs" } else { "need" };
            let (algorithms, left_out) = (names.join(", "), names.join(","));
            match switch {
                Switch::Nvswitch => {
                    say!(out, "{algorithms} {need} {what}. If yours do not, add --without {left_out}.")?
                }
                Switch::Network => say!(out, "{algorithms} {need} {what}.")?,
            }
        }
    }
    Ok(())
}

fn print_basis(out: &mut impl Write, about: &Subject, by: &CalibrationArgs) -> io::Result<()> {
    by.print(out)?;
    let Some(bound) = &about.bound else {
        return writeln!(out, "Times are predicted; there is no bound to compare with.");
    };
    // Only the bound of an all-reduce depends on where the sum is computed.
    let who = match (&about.collective, about.switches_add) {
        (Collective::AllReduce, true) => " if switches reduce",
        (Collective::AllReduce, false) => " if GPUs reduce",
        _ => "",
    };
    let bound_rate = rate(bound.bytes_per_second);
    match bound.cut.rsplit_once(": ") {
        Some((place, most)) => {
            say!(out, "Bound: algbw {bound_rate} GB/s{who}; at most {most} pass {place}.")?
        }
        None => say!(out, "Bound: algbw {bound_rate} GB/s{who}; {}.", bound.cut)?,
    }
    say!(
        out,
        "Times, algbw and busbw are computed from the effective rates of the links, the bound from their line rates."
    )?;
    say!(out, "These are Weft's own algorithms; `weft sim` predicts NCCL.")
}

fn print_cost(out: &mut impl Write, cost: &Prediction) -> io::Result<()> {
    let work = cost.work;
    say!(
        out,
        "  critical path: {} inside islands, {} between them",
        counted(work.hops_inside, "hop"),
        counted(work.hops_across, "hop")
    )?;
    say!(
        out,
        "  bytes: {} by the busiest rank inside its island, {} by the busiest island",
        Bytes(work.rank_bytes),
        Bytes(work.island_bytes)
    )?;
    let terms = [
        (cost.launch, "to start"),
        (cost.inside, "inside"),
        (cost.across, "across"),
        (cost.messages, "for messages"),
        (cost.transfer, "for bytes"),
        (cost.fill, "to fill the pipeline"),
    ];
    let terms = terms.into_iter().filter(|(time, _)| *time > Picoseconds(0));
    let terms: Vec<String> = terms.map(|(time, what)| format!("{time} {what}")).collect();
    let hidden = match cost.hidden {
        Picoseconds(0) => String::new(),
        hidden => format!(" - {hidden} of hops during transfers"),
    };
    say!(out, "  predicted: {} = {}{hidden}", cost.time(), terms.join(" + "))
}

fn protocol(protocol: Option<Protocol>) -> String {
    protocol.map_or("-".to_owned(), |protocol| protocol.to_string())
}

fn time(time: Option<Picoseconds>) -> String {
    time.map_or("-".to_owned(), |time| time.to_string())
}

/// GB/s with three digits: `0.012`, `4.56`, `361.9`; `-` if no bytes move.
fn rate(bytes_per_second: u64) -> String {
    let rounded = |unit: u64| bytes_per_second.saturating_add(unit / 2) / unit;
    match bytes_per_second {
        0 => "-".to_owned(),
        1..999_500_000 => format!("0.{:03}", rounded(1_000_000)),
        999_500_000..99_995_000_000 => {
            format!("{}.{:02}", rounded(10_000_000) / 100, rounded(10_000_000) % 100)
        }
        _ => format!("{}.{}", rounded(100_000_000) / 10, rounded(100_000_000) % 10),
    }
}

fn percent(thousandths: u64) -> String {
    format!("{}.{}%", thousandths / 10, thousandths % 10)
}

/// `64 MiB` if that is a whole number of up to four digits, otherwise bytes.
fn size(bytes: u64) -> String {
    for (unit, size) in [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if (size..size * 10_000).contains(&bytes) && bytes.is_multiple_of(size) {
            return format!("{} {unit}", bytes / size);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_rounded() {
        for (bytes_per_second, text) in [
            (0, "-"),
            (12_345_678, "0.012"),
            (999_600_000, "1.00"),
            (4_567_000_000, "4.57"),
            (99_996_000_000, "100.0"),
            (361_860_000_000, "361.9"),
        ] {
            assert_eq!(rate(bytes_per_second), text);
        }
    }
}
