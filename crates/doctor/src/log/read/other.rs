//! Lines that are not of the library: versions, PyTorch's watchdog, exceptions, and errors of GPUs from the kernel's log.

use super::Reader;
use crate::log::line;
use crate::log::model::{Exception, Seen, Timeout, Version, Xid};

const VERSIONS_MAX: usize = 4096;
const TIMEOUTS_MAX: usize = 65_536;
const EXCEPTIONS_MAX: usize = 256;
const XIDS_MAX: usize = 4096;

/// The errors that exceptions name.
const ERRORS: [&str; 6] = [
    "ncclUnhandledCudaError",
    "ncclSystemError",
    "ncclInternalError",
    "ncclInvalidArgument",
    "ncclInvalidUsage",
    "ncclRemoteError",
];

impl Reader {
    /// Reads a line without a header of the library.
    pub(super) fn other(&mut self, number: usize, text: &str) {
        if text.contains("CCL version") && !text.trim_start().starts_with('#') {
            self.version(None, number, text);
        }
        if text.contains("watchdog") || text.contains("Watchdog") || text.contains("last enqueued NCCL work")
        {
            self.watchdog(number, text);
        } else if let Some((_, rest)) = text.split_once("Xid (") {
            self.xid(number, text, rest);
        }
        let exception = ERRORS.iter().find(|name| text.contains(&format!("{name}:")));
        if let Some(name) = exception.filter(|_| self.log.exceptions.len() < EXCEPTIONS_MAX) {
            self.log.exceptions.push(Exception { name, seen: Seen { line: number, text: line::kept(text) } });
        }
    }

    /// `NCCL version 2.21.5+cuda12.4`, `RCCL version : 2.21.5-HEAD:a29a210`.
    pub(super) fn version(&mut self, process: Option<usize>, number: usize, text: &str) -> bool {
        let Some((before, rest)) = text.split_once("CCL version") else { return false };
        let library = match before.chars().next_back() {
            Some('N') => "NCCL",
            Some('R') => "RCCL",
            _ => return false,
        };
        let rest = rest.trim_start_matches([' ', ':']);
        let end =
            rest.find(|letter: char| letter.is_whitespace() || ",;()".contains(letter)).unwrap_or(rest.len());
        let version = line::shortened(&rest[..end], 60);
        if !version.starts_with(|letter: char| letter.is_ascii_digit()) || !version.contains('.') {
            return false;
        }
        let seen = Seen { line: number, text: line::kept(text) };
        let is_known =
            |known: &Version| known.text == version && known.library == library && known.process == process;
        if self.log.versions.len() < VERSIONS_MAX && !self.log.versions.iter().any(is_known) {
            self.log.versions.push(Version { library, text: version.to_owned(), process, seen });
        }
        true
    }

    /// `[rank1]:[E...] [PG 3 Rank 1] ... at work: 808, last enqueued NCCL work: 811, last completed NCCL work: 807`, or the line before it,
    /// which names the operation.
    fn watchdog(&mut self, number: usize, text: &str) {
        let Some((group, own)) = bracketed_rank(text) else { return };
        let prefix = text.split_once("[rank").and_then(|(_, rest)| rest.split_once(']'));
        let rank = prefix.and_then(|(rank, _)| rank.parse().ok()).unwrap_or(own);
        let after = |name: &str| {
            let (_, rest) = text.split_once(name)?;
            let rest = rest.trim_start();
            let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
            rest[..end].parse::<u64>().ok()
        };
        let work = after("SeqNum=").or_else(|| after("at work:")).or_else(|| after("at NCCL work:"));
        let (enqueued, completed) = (after("last enqueued NCCL work:"), after("last completed NCCL work:"));
        if work.is_none() && enqueued.is_none() {
            return;
        }
        let Some(index) = self.timeout(rank, group, number, text) else { return };
        let timeout = &mut self.log.timeouts[index];
        // The watchdog may find several; the first is the one that the others wait for.
        timeout.work = [timeout.work, work].into_iter().flatten().min();
        let operation =
            text.split_once("OpType=").map(|(_, rest)| rest.split([',', ')']).next().unwrap_or(""));
        if let Some(operation) = operation.filter(|_| timeout.operation.is_empty() && timeout.work == work) {
            timeout.operation = line::shortened(operation, 40).to_owned();
            timeout.elements = after("NumelIn=");
        }
        timeout.enqueued = enqueued.or(timeout.enqueued);
        timeout.completed = completed.or(timeout.completed);
    }

    /// The timeout of a rank in a group. The first line does not name its group, so that the next one does it for both.
    fn timeout(&mut self, rank: u32, group: String, number: usize, text: &str) -> Option<usize> {
        if let Some(index) = self.timeouts.get(&(rank, group.clone())) {
            return Some(*index);
        }
        if let Some(index) = self.timeouts.remove(&(rank, String::new())).filter(|_| !group.is_empty()) {
            self.log.timeouts[index].group.clone_from(&group);
            self.timeouts.insert((rank, group), index);
            return Some(index);
        }
        if self.log.timeouts.len() == TIMEOUTS_MAX {
            self.leave_out("timeouts");
            return None;
        }
        let seen = Seen { line: number, text: line::kept(text) };
        self.log.timeouts.push(Timeout { rank, group: group.clone(), seen, ..Timeout::default() });
        self.timeouts.insert((rank, group), self.log.timeouts.len() - 1);
        Some(self.log.timeouts.len() - 1)
    }

    /// `NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.`
    fn xid(&mut self, number: usize, text: &str, rest: &str) {
        let Some((bus, rest)) = rest.split_once(')') else { return };
        let digits: String =
            rest.trim_start_matches([':', ' ']).chars().take_while(char::is_ascii_digit).take(6).collect();
        let Ok(code) = digits.parse() else { return };
        if self.log.xids.len() < XIDS_MAX {
            let bus = line::shortened(bus.trim_start_matches("PCI:"), 40).to_owned();
            self.log.xids.push(Xid { code, bus, seen: Seen { line: number, text: line::kept(text) } });
        }
    }
}

/// The group and rank of `[Rank 3]`, `[PG 1 Rank 3]` or `[PG ID 0 PG GUID 0(default_pg) Rank 3]`.
fn bracketed_rank(text: &str) -> Option<(String, u32)> {
    let (before, rest) = text.split_once("Rank ")?;
    let (rank, _) = rest.split_once(']')?;
    let rank = rank.trim().parse().ok()?;
    let (_, group) = before.rsplit_once('[')?;
    let group = group.trim();
    let short = match group.split_once("PG GUID ") {
        Some((_, name)) => name,
        None => group.strip_prefix("PG ").unwrap_or(group),
    };
    Some((line::shortened(short.trim(), 60).to_owned(), rank))
}
