//! The reader takes any text: it never panics, what it keeps is bounded, and everything that explains a log takes what it read.

use proptest::collection::vec;
use proptest::prelude::*;
use weftlink_doctor::log;

use crate::{CALLS, INFINIBAND, MISSING_NVLINKS, RANK_MISSING, SOCKETS, TIMEOUT, WARNINGS, fabric_of};

fn explain(text: &str) {
    let read = log::read(text);
    assert!(read.lines <= text.lines().count());
    let kept = read.ranks.len()
        + read.processes.len()
        + read.warnings.len()
        + read.timeouts.len()
        + read.settings.len();
    assert!(kept <= 64 * read.lines.max(1), "{kept} of {} lines", read.lines);
    let fabric = fabric_of("2x-rtx4090");
    for fabric in [None, Some(&fabric)] {
        let summary = log::summary(&read, fabric);
        assert!(!summary.to_string().contains('\u{1b}'));
        let report = log::explain(&read, fabric);
        assert!(
            report.findings.iter().all(|finding| !finding.what.is_empty() && finding.evidence.len() <= 8)
        );
    }
}

/// Pieces that lines are made of.
const PIECES: [&str; 40] = [
    "a:1:2 [0] NCCL INFO ",
    "b:3:4 [1] init.cc:9 NCCL WARN ",
    "NCCL INFO",
    "NCCL WARN",
    "[0]",
    "::",
    ":1:1",
    "\u{1b}[31m",
    "\u{1b}[",
    "é",
    "Channel 00/02 : 0 1 2",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
    "Channel 99 : 4294967295[x] -> 0[-] [send] via NET/IB/0/GDRDMA",
    "Trees [0] 1/-1/-1->0->-1",
    "Trees [",
    "->",
    " -> ",
    "Ring 00 : 1 -> 0 -> 1",
    "comm 0x1 rank 0 nranks 4294967295 cudaDev 0 busId 1 - Init START",
    "comm 0x1 rank 3 nranks 2 cudaDev -1 - Init COMPLETE",
    "=== System : maxBw 1 totalBw 1 ===",
    "+ NVL[1e308] - NVS/0",
    "+ PCI[x] - GPU/0 (0)",
    "CPU/0",
    "=====",
    "GPU/0 :GPU/0 (0/1/LOC) GPU/1 (1/2/NVL)",
    "8 coll channels, 9 nvls channels",
    "NCCL_X set by environment to ",
    "NCCL_PROTO set to ;:^,",
    "Bootstrap : Using [0]lo:::1<0>",
    "NET/IB : Using {[0]} ; OOB",
    "GPU Direct RDMA Disabled for HCA 0 '",
    "AllReduce: opCount ffffffffffffffff comm 0x1 count 1",
    ": 18446744073709551615 Bytes -> Algo 99 proto x",
    "[Rank 4294967295] Watchdog SeqNum=18446744073709551615, OpType=",
    "[PG ID Rank 1] last enqueued NCCL work:",
    "Xid (PCI:0): 99999999",
    "NCCL version 2.",
    "\n",
    "\r\n",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_text(text in "(?s).{0,400}") {
        explain(&text);
    }

    #[test]
    fn pieces_in_any_order(pieces in vec(0..PIECES.len(), 0..60)) {
        let text: String = pieces.into_iter().map(|piece| PIECES[piece]).collect();
        explain(&text);
    }

    #[test]
    fn real_lines_that_are_cut(log in 0..7_usize, cuts in vec((0..20_000_usize, 0..200_usize), 0..8)) {
        let log = [SOCKETS, INFINIBAND, MISSING_NVLINKS, CALLS, RANK_MISSING, TIMEOUT, WARNINGS][log];
        let mut text = log.to_owned();
        for (at, length) in cuts {
            let at = at.min(text.len());
            let end = (at + length).min(text.len());
            if text.is_char_boundary(at) && text.is_char_boundary(end) {
                text.replace_range(at..end, "");
            }
        }
        explain(&text);
    }
}

#[test]
fn what_is_kept_is_bounded() {
    // A rank that claims billions of others, and lines without an end.
    let many: String = (0..2000).map(|at| format!("h{at}:1:1 [0] NCCL INFO comm 0x{at:x} rank {at} nranks 4294967295 cudaDev 0 busId 1 - Init START\n")).collect();
    let report = log::explain(&log::read(&many), None);
    assert!(report.findings.iter().all(|finding| finding.what.len() < 2000), "{:?}", report.findings.len());
    let long = format!("a:1:1 [0] init.cc:1 NCCL WARN {}\n", "x".repeat(1 << 20));
    assert!(log::read(&long).warnings[0].text.len() < 1000);
}
