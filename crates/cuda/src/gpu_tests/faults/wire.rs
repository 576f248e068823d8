//! What goes between the test and ranks that are processes: seeds to their standard input, reports from their standard output.

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use weftlink_bootstrap::{Bootstrap, Rendezvous, RendezvousAddress, Token};

use super::judge::Outcome;
use super::rank::{Control, Report};

pub(super) const RANK: &str = "WEFT_TEST_ROLE";
pub(super) const PLACE: &str = "WEFT_TEST_PLACE";
/// Before each report. The test runner may have printed something before it.
const MARK: &str = "@@ ";
/// For ranks to find each other.
const JOIN: Duration = Duration::from_secs(60);

/// An address for the ranks of a new job.
pub(super) fn new_address() -> String {
    static JOBS: AtomicUsize = AtomicUsize::new(0);
    format!("weft-test-{}-faults-{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed))
}

/// This process's end of the group and of the pipes, if the test has started it as a rank.
pub(super) fn rank(ranks: usize) -> Option<(Result<Bootstrap, String>, Pipes)> {
    let (rank, address) = (std::env::var(RANK).ok()?.parse().ok()?, std::env::var(PLACE).ok()?);
    let group = Token::new("faults").and_then(|token| {
        let meeting = Rendezvous::new(RendezvousAddress::Abstract(address), token, ranks, JOIN);
        if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) }
    });
    Some((group.map_err(|why| why.to_string()), Pipes))
}

/// Standard input and output.
pub(super) struct Pipes;

impl Control for Pipes {
    fn next(&mut self) -> Option<u64> {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).ok()?;
        line.trim().parse().ok()
    }

    fn report(&mut self, report: Report) {
        let mut output = std::io::stdout().lock();
        // The test may have ended.
        let _ = writeln!(output, "{MARK}{}", write(&report)).and_then(|()| output.flush());
    }
}

fn write(report: &Report) -> String {
    let line = |text: &str| text.replace('\n', " ");
    match report {
        Report::Ready(ranks) => format!("ready {ranks}"),
        Report::Stopping => "stopping".to_owned(),
        Report::Ended(took, outcome) => {
            let took_us = took.as_micros();
            match outcome {
                Outcome::Succeeded => format!("succeeded {took_us} "),
                Outcome::Failed(text) => format!("failed {took_us} {}", line(text)),
                Outcome::Lost(text) => format!("lost {took_us} {}", line(text)),
            }
        }
        Report::Broken(text) => format!("broken {}", line(text)),
    }
}

/// The report in a line of a rank's output.
pub(super) fn read(line: &str) -> Option<Report> {
    let (_, report) = line.split_once(MARK)?;
    let (kind, rest) = report.split_once(' ').unwrap_or((report, ""));
    let ended = |outcome: fn(String) -> Outcome| {
        let (took_us, text) = rest.split_once(' ')?;
        Some(Report::Ended(Duration::from_micros(took_us.parse().ok()?), outcome(text.to_owned())))
    };
    match kind {
        "ready" => rest.parse().ok().map(Report::Ready),
        "stopping" => Some(Report::Stopping),
        "succeeded" => ended(|_| Outcome::Succeeded),
        "failed" => ended(Outcome::Failed),
        "lost" => ended(Outcome::Lost),
        "broken" => Some(Report::Broken(rest.to_owned())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_round_trip() {
        let took = Duration::from_micros(1_234);
        for report in [
            Report::Ready(3),
            Report::Stopping,
            Report::Ended(took, Outcome::Succeeded),
            Report::Ended(took, Outcome::Failed("rank 2 has died: why".to_owned())),
            Report::Ended(took, Outcome::Lost("rank 2 died, and the context".to_owned())),
            Report::Broken("it panicked".to_owned()),
        ] {
            let line = format!("test a::b ... {MARK}{}", write(&report));
            assert_eq!(read(&line), Some(report));
        }
        assert_eq!(read("running 1 test"), None);
    }
}
