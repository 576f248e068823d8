//! `weft sim calibrate LOG...`: the constants of a machine from its own measurements.

mod source;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use weftlink_fabric::Fabric;
use weftlink_sim::Constants;
use weftlink_sim::accuracy::BANDS;
use weftlink_sim::calibrate::file::Calibration;
use weftlink_sim::calibrate::outliers::{Outlier, outliers};
use weftlink_sim::calibrate::{calibrate, predict};
use weftlink_sim::constants::TABLE;
use weftlink_sim::library::parse_library;
use weftlink_sim::setup::Library;

use crate::progress::Progress;
use crate::screen::{self, say};
use crate::table::Table;
use crate::{Failure, counted};
use source::{Errors, Source, file_of};

/// Calibrate the model with measurements of your own machine
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft sim calibrate all_reduce.log --fabric hgx-h100 -o mine.toml
  weft sim calibrate all_gather=job.out allreduce.out --fabric \"2x hgx-h100 + 8x ndr\" -o mine.toml
  weft sim calibrate 1node.log 2nodes.log --fabric hgx-h100 --fabric \"2x hgx-h100 + 8x ndr\" -o mine.toml
  weft bench all-reduce -n 4 --json > bench.json; weft sim calibrate bench.json -o cores.toml
  weft sim all-gather hgx-h100 --calibration mine.toml

A LOG is the output of nccl-tests or rccl-tests (any version, several programs in one file), the JSON of `weft bench`, or CSV: \
with the columns of `weft sim accuracy`, or with collective, size_bytes and time_us for --fabric.

A constant that no measurement depends on keeps its shipped value. Give logs of several hosts to find one that is slower than the others; \
its logs are left out.")]
pub(super) struct Args {
    /// Files of measurements; COLLECTIVE=FILE for a log that does not say what it measured
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<String>,
    /// The machine that was measured, as for `weft topo`. Several for logs with different numbers of GPUs
    #[arg(long, value_name = "FABRIC")]
    fabric: Vec<String>,
    /// The GPU model, which the output of `nvidia-smi topo -m` and `rocm-smi` does not contain
    #[arg(long, value_name = "MODEL")]
    gpu: Option<String>,
    /// The library that was measured [default: as the log says, or the newest]
    #[arg(long, value_name = "NAME[:VERSION]")]
    library: Option<String>,
    /// Write the constants to FILE
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let library = args.library.as_deref().map(parse_library).transpose().map_err(Failure::misuse)?;
    if library.as_ref().is_some_and(|library| library.library == Library::Msccl) {
        return Err(Failure::misuse(anyhow!(
            "msccl runs one program, whose times say little about other calls; name another library"
        )));
    }
    let fabrics: Vec<Fabric> = args
        .fabric
        .iter()
        .map(|target| crate::topo::resolve(Some(target), args.gpu.as_deref()))
        .collect::<Result<_, _>>()?;
    if let Some(out) = &args.out {
        let target = out.canonicalize().ok();
        let is_target =
            |text: &String| target.is_some() && Path::new(file_of(text)).canonicalize().ok() == target;
        if args.logs.iter().any(is_target) {
            return Err(Failure::misuse(anyhow!(
                "-o {} is one of the logs; name another file",
                out.display()
            )));
        }
    }
    let mut source = Source::new(&fabrics, library.as_ref());
    for (at, text) in args.logs.iter().enumerate() {
        if args.logs[..at].contains(text) {
            return Err(Failure::misuse(anyhow!("{text} is given twice")));
        }
        source.add(text)?;
    }
    if let Some(at) = source.unused_fabric() {
        let fabric = &args.fabric[at];
        return Err(Failure::misuse(anyhow!("no log was measured on --fabric {fabric}; leave it out")));
    }
    let slow = outliers(&source.runs());
    source.leave_out(&slow);
    let shipped = Constants::shipped();
    source.keep_predicted(&shipped)?;
    let mut progress = Progress::new();
    progress.show(&format!("fitting the constants to {}", counted(source.calls.len(), "call")));
    let before = predict(&shipped, &source.places, &source.calls);
    let fitted = calibrate(&shipped, &source.places, &source.calls);
    let after = predict(&fitted.constants, &source.places, &source.calls);
    progress.clear();
    let calibration = Calibration::of(&fitted, source.title(), source.calls.len());
    if let Some(path) = &args.out {
        std::fs::write(path, calibration.to_string())
            .with_context(|| format!("cannot write {}", path.display()))
            .map_err(Failure::Finding)?;
    }
    let errors = source.errors(&before, &after);
    if args.json {
        return Ok(crate::print_json(&document(&calibration, &errors, &slow, &source.notes))?);
    }
    Ok(print(args, &calibration, errors, &slow, &source.notes)?)
}

