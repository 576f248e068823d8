//! The pairwise matrix, as `nvidia-smi topo -m` prints it but with NCCL's path types.

use std::io::{self, Write};

use anyhow::anyhow;
use serde_json::{Value, json};
use weftlink_fabric::rate::{OneWay, Pair, Rate};
use weftlink_fabric::summary::Summary;
use weftlink_fabric::{DeviceId, DeviceKind, Path, PathType, Paths};

use crate::Failure;
use crate::screen::{self, say};
use crate::table::Table;

/// Up to this many GPUs the default view shows every pair; beyond, the classes of pairs.
const SHORT_GPUS_MAX: usize = 16;

/// A larger matrix has more than four million cells.
const DEVICES_MAX: usize = 2_048;

/// GPUs and NICs against each other.
pub(super) fn print(out: &mut impl Write, paths: &Paths<'_>) -> Result<(), Failure> {
    let devices = devices(paths)?;
    if devices.is_empty() {
        return Ok(writeln!(out, "There is no GPU and no NIC.")?);
    }
    Ok(print_matrix(out, paths, &devices)?)
}

/// The same as JSON: the names, and a row of paths for each.
pub(super) fn json(paths: &Paths<'_>) -> Result<Value, Failure> {
    let devices = devices(paths)?;
    let names: Vec<String> = devices.iter().map(|id| paths.fabric().device_name(*id)).collect();
    let rows = paths.matrix(&devices);
    let rows: Vec<Vec<Value>> = rows.iter().map(|row| row.iter().map(super::json::path).collect()).collect();
    Ok(json!({ "devices": names, "paths": rows }))
}

fn devices(paths: &Paths<'_>) -> Result<Vec<DeviceId>, Failure> {
    let fabric = paths.fabric();
    let nics = fabric.devices_where(|kind| matches!(kind, DeviceKind::Nic(_)));
    let devices: Vec<DeviceId> = fabric.gpus().iter().copied().chain(nics).collect();
    match devices.len() {
        0..=DEVICES_MAX => Ok(devices),
        count => Err(Failure::misuse(anyhow!(
            "--matrix is for up to {DEVICES_MAX} GPUs and NICs; this fabric has {count}. \
             Without --matrix, pairs are counted by their paths"
        ))),
    }
}

/// A rate, or `unknown`.
fn amount(rate: Rate<Pair, OneWay>) -> String {
    if rate == Rate::ZERO { "unknown".to_owned() } else { rate.amount().to_string() }
}

/// GPUs against each other where they are few, classes of pairs where they are many.
pub(super) fn print_short(out: &mut impl Write, paths: &Paths<'_>, summary: &Summary) -> io::Result<()> {
    match summary.gpus {
        0 | 1 => Ok(()),
        2..=SHORT_GPUS_MAX => {
            print_matrix(out, paths, paths.fabric().gpus())?;
            writeln!(out)
        }
        _ => print_classes(out, summary),
    }
}

fn print_matrix(out: &mut impl Write, paths: &Paths<'_>, devices: &[DeviceId]) -> io::Result<()> {
    let fabric = paths.fabric();
    let names: Vec<String> = devices.iter().map(|id| fabric.device_name(*id)).collect();
    // Past one host, full names would make the columns too wide: those go by their place in the list.
    let headings: Vec<String> = match fabric.hosts().len() {
        0 | 1 => names.clone(),
        _ => (0..names.len()).map(|index| index.to_string()).collect(),
    };
    let rows: Vec<String> = match fabric.hosts().len() {
        0 | 1 => names,
        _ => names.iter().enumerate().map(|(index, name)| format!("{index:>3} {name}")).collect(),
    };
    let row_width = rows.iter().map(String::len).max().unwrap_or(0);
    let cell_width = headings.iter().map(String::len).max().unwrap_or(0).max(4);
    let line = |first: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!("  {cell:<cell_width$}")).collect();
        format!("{first:row_width$}{cells}").trim_end().to_owned()
    };
    let matrix = paths.matrix(devices);
    let mut used: Vec<PathType> = matrix.iter().flatten().map(|path| path.kind).collect();
    let cells: Vec<Vec<String>> = matrix.iter().map(|row| row.iter().map(Path::cell).collect()).collect();
    // In a pipe, a row is a line.
    let columns = screen::known_columns().unwrap_or(usize::MAX);
    // Columns that do not fit beside the others stand below, after the rows' names again.
    let per_part = (columns.saturating_sub(row_width) / (cell_width + 2)).max(1);
    for (part, headings) in headings.chunks(per_part).enumerate() {
        if part > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{}", line("", headings))?;
        for (row, cells) in rows.iter().zip(&cells) {
            let cells = cells.iter().skip(part * per_part).take(per_part).cloned();
            writeln!(out, "{}", line(row, &cells.collect::<Vec<_>>()))?;
        }
    }
    used.sort_unstable();
    used.dedup();
    let legend = used.iter().filter(|kind| **kind != PathType::Loc).map(|kind| match kind {
        PathType::Nvl => format!("NV# {} (# links)", kind.meaning()),
        kind => format!("{kind} {}", kind.meaning()),
    });
    say!(out, "{}", legend.collect::<Vec<_>>().join("; "))
}

fn print_classes(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let mut table =
        Table::new(["pairs", "path", "hops", "nominal", "effective", "through"]).numbers(&["pairs"]);
    for class in &summary.classes {
        table.row([
            class.pairs.to_string(),
            class.path.cell(),
            class.path.hops.to_string(),
            amount(class.path.width.nominal),
            amount(class.path.width.effective),
            class.path.kind.meaning().to_owned(),
        ]);
    }
    write!(out, "{table}")?;
    say!(out, "Pairs are pairs of GPUs; rates are each way for one pair alone; --matrix prints every pair.\n")
}
