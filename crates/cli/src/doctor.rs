//! `weft doctor`: what is wrong with this machine, a log or a job, what it costs, and how to fix it.

mod all_ranks;
mod bench;
mod job;
mod log;
mod measure;
mod text;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use serde_json::{Value, json};
use weftlink_doctor::{Report, checks, examine_machine, expect};
use weftlink_fabric::Fabric;
use weftlink_probe::{GpuSource, Inspection, Recording, SearchPaths, Tree, inspect, probe, software};

use crate::Failure;
use crate::screen;
use crate::table::Table;

/// Find what is wrong with this machine, a log or a job; say what it costs and how to fix it
///
/// Reads only, and needs no root; what root would add is listed. `weft links` shows the counters of every link, and `weft why` explains a
/// job of Weft that hangs.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft doctor                                  this machine
  weft doctor --expect hgx-h100                compared with what should be there
  weft doctor --measure                        measure every path, too: 30 s
  weft doctor --record machine.txt             save what was read, for another machine:
  weft doctor machine.txt
  weft run --bind none --hosts a,b -- weft doctor --all-ranks   compare hosts; also under torchrun, mpirun, srun
  weft doctor --log job.log --expect dgx-a100  explain a log of NCCL (NCCL_DEBUG=INFO)
  weft doctor --bench out.log --expect dgx-a100  is this output of nccl-tests right for the machine?
  weft doctor --job rank*.json                 traces of torch.profiler, lists of nsys
  weft doctor --job mine                       a running job: weft run --name mine

Exit code 0 if nothing is wrong, 1 for a finding, 2 for wrong arguments, 3 if nothing wrong was found and something could not be \
inspected.")]
pub(crate) struct Args {
    /// A machine that `weft doctor --record` saved [default: this machine]
    #[arg(value_name = "FILE", conflicts_with_all = ["log", "bench", "job", "record", "measure", "all_ranks"])]
    file: Option<PathBuf>,
    /// Compare with a machine: a system (`hgx-h100`), a cluster or a file; for --log, --bench and --job, the machine they ran on
    #[arg(long, value_name = "FABRIC")]
    expect: Option<String>,
    /// Measure memory, cores and copies of GPUs against the wiring, and check the data; about 30 s
    #[arg(long)]
    measure: bool,
    /// As one rank of a job: compare the hosts of all ranks; rank 0 prints
    #[arg(long, conflicts_with_all = ["log", "bench", "job", "record"])]
    all_ranks: bool,
    /// Save what was read to FILE, without names and addresses, to be examined on another machine
    #[arg(long, value_name = "FILE", conflicts_with_all = ["log", "bench", "job"])]
    record: Option<PathBuf>,
    /// Explain logs of NCCL or RCCL; `-` is standard input
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["bench", "job", "measure"])]
    log: Vec<PathBuf>,
    /// Compare output of nccl-tests or rccl-tests with predictions, and several with each other; `all-gather=LOG` where a log does not say
    /// its collective
    #[arg(long, value_name = "LOG", num_args = 1.., conflicts_with_all = ["job", "measure"])]
    bench: Vec<PathBuf>,
    /// Explain a job: traces of torch.profiler, kernel lists of nsys, a folder of Weft's records, or the name of a running job
    #[arg(long, value_name = "JOB", num_args = 1.., conflicts_with = "measure")]
    job: Vec<PathBuf>,
    /// Also print what is in order
    #[arg(long)]
    all: bool,
    /// Print all checks of machines, with what they read
    #[arg(long, conflicts_with_all = ["file", "log", "bench", "job", "measure", "all_ranks", "record", "expect"])]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.list {
        return Ok(print_checks(args.json)?);
    }
    let expected = args.expect.as_deref().map(|name| crate::topo::resolve(Some(name), None)).transpose()?;
    match args {
        Args { log, .. } if !log.is_empty() => log::run(log, expected.as_ref(), args),
        Args { bench, .. } if !bench.is_empty() => bench::run(bench, expected.as_ref(), args),
        Args { job, .. } if !job.is_empty() => job::run(job, expected.as_ref(), args),
        Args { all_ranks: true, .. } => all_ranks::run(expected.as_ref(), args),
        Args { file: Some(file), .. } => {
            let machine = recording(file)?;
            let report = examine(&machine, &machine, expected.as_ref())?;
            finish(report, None, args)
        }
        _ => this_machine(expected.as_ref(), args),
    }
}

