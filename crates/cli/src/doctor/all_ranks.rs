//! `weft doctor --all-ranks`: as one rank of a job, all ranks and their hosts compared. The report of a host is that of its first rank; rank 0
//! prints.

use std::io::Write;

use anyhow::anyhow;
use serde::{Deserialize, Serialize};
use serde_json::json;
use weftlink_comm::bootstrap::{Bootstrap, Environment, EnvironmentError};
use weftlink_doctor::compare::{Inventory, compare};
use weftlink_doctor::{Machine, Report};
use weftlink_fabric::Fabric;
use weftlink_knobs::Knobs;
use weftlink_probe::probe;

use super::{Args, examine, inspection, measure, text};
use crate::{Failure, screen};

/// What a rank tells the others.
#[derive(Default, Serialize, Deserialize)]
struct Told {
    inventory: Option<Inventory>,
    /// The report on its host in words, and as JSON, of the first rank there.
    report: Option<(String, serde_json::Value)>,
    exit_code: u8,
    /// Why a host could not be examined.
    error: Option<String>,
}

pub(super) fn run(expected: Option<&Fabric>, args: &Args) -> Result<(), Failure> {
    match Environment::of_this_process() {
        Ok(_) => {}
        Err(EnvironmentError::Nobody) => {
            return Err(Failure::misuse(anyhow!(
                "--all-ranks is for the ranks of a job: weft run --bind none --hosts a,b -- weft doctor --all-ranks, or the same under torchrun, mpirun \
                 or srun"
            )));
        }
        Err(error) => return Err(Failure::misuse(error)),
    }
    let knobs = Knobs::from_environment().map_err(Failure::misuse)?;
    let mut met = Bootstrap::from_environment(&knobs).map_err(Failure::finding)?;
    let (rank, hosts) = (met.rank(), met.hosts().to_vec());
    let is_first = hosts.iter().position(|host| *host == hosts[rank]) == Some(rank);
    let told = examined(expected, args, is_first);
    let said = serde_json::to_vec(&told).map_err(Failure::finding)?;
    let heard =
        met.exchange("what is wrong with the hosts", said, knobs.deadline).map_err(Failure::finding)?;
    if rank > 0 {
        return Ok(());
    }
    let all: Vec<Told> = heard
        .iter()
        .map(|said| serde_json::from_slice(said))
        .collect::<Result<_, _>>()
        .map_err(Failure::finding)?;
    let inventories: Vec<Inventory> = all.iter().filter_map(|told| told.inventory.clone()).collect();
    let differences = compare(&inventories);
    print(&all, &differences, args)?;
    let codes = all.iter().map(|told| told.exit_code).chain([differences.exit_code()]);
    // A finding outranks what could not be inspected.
    match codes.fold(0, |worst, code| if worst == 1 || code == 1 { 1 } else { worst.max(code) }) {
        0 => Ok(()),
        code => Err(Failure::ExitCode(code)),
    }
}

/// The examination of this rank and its host.
fn examined(expected: Option<&Fabric>, args: &Args, is_first: bool) -> Told {
    let machine = inspection();
    let examine = || -> Result<(Report, Fabric), Failure> {
        let report = examine(&machine, &machine, expected)?;
        Ok((report, probe(&machine, &machine).map_err(Failure::finding)?))
    };
    let (mut report, fabric) = match examine() {
        Ok(done) => done,
        Err(Failure::Finding(error) | Failure::Misuse(error)) => {
            return Told { error: Some(format!("{error:#}")), exit_code: 3, ..Told::default() };
        }
        Err(_) => {
            return Told { error: Some("it cannot be examined".to_owned()), exit_code: 3, ..Told::default() };
        }
    };
    let mut words = Vec::new();
    if args.measure && is_first {
        let measured = measure::run(&fabric, &mut report);
        // Writing to memory does not fail.
        let _ = measure::print(&mut words, &measured);
    }
    let inventory = Inventory::of(&Machine { tree: &machine, fabric: &fabric }, &report);
    let _ = text::print(&mut words, &report, args.all);
    let words = String::from_utf8_lossy(&words).into_owned();
    Told {
        inventory: Some(inventory),
        report: is_first.then(|| (words, json!(report))),
        exit_code: report.exit_code(),
        error: None,
    }
}

fn print(all: &[Told], differences: &Report, args: &Args) -> Result<(), Failure> {
    if args.json {
        let each = all.iter().enumerate().map(|(rank, told)| {
            let host = told.inventory.as_ref().map(|inventory| &inventory.host);
            let report = told.report.as_ref().map(|(_, report)| report);
            json!({ "rank": rank, "host": host, "report": report, "error": told.error })
        });
        let value = json!({ "ranks": each.collect::<Vec<_>>(), "differences": differences });
        return Ok(crate::print_json(&value)?);
    }
    let mut out = screen::stdout();
    for (rank, told) in all.iter().enumerate() {
        if let Some((words, _)) = &told.report {
            writeln!(out, "{words}")?;
        }
        if let Some(error) = &told.error {
            writeln!(out, "the host of rank {rank} was not examined: {error}\n")?;
        }
    }
    Ok(text::print(&mut out, differences, args.all)?)
}