fn document(calibration: &Calibration, errors: &[Errors], slow: &[Outlier], notes: &[String]) -> Value {
    let constants = calibration.found.iter().map(|found| {
        let constant = &TABLE[found.index];
        json!({
            "name": constant.name, "unit": constant.unit, "shipped": constant.value,
            "value": calibration.constants.at(found.index), "before": found.before, "now": found.now,
            "determined": found.is_determined(),
        })
    });
    let errors = errors.iter().map(|row| {
        json!({
            "table": row.table, "band": BANDS[row.band].0, "calls": row.calls, "before": row.before, "after": row.after,
        })
    });
    let corrections = calibration
        .corrections
        .ranges()
        .into_iter()
        .map(|(what, (least, most))| json!({ "what": what, "least": least, "most": most }));
    let outliers = slow
        .iter()
        .map(|slow| json!({ "host": slow.host, "slower": slow.slower, "tables": slow.runs.len() }));
    json!({
        "machine": calibration.machine, "library": calibration.library, "calls": calibration.calls,
        "constants": constants.collect::<Vec<_>>(), "errors": errors.collect::<Vec<_>>(),
        "corrections": corrections.collect::<Vec<_>>(),
        "outliers": outliers.collect::<Vec<_>>(), "notes": notes,
    })
}

fn print(
    args: &Args,
    calibration: &Calibration,
    errors: Vec<Errors>,
    slow: &[Outlier],
    notes: &[String],
) -> io::Result<()> {
    let mut out = screen::stdout();
    say!(out, "{} on {}: {}", calibration.library, calibration.machine, counted(calibration.calls, "call"))?;
    for slow in slow {
        let tables = counted(slow.runs.len(), "table");
        say!(
            out,
            "{} is {:.2} times slower than the median host, in {tables}; left out",
            slow.host,
            slow.slower
        )?;
    }
    for note in notes {
        say!(out, "{note}")?;
    }
    writeln!(out)?;
    let determined = calibration.determined();
    if !determined.is_empty() {
        let mut lines = Table::new(["constant", "shipped", "now", "unit", "+-", "of"]);
        for found in &determined {
            let constant = &TABLE[found.index];
            lines.row([
                constant.name.to_owned(),
                number(constant.value),
                number(calibration.constants.at(found.index)),
                constant.unit.to_owned(),
                format!("{:.0}%", found.now * 1e2),
                constant.belongs_to.to_owned(),
            ]);
        }
        write!(out, "{lines}")?;
    }
    let open = calibration.found.len() - determined.len();
    say!(
        out,
        "{} little or not determined by these calls{}; the others of {} play no part in them",
        counted(open, "constant"),
        if open == 0 { "" } else { " (in the file, with their uncertainty)" },
        TABLE.len()
    )?;
    for (what, (least, most)) in calibration.corrections.ranges() {
        say!(
            out,
            "{what}: times are multiplied by {least:.2} to {most:.2}, the error that remains, for this collective alone"
        )?;
    }
    writeln!(out)?;
    let mut lines = Table::new(["table", "sizes", "calls", "error before", "after"]);
    for row in errors {
        lines.row([
            row.table,
            BANDS[row.band].0.to_owned(),
            row.calls.to_string(),
            format!("{:.1}%", row.before * 1e2),
            format!("{:.1}%", row.after * 1e2),
        ]);
    }
    write!(out, "{lines}")?;
    match &args.out {
        Some(path) => say!(out, "\nUse it with --calibration {}", path.display()),
        None => say!(out, "\nNothing is written without -o FILE"),
    }
}

/// Three significant digits.
fn number(value: f64) -> String {
    let digits = match value {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}