fn this_machine(expected: Option<&Fabric>, args: &Args) -> Result<(), Failure> {
    let machine = inspection();
    let mut report = examine(&machine, &machine, expected)?;
    if let Some(file) = &args.record {
        let text = machine.recording().to_string();
        let cannot = |error: io::Error| Failure::misuse(anyhow!("cannot write {}: {error}", file.display()));
        fs::write(file, text).map_err(cannot)?;
    }
    let measured = args.measure.then(|| {
        let fabric = probe(&machine, &machine).ok();
        fabric.map(|fabric| measure::run(&fabric, &mut report))
    });
    finish(report, measured.flatten(), args)
}

/// Everything that can be read on this machine.
fn inspection() -> Inspection {
    let mut machine = inspect(Path::new("/"));
    for (path, value) in software(Path::new("/"), &SearchPaths::of_this_process()) {
        machine.add(path, value);
    }
    machine
}

/// All checks, and the comparison with the expected machine.
fn examine(tree: &dyn Tree, gpus: &dyn GpuSource, expected: Option<&Fabric>) -> Result<Report, Failure> {
    let mut report = examine_machine(tree, gpus).map_err(Failure::finding)?;
    if let Some(expected) = expected {
        let found = probe(tree, gpus).map_err(Failure::finding)?;
        report.extend(expect::expect(&found, expected));
    }
    Ok(report)
}

fn recording(file: &Path) -> Result<Recording, Failure> {
    let wrong = |why: String| {
        Failure::misuse(anyhow!(
            "{}: {why}; weft doctor --record FILE writes the machines that weft doctor FILE examines",
            file.display()
        ))
    };
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    text.parse().map_err(|error: weftlink_probe::RecordingError| wrong(error.to_string()))
}

/// Prints a report and sets the exit code.
fn finish(report: Report, measured: Option<measure::Measurements>, args: &Args) -> Result<(), Failure> {
    if args.json {
        let mut value = json!(report);
        value["measured"] = json!(measured);
        crate::print_json(&value)?;
    } else {
        let mut out = screen::stdout();
        if let Some(measured) = &measured {
            measure::print(&mut out, measured)?;
            writeln!(out)?;
        }
        text::print(&mut out, &report, args.all)?;
    }
    exit(&report)
}

fn exit(report: &Report) -> Result<(), Failure> {
    io::stdout().flush()?;
    match report.exit_code() {
        0 => Ok(()),
        code => Err(Failure::ExitCode(code)),
    }
}

/// Prints what a log or a job says, as JSON with its report.
fn print_with_report(summary: Value, report: &Report) -> io::Result<()> {
    crate::print_json(&json!({ "summary": summary, "report": report }))
}

fn print_checks(as_json: bool) -> io::Result<()> {
    if as_json {
        let each =
            checks::all().map(|check| json!({ "id": check.id, "finds": check.finds, "reads": check.reads }));
        return crate::print_json(&json!({ "checks": each.collect::<Vec<_>>() }));
    }
    let mut table = Table::new(["check", "finds"]);
    for check in checks::all() {
        table.row([check.id.to_owned(), check.finds.to_owned()]);
    }
    write!(screen::stdout(), "{table}")
}

/// The text of a file, or of standard input.
fn read(file: &Path) -> Result<String, Failure> {
    let bytes = match file == Path::new("-") {
        true => {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut io::stdin().lock(), &mut bytes).map(|_| bytes)
        }
        false => fs::read(file),
    };
    let cannot = |error: io::Error| Failure::misuse(anyhow!("cannot read {}: {error}", file.display()));
    // Logs of many processes may have been cut within a character.
    Ok(String::from_utf8_lossy(&bytes.map_err(cannot)?).into_owned())
}
