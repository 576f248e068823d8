//! Printing plans: as text or as a file. A whole plan is proved before it is printed.

use std::io::{self, Write};

use anyhow::anyhow;
use clap::ValueEnum;
use weftlink_plan::draw::dot;
use weftlink_plan::{Algorithm, Collective, Kind, Layout, Plan, Recipe, verify};

use super::{Build, text};
use crate::{Failure, screen};

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(super) enum Emit {
    Text,
    Json,
    Msccl,
    Dot,
}

/// Up to this many ranks a plan is proved before `--show` prints one of them.
const PROVED_TO_SHOW_MAX: u32 = 1024;

/// `weft plan COLLECTIVE` without a fabric.
pub(super) fn without_fabric(kind: Kind, build: &Build, as_json: bool) -> Result<(), Failure> {
    let ranks = build.ranks.unwrap_or(2);
    let collective = kind.collective(ranks, &build.options())?;
    let Some(algorithm) = build.algorithm else {
        let names: Vec<_> = Algorithm::doing(&collective).map(Algorithm::name).collect();
        let names = names.join(", ");
        return Err(Failure::misuse(anyhow!(
            "name a fabric, such as hgx-h100, or an algorithm: --algorithm {names}"
        )));
    };
    let plan = flat(algorithm, &collective, ranks, build.lanes)?;
    let form = if as_json { Emit::Json } else { build.emit.unwrap_or(Emit::Text) };
    check_show(build.show, ranks, form)?;
    let layout = Layout::flat(ranks, 1);
    print(plan, &layout, form, build.show)
}

/// A plan that assumes nothing about the wiring. `lanes` is for algorithms that can use several.
pub(super) fn flat(
    algorithm: Algorithm,
    collective: &Collective,
    ranks: u32,
    lanes: Option<u32>,
) -> Result<Plan, Failure> {
    let can_have_more = matches!(algorithm, Algorithm::Ring | Algorithm::Staged);
    if lanes.is_some_and(|lanes| lanes > 1) && !can_have_more {
        return Err(Failure::misuse(anyhow!(
            "--lanes works with --algorithm ring and staged; {algorithm} has a fixed number of lanes"
        )));
    }
    algorithm.flat(collective, ranks, lanes.unwrap_or(1)).map_err(Failure::misuse)
}

/// Checks `--show`.
pub(super) fn check_show(show: Option<u32>, ranks: u32, form: Emit) -> Result<(), Failure> {
    if let Some(rank) = show.filter(|rank| *rank >= ranks) {
        return Err(Failure::misuse(anyhow!("--show {rank}: ranks are 0 to {}", ranks - 1)));
    }
    match form {
        Emit::Json | Emit::Msccl | Emit::Dot if show.is_some() => {
            Err(Failure::misuse(anyhow!("--show works with --emit text; a file holds all ranks")))
        }
        _ => Ok(()),
    }
}

/// Proves a plan and prints it.
pub(super) fn print(plan: Plan, layout: &Layout, form: Emit, show: Option<u32>) -> Result<(), Failure> {
    let plan = verify(plan).map_err(Failure::finding)?;
    let mut out = io::stdout().lock();
    match form {
        Emit::Json => writeln!(out, "{}", plan.to_json())?,
        Emit::Msccl => match plan.to_msccl() {
            Ok(xml) => write!(out, "{xml}")?,
            Err(why) => {
                let other = in_msccl(&plan.collective, layout);
                let next = other.map_or(String::new(), |name| {
                    format!("; --algorithm {name} can be written as MSCCL XML")
                });
                return Err(Failure::finding(anyhow!("{why}{next}")));
            }
        },
        Emit::Dot => {
            let islands: Vec<u32> = layout.places().into_iter().map(|(island, _)| island).collect();
            write!(out, "{}", dot(plan.well_formed(), &islands))?;
        }
        Emit::Text => text::print(&mut screen::stdout(), &plan, show)?,
    }
    Ok(())
}

/// An algorithm whose plan MSCCL's XML can express, preferably the ring.
fn in_msccl(collective: &Collective, layout: &Layout) -> Option<Algorithm> {
    let is_written = |algorithm: &Algorithm| {
        let recipe = algorithm.recipe(collective, layout);
        // Plans with channels pass messages; MSCCL's XML has no counters and no groups.
        let passes_messages =
            |plan: &Plan| !plan.channels.is_empty() && plan.counters == 0 && plan.groups.is_empty();
        recipe.is_ok_and(|recipe| passes_messages(recipe.outline()) && recipe.plan().to_msccl().is_ok())
    };
    std::iter::once(Algorithm::Ring).chain(Algorithm::ALL).find(is_written)
}

/// Prints what one rank does. Only its program is generated, so that 100,000 ranks take no longer than one.
pub(super) fn show(recipe: &Recipe<'_>, layout: &Layout, rank: u32) -> Result<(), Failure> {
    if recipe.outline().ranks <= PROVED_TO_SHOW_MAX {
        return print(recipe.plan(), layout, Emit::Text, Some(rank));
    }
    let plan = Plan { programs: vec![recipe.program(rank)], ..recipe.outline().clone() };
    Ok(text::print_one(&mut screen::stdout(), &plan, rank)?)
}
