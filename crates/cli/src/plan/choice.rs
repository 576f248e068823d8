//! `weft plan COLLECTIVE FABRIC`: every candidate and why it lost, or the algorithm for each size, or the plan itself.

use std::io::{self, Write};

use anyhow::anyhow;
use weftlink_fabric::bytes::Bytes;
use weftlink_plan::choose::{Candidate, Choice, Chooser, Verdict};
use weftlink_plan::cost::Ground;
use weftlink_plan::plan::Protocol;
use weftlink_plan::{Algorithm, Recipe};

use super::ask::{Kind, Sizes};
use super::emit::{self, Emit};
use super::{Build, json};
use crate::table::Table;
use crate::{Failure, counted};

/// The bytes of a call, if nobody says.
const SIZE: Bytes = Bytes(64 << 20);

pub(super) fn run(kind: Kind, target: &str, build: &Build, as_json: bool) -> Result<(), Failure> {
    let fabric = crate::topo::resolve(Some(target), None)?;
    if fabric.gpus().is_empty() {
        return Err(Failure::finding(anyhow!("{} has no GPU, and so no ranks", fabric.name())));
    }
    let ground = Ground::of(&fabric);
    let ranks = ground.layout().ranks();
    let collective = kind.collective(ranks, build)?;
    let chooser = Chooser::new(&collective, kind.is_uneven(), &ground).without(&build.without);
    let asked = Asked { ground: &ground, chooser: &chooser, uneven: kind.is_uneven() };
    if let Some(sizes) = build.sizes {
        return Ok(asked.print_sizes(sizes, as_json)?);
    }
    // A barrier moves nothing.
    let default = if kind == Kind::Barrier { Bytes(0) } else { SIZE };
    let bytes = build.size.unwrap_or(default).0;
    let choice = chooser.choose(bytes);
    let form = build.emit.unwrap_or(Emit::Text);
    emit::check_show(build.show, ranks, form)?;
    if build.algorithm.is_none() && build.emit.is_none() && build.show.is_none() {
        return Ok(asked.print_choice(&choice, as_json)?);
    }
    let candidate = asked.candidate(&choice, build.algorithm)?;
    let recipe = asked.recipe(candidate)?;
    match (build.show, build.emit) {
        (Some(rank), _) => emit::show(&recipe, ground.layout(), rank),
        (None, Some(form)) => emit::print(recipe.plan(), ground.layout(), form, None),
        (None, None) => Ok(asked.print_summary(candidate, &recipe, bytes, as_json)?),
    }
}

struct Asked<'a> {
    ground: &'a Ground<'a>,
    chooser: &'a Chooser<'a, 'a>,
    uneven: bool,
}

