//! Plans to print: in words, or as a file. What is printed whole has been proved.

use std::io::{self, Write};

use anyhow::anyhow;
use clap::ValueEnum;
use weftlink_plan::draw::dot;
use weftlink_plan::{Algorithm, Collective, Kind, Layout, Plan, Recipe, verify};

use super::{Build, text};
use crate::Failure;

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(super) enum Emit {
    Text,
    Json,
    Msccl,
    Dot,
}

/// Ranks up to which a plan is proved only to show what one of them does.
const PROVED_TO_SHOW_MAX: u32 = 1024;

/// Prints a plan that was asked for without a fabric.
pub(super) fn without_fabric(kind: Kind, build: &Build, as_json: bool) -> Result<(), Failure> {
    let ranks = build.ranks.unwrap_or(2);
    let collective = kind.collective(ranks, &build.options())?;
    let Some(algorithm) = build.algorithm else {
        let names: Vec<_> = Algorithm::doing(&collective).map(Algorithm::name).collect();
        let names = names.join(", ");
        return Err(Failure::misuse(anyhow!(
            "say which: --algorithm {names}; or where: a fabric such as hgx-h100"
        )));
    };
    let plan = flat(algorithm, &collective, ranks, build.lanes)?;
    let form = if as_json { Emit::Json } else { build.emit.unwrap_or(Emit::Text) };
    check_show(build.show, ranks, form)?;
    let layout = Layout::flat(ranks, 1);
    print(plan, &layout, form, build.show)
}

/// A plan of ranks that know nothing of their wiring; `lanes` is for those that can use several.
pub(super) fn flat(
    algorithm: Algorithm,
    collective: &Collective,
    ranks: u32,
    lanes: Option<u32>,
) -> Result<Plan, Failure> {
    let can_have_more = matches!(algorithm, Algorithm::Ring | Algorithm::Staged);
    if lanes.is_some_and(|lanes| lanes > 1) && !can_have_more {
        return Err(Failure::misuse(anyhow!(
            "--lanes is for --algorithm ring, which can have several rings, and staged; the lanes of {algorithm} are as \
             they are"
        )));
    }
    algorithm.flat(collective, ranks, lanes.unwrap_or(1)).map_err(Failure::misuse)
}

/// Whether `--show` makes sense.
pub(super) fn check_show(show: Option<u32>, ranks: u32, form: Emit) -> Result<(), Failure> {
    if let Some(rank) = show.filter(|rank| *rank >= ranks) {
        return Err(Failure::misuse(anyhow!("--show {rank}: the ranks are 0 to {}", ranks - 1)));
    }
    match form {
        Emit::Json | Emit::Msccl | Emit::Dot if show.is_some() => {
            Err(Failure::misuse(anyhow!("--show is for --emit text; a file holds all ranks")))
        }
        _ => Ok(()),
    }
}

/// Prints a plan. What is printed whole is proved first.
pub(super) fn print(plan: Plan, layout: &Layout, form: Emit, show: Option<u32>) -> Result<(), Failure> {
    let plan = verify(plan).map_err(Failure::finding)?;
    let mut out = io::stdout().lock();
    match form {
        Emit::Json => writeln!(out, "{}", plan.to_json())?,
        Emit::Msccl => match plan.to_msccl() {
            Ok(xml) => write!(out, "{xml}")?,
            Err(why) => {
                let other = in_msccl(&plan.collective, layout);
                let next = other.map_or(String::new(), |name| format!("; --algorithm {name} can be written"));
                return Err(Failure::finding(anyhow!("{why}{next}")));
            }
        },
        Emit::Dot => {
            let islands: Vec<u32> = layout.places().into_iter().map(|(island, _)| island).collect();
            write!(out, "{}", dot(plan.well_formed(), &islands))?;
        }
        Emit::Text => text::print(&mut out, &plan, show)?,
    }
    Ok(())
}

/// An algorithm whose plan MSCCL's XML can say, the ring before others.
fn in_msccl(collective: &Collective, layout: &Layout) -> Option<Algorithm> {
    let is_written = |algorithm: &Algorithm| {
        let recipe = algorithm.recipe(collective, layout);
        // What passes messages has channels; counters and groups are for what cannot be said.
        let passes_messages =
            |plan: &Plan| !plan.channels.is_empty() && plan.counters == 0 && plan.groups.is_empty();
        recipe.is_ok_and(|recipe| passes_messages(recipe.outline()) && recipe.plan().to_msccl().is_ok())
    };
    std::iter::once(Algorithm::Ring).chain(Algorithm::ALL).find(is_written)
}

/// Prints what one rank does; nobody else's program is written, so that it takes no longer on 100,000 ranks.
pub(super) fn show(recipe: &Recipe<'_>, layout: &Layout, rank: u32) -> Result<(), Failure> {
    if recipe.outline().ranks <= PROVED_TO_SHOW_MAX {
        return print(recipe.plan(), layout, Emit::Text, Some(rank));
    }
    let plan = Plan { programs: vec![recipe.program(rank)], ..recipe.outline().clone() };
    Ok(text::print_one(&mut io::stdout().lock(), &plan, rank)?)
}
