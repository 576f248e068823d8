//! `weft doctor --log`: a log of NCCL or RCCL in words, and what is wrong.

use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::json;
use weftlink_doctor::log::{Hop, Ring, Summary, Tree, explain, read, summary};
use weftlink_fabric::Fabric;

use super::{Args, exit, print_with_report, text};
use crate::screen::{self, say};
use crate::{Failure, counted};

/// Rings and trees of longer logs are cut here.
const WIRES_MAX: usize = 4;

/// Several files are one log: NCCL writes one for each process.
pub(super) fn run(files: &[PathBuf], expected: Option<&Fabric>, args: &Args) -> Result<(), Failure> {
    let texts = files.iter().map(|file| super::read(file)).collect::<Result<Vec<_>, _>>()?;
    let log = read(&texts.join("\n"));
    let (summary, report) = (summary(&log, expected), explain(&log, expected));
    if args.json {
        print_with_report(json!(summary), &report)?;
    } else {
        let mut out = screen::stdout();
        print(&mut out, &summary)?;
        writeln!(out)?;
        text::print(&mut out, &report, args.all)?;
    }
    exit(&report)
}

fn print(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    say!(
        out,
        "{} of {}",
        counted(summary.lines, "line"),
        counted(summary.processes, "process").replace("processs", "processes")
    )?;
    let list = |names: &[String]| names.join(", ");
    for (what, names) in [
        ("library", &summary.versions),
        ("CUDA of the driver", &summary.cuda_drivers),
        ("hosts", &summary.hosts),
        ("network", &summary.networks),
        ("interfaces", &summary.interfaces),
        ("NICs", &summary.nics),
    ] {
        if !names.is_empty() {
            say!(out, "{what}: {}", list(names))?;
        }
    }
    for group in &summary.communicators {
        let ranks = counted(group.size, "rank");
        let (count, complete) = (counted(group.count, "communicator"), group.complete);
        say!(
            out,
            "{count} of {ranks}: {complete} of {} in the log finished their initialisation",
            group.seen
        )?;
    }
    if let Some((least, most)) = summary.channels {
        let channels = if least == most { least.to_string() } else { format!("{least} to {most}") };
        say!(out, "channels of collectives: {channels}")?;
    }
    if !summary.links.is_empty() {
        let links: Vec<String> =
            summary.links.iter().map(|(link, pairs)| format!("{link} {pairs}")).collect();
        say!(out, "pairs of ranks by link: {}", links.join(", "))?;
    }
    for ring in summary.wires.rings.iter().take(WIRES_MAX) {
        say!(out, "ring of {}: {}", channels(&ring.channels), drawn(ring))?;
    }
    for tree in summary.wires.trees.iter().take(WIRES_MAX) {
        say!(out, "tree of {}: {}", channels(&tree.channels), edges(tree))?;
    }
    for line in &summary.algorithms {
        say!(out, "{line}")?;
    }
    for note in &summary.notes {
        say!(out, "Note: {note}.")?;
    }
    Ok(())
}

fn channels(numbers: &[u32]) -> String {
    let names: Vec<String> = numbers.iter().map(u32::to_string).collect();
    format!("{} {}", if numbers.len() == 1 { "channel" } else { "channels" }, names.join(","))
}

/// `0 -NVL-> 1 -NVL-> 2`, with a gap where the log has one.
fn drawn(ring: &Ring) -> String {
    let mut text = String::new();
    let mut at: Option<u32> = None;
    for Hop { source, target, link } in &ring.hops {
        match at {
            Some(before) if before == *source => {}
            Some(_) => text += &format!(" ... {source}"),
            None => text += &source.to_string(),
        }
        text += &format!(" -{link}-> {target}");
        at = Some(*target);
    }
    text
}

fn edges(tree: &Tree) -> String {
    let each = tree.hops.iter().map(|Hop { source, target, link }| format!("{source} -{link}-> {target}"));
    each.collect::<Vec<_>>().join(", ")
}
