//! A group as its kernel takes it: the messages by peer and direction, each in order, and the copies of a rank to itself. Knows no driver.

use super::records::{MessageRecord, Pair, RECORD_BYTES, TABLE_RECORDS_MAX};
use super::{Message, MessageLayout};

/// Threads of the largest block.
pub(super) const THREADS_MAX: usize = 512;
/// The bytes that a thread copies at a time.
const THREAD_BYTES: usize = 64;
const WARP: usize = 32;
/// Channels of all peers and directions.
pub(super) const QUEUES_MAX: usize = 256;

/// A group of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Sends and receives of the rank itself.
    pub(crate) copies: Vec<[Message; 2]>,
    pairs: Vec<Pair>,
    messages: Vec<MessageRecord>,
    /// Channels that have chunks, of all pairs.
    queues: usize,
    /// Of the pair that has most.
    pub(crate) channels_used: usize,
    /// The longest chunk.
    chunk_bytes: usize,
}

impl Group {
    /// The group of a rank, or why it has none.
    pub(crate) fn new(
        layout: MessageLayout,
        rank: usize,
        sends: &[Message],
        receives: &[Message],
    ) -> Result<Group, String> {
        for message in sends.iter().chain(receives) {
            check(layout, message)?;
        }
        let copies = copies_of(rank, sends, receives)?;
        let mut group = Group {
            copies,
            pairs: Vec::new(),
            messages: Vec::new(),
            queues: 0,
            channels_used: 0,
            chunk_bytes: 0,
        };
        // Peers begin with different ones, so that not all send to the same rank first.
        for peer in (1..layout.ranks).map(|step| (rank + step) % layout.ranks) {
            group.add(layout, peer, false, sends);
            group.add(layout, peer, true, receives);
        }
        // A block has room for as many.
        if group.pairs.len() * group.channels_used > QUEUES_MAX {
            return Err(format!("it has messages with more than {} peers; divide it", QUEUES_MAX / 2));
        }
        let (records, most) = (group.records(), layout.records_max());
        if records > most {
            return Err(format!("it has {records} messages and peers, of at most {most}; divide it"));
        }
        Ok(group)
    }

    fn add(&mut self, layout: MessageLayout, peer: usize, receives: bool, messages: &[Message]) {
        let first = self.messages.len();
        let of_peer = messages.iter().filter(|message| message.peer == peer);
        self.messages.extend(
            of_peer.map(|message| MessageRecord { address: message.address, bytes: message.bytes as u64 }),
        );
        let Some(longest) = self.messages[first..].iter().map(|message| message.bytes as usize).max() else {
            return;
        };
        let channels = longest.div_ceil(layout.slot_bytes).clamp(1, layout.channels);
        self.queues += channels;
        self.channels_used = self.channels_used.max(channels);
        self.chunk_bytes = self.chunk_bytes.max(longest.min(layout.slot_bytes));
        let count = self.messages.len() - first;
        self.pairs.push(Pair {
            peer: peer as u32,
            receives: u32::from(receives),
            first: first as u32,
            count: count as u32,
        });
    }

    /// Peers and directions.
    pub(crate) fn pairs(&self) -> usize {
        self.pairs.len()
    }

    fn records(&self) -> usize {
        self.pairs.len() + self.messages.len()
    }

    /// Whether the table is too long for the parameters of a kernel.
    pub(crate) fn is_long(&self) -> bool {
        self.records() > TABLE_RECORDS_MAX
    }

    /// The table.
    pub(crate) fn table(&self) -> Vec<u8> {
        let table = [bytemuck::cast_slice(&self.pairs), bytemuck::cast_slice(&self.messages)].concat();
        debug_assert_eq!(table.len(), self.records() * RECORD_BYTES);
        table
    }

    /// The blocks of its kernel, of at most these, and their threads.
    pub(crate) fn spread(&self, blocks_max: usize) -> [u32; 2] {
        let threads = self.chunk_bytes.div_ceil(THREAD_BYTES).next_multiple_of(WARP);
        [self.queues.clamp(1, blocks_max.max(1)) as u32, threads.clamp(WARP, THREADS_MAX) as u32]
    }
}

fn check(layout: MessageLayout, message: &Message) -> Result<(), String> {
    let Message { peer, address, bytes } = *message;
    if peer >= layout.ranks {
        return Err(format!("a message is for rank {peer}, and there are {} ranks", layout.ranks));
    }
    let is_nowhere = bytes > 0 && address == 0;
    if is_nowhere || address.checked_add(bytes as u64).is_none() {
        return Err(format!("{bytes} bytes at address {address:#x} are no memory of a GPU"));
    }
    Ok(())
}

