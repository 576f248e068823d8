//! The end of a log: ranks become communicators.

use std::collections::BTreeMap;

use super::Reader;
use crate::log::model::{Communicator, Log, Rank};

/// What ranks of one communicator have in common: its id and size, and the how-many-eth of them where several are alike.
type Key = (Option<String>, u32, usize);

impl Reader {
    pub(super) fn finish(mut self) -> Log {
        for dump in std::mem::take(&mut self.dumps).into_values() {
            self.keep_topology(dump);
        }
        let of_ring = self.log.ranks.iter().filter(|rank| rank.id.is_none()).filter_map(ring_size).max();
        let mut alike: BTreeMap<(Option<String>, u32, u32), usize> = BTreeMap::new();
        let mut groups: BTreeMap<Key, usize> = BTreeMap::new();
        for (index, rank) in self.log.ranks.iter_mut().enumerate() {
            let Some((number, size)) = rank.rank.zip(size(rank, of_ring)) else { continue };
            let before = alike.entry((rank.id.clone(), size, number)).or_default();
            let key = (rank.id.clone(), size, *before);
            *before += 1;
            let group = *groups.entry(key).or_insert_with(|| {
                let id = rank.id.clone();
                self.log.communicators.push(Communicator { id, size, ranks: Vec::new() });
                self.log.communicators.len() - 1
            });
            rank.communicator = Some(group);
            self.log.communicators[group].ranks.push(index);
        }
        for communicator in &mut self.log.communicators {
            let ranks = &self.log.ranks;
            communicator.ranks.sort_by_key(|index| ranks[*index].rank);
        }
        let limit = |(what, count): (&str, usize)| match what {
            "lines" => "the log is longer than what is read; split it".to_owned(),
            what => format!("{count} further {what} were left out"),
        };
        self.log.notes = std::mem::take(&mut self.left_out).into_iter().map(limit).collect();
        self.log
    }
}

/// The size of a rank's communicator. Before 2.18, of one that did not finish, the rings say it that rank 0 prints.
fn size(rank: &Rank, of_ring: Option<u32>) -> Option<u32> {
    let of_log =
        || of_ring.filter(|size| rank.id.is_none() && rank.rank.is_some_and(|number| number < *size));
    rank.of.or_else(|| ring_size(rank)).or_else(of_log)
}

fn ring_size(rank: &Rank) -> Option<u32> {
    rank.orders.values().map(Vec::len).max().and_then(|count| u32::try_from(count).ok())
}
