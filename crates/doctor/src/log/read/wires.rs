//! Rings, trees and connections.

use super::Reader;
use super::words::{address, leading_number, number_after, tree_rank};
use crate::log::line::Message;
use crate::log::model::{Edge, Stage, Transport, TransportKind, TreePlace};

const EDGES_MAX: usize = 2_000_000;
/// NCCL has at most 64 channels; RCCL 128.
const CHANNELS_MAX: u32 = 128;
/// Ranks in a line.
const RANKS_IN_LINE_MAX: usize = 4096;

impl Reader {
    /// Reads a line about rings, trees or connections.
    pub(super) fn wires(&mut self, process: usize, message: &Message<'_>) -> bool {
        let text = message.text.trim_start();
        if let Some(edge) = edge(message) {
            if let Some(rank) = self.rank(process, message, false) {
                self.connect(process, rank, edge, message);
            }
        } else if let Some((channel, ring)) = order(text) {
            if let Some(rank) = self.rank(process, message, true) {
                self.log.ranks[rank].orders.insert(channel, ring);
                self.reach(rank, Stage::Graphs, message);
            }
        } else if let Some((channel, own, place)) = neighbours(text) {
            if let Some(rank) = self.rank(process, message, true) {
                self.number(rank, own);
                self.log.ranks[rank].rings.insert(channel, place);
                self.reach(rank, Stage::Graphs, message);
            }
        } else if let Some(rest) = text.strip_prefix("Trees ") {
            if let Some(rank) = self.rank(process, message, true) {
                self.trees(rank, rest);
                self.reach(rank, Stage::Graphs, message);
            }
        } else if text.starts_with("Connected all rings") || text.starts_with("Connected all trees") {
            if let Some(rank) = self.rank(process, message, false) {
                let is_ring = text.starts_with("Connected all rings");
                self.with_rings.extend(is_ring.then_some(rank));
                self.reach(rank, if is_ring { Stage::Rings } else { Stage::Trees }, message);
            }
        } else {
            return false;
        }
        true
    }

    /// Notes the number of a rank that the lines before its last one imply.
    fn number(&mut self, rank: usize, number: u32) {
        self.log.ranks[rank].rank.get_or_insert(number);
    }

    fn connect(&mut self, process: usize, rank: usize, mut edge: Edge, message: &Message<'_>) {
        self.number(rank, if message.text.contains(" [receive] via ") { edge.target } else { edge.source });
        // RCCL names the communicator in this line, too.
        if let Some(address) = address(message.text) {
            let state = &mut self.log.ranks[rank];
            state.of = state.of.or(number_after(message.text, "nRanks"));
            if state.address.is_none() {
                state.address = Some(address.to_owned());
                self.addresses.insert((process, address.to_owned()), rank);
            }
        }
        self.reach(rank, Stage::Connecting, message);
        if self.connected.len() == EDGES_MAX {
            self.leave_out("connections");
            return;
        }
        if !self.connected.insert((rank, edge.channel, edge.source, edge.target)) {
            return;
        }
        edge.is_ring &= !self.with_rings.contains(&rank);
        self.log.ranks[rank].edges.push(edge);
    }

    /// `[0] 1/-1/-1->0->-1 [1] 2/4/-1->0->1`: children, the rank itself, and its parent.
    fn trees(&mut self, rank: usize, text: &str) {
        let mut channel = None;
        for word in text.split_whitespace() {
            if let Some(number) = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')) {
                channel = number.parse().ok().filter(|number| *number < CHANNELS_MAX);
                continue;
            }
            // 2.7 prints a second tree, for the other direction.
            let first = word.split('|').next().unwrap_or("");
            let parts: Vec<&str> = first.split("->").collect();
            let (Some(channel), [down, own, up]) = (channel.take(), &parts[..]) else { continue };
            let (Some(Some(own)), Some(up)) = (tree_rank(own), tree_rank(up)) else { continue };
            let down = down.split('/').filter_map(tree_rank).flatten().collect();
            self.number(rank, own);
            self.log.ranks[rank].trees.insert(channel, TreePlace { up, down });
        }
    }
}

/// `Channel 00/0 : 3[3] -> 4[4] [send] via NET/IB/0/GDRDMA`; before 2.8 `Ring 00 : ...`.
fn edge(message: &Message<'_>) -> Option<Edge> {
    let (head, via) = message.text.split_once(" via ")?;
    let (name, ends) = head.trim_start().split_once(" : ")?;
    let (kind, channel) = name.split_once(' ')?;
    // The second connection of a channel is that of sends and receives.
    let is_ring = !channel.trim().ends_with("/1");
    let channel = leading_number(channel.trim()).filter(|channel| *channel < CHANNELS_MAX)?;
    let (source, target) = match kind {
        "Channel" | "Ring" | "Tree" => {
            let (source, target) = ends.split_once(" -> ")?;
            (leading_number(source.trim())?, leading_number(target.trim())?)
        }
        "CollNet" | "Coll" => {
            let rank = leading_number(ends.trim())?;
            (rank, rank)
        }
        _ => return None,
    };
    let transport = transport(via.split(" comm ").next().unwrap_or(via).trim())?;
    Some(Edge { channel, source, target, transport, is_ring, line: message.number })
}

/// `P2P/CUMEM/read`, `SHM/direct/direct`, `NET/AWS Libfabric/0/GDRDMA`.
fn transport(text: &str) -> Option<Transport> {
    let text = super::line::shortened(text, 80);
    let (first, rest) = text.split_once('/').unwrap_or((text, ""));
    let name = || rest.split('/').next().unwrap_or("").to_owned();
    let kind = match first {
        "P2P" => TransportKind::Peer,
        "SHM" => TransportKind::SharedMemory,
        "NET" => TransportKind::Network(name()),
        "COLLNET" => TransportKind::CollNet(name()),
        _ if text.starts_with("direct shared memory") => TransportKind::SharedMemory,
        _ => return None,
    };
    Some(Transport { kind, text: text.to_owned(), gpudirect: text.contains("/GDRDMA") })
}

/// `Channel 00/24 :    0   1   2   3`, if the line has room for all ranks.
fn order(text: &str) -> Option<(u32, Vec<u32>)> {
    let (channel, ranks) = text.strip_prefix("Channel ")?.split_once(':')?;
    let (channel, _) = channel.split_once('/')?;
    let channel = channel.trim().parse().ok().filter(|channel| *channel < CHANNELS_MAX)?;
    let words = ranks.split(" comm ").next().unwrap_or("").split_whitespace();
    let ranks: Vec<u32> = words.take(RANKS_IN_LINE_MAX).map_while(|word| word.parse().ok()).collect();
    (!ranks.is_empty()).then_some((channel, ranks))
}

/// `Ring 00 : 7 -> 0 -> 1`: the channel, the rank itself, and its neighbours.
fn neighbours(text: &str) -> Option<(u32, u32, (u32, u32))> {
    let (channel, ranks) = text.strip_prefix("Ring ")?.split_once(" : ")?;
    let channel = channel.trim().parse().ok().filter(|channel| *channel < CHANNELS_MAX)?;
    let ranks = ranks.split(" comm ").next().unwrap_or("");
    let mut ranks = ranks.split(" -> ").map(|rank| rank.trim().parse::<u32>().ok());
    let (previous, own, next) = (ranks.next()??, ranks.next()??, ranks.next()??);
    Some((channel, own, (previous, next)))
}
