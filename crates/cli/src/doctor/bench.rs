//! `weft doctor --bench`: output of nccl-tests beside the prediction for the machine.

use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::json;
use weftlink_doctor::bench::{Input, Table as Measured, explain};
use weftlink_fabric::Fabric;
use weftlink_sim::predict::Options;

use super::{Args, exit, print_with_report, text};
use crate::Failure;
use crate::screen::{self, say};
use crate::table::Table;
use crate::units::size;

pub(super) fn run(files: &[PathBuf], expected: Option<&Fabric>, args: &Args) -> Result<(), Failure> {
    let texts = files.iter().map(|file| super::read(file)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let inputs: Vec<Input<'_>> =
        names.iter().zip(&texts).map(|(name, text)| Input { name, text, collective: None }).collect();
    let explained = explain(&inputs, expected, &Options::default());
    if args.json {
        print_with_report(json!(explained.tables), &explained.report)?;
    } else {
        let mut out = screen::stdout();
        for table in &explained.tables {
            print(&mut out, table)?;
            writeln!(out)?;
        }
        text::print(&mut out, &explained.report, args.all)?;
    }
    exit(&explained.report)
}

fn print(out: &mut impl Write, measured: &Measured) -> io::Result<()> {
    let on = measured.fabric.as_ref().map_or_else(String::new, |fabric| format!(", predicted for {fabric}"));
    let by = measured.library.as_ref().map_or_else(String::new, |library| format!(" by {library}"));
    say!(out, "{}: {}{by}{on}", measured.log, measured.collective.replace('_', "-"))?;
    let mut table = Table::new(["size", "measured us", "GB/s", "predicted us", "GB/s there", "90% us"])
        .numbers(&["size"]);
    for row in &measured.rows {
        let predicted = row.predicted.as_ref();
        let cell = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        let us = |value: f64| if value < 1000.0 { format!("{value:.1}") } else { format!("{value:.0}") };
        table.row([
            size(row.bytes),
            us(row.measured_us),
            cell(row.measured_gb_per_s),
            predicted.map_or("-".to_owned(), |predicted| us(predicted.time_us)),
            cell(predicted.map(|predicted| predicted.gb_per_s)),
            predicted
                .and_then(|predicted| predicted.most_us)
                .map_or("-".to_owned(), |(least, most)| format!("{}..{}", us(least), us(most))),
        ]);
    }
    write!(out, "{table}")?;
    for band in &measured.bands {
        say!(
            out,
            "{}: measured / predicted {:.2}; {} of {} rows where half of all machines are, {} where nine of ten are",
            band.name,
            band.ratio,
            band.in_half,
            band.rows,
            band.in_most
        )?;
    }
    Ok(())
}
