//! `weft sim compare FABRIC FABRIC ...`: one call on each of them.

use std::io::Write;

use serde_json::json;
use weftlink_fabric::bytes::Bytes;
use weftlink_plan::Kind;

use super::asked::{self, LibraryArgs};
use super::text;
use crate::Failure;
use crate::progress::Progress;
use crate::screen::{self, say};
use crate::table::Table;

/// Predict one call on several fabrics, side by side
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft sim compare hgx-b200 8x-rtx5090 \"2x hgx-h100 + 8x eth100\" --size 1GB
  weft sim compare dgx-a100 dgx-h100 --collective all-to-all --size 64MiB")]
pub(super) struct Args {
    /// Fabrics, as for `weft topo`
    #[arg(required = true, num_args = 1..=64)]
    fabric: Vec<String>,
    /// The collective to predict
    #[arg(long, value_name = "WHAT", default_value = "all-reduce", value_parser = super::collective())]
    collective: Kind,
    /// The size of the call
    #[arg(long, value_name = "SIZE", default_value = "1GB")]
    size: Bytes,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    library: LibraryArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut progress = Progress::new();
    let (mut values, mut rows) = (Vec::new(), Vec::new());
    for target in &args.fabric {
        progress.show(&format!("predicting {target}"));
        let case = asked::case(args.collective, Some(target), &args.library, None)?;
        case.check(args.size.0)?;
        let row = case.row(&case.runner()?, args.size.0)?;
        let mut value = case.to_json();
        value["prediction"] = row.to_json(&case.fabric);
        values.push(value);
        rows.push((target, case.setup.clone(), row.limited_by(&case.fabric), row));
    }
    progress.clear();
    if args.json {
        let mut document =
            json!({ "collective": args.collective.name(), "bytes": args.size.0, "fabrics": values });
        args.library.calibration.add_to(&mut document);
        return Ok(crate::print_json(&document)?);
    }
    let best = rows.iter().map(|(.., row)| row.time_us()).fold(f64::INFINITY, f64::min);
    let mut out = screen::stdout();
    writeln!(out, "{} of {}", args.collective.name(), args.size)?;
    args.library.calibration.print(&mut out)?;
    writeln!(out)?;
    let mut table = Table::new([
        "fabric",
        "GPUs",
        "library",
        "algorithm",
        "time ms",
        "slower",
        "busbw GB/s",
        "90% us",
        "limited by",
    ])
    .optional(&["slower", "library", "GPUs"]);
    for (target, setup, limit, row) in &rows {
        table.row([
            (*target).clone(),
            setup.ranks().to_string(),
            text::library(setup),
            format!("{} {}", row.execution.algorithm, row.execution.chosen.protocol),
            format!("{:.3}", row.time_us() / 1e3),
            format!("{:.1}x", row.time_us() / best),
            format!("{:.2}", row.busbw_gb_per_s),
            text::interval(row),
            limit.clone(),
        ]);
    }
    write!(out, "{table}")?;
    if rows.iter().any(|(.., row)| text::is_limited_by_tcp(row)) {
        say!(out, "\n{}", text::TCP_NOTE)?;
    }
    Ok(())
}
