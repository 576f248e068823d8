//! `weft sim COLLECTIVE -n RANKS`: a library between cores of one host.

use std::io::{self, Write};

use anyhow::anyhow;
use serde_json::json;
use weftlink_plan::Kind;
use weftlink_plan::choose::measured::Memory;
use weftlink_sim::Constants;
use weftlink_sim::host::{self, Hosts};
use weftlink_sim::library;
use weftlink_sim::predict::operation;
use weftlink_sim::setup::Library;

use super::text;
use crate::Failure;

pub(super) fn run(
    kind: Kind,
    ranks: u32,
    is_symmetric: bool,
    sizes: &[u64],
    library: Option<&str>,
    as_json: bool,
) -> Result<(), Failure> {
    let operation = operation(kind)?;
    let library = match library {
        Some(text) => library::parse_library(text).map_err(Failure::misuse)?.library,
        None => Library::Weft,
    };
    if is_symmetric && library != Library::Weft {
        return Err(Failure::misuse(anyhow!("with -n, --symmetric is for weft, not for {}", library.name())));
    }
    let memory = if is_symmetric { Memory::Symmetric } else { Memory::Readable };
    let hosts = Hosts { memory, ..Hosts::one(library, ranks, ranks) };
    let constants = Constants::shipped();
    let mut out = io::stdout().lock();
    let mut rows = Vec::new();
    for (at, bytes) in sizes.iter().enumerate() {
        let call = host::execute(&constants, &hosts, operation, *bytes).map_err(Failure::misuse)?;
        // Nothing is printed before the first call is known to be possible.
        if !as_json && at == 0 {
            writeln!(
                out,
                "{} on {ranks} cores of one host, a rank each, {} memory",
                kind.name(),
                memory.name()
            )?;
            writeln!(out, "library {}: {}\n", library.name(), library.evidence())?;
            writeln!(
                out,
                "{:>10} {:>12} {:>9} {:>9}  {:<18} protocol",
                "size", "time us", "algbw", "busbw", "algorithm"
            )?;
        }
        let time_us = call.time.0 as f64 / 1e6;
        let algbw = *bytes as f64 / time_us / 1e3;
        let busbw = algbw * operation.bus_factor(ranks);
        if as_json {
            rows.push(json!({
                "bytes": bytes,
                "time_us": time_us,
                "algbw_gb_per_s": algbw,
                "busbw_gb_per_s": busbw,
                "algorithm": call.algorithm.name(),
                "protocol": call.protocol.to_string(),
            }));
            continue;
        }
        let (size, time) = (text::size(*bytes), text::time(time_us));
        writeln!(
            out,
            "{size:>10} {time:>12} {algbw:>9.2} {busbw:>9.2}  {:<18} {}",
            call.algorithm.name(),
            call.protocol
        )?;
        out.flush()?;
    }
    if as_json {
        drop(out);
        crate::print_json(&json!({
            "collective": kind.name(),
            "ranks": ranks,
            "memory": memory.name(),
            "library": library.name(),
            "evidence": library.evidence(),
            "basis": "predicted",
            "rows": rows,
        }))?;
    }
    Ok(())
}
