//! Reads benchmark runs of Weft and other libraries on the cores of a host (`bench/runs/*-peers-*/raw.csv`), to check predictions.

use std::collections::BTreeMap;

use weftlink_plan::choose::measured::Memory;

use super::Hosts;
use crate::quantile::quantile;
use crate::setup::{Library, Operation};

/// A measured call.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Name of the program in the run.
    pub program: String,
    /// The hosts.
    pub hosts: Hosts,
    /// The operation.
    pub operation: Operation,
    /// Its size.
    pub bytes: u64,
    /// Median time of the rounds.
    pub time_us: f64,
}

/// Program, collective, ranks and bytes.
type Key = (String, String, u32, u64);
/// Times of all rounds, by place (in place or out of place).
type Places = BTreeMap<String, Vec<f64>>;

/// The calls of a run that the model covers, on a host with `cores` cores: a core per rank, out of place where measured.
pub fn read(text: &str, cores: u32) -> Vec<Measured> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let mut rounds: BTreeMap<Key, Places> = BTreeMap::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        let field = |name: &str| {
            let at = names.iter().position(|column| *column == name)?;
            fields.get(at).copied()
        };
        let row = || {
            if field("bound")? != "1" || field("buffers")? != "cached" {
                return None;
            }
            let key = (
                field("program")?.to_owned(),
                field("collective")?.to_owned(),
                field("ranks")?.parse().ok()?,
                field("bytes")?.parse().ok()?,
            );
            Some((key, field("place")?.to_owned(), field("time_us")?.parse::<f64>().ok()?))
        };
        if let Some((key, place, time_us)) = row() {
            rounds.entry(key).or_default().entry(place).or_default().push(time_us);
        }
    }
    let call = |((program, collective, ranks, bytes), places): (Key, Places)| {
        let (library, memory) = library(&program)?;
        let times = places.get("out-of-place").or_else(|| places.get("in-place"))?;
        let hosts = Hosts { memory, ..Hosts::one(library, cores, ranks) };
        let time_us = quantile(times.clone(), 0.5);
        Some(Measured { program, hosts, operation: operation(&collective)?, bytes, time_us })
    };
    rounds.into_iter().filter_map(call).collect()
}

/// A program's library and the memory of its buffers. Ranks of the same user, as in these runs, can read each other's ordinary memory.
fn library(program: &str) -> Option<(Library, Memory)> {
    match program {
        "weft symmetric" => Some((Library::Weft, Memory::Symmetric)),
        "weft ordinary" => Some((Library::Weft, Memory::Readable)),
        "open-mpi" => Some((Library::OpenMpi, Memory::Ordinary)),
        "gloo" => Some((Library::Gloo, Memory::Ordinary)),
        _ => None,
    }
}

fn operation(collective: &str) -> Option<Operation> {
    Some(match collective {
        "all-reduce" => Operation::AllReduce,
        "all-gather" => Operation::AllGather,
        "reduce-scatter" => Operation::ReduceScatter,
        "broadcast" => Operation::Broadcast,
        "reduce" => Operation::Reduce,
        "all-to-all" => Operation::AllToAll,
        "send-receive" => Operation::SendReceive,
        _ => return None,
    })
}
