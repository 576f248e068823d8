//! `weft sim COLLECTIVE FABRIC`: a call of each size, executed on the fabric as a library would.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use serde_json::json;
use weftlink_fabric::bytes::Bytes;
use weftlink_sim::engine::{Conditions, Spans};
use weftlink_sim::execute::Runner;
use weftlink_sim::parallel::in_parallel;
use weftlink_sim::predict::{self, Case, PredictError, Row};
use weftlink_sim::setup::{Library, Operation};

use super::asked::{self, LibraryArgs};
use super::disturbed::Disturbed;
use super::{First, cores, text, trace};
use crate::names::{at_least, between, fabric_first};
use crate::plan::Sizes;
use crate::plot::{self, Line};
use crate::progress::Counted;
use crate::{Failure, screen, units};

/// The sizes without --size and --sizes.
const SIZES: Sizes = Sizes(8, 8 << 30);
const FACTOR: u64 = 8;
/// The default factor of --sizes.
const FACTOR_ASKED: u64 = 2;

#[derive(clap::Args)]
pub(super) struct Calls {
    /// The collective to predict; not needed with --plan
    #[arg(value_parser = super::first())]
    collective: Option<First>,
    /// A system (`hgx-h100`), a cluster (`2x hgx-h100 + 8x ndr`) or a file, as for `weft topo` [default: this machine]
    fabric: Option<String>,
    /// Run the plan in FILE instead of a library's choice, with Weft's costs; a plan in JSON, as `weft plan --emit json` prints it and `weft
    /// bench --plan` measures it, or a program in MSCCL's XML, with the costs of --library msccl. `-` for standard input
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Predict one call of SIZE bytes
    #[arg(long, value_name = "SIZE", conflicts_with = "sizes")]
    size: Option<Bytes>,
    /// Predict a call for each size of a range, from FROM up to TO [default: 8..8GiB or the GPU memory, each 8 times the previous]
    #[arg(long, value_name = "FROM..TO")]
    sizes: Option<Sizes>,
    /// The lengths of the blocks of all-gather-v, reduce-scatter-v and all-to-all-v, relative to each other, one for each GPU: that of its own
    /// block, or of the block that every rank sends to it [default: equal]
    #[arg(long, value_name = "A,B,..", value_delimiter = ',', conflicts_with_all = ["ranks", "plan"])]
    counts: Option<Vec<u64>>,
    /// With --sizes: multiply the size by FACTOR at each step
    #[arg(short = 'f', long, value_name = "FACTOR", requires = "sizes", conflicts_with = "size", value_parser = at_least(2_u64), default_value_t = FACTOR_ASKED)]
    stepfactor: u64,
    /// Draw time and bus bandwidth over size as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Predict RANKS ranks on the cores of one host instead of GPUs; --library is weft (default), gloo or openmpi
    #[arg(short = 'n', long, conflicts_with_all = ["fabric", "plot", "trace", "plan"], value_parser = between(2_u32, 1024))]
    ranks: Option<u32>,
    /// Print the arithmetic of each prediction: launch, hops, bytes over rate, and fill
    #[arg(long, conflicts_with = "ranks")]
    explain: bool,
    /// Write a trace of the last call for Perfetto or chrome://tracing: the steps of every rank
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    disturbed: Disturbed,
    #[command(flatten)]
    library: LibraryArgs,
}

