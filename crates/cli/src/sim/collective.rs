//! `weft sim COLLECTIVE FABRIC`: a call of each size, executed on the fabric as a library would.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use serde_json::json;
use weftlink_fabric::bytes::Bytes;
use weftlink_plan::Kind;
use weftlink_sim::Constants;
use weftlink_sim::engine::{Conditions, Spans};
use weftlink_sim::execute::Runner;
use weftlink_sim::predict::{Case, PredictError, Row};
use weftlink_sim::setup::Library;

use super::asked::{self, LibraryArgs};
use super::disturbed::Disturbed;
use super::{cores, text, trace};
use crate::names::{at_least, between};
use crate::plan::Sizes;
use crate::plot::{self, Line};
use crate::progress::Progress;
use crate::{Failure, screen, units};

/// The sizes without --size and --sizes.
const SIZES: Sizes = Sizes(8, 8 << 30);
const FACTOR: u64 = 8;
/// The default factor of --sizes.
const FACTOR_ASKED: u64 = 2;

#[derive(clap::Args)]
pub(super) struct Calls {
    /// The collective to predict
    #[arg(value_parser = super::collective())]
    pub(super) collective: Option<Kind>,
    /// A system (`hgx-h100`), a cluster (`2x hgx-h100 + 8x ndr`) or a file, as for `weft topo` [default: this machine]
    pub(super) fabric: Option<String>,
    /// Predict one call of SIZE bytes
    #[arg(long, value_name = "SIZE", conflicts_with = "sizes")]
    size: Option<Bytes>,
    /// Predict a call for each size of a range, from FROM up to TO [default: 8..8GiB or the GPU memory, each 8 times the previous]
    #[arg(long, value_name = "FROM..TO")]
    sizes: Option<Sizes>,
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
    #[arg(short = 'n', long, conflicts_with_all = ["fabric", "plot", "trace"], value_parser = between(2_u32, 1024))]
    ranks: Option<u32>,
    /// Write a trace of the last call for Perfetto or chrome://tracing: the steps of every rank
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    disturbed: Disturbed,
    #[command(flatten)]
    library: LibraryArgs,
}

pub(super) fn run(args: &Calls) -> Result<(), Failure> {
    let kind = args.collective.ok_or_else(|| {
        Failure::misuse(anyhow!("name a collective and a fabric: `weft sim all-reduce hgx-h100`"))
    })?;
    if let Some(ranks) = args.ranks {
        return cores::run(
            kind,
            ranks,
            args.library.is_symmetric(),
            &sizes(args, u64::MAX)?,
            args.library.library.as_deref(),
            args.json,
        );
    }
    let case = asked::case(kind, args.fabric.as_deref(), &args.library)?;
    let setup = &case.setup;
    let is_watched = args.trace.is_some() || !args.disturbed.is_none();
    if is_watched && !chooses_by_costs(setup.library) {
        return Err(Failure::misuse(anyhow!(
            "disturbances and --trace work with nccl, rccl and oneccl, not with {}",
            setup.library.name()
        )));
    }
    let sizes = sizes(args, setup.gpu.model().memory.0)?;
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
    let constants = Constants::shipped();
    let site = case.runner(&constants)?;
    let used = match args.disturbed.gpus() {
        Some(gpus) => site.setup_of(gpus)?,
        None => setup.clone(),
    };
    let mut progress = Progress::new();
    let mut rows = Vec::new();
    let mut spans = Spans::with_capacity(trace::STEPS_MAX);
    for (at, bytes) in sizes.iter().enumerate() {
        progress.show(&format!("predicting {} ({} of {})", units::size(*bytes), at + 1, sizes.len()));
        let is_traced = trace.is_some() && at + 1 == sizes.len();
        let row = call(&site, &case, *bytes, args, is_traced.then_some(&mut spans))?;
        rows.push(row);
    }
    progress.clear();
    if args.json {
        let mut value = case.rows_to_json(&rows);
        (value["setup"], value["ranks"]) = (json!(used.name()), json!(used.ranks()));
        crate::print_json(&value)?;
    } else {
        let mut out = screen::stdout();
        text::head(&mut out, &case, &used, &args.library)?;
        write!(out, "{}", text::table(site.fabric(), &rows))?;
        text::foot(&mut out, &case, &rows)?;
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
fn sizes(args: &Calls, most: u64) -> Result<Vec<u64>, Failure> {
    match (args.size, args.sizes) {
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

/// Whether the simulator executes the library's plans, so that they can be traced and disturbed.
fn chooses_by_costs(library: Library) -> bool {
    matches!(library, Library::Nccl | Library::Rccl | Library::OneCcl)
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