impl Asked<'_> {
    /// The candidate that was asked for, or the chosen one.
    fn candidate<'c>(
        &self,
        choice: &'c Choice,
        algorithm: Option<Algorithm>,
    ) -> Result<&'c Candidate, Failure> {
        let is_wanted = |candidate: &&Candidate| algorithm.is_none_or(|wanted| candidate.algorithm == wanted);
        // The fastest protocol comes first.
        match choice.candidates.iter().find(is_wanted) {
            Some(Candidate { algorithm, verdict: Verdict::RuledOut(why), .. }) => {
                Err(Failure::misuse(anyhow!("{algorithm} is not for this: {why}")))
            }
            Some(candidate) => Ok(candidate),
            None => Err(Failure::misuse(anyhow!(
                "no algorithm does this; `weft plan --list` prints what each does"
            ))),
        }
    }

    /// A candidate's plan, with its protocol.
    fn recipe(&self, candidate: &Candidate) -> Result<Recipe<'_>, Failure> {
        let recipe = self.chooser.recipe(candidate.algorithm).map_err(Failure::misuse)?;
        Ok(match candidate.protocol {
            Some(protocol) => recipe.with_protocol(protocol),
            None => recipe,
        })
    }

    fn print_choice(&self, choice: &Choice, as_json: bool) -> io::Result<()> {
        if as_json {
            let table = json::choice(choice, self.chooser.bound());
            return crate::print_json(&json::headed(self.chooser, self.ground, self.uneven, table));
        }
        let mut out = io::stdout().lock();
        writeln!(out, "{}; {}\n", self.subject(), size(choice.bytes))?;
        let mut table = Table::new([
            "algorithm",
            "protocol",
            "channels",
            "time",
            "algbw",
            "busbw",
            "of bound",
            "why not",
        ]);
        for candidate in &choice.candidates {
            let shown = |text: String| if candidate.cost.is_some() { text } else { "-".to_owned() };
            let why = match &candidate.verdict {
                Verdict::Chosen => "chosen",
                Verdict::Lost(why) | Verdict::RuledOut(why) => why,
            };
            table.row([
                candidate.algorithm.name().to_owned(),
                shown(protocol(candidate.protocol)),
                shown(candidate.channels.to_string()),
                candidate.time().map_or("-".to_owned(), |time| time.to_string()),
                shown(gigabytes(candidate.algbw)),
                shown(gigabytes(candidate.busbw)),
                candidate.bound_thousandths.map_or("-".to_owned(), percent),
                why.to_owned(),
            ]);
        }
        writeln!(out, "{table}")?;
        self.print_basis(&mut out)
    }

    fn print_sizes(&self, sizes: Sizes, as_json: bool) -> io::Result<()> {
        let found = self.chooser.breakpoints((sizes.0, sizes.1));
        if as_json {
            let table = json::breakpoints(&found);
            return crate::print_json(&json::headed(self.chooser, self.ground, self.uneven, table));
        }
        let mut out = io::stdout().lock();
        writeln!(out, "{}; {} to {}\n", self.subject(), size(sizes.0), size(sizes.1))?;
        let mut table = Table::new(["algorithm", "protocol", "from", "to", "time", "busbw at the end"]);
        for range in &found.ranges {
            let ends = [range.from, range.to].map(|bytes| self.chooser.choose(bytes));
            let times = ends.each_ref().map(|choice| {
                choice.chosen().and_then(Candidate::time).map_or("-".to_owned(), |time| time.to_string())
            });
            let busbw = ends[1].chosen().map_or("-".to_owned(), |chosen| gigabytes(chosen.busbw));
            table.row([
                range.algorithm.name().to_owned(),
                protocol(range.protocol),
                range.from.to_string(),
                range.to.to_string(),
                times.join(" to "),
                busbw,
            ]);
        }
        writeln!(out, "{table}")?;
        writeln!(out, "Ranks compare {:016x} to know that they choose alike.", found.digest())?;
        self.print_basis(&mut out)
    }

    fn print_summary(
        &self,
        candidate: &Candidate,
        recipe: &Recipe<'_>,
        bytes: u64,
        as_json: bool,
    ) -> io::Result<()> {
        if as_json {
            let plan = json::summary(candidate, recipe, self.chooser.bound(), bytes);
            return crate::print_json(&json::headed(self.chooser, self.ground, self.uneven, plan));
        }
        let mut out = io::stdout().lock();
        let outline = recipe.outline();
        let with = candidate.protocol.map_or(String::new(), |protocol| format!(" with {protocol}"));
        writeln!(out, "{}{with}: {}", candidate.algorithm, candidate.algorithm.about())?;
        writeln!(out, "{}; {}", self.subject(), size(bytes))?;
        let lanes = recipe.program(0).lanes.len() as u64;
        let chunks = outline.chunks;
        let scratch =
            if chunks.scratch > 0 { format!(", scratch {}", chunks.scratch) } else { String::new() };
        writeln!(
            out,
            "  plan: {}, {} of each rank; chunks: input {}, output {}{scratch}",
            super::text::ways(outline),
            counted(lanes, "lane"),
            chunks.input,
            chunks.output
        )?;
        if let Some(cost) = &candidate.cost {
            let work = cost.work;
            writeln!(
                out,
                "  longest way: {} inside islands, {} between them",
                counted(work.hops_inside, "hop"),
                counted(work.hops_across, "hop")
            )?;
            writeln!(
                out,
                "  bytes: {} by the busiest rank inside its island, {} by the busiest island",
                Bytes(work.rank_bytes),
                Bytes(work.island_bytes)
            )?;
            writeln!(
                out,
                "  predicted: {} = {} to start + {} inside + {} across + {} for messages + {} for bytes",
                cost.time(),
                cost.launch,
                cost.inside,
                cost.across,
                cost.messages,
                cost.transfer
            )?;
            writeln!(
                out,
                "  predicted: algbw {} GB/s, busbw {} GB/s",
                gigabytes(candidate.algbw),
                gigabytes(candidate.busbw)
            )?;
        }
        match &candidate.verdict {
            Verdict::Chosen => writeln!(out, "  chosen")?,
            Verdict::Lost(why) | Verdict::RuledOut(why) => writeln!(out, "  not chosen: {why}")?,
        }
        self.print_basis(&mut out)
    }

    /// `all-reduce on 16 ranks of x, in 2 islands of 8`
    fn subject(&self) -> String {
        let (islands, per_island) = self.ground.grid();
        let uneven = if self.uneven { " with blocks of any lengths" } else { "" };
        let in_islands = match (islands, self.ground.layout().per_island()) {
            (1, _) => "in one island".to_owned(),
            (islands, Some(each)) => format!("in {islands} islands of {each}"),
            (islands, None) => format!("in {islands} islands of up to {per_island}"),
        };
        let ranks = counted(self.ground.layout().ranks(), "rank");
        let fabric = self.ground.fabric().name();
        format!("{}{uneven} on {ranks} of {fabric}, {in_islands}", self.chooser.collective())
    }

    fn print_basis(&self, out: &mut impl Write) -> io::Result<()> {
        match self.chooser.bound() {
            Some(bound) => {
                writeln!(out, "Bound: algbw {} GB/s, {}.", gigabytes(bound.bytes_per_second), bound.cut)?;
            }
            None => writeln!(out, "Bound: none that is known.")?,
        }
        writeln!(
            out,
            "Times, algbw and busbw (GB/s) are predicted from rates that links get; the bound is of the same rates."
        )
    }
}

fn protocol(protocol: Option<Protocol>) -> String {
    protocol.map_or("-".to_owned(), |protocol| protocol.to_string())
}

/// GB/s with three digits: `0.012`, `4.56`, `361.9`.
fn gigabytes(bytes_per_second: u64) -> String {
    let megabytes = bytes_per_second / 1_000_000;
    match megabytes {
        ..1_000 => format!("0.{megabytes:03}"),
        1_000..100_000 => format!("{}.{:02}", megabytes / 1_000, megabytes % 1_000 / 10),
        _ => format!("{}.{}", megabytes / 1_000, megabytes % 1_000 / 100),
    }
}

fn percent(thousandths: u64) -> String {
    format!("{}.{} %", thousandths / 10, thousandths % 10)
}

/// `64 MiB` where it is a whole number of them.
fn size(bytes: u64) -> String {
    for (unit, size) in [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= size && bytes.is_multiple_of(size) {
            return format!("{} {unit}", bytes / size);
        }
    }
    Bytes(bytes).to_string()
}
