//! `weft sim COLLECTIVE -n RANKS`: a library between cores of one host.

use std::io::Write;

use anyhow::anyhow;
use serde_json::json;
use weftlink_plan::Kind;
use weftlink_plan::choose::measured::Memory;
use weftlink_sim::host::{self, Hosts};
use weftlink_sim::library;
use weftlink_sim::predict::operation;
use weftlink_sim::setup::Library;

use super::text;
use crate::calibration::CalibrationArgs;
use crate::screen::{self, say};
use crate::table::Table;
use crate::{Failure, units};

pub(super) fn run(
    kind: Kind,
    ranks: u32,
    is_symmetric: bool,
    sizes: &[u64],
    library: Option<&str>,
    calibration: &CalibrationArgs,
    as_json: bool,
) -> Result<(), Failure> {
    let operation = operation(kind)?;
    let library = match library {
        Some(text) => library::parse_library(text).map_err(Failure::misuse)?.library,
        None => Library::Weft,
    };
    if is_symmetric && library != Library::Weft {
        return Err(Failure::misuse(anyhow!(
            "with -n, --symmetric works with weft, not with {}",
            library.name()
        )));
    }
    let memory = if is_symmetric { Memory::Symmetric } else { Memory::Readable };
    let hosts = Hosts { memory, ..Hosts::one(library, ranks, ranks) };
    let constants = calibration.constants();
    let mut rows = Vec::new();
    let headings = ["size", "time us", "algbw GB/s", "busbw GB/s", "algorithm", "protocol"];
    let mut table = Table::new(headings).numbers(&["size"]);
    for bytes in sizes {
        let call = host::execute(&constants, &hosts, operation, *bytes).map_err(Failure::misuse)?;
        let time_us = call.time.us();
        let algbw = *bytes as f64 / time_us / 1e3;
        let busbw = algbw * operation.bus_factor(ranks);
        table.row([
            units::size(*bytes),
            text::time(time_us),
            format!("{algbw:.2}"),
            format!("{busbw:.2}"),
            call.algorithm.name().to_owned(),
            call.protocol.to_string(),
        ]);
        rows.push(json!({
            "bytes": bytes,
            "time_us": time_us,
            "algbw_gb_per_s": algbw,
            "busbw_gb_per_s": busbw,
            "algorithm": call.algorithm.name(),
            "protocol": call.protocol.to_string(),
        }));
    }
    if as_json {
        let mut value = json!({
            "collective": kind.name(),
            "ranks": ranks,
            "memory": memory.name(),
            "library": library.name(),
            "evidence": library.evidence(),
            "basis": "predicted",
            "rows": rows,
        });
        calibration.add_to(&mut value);
        return Ok(crate::print_json(&value)?);
    }
    let mut out = screen::stdout();
    say!(out, "{} on {ranks} cores of one host, a rank each, {} memory", kind.name(), memory.name())?;
    say!(out, "library {}: {}", library.name(), library.evidence())?;
    calibration.print(&mut out)?;
    writeln!(out)?;
    write!(out, "{table}")?;
    Ok(say!(out, "No interval: there are no published measurements of ranks on the cores of one host.")?)
}
