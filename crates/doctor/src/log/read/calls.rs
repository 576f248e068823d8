//! Calls (`NCCL_DEBUG_SUBSYS=COLL`) and what the tuner chose for them (`TUNING`).

use super::Reader;
use super::words::{address, after, number_after};
use crate::log::line::{self, Message};
use crate::log::model::{Call, Choice};

/// Calls that are kept of a rank.
const CALLS_KEPT: usize = 64;
const CHOICES_MAX: usize = 4096;

/// The algorithms of NCCL 2.22 to 2.24, which print numbers.
const ALGORITHMS: [&str; 7] = ["Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"];
const PROTOCOLS: [&str; 3] = ["LL", "LL128", "Simple"];

impl Reader {
    /// Reads a line about a call.
    pub(super) fn calls(&mut self, process: usize, message: &Message<'_>) -> bool {
        let text = message.text.trim_start();
        if let Some(choice) = choice(text, message.number) {
            let Choice { call, bytes, algorithm, protocol, .. } = &choice;
            let key = (call.clone(), *bytes, algorithm.clone(), protocol.clone());
            if self.log.choices.len() < CHOICES_MAX && self.chosen.insert(key) {
                self.log.choices.push(choice);
            }
            return true;
        }
        let Some((name, rest)) = text.split_once(": opCount ") else { return false };
        let number = rest.split_whitespace().next().and_then(|word| u64::from_str_radix(word, 16).ok());
        let (Some(number), Some(address)) = (number, address(rest)) else { return false };
        let Some(rank) = self.addresses.get(&(process, address.to_owned())).copied() else { return true };
        // Ranks call different numbers of sends and receives.
        if !matches!(name, "Send" | "Recv") && name.len() < 40 {
            let rank = &mut self.log.ranks[rank];
            let call = Call {
                index: rank.calls,
                number,
                name: name.to_owned(),
                count: number_after(rest, "count").unwrap_or_default(),
                datatype: number_after(rest, "datatype").unwrap_or_default(),
                line: message.number,
            };
            rank.calls += 1;
            rank.last.push_back(call);
            if rank.last.len() > CALLS_KEPT {
                rank.last.pop_front();
            }
        }
        true
    }
}

/// `AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}`, before 2.25 `Algo 1 proto 2 time 45.3`.
fn choice(text: &str, line: usize) -> Option<Choice> {
    let (head, rest) = text.split_once(" Bytes -> ")?;
    let (call, bytes) = head.rsplit_once(": ").unwrap_or(("", head));
    let bytes = bytes.trim().parse().ok()?;
    let named = |word: &str, names: &[&str]| {
        let by_number = word.parse::<usize>().ok().and_then(|number| names.get(number));
        let by_name =
            names.iter().find(|name| name.replace('_', "").eq_ignore_ascii_case(&word.replace('_', "")));
        by_number.or(by_name).map_or_else(|| line::shortened(word, 40).to_owned(), |name| (*name).to_owned())
    };
    let (algorithm, protocol) = match after(rest, "Algo") {
        Some(algorithm) => (named(algorithm, &ALGORITHMS), named(after(rest, "proto")?, &PROTOCOLS)),
        // Symmetric kernels and copy engines have names of their own.
        None => {
            (line::shortened(after(rest, "Kernel").unwrap_or("CopyEngine"), 60).to_owned(), String::new())
        }
    };
    let call = call.split(" [").next().unwrap_or(call);
    Some(Choice { call: line::shortened(call, 40).to_owned(), bytes, algorithm, protocol, line })
}
