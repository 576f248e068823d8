//! `weft sim COLLECTIVE FABRIC`: a call of each size, as a library would make it, executed on the fabric.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use weftlink_fabric::bytes::Bytes;
use weftlink_sim::accuracy::{Class, band, expected};
use weftlink_sim::engine::{Conditions, Spans};
use weftlink_sim::execute::{Execution, Site};
use weftlink_sim::setup::{Library, Operation};
use weftlink_sim::{Constants, Setup};

use super::asked::{self, Told, What};
use super::disturbed::{Disturbed, Neighbour};
use super::{cores, json, text, trace};
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
    pub(super) collective: Option<What>,
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

/// A call, predicted.
pub(super) struct Row {
    pub(super) bytes: u64,
    pub(super) execution: Execution,
    pub(super) algbw_gb_per_s: f64,
    pub(super) busbw_gb_per_s: f64,
    /// What predictions of its kind are off by: the median, and what nine in ten stay below.
    pub(super) expected_error: Option<(f64, f64)>,
    /// What the same call takes where nothing disturbs it, and what went on beside it; nothing if it was not disturbed.
    pub(super) undisturbed: Option<(f64, Vec<Neighbour>)>,
}

impl Row {
    pub(super) fn new(
        setup: &Setup,
        ranks: u32,
        operation: Operation,
        bytes: u64,
        execution: Execution,
    ) -> Self {
        let algbw_gb_per_s = bytes as f64 / (execution.time.0 as f64 / 1e12) / 1e9;
        let busbw_gb_per_s = algbw_gb_per_s * operation.bus_factor(ranks);
        let measured = matches!(setup.library, Library::Nccl | Library::Rccl);
        let expected_error = measured.then(|| {
            let found = expected(Some(Class::of(setup)), band(bytes));
            (found.median, found.ninetieth)
        });
        Self { bytes, execution, algbw_gb_per_s, busbw_gb_per_s, expected_error, undisturbed: None }
    }

    pub(super) fn time_us(&self) -> f64 {
        self.execution.time.0 as f64 / 1e6
    }
}

pub(super) fn run(args: &Calls) -> Result<(), Failure> {
    let what = args.collective.ok_or_else(|| {
        Failure::misuse(anyhow!("say what to predict, and where: `weft sim all-reduce hgx-h100`"))
    })?;
    if let Some(ranks) = args.ranks {
        return cores::run(
            what,
            ranks,
            args.told.is_symmetric(),
            &sizes(args, u64::MAX)?,
            args.told.library.as_deref(),
            args.json,
        );
    }
    let asked = asked::asked(args.fabric.as_deref(), what.operation(), &args.told)?;
    let setup = &asked.setup;
    let is_watched = args.trace.is_some() || !args.disturbed.is_none();
    if is_watched && !chooses_by_costs(setup.library) {
        return Err(Failure::misuse(anyhow!(
            "disturbances and traces are for nccl, rccl and oneccl, not for {}",
            setup.library.name()
        )));
    }
    let sizes = sizes(args, setup.gpu.model().memory.0)?;
    for bytes in &sizes {
        asked::check_memory(setup, *bytes)?;
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
    let site = asked.site(&constants)?;
    let mut out = io::stdout().lock();
    if !args.json {
        text::head(&mut out, &what.name(), &asked.name, setup)?;
        text::columns(&mut out)?;
        out.flush()?;
    }
    let mut progress = Progress::new();
    let mut rows = Vec::new();
    let mut spans = Spans::with_room_for(trace::STEPS_MAX);
    for (at, bytes) in sizes.iter().enumerate() {
        progress.show(&format!("predicting {} ({} of {})", text::size(*bytes), at + 1, sizes.len()));
        let is_traced = trace.is_some() && at + 1 == sizes.len();
        let row = call(&site, setup, what.operation(), *bytes, args, is_traced.then_some(&mut spans))?;
        progress.clear();
        if !args.json {
            text::row(&mut out, site.fabric(), &row)?;
            out.flush()?;
        }
        rows.push(row);
    }
    if args.json {
        drop(out);
        crate::print_json(&json::collective(&what.name(), &asked.name, site.fabric(), setup, &rows))?;
    } else {
        text::foot(&mut out, setup, &rows)?;
    }
    if let Some((mut file, path)) = plot {
        let points = rows.iter().map(|row| (row.bytes as f64, row.time_us(), row.busbw_gb_per_s)).collect();
        let line = Line { name: text::library(setup), points };
        let title = format!("{}, {}, predicted", what.name(), asked.name);
        file.write_all(plot::svg(&title, &[line]).as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))
            .map_err(Failure::Finding)?;
    }
    if let Some((file, path)) = trace {
        let last = sizes.last().copied().unwrap_or(0);
        let first = format!("{} of {} on {}", what.name(), text::size(last), asked.name);
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
        (Some(Bytes(0)), _) | (None, Some(Sizes(0, _))) => {
            Err(Failure::misuse(anyhow!("a call of 0 bytes has no bandwidth; start at 1 or more")))
        }
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
    site: &Site<'_>,
    setup: &Setup,
    operation: Operation,
    bytes: u64,
    args: &Calls,
    spans: Option<&mut Spans>,
) -> Result<Row, Failure> {
    if !args.disturbed.is_none() {
        let suffered = args.disturbed.run(site, operation, bytes, spans)?;
        let ranks = args.disturbed.ranks().unwrap_or(setup.ranks());
        let row = Row::new(setup, ranks, operation, bytes, suffered.execution);
        return Ok(Row { undisturbed: Some((suffered.alone_us, suffered.beside)), ..row });
    }
    let execution = match spans {
        None => site.execute(&[(operation, bytes)]).map(|mut done| done.remove(0)),
        Some(spans) => site.execute_under(operation, bytes, &Conditions::default(), Some(spans)),
    };
    Ok(Row::new(setup, setup.ranks(), operation, bytes, execution.map_err(Failure::finding)?))
}

/// A file to write into, before anything takes long.
pub(super) fn create(path: &PathBuf) -> Result<File, Failure> {
    File::create(path).with_context(|| format!("cannot write {}", path.display())).map_err(Failure::Finding)
}
