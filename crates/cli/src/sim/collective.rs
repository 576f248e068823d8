//! `weft sim COLLECTIVE FABRIC`: a call of each size, as a library would make it, executed on the fabric.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use weftlink_fabric::bytes::Bytes;
use weftlink_plan::Kind;
use weftlink_sim::Constants;
use weftlink_sim::engine::{Conditions, Spans};
use weftlink_sim::execute::Runner;
use weftlink_sim::predict::{Case, PredictError, Row};
use weftlink_sim::setup::Library;

use super::asked::{self, Told};
use super::disturbed::Disturbed;
use super::{cores, text, trace};
use crate::Failure;
use crate::plan::Sizes;
use crate::plot::{self, Line};
use crate::progress::Progress;

/// What is predicted when no size is given.
const SIZES: Sizes = Sizes(8, 8 << 30);
const FACTOR: u64 = 8;
/// Each size is twice the one before in a range that somebody asks for.
const FACTOR_ASKED: u64 = 2;

#[derive(clap::Args)]
pub(super) struct Calls {
    /// What all GPUs do together
    #[arg(value_parser = crate::names::collective())]
    pub(super) collective: Option<Kind>,
    /// Where: a system (`hgx-h100`), a cluster (`2x hgx-h100 + 8x ndr`) or a file, as for `weft topo` [default: this machine]
    pub(super) fabric: Option<String>,
    /// The bytes of a call
    #[arg(long, value_name = "SIZE", conflicts_with = "sizes")]
    size: Option<Bytes>,
    /// A call for each of these sizes [default: 8..8GiB, or what the GPUs hold, each 8 times the one before]
    #[arg(long, value_name = "FROM..TO")]
    sizes: Option<Sizes>,
    /// With --sizes: each so many times the one before
    #[arg(short = 'f', long, value_name = "FACTOR", requires = "sizes", value_parser = clap::value_parser!(u64).range(2..), default_value_t = FACTOR_ASKED)]
    stepfactor: u64,
    /// Draw time and bus bandwidth over size into this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Instead of GPUs, so many ranks on as many cores of one host, with --library weft, gloo or openmpi [default: weft]
    #[arg(short = 'n', long, conflicts_with_all = ["fabric", "plot", "trace"], value_parser = clap::value_parser!(u32).range(2..=1024))]
    ranks: Option<u32>,
    /// Write what each rank does in the last of the calls to this file, for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    disturbed: Disturbed,
    #[command(flatten)]
    told: Told,
}

pub(super) fn run(args: &Calls) -> Result<(), Failure> {
    let kind = args.collective.ok_or_else(|| {
        Failure::misuse(anyhow!("say what to predict, and where: `weft sim all-reduce hgx-h100`"))
    })?;
    if let Some(ranks) = args.ranks {
        return cores::run(
            kind,
            ranks,
            args.told.is_symmetric(),
            &sizes(args, u64::MAX)?,
            args.told.library.as_deref(),
            args.json,
        );
    }
    let case = asked::case(kind, args.fabric.as_deref(), &args.told)?;
    let setup = &case.setup;
    let is_watched = args.trace.is_some() || !args.disturbed.is_none();
    if is_watched && !chooses_by_costs(setup.library) {
        return Err(Failure::misuse(anyhow!(
            "disturbances and traces are for nccl, rccl and oneccl, not for {}",
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
    let mut out = io::stdout().lock();
    let mut progress = Progress::new();
    let mut rows = Vec::new();
    let mut spans = Spans::with_capacity(trace::STEPS_MAX);
    for (at, bytes) in sizes.iter().enumerate() {
        progress.show(&format!("predicting {} ({} of {})", text::size(*bytes), at + 1, sizes.len()));
        let is_traced = trace.is_some() && at + 1 == sizes.len();
        let row = call(&site, &case, *bytes, args, is_traced.then_some(&mut spans))?;
        progress.clear();
        // Nothing is printed before the first call is predicted: until then it may turn out to be impossible.
        if !args.json && at == 0 {
            text::head(&mut out, &case)?;
            text::columns(&mut out)?;
        }
        if !args.json {
            text::row(&mut out, site.fabric(), &row)?;
            out.flush()?;
        }
        rows.push(row);
    }
    if args.json {
        drop(out);
        crate::print_json(&case.rows_to_json(&rows))?;
    } else {
        text::foot(&mut out, setup, &rows)?;
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
        let first = format!("{} of {} on {}", case.collective(), text::size(last), case.name);
        let beside =
            rows.last().and_then(|row| row.undisturbed.as_ref()).map(|(_, beside)| beside.as_slice());
        let others = beside.unwrap_or_default().iter();
        let calls: Vec<String> = std::iter::once(first)
            .chain(others.map(|other| format!("{} of {}", other.what, text::size(other.bytes))))
            .collect();
        serde_json::to_writer(BufWriter::new(file), &trace::document(&calls, &spans))
            .with_context(|| format!("cannot write {}", path.display()))
            .map_err(Failure::Finding)?;
    }
    Ok(())
}

/// Which calls are asked for; of the usual ones those that fit.
fn sizes(args: &Calls, most: u64) -> Result<Vec<u64>, Failure> {
    match (args.size, args.sizes) {
        (Some(Bytes(0)), _) | (None, Some(Sizes(0, _))) => Err(PredictError::NoBytes.into()),
        (Some(size), _) => Ok(vec![size.0]),
        (None, Some(sizes)) => Ok(each_of(sizes, args.stepfactor)),
        (None, None) => Ok(each_of(SIZES, FACTOR).into_iter().filter(|size| *size <= most).collect()),
    }
}

/// From the first, each so many times the one before.
fn each_of(Sizes(from, to): Sizes, factor: u64) -> Vec<u64> {
    std::iter::successors(Some(from), |size| size.checked_mul(factor))
        .take_while(|size| *size <= to)
        .collect()
}

/// Whether a library tells by costs what it takes, so that it can be watched and disturbed.
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
        let suffered = args.disturbed.run(site, case.operation, bytes, spans)?;
        let ranks = args.disturbed.ranks().unwrap_or(case.setup.ranks());
        let row = case.row_of(ranks, bytes, suffered.execution);
        return Ok(Row { undisturbed: Some((suffered.alone_us, suffered.beside)), ..row });
    }
    let Some(spans) = spans else { return Ok(case.row(site, bytes)?) };
    let execution = site.execute_with_conditions(case.operation, bytes, &Conditions::default(), Some(spans));
    Ok(case.row_of(case.setup.ranks(), bytes, execution.map_err(Failure::finding)?))
}

/// A file to write into, before anything takes long.
pub(super) fn create(path: &PathBuf) -> Result<File, Failure> {
    File::create(path).with_context(|| format!("cannot write {}", path.display())).map_err(Failure::Finding)
}