/// The sends of a rank to itself with their receives.
fn copies_of(rank: usize, sends: &[Message], receives: &[Message]) -> Result<Vec<[Message; 2]>, String> {
    let [sent, received] = [sends, receives].map(|messages| {
        messages.iter().filter(|message| message.peer == rank).copied().collect::<Vec<Message>>()
    });
    if sent.len() != received.len() {
        let (sent, received) = (sent.len(), received.len());
        return Err(format!(
            "rank {rank} sends {sent} messages to itself and receives {received}; both belong in one group"
        ));
    }
    let copies: Vec<[Message; 2]> =
        std::iter::zip(sent, received).map(|(sent, received)| [sent, received]).collect();
    match copies.iter().find(|[sent, received]| sent.bytes != received.bytes) {
        Some([sent, received]) => Err(format!(
            "rank {rank} sends {} bytes to itself, and receives {} bytes",
            sent.bytes, received.bytes
        )),
        None => Ok(copies),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const LAYOUT: MessageLayout = MessageLayout { ranks: 4, channels: 8, slots: 4, slot_bytes: 1024 };

    fn message(peer: usize, address: u64, bytes: usize) -> Message {
        Message { peer, address, bytes }
    }

    #[test]
    fn messages_of_a_peer_stay_in_order() {
        let sends = [message(3, 100, 10), message(0, 200, 3000), message(3, 300, 0), message(1, 400, 5)];
        let receives = [message(0, 500, 7), message(1, 600, 5)];
        let group = Group::new(LAYOUT, 1, &sends, &receives).unwrap();
        let pair = |peer, receives, first, count| Pair { peer, receives, first, count };
        assert_eq!(group.pairs, [pair(3, 0, 0, 2), pair(0, 0, 2, 1), pair(0, 1, 3, 1)]);
        let addresses: Vec<u64> = group.messages.iter().map(|message| message.address).collect();
        assert_eq!(addresses, [100, 300, 200, 500]);
        assert_eq!(group.copies, [[sends[3], receives[1]]]);
        assert_eq!((group.channels_used, group.queues, group.is_long()), (3, 5, false));
        assert_eq!(group.table().len(), 7 * RECORD_BYTES);
        // A block for each queue, if there are as many.
        assert_eq!([8, 2, 0].map(|blocks| group.spread(blocks)), [[5, 32], [2, 32], [1, 32]]);
    }

    #[test]
    fn threads_follow_the_longest_chunk() {
        for (bytes, threads) in [(0, 32), (8, 32), (2048, 32), (2049, 64), (40_000, 512), (1 << 30, 512)] {
            let layout = MessageLayout { slot_bytes: 32 << 10, ..LAYOUT };
            let group = Group::new(layout, 0, &[message(1, 16, bytes)], &[]).unwrap();
            assert_eq!(group.spread(100)[1], threads, "{bytes} bytes");
        }
    }

    #[test]
    fn long_tables_are_divided_and_longer_ones_refused() {
        let many = |count: usize| vec![message(1, 16, 1); count];
        let group = |count| Group::new(LAYOUT, 0, &many(count), &[]);
        assert!(!group(TABLE_RECORDS_MAX - 1).unwrap().is_long());
        assert!(group(TABLE_RECORDS_MAX).unwrap().is_long());
        let most = LAYOUT.records_max();
        assert!(group(most - 1).is_ok());
        assert!(group(most).unwrap_err().contains("divide it"));
        let layout = MessageLayout::new(300);
        let to_all = |ranks: usize| (1..ranks).map(|peer| message(peer, 16, 1)).collect::<Vec<Message>>();
        let exchange = |ranks| Group::new(layout, 0, &to_all(ranks), &to_all(ranks));
        assert!(exchange(129).is_ok());
        assert!(exchange(130).unwrap_err().contains("more than 128 peers"));
    }

    #[test]
    fn wrong_messages_are_refused() {
        let refused = |sends: &[Message], receives: &[Message], text: &str| {
            let why = Group::new(LAYOUT, 2, sends, receives).unwrap_err();
            assert!(why.contains(text), "{why}");
        };
        refused(&[message(4, 16, 1)], &[], "for rank 4, and there are 4 ranks");
        refused(&[], &[message(1, 0, 1)], "1 bytes at address 0x0");
        refused(&[], &[message(1, u64::MAX, 2)], "no memory of a GPU");
        refused(&[message(2, 16, 1)], &[], "sends 1 messages to itself and receives 0");
        refused(&[message(2, 16, 1)], &[message(2, 32, 2)], "sends 1 bytes to itself, and receives 2 bytes");
        // Nothing at all is a group, too.
        let empty = Group::new(LAYOUT, 2, &[], &[]).unwrap();
        assert_eq!((empty.pairs(), empty.copies.len()), (0, 0));
    }
}
