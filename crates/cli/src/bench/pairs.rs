//! `weft bench p2p`: every two ranks by themselves, as p2pBandwidthLatencyTest shows GPUs.
//!
//! Latency is half of a message and its answer. Bandwidth is that of messages one after the other, one way or both ways
//! at once; of both ways the bytes of both count. On the diagonal a rank sends to itself, which is a copy.

use std::io::{self, Write};

use serde_json::{Value, json};
use weftlink_comm::{Communicator, Error};

use super::job::{Job, Message, Pair as Measured, Pairs};
use super::probe::Pair;
use super::rank::{agree, iterations_in};
use crate::units::size;

/// The duration of each of the three measurements of a pair, and its repetitions; the best counts.
const SECONDS: f64 = 0.01;
const TRIES: u32 = 3;
/// Round trips to estimate how many more are needed.
const FEW: u32 = 10;

/// Measures all pairs. All ranks call this; the first rank of a pair reports.
pub(super) fn measure(
    comm: &mut Communicator,
    sizes: Pairs,
    send: &mut impl FnMut(Message),
) -> Result<(), Error> {
    let (rank, ranks) = (comm.rank(), comm.size());
    for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
        let mut pair = Pair::new(comm, from, to, sizes.large_bytes);
        // One call shows how many are enough. Only the first rank of the pair knows, so it tells the others.
        let call_s = pair.transfer_s(1)?;
        let calls = agree(pair.comm, from, iterations_in(SECONDS, call_s) as u64)? as u32;
        let trip_s = if from == to { 1.0 } else { 2.0 * pair.latency_s(sizes.small_bytes, FEW)? };
        let trips = agree(pair.comm, from, iterations_in(SECONDS, trip_s) as u64)? as u32;
        let [mut latency_s, mut transfer_s, mut both_ways_s] = [f64::INFINITY; 3];
        for _ in 0..TRIES {
            transfer_s = transfer_s.min(pair.transfer_s(calls)?);
            if from != to {
                latency_s = latency_s.min(pair.latency_s(sizes.small_bytes, trips)?);
                both_ways_s = both_ways_s.min(pair.both_ways_s(calls)?);
            }
        }
        if rank == from {
            let gb = sizes.large_bytes as f64 / 1e9;
            let mut report = |pair| send(Message::Paired { from, to, pair });
            report(Measured::GbPerS(gb / transfer_s));
            if from != to {
                report(Measured::LatencyUs(latency_s * 1e6));
                report(Measured::BothWaysGbPerS(2.0 * gb / both_ways_s));
            }
        }
    }
    Ok(())
}

/// The measurements, by first and second rank.
pub(super) struct Matrices {
    ranks: usize,
    latency_us: Vec<Option<f64>>,
    one_way_gb_per_s: Vec<Option<f64>>,
    both_ways_gb_per_s: Vec<Option<f64>>,
}

impl Matrices {
    pub(super) fn new(ranks: usize) -> Self {
        let empty = || vec![None; ranks * ranks];
        Self { ranks, latency_us: empty(), one_way_gb_per_s: empty(), both_ways_gb_per_s: empty() }
    }

    pub(super) fn add(&mut self, from: usize, to: usize, pair: Measured) {
        let (matrix, value) = match pair {
            Measured::LatencyUs(value) => (&mut self.latency_us, value),
            Measured::GbPerS(value) => (&mut self.one_way_gb_per_s, value),
            Measured::BothWaysGbPerS(value) => (&mut self.both_ways_gb_per_s, value),
        };
        if let Some(cell) = matrix.get_mut(from * self.ranks + to) {
            *cell = Some(value);
        }
    }

    pub(super) fn print(&self, out: &mut impl Write, sizes: Pairs) -> io::Result<()> {
        let (small, large) = (size(sizes.small_bytes as u64), size(sizes.large_bytes as u64));
        for (title, matrix) in [
            (format!("Unidirectional bandwidth matrix (GB/s), messages of {large}"), &self.one_way_gb_per_s),
            (format!("Bidirectional bandwidth matrix (GB/s), messages of {large}"), &self.both_ways_gb_per_s),
            (format!("Latency matrix (us), messages of {small}, one way"), &self.latency_us),
        ] {
            writeln!(out, "{title}")?;
            let heads = (0..self.ranks).fold(String::new(), |heads, rank| format!("{heads} {rank:>8}"));
            writeln!(out, "   D\\D{heads}")?;
            for (rank, row) in matrix.chunks(self.ranks).enumerate() {
                let cell =
                    |value: &Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
                let cells =
                    row.iter().fold(String::new(), |cells, value| format!("{cells} {:>8}", cell(value)));
                writeln!(out, "{rank:>6}{cells}")?;
            }
        }
        out.flush()
    }

    pub(super) fn json(&self, sizes: Pairs) -> Value {
        let rows = |matrix: &[Option<f64>]| matrix.chunks(self.ranks).map(<[_]>::to_vec).collect::<Vec<_>>();
        json!({
            "small_bytes": sizes.small_bytes,
            "large_bytes": sizes.large_bytes,
            "latency_us": rows(&self.latency_us),
            "one_way_gb_per_s": rows(&self.one_way_gb_per_s),
            "both_ways_gb_per_s": rows(&self.both_ways_gb_per_s),
        })
    }
}

/// The most ranks: the number of pairs grows with the square.
pub(super) const RANKS_MAX: usize = 32;

/// The bytes that all ranks need together.
pub(super) fn bytes_needed(job: &Job) -> u64 {
    job.pairs.map_or(0, |sizes| 2 * (sizes.large_bytes as u64).saturating_mul(job.ranks as u64))
}