pub(super) fn run(args: &Calls) -> Result<(), Failure> {
    let (kind, fabric) = match (&args.collective, &args.plan) {
        (None, Some(_)) => (None, None),
        (Some(First::Collective(kind)), _) => (Some(*kind), args.fabric.as_deref()),
        (Some(First::Fabric(fabric)), Some(_)) if args.fabric.is_none() => (None, Some(fabric.as_str())),
        (Some(First::Fabric(fabric)), Some(_)) => {
            let other = args.fabric.as_deref().unwrap_or_default();
            return Err(Failure::misuse(anyhow!(
                "`{fabric}` and `{other}` are two words for one fabric; with --plan name one, in quotes if it has spaces"
            )));
        }
        (Some(First::Fabric(fabric)), None) => {
            return Err(Failure::misuse(anyhow!(fabric_first("sim", fabric))));
        }
        (None, None) => {
            return Err(Failure::misuse(anyhow!(
                "name a collective and a fabric: `weft sim all-reduce hgx-h100`"
            )));
        }
    };
    if let (Some(ranks), Some(kind)) = (args.ranks, kind) {
        if kind.is_uneven() {
            return Err(Failure::misuse(anyhow!(
                "{kind} is predicted on GPUs, not between cores; name a fabric instead of -n"
            )));
        }
        return cores::run(
            kind,
            ranks,
            args.library.is_symmetric(),
            &sizes(args, predict::operation(kind)?, u64::MAX)?,
            args.library.library.as_deref(),
            &args.library.calibration,
            args.json,
        );
    }
    let case = match (&args.plan, kind) {
        (Some(file), kind) => asked::case_of_plan(file, kind, fabric, &args.library)?,
        (None, Some(kind)) => asked::case(kind, fabric, &args.library, args.counts.as_deref())?,
        (None, None) => return Err(Failure::misuse(anyhow!("name a collective"))),
    };
    let setup = &case.setup;
    let library = setup.library.name();
    if args.counts.is_some()
        && (!args.disturbed.is_none() || args.trace.is_some() && chooses_by_costs(setup.library))
    {
        return Err(Failure::misuse(anyhow!(
            "blocks of different lengths are simulated without disturbances and, with {library}, without --trace"
        )));
    }
    if !args.disturbed.is_none() && !chooses_by_costs(setup.library) {
        return Err(Failure::misuse(anyhow!(
            "disturbances work with nccl, rccl and oneccl, not with {library}"
        )));
    }
    if args.trace.is_some() && matches!(setup.library, Library::Gloo | Library::OpenMpi) {
        return Err(Failure::misuse(anyhow!(
            "--trace works with libraries that run on GPUs, not with {library}"
        )));
    }
    if args.explain && !case.is_explained() {
        return Err(Failure::misuse(anyhow!(
            "--explain works with nccl, rccl, oneccl and weft; the model of {library} has no closed form"
        )));
    }
    if args.explain && !args.disturbed.is_none() {
        return Err(Failure::misuse(anyhow!(
            "--explain is about undisturbed calls on all GPUs; leave out the disturbances"
        )));
    }
    let sizes = sizes(args, case.operation, setup.gpu.model().memory.0)?;
    for bytes in &sizes {
        case.check(*bytes)?;
    }
    let plot = match &args.plot {
        Some(path) => Some((create(path)?, path)),
        None => None,
    };
    let trace = match &args.trace {
        Some(path) => Some((create(path)?, path)),
        None => None,
    };
    let site = case.runner()?;
    let used = match args.disturbed.gpus() {
        Some(gpus) => site.setup_of(gpus)?,
        None => setup.clone(),
    };
    let mut spans = Spans::with_capacity(trace::STEPS_MAX);
    let rows = rows(&site, &case, &sizes, args, trace.is_some().then_some(&mut spans))?;
    if args.json {
        let mut value = case.rows_to_json(&rows);
        args.library.calibration.add_to(&mut value);
        (value["setup"], value["ranks"]) = (json!(used.name()), json!(used.ranks()));
        if let Some(all) = value["rows"].as_array_mut().filter(|_| args.explain) {
            for (value, row) in all.iter_mut().zip(&rows) {
                value["explain"] = case.explain(row).to_json();
            }
        }
        crate::print_json(&value)?;
    } else {
        let mut out = screen::stdout();
        text::head(&mut out, &case, &used, &args.library)?;
        write!(out, "{}", text::table(site.fabric(), &rows))?;
        text::foot(&mut out, &case, &rows)?;
        for row in rows.iter().filter(|_| args.explain) {
            text::explanation(&mut out, row, &case.explain(row))?;
        }
    }
    if let Some((mut file, path)) = plot {
        let points = rows.iter().map(|row| (row.bytes as f64, row.time_us(), row.busbw_gb_per_s)).collect();
        let line = Line { name: text::library(setup), points };
        let title = format!("{}, {}, predicted", case.collective(), case.name);
        file.write_all(plot::svg(&title, &[line]).as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))
            .map_err(Failure::Finding)?;
    }
    if let Some((file, path)) = trace {
        let last = sizes.last().copied().unwrap_or(0);
        let first = format!("{} of {} on {}", case.collective(), units::size(last), case.name);
        let beside =
            rows.last().and_then(|row| row.undisturbed.as_ref()).map(|(_, beside)| beside.as_slice());
        let others = beside.unwrap_or_default().iter();
        let calls: Vec<String> = std::iter::once(first)
            .chain(others.map(|other| format!("{} of {}", other.what, units::size(other.bytes))))
            .collect();
        serde_json::to_writer(BufWriter::new(file), &trace::document(&calls, &spans))
            .with_context(|| format!("cannot write {}", path.display()))
            .map_err(Failure::Finding)?;
    }
    Ok(())
}

