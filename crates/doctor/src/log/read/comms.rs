//! Communicators: `comm 0x55d0 rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId 9b000 commId 0x1f - Init COMPLETE`.

use super::words::{address, after, number_after};
use super::{Reader, seen};
use crate::log::line::Message;
use crate::log::model::{Channels, Stage};

impl Reader {
    /// Reads a line about a communicator.
    pub(super) fn comms(&mut self, process: usize, message: &Message<'_>) -> bool {
        let text = message.text;
        if let Some(channels) = channels(text) {
            let Some(rank) = self.rank(process, message, false) else { return true };
            self.log.ranks[rank].channels = Some((channels, seen(message)));
            return true;
        }
        if text.trim_start().starts_with("Setting affinity") {
            if let Some(rank) = self.rank(process, message, true) {
                self.reach(rank, Stage::Topology, message);
            }
            return true;
        }
        let Some(address) = address(text) else { return false };
        if after(text, "rank").is_none() {
            return false;
        }
        let stage = if text.contains("- Init START") {
            Stage::Started
        } else if text.contains("- Init COMPLETE") {
            Stage::Complete
        } else if text.contains("- Destroy COMPLETE") {
            Stage::Destroyed
        } else if text.contains("- Abort") || text.contains("- Revoke") {
            Stage::Aborted
        } else if after(text, "nNodes").is_some() {
            Stage::Topology
        } else {
            return false;
        };
        let Some(rank) = self.rank_at(process, address, stage, message) else { return true };
        self.describe(rank, address, text);
        self.reach(rank, stage, message);
        true
    }

    /// The rank at an address. Memory is used again, so that a communicator that begins is a new one.
    fn rank_at(
        &mut self,
        process: usize,
        address: &str,
        stage: Stage,
        message: &Message<'_>,
    ) -> Option<usize> {
        let key = (process, address.to_owned());
        let known = self.addresses.get(&key).copied();
        let is_open = |rank: usize, reader: &Self| reader.log.ranks[rank].stage < Stage::Complete;
        let found = match stage {
            Stage::Started => None,
            Stage::Destroyed | Stage::Aborted => known,
            _ => known.filter(|rank| is_open(*rank, self)).or_else(|| {
                let of_thread = self.threads.get(&(process, message.tid)).copied();
                of_thread.filter(|rank| is_open(*rank, self) && self.log.ranks[*rank].address.is_none())
            }),
        };
        let rank = match found {
            Some(rank) => rank,
            None => self.new_rank(process, message)?,
        };
        self.addresses.insert(key, rank);
        Some(rank)
    }

    /// Adds what a line says about a rank.
    fn describe(&mut self, rank: usize, address: &str, text: &str) {
        let rank = &mut self.log.ranks[rank];
        rank.address = Some(address.to_owned());
        rank.rank = number_after(text, "rank").or(rank.rank);
        rank.of = number_after(text, "nranks").or_else(|| number_after(text, "nRanks")).or(rank.of);
        rank.device = number_after(text, "cudaDev").or(rank.device);
        rank.nvml = number_after(text, "nvmlDev").or(rank.nvml);
        rank.nodes = number_after(text, "nNodes").or(rank.nodes);
        let short = |word: &str| super::line::shortened(word, 40).to_owned();
        rank.bus = after(text, "busId").map(short).or(rank.bus.take());
        // 2.23 does not count the splits of a communicator.
        let count = after(text, "splitCount").or_else(|| after(text, "childCount")).unwrap_or("");
        let split =
            after(text, "color").map(|color| format!("split {} color {}", short(count), short(color)));
        rank.id = after(text, "commId").map(short).or(split).or(rank.id.take());
    }
}

/// `24 coll channels, 0 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer`.
fn channels(text: &str) -> Option<Channels> {
    if !text.contains(" coll channels,") {
        return None;
    }
    let mut channels = Channels::default();
    for part in text.split(',') {
        let mut words = part.split_whitespace();
        let Some(count) = words.next().and_then(|word| word.parse().ok()) else { continue };
        match words.next() {
            Some("coll") => channels.collectives = count,
            Some("collnet") => channels.collnet = count,
            Some("nvls") => channels.nvls = count,
            Some("p2p") if !part.contains("per peer") => channels.point_to_point = count,
            _ => {}
        }
    }
    Some(channels)
}