/// The sizes of the calls. The default ones are limited to what fits.
fn sizes(args: &Calls, operation: Operation, most: u64) -> Result<Vec<u64>, Failure> {
    match (args.size, args.sizes) {
        (None, None) if operation == Operation::Barrier => Ok(vec![0]),
        _ if operation == Operation::Barrier => Err(PredictError::BarrierSize.into()),
        (Some(Bytes(0)), _) | (None, Some(Sizes(0, _))) => Err(PredictError::NoBytes.into()),
        (Some(size), _) => Ok(vec![size.0]),
        (None, Some(sizes)) => Ok(each_of(sizes, args.stepfactor)),
        (None, None) => Ok(each_of(SIZES, FACTOR).into_iter().filter(|size| *size <= most).collect()),
    }
}

/// A geometric series.
fn each_of(Sizes(from, to): Sizes, factor: u64) -> Vec<u64> {
    std::iter::successors(Some(from), |size| size.checked_mul(factor))
        .take_while(|size| *size <= to)
        .collect()
}

/// Whether the library's calls can be disturbed and run beside others.
fn chooses_by_costs(library: Library) -> bool {
    matches!(library, Library::Nccl | Library::Rccl | Library::OneCcl)
}

/// A row for each size, of which the last may be traced.
fn rows(
    site: &Runner<'_>,
    case: &Case,
    sizes: &[u64],
    args: &Calls,
    spans: Option<&mut Spans>,
) -> Result<Vec<Row>, Failure> {
    let progress = Counted::new(sizes.len());
    let announced = |bytes: u64| progress.begin(format_args!("predicting {}", units::size(bytes)));
    let traced = sizes.last().zip(spans);
    let others = &sizes[..sizes.len() - usize::from(traced.is_some())];
    // The largest take longest.
    let others: Vec<u64> = others.iter().rev().copied().collect();
    let others = in_parallel(&others, |bytes| {
        announced(*bytes);
        call(site, case, *bytes, args, None)
    });
    let last = traced.map(|(bytes, spans)| {
        announced(*bytes);
        call(site, case, *bytes, args, Some(spans))
    });
    others.into_iter().rev().chain(last).collect()
}

/// One call, disturbed or not.
fn call(
    site: &Runner<'_>,
    case: &Case,
    bytes: u64,
    args: &Calls,
    spans: Option<&mut Spans>,
) -> Result<Row, Failure> {
    if !args.disturbed.is_none() {
        let done = args.disturbed.run(site, case.operation, bytes, spans)?;
        let ranks = args.disturbed.ranks().unwrap_or(case.setup.ranks());
        let row = case.row_of(ranks, bytes, done.execution);
        let undisturbed = args.disturbed.slows().then_some((done.alone_us, done.beside));
        return Ok(Row { undisturbed, ..row });
    }
    let Some(spans) = spans else { return Ok(case.row(site, bytes)?) };
    let execution = site.execute_with_conditions(case.operation, bytes, &Conditions::default(), Some(spans));
    Ok(case.row_of(case.setup.ranks(), bytes, execution?))
}

/// Creates an output file before the predictions start.
pub(super) fn create(path: &PathBuf) -> Result<File, Failure> {
    File::create(path).with_context(|| format!("cannot write {}", path.display())).map_err(Failure::Misuse)
}
