//! Groups of messages, known only to their senders and receivers, as one call: `ncclGroupStart`, `ncclSend` and `ncclRecv`.
//!
//! A plan's messages are known to all ranks. So a group begins with an all-gather of 128 bytes per rank: one word for each of a rank's
//! first 15 messages; if a rank has more, a second all-gather has the rest. Every rank then matches the n-th message from one
//! rank to another with the n-th that the other receives from it. If that fails, all ranks return the same error, no data has moved, and
//! the communicator stays usable. Otherwise one send-receive moves all messages, merged into one per pair of ranks.
//!
//! The cost is the all-gather before every group. A rank that sends several messages packs them first; one that receives several
//! unpacks them. The first group of a pattern, a set of pairs of ranks, loads a plan; after [`PATTERNS_MAX`] patterns, groups of new
//! patterns run as an all-to-all, which has one plan for all.

use std::collections::BTreeMap;

use weftlink_plan::{Collective, DataType};
use weftlink_recorder::header::GROUP;

use super::Communicator;
use crate::buffers::Buffers;
use crate::data::{Data, data_type_of};
use crate::error::Error;
use crate::request::CallArgs;

/// The number of patterns that have a plan of their own.
const PATTERNS_MAX: usize = 64;
/// The number of pairs of ranks in such a plan. A group with more runs as an all-to-all.
const PAIRS_MAX: usize = 1 << 9;
/// The words of a rank in the first all-gather: the number of messages, then the first of them.
const WORDS: usize = 16;
/// The number of messages that a rank may have in a group.
const MESSAGES_MAX: usize = 1 << 16;

const BYTES_BITS: u32 = 42;
const TYPE_BITS: u32 = 5;
const RANK_BITS: u32 = 16;
const _: () =
    assert!(BYTES_BITS + TYPE_BITS + RANK_BITS + 1 == u64::BITS && DataType::ALL.len() < 1 << TYPE_BITS);

/// The messages of a rank in one group. See [`Communicator::group`].
#[derive(Debug, Default)]
pub struct Group<'a> {
    rank: usize,
    sends: Vec<(usize, &'a [u8])>,
    receives: Vec<(usize, &'a mut [u8])>,
    entries: Vec<Entry>,
}

impl<'a> Group<'a> {
    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Sends elements to a rank, which may be this one.
    pub fn send<T: Data>(&mut self, to: usize, elements: &'a [T]) -> Result<(), Error> {
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        self.add(Entry { sends: true, peer: to, data_type: data_type_of::<T>(), bytes: bytes.len() })?;
        self.sends.push((to, bytes));
        Ok(())
    }

    /// Receives elements from a rank: the next ones that it sends to this rank in the same group.
    pub fn receive<T: Data>(&mut self, from: usize, elements: &'a mut [T]) -> Result<(), Error> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(elements);
        self.add(Entry { sends: false, peer: from, data_type: data_type_of::<T>(), bytes: bytes.len() })?;
        self.receives.push((from, bytes));
        Ok(())
    }

    fn add(&mut self, entry: Entry) -> Result<(), Error> {
        if self.entries.len() == MESSAGES_MAX {
            return Err(Error::Misuse(format!("a rank has at most {MESSAGES_MAX} messages in a group")));
        }
        if entry.bytes >> BYTES_BITS != 0 {
            return Err(Error::Misuse(format!("a message of {} bytes is too long for a group", entry.bytes)));
        }
        self.entries.push(entry);
        Ok(())
    }
}

/// A message as one of its two ranks lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    sends: bool,
    peer: usize,
    /// `None` for types that reductions do not know.
    data_type: Option<DataType>,
    bytes: usize,
}

impl Entry {
    fn pack(self) -> u64 {
        // No rank has the last number, so a rank that does not fit is refused as one that does not exist.
        let peer = (self.peer as u64).min((1 << RANK_BITS) - 1);
        let data_type = self.data_type.map_or(0, |data_type| data_type as u64 + 1);
        u64::from(self.sends) << 63
            | peer << (BYTES_BITS + TYPE_BITS)
            | data_type << BYTES_BITS
            | self.bytes as u64
    }

    fn unpack(word: u64) -> Self {
        let peer = (word >> (BYTES_BITS + TYPE_BITS)) as usize & ((1 << RANK_BITS) - 1);
        let data_type = (word >> BYTES_BITS) as usize & ((1 << TYPE_BITS) - 1);
        Entry {
            sends: word >> 63 == 1,
            peer,
            data_type: DataType::ALL.get(data_type.wrapping_sub(1)).copied(),
            bytes: (word & ((1 << BYTES_BITS) - 1)) as usize,
        }
    }

    /// Its length and type, as text.
    fn elements(&self) -> String {
        match self.data_type {
            Some(data_type) => format!("{} {}", self.bytes / data_type.bytes(), data_type.name()),
            None => format!("{} bytes", self.bytes),
        }
    }
}

/// Bytes that go from a rank to another, all messages together.
type Pairs = BTreeMap<(usize, usize), usize>;

impl Communicator {
    /// Sends and receives messages as one group, so that both sides may send first. All ranks call it; a rank without messages lists none.
    /// The n-th message that a rank sends to another must have the length and type of the n-th that the other receives from it. If
    /// messages do not match, all ranks get the same error, no data is moved, and the communicator stays usable. A rank whose closure
    /// fails does not take part, and the others wait for it.
    ///
    /// ```
    /// let got = weftlink_comm::on_threads(3, |mut comm| {
    ///     let (mine, mut theirs) = ([comm.rank() as u32; 2], [9_u32; 2]);
    ///     comm.group(|group| match group.rank() {
    ///         0 => group.send(2, &mine),
    ///         2 => group.receive(0, &mut theirs),
    ///         _ => Ok(()),
    ///     })?;
    ///     Ok(theirs)
    /// })?;
    /// assert_eq!(got, [[9, 9], [9, 9], [0, 0]]);
    /// # Ok::<(), weftlink_comm::Error>(())
    /// ```
    pub fn group<'a, R>(
        &mut self,
        list: impl FnOnce(&mut Group<'a>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.usable()?;
        let mut group = Group { rank: self.rank, ..Group::default() };
        let listed = list(&mut group)?;
        let entries = self.gather_entries(&group.entries)?;
        let pairs = matched(&entries).map_err(Error::Misuse)?;
        if !pairs.is_empty() {
            self.exchange(group, &pairs)?;
        }
        Ok(listed)
    }

    /// The messages of all ranks, by rank.
    fn gather_entries(&mut self, mine: &[Entry]) -> Result<Vec<Vec<Entry>>, Error> {
        let mut words = vec![0; WORDS * self.size];
        let own = &mut words[WORDS * self.rank..][..WORDS];
        own[0] = mine.len() as u64;
        own[1..].iter_mut().zip(mine).for_each(|(word, entry)| *word = entry.pack());
        self.call(CallArgs { tag: GROUP, ..CallArgs::new(&Collective::AllGather, &mut words[..]) })?;
        let blocks = words.chunks_exact(WORDS);
        let counts: Vec<usize> = blocks.clone().map(|block| block[0] as usize).collect();
        let mut entries: Vec<Vec<Entry>> = blocks
            .zip(&counts)
            .map(|(block, count)| block[1..].iter().take(*count).map(|word| Entry::unpack(*word)).collect())
            .collect();
        let more: Vec<usize> = counts.iter().map(|count| count.saturating_sub(WORDS - 1)).collect();
        if more.iter().any(|count| *count > 0) {
            let mine: Vec<u64> = mine.iter().skip(WORDS - 1).map(|entry| entry.pack()).collect();
            let mut all = vec![0; more.iter().sum()];
            self.all_gather_v((&mine[..], &mut all[..]), &more)?;
            let mut all = all.into_iter().map(Entry::unpack);
            for (entries, count) in entries.iter_mut().zip(more) {
                entries.extend(all.by_ref().take(count));
            }
        }
        Ok(entries)
    }

    /// Moves the messages, which match.
    fn exchange(&mut self, group: Group<'_>, pairs: &Pairs) -> Result<(), Error> {
        let rank = self.rank;
        let Group { mut sends, mut receives, .. } = group;
        // Stable sorts: messages between two ranks keep their order.
        sends.sort_by_key(|(to, _)| *to);
        receives.sort_by_key(|(from, _)| *from);
        let packed: Vec<u8>;
        let input: &[u8] = match &sends[..] {
            [(_, one)] => one,
            several => {
                packed = several.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
                &packed
            }
        };
        let mut unpacked = Vec::new();
        let received: usize = receives.iter().map(|(_, bytes)| bytes.len()).sum();
        let output: &mut [u8] = match &mut receives[..] {
            [(_, one)] => one,
            _ => {
                unpacked.resize(received, 0);
                &mut unpacked
            }
        };
        self.move_between(pairs, (input, output).into(), rank)?;
        if receives.len() > 1 {
            let mut rest = &unpacked[..];
            for (_, target) in receives {
                let (bytes, others) = rest.split_at(target.len());
                target.copy_from_slice(bytes);
                rest = others;
            }
        }
        Ok(())
    }

    fn move_between(&mut self, pairs: &Pairs, buffers: Buffers<'_>, rank: usize) -> Result<(), Error> {
        let messages: Vec<(u32, u32)> = pairs.keys().map(|&(from, to)| (from as u32, to as u32)).collect();
        let of = |side: fn(&(usize, usize)) -> usize| {
            let mine = pairs.iter().filter(move |(pair, _)| side(pair) == rank);
            mine.map(|(_, bytes)| *bytes).collect::<Vec<_>>()
        };
        // All ranks know all lengths, so the call does not compare them again.
        let longest = pairs.values().max().copied();
        let known = self.patterns.contains(&messages);
        if !known && (self.patterns.len() == PATTERNS_MAX || messages.len() > PAIRS_MAX) {
            let between = |from, to| pairs.get(&(from, to)).copied().unwrap_or(0);
            let sent: Vec<usize> = (0..self.size).map(|to| between(rank, to)).collect();
            let received: Vec<usize> = (0..self.size).map(|from| between(from, rank)).collect();
            let request = CallArgs::new(&Collective::AllToAll, buffers);
            return self.call(CallArgs {
                counts: Some((&sent, &received)),
                count: longest,
                tag: GROUP,
                ..request
            });
        }
        if !known {
            self.patterns.push(messages.clone());
        }
        let collective = Collective::SendReceive { messages };
        let mut lengths = pairs.values();
        let first = lengths.next().copied();
        let request = CallArgs::new(&collective, buffers);
        if lengths.all(|bytes| Some(*bytes) == first) {
            self.call(CallArgs { count: first, ..request })
        } else {
            let (sent, received) = (of(|pair| pair.0), of(|pair| pair.1));
            self.call(CallArgs { counts: Some((&sent, &received)), count: longest, tag: GROUP, ..request })
        }
    }
}

/// The bytes between each pair of ranks, or the first mismatch, the same on all ranks.
fn matched(entries: &[Vec<Entry>]) -> Result<Pairs, String> {
    let size = entries.len();
    let mut between: BTreeMap<(usize, usize), [Vec<Entry>; 2]> = BTreeMap::new();
    for (rank, messages) in entries.iter().enumerate() {
        for &entry @ Entry { sends, peer, .. } in messages {
            let (pair, side) = if sends { ((rank, peer), 0) } else { ((peer, rank), 1) };
            if peer >= size {
                let does = if sends { "sends to" } else { "receives from" };
                return Err(format!("rank {rank} {does} rank {peer}, but there are {size} ranks"));
            }
            between.entry(pair).or_default()[side].push(entry);
        }
    }
    let mut pairs = Pairs::new();
    for ((from, to), [sent, received]) in between {
        let times = |count: usize| if count == 1 { "once".to_owned() } else { format!("{count} times") };
        match (sent.len(), received.len()) {
            (0, _) => return Err(format!("rank {to} receives from rank {from}, which does not send")),
            (_, 0) => return Err(format!("rank {from} sends to rank {to}, which does not receive")),
            (sends, receives) if sends != receives => {
                let (sends, receives) = (times(sends), times(receives));
                return Err(format!("rank {from} sends to rank {to} {sends}, which receives {receives}"));
            }
            _ => {}
        }
        for (number, (sent, received)) in (1..).zip(sent.iter().zip(&received)) {
            let which = if number == 1 { String::new() } else { format!(" in message {number}") };
            if sent.data_type != received.data_type {
                let (sent, received) = (sent.elements(), received.elements());
                return Err(format!(
                    "rank {from} sends {sent} to rank {to}{which}, which receives {received}"
                ));
            }
            if sent.bytes != received.bytes {
                let (sent, received) = (sent.bytes, received.bytes);
                return Err(format!(
                    "rank {from} sends {sent} bytes to rank {to}{which}, which receives {received}"
                ));
            }
        }
        let bytes: usize = sent.iter().map(|entry| entry.bytes).sum();
        if bytes > 0 {
            pairs.insert((from, to), bytes);
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sends(peer: usize, bytes: usize) -> Entry {
        Entry { sends: true, peer, data_type: None, bytes }
    }

    fn receives(peer: usize, bytes: usize) -> Entry {
        Entry { sends: false, peer, data_type: None, bytes }
    }

    fn of(data_type: DataType, entry: Entry) -> Entry {
        Entry { data_type: Some(data_type), ..entry }
    }

    #[test]
    fn messages_survive_packing() {
        for entry in [sends(0, 0), receives(3, 1), sends(65_534, (1 << BYTES_BITS) - 1)] {
            assert_eq!(Entry::unpack(entry.pack()), entry);
            for data_type in DataType::ALL {
                assert_eq!(Entry::unpack(of(data_type, entry).pack()), of(data_type, entry));
            }
        }
        assert_eq!(Entry::unpack(sends(1 << 40, 8).pack()).peer, 65_535);
    }

    #[test]
    fn messages_are_matched_in_their_order() {
        let entries = [
            vec![sends(1, 4), receives(1, 7), sends(1, 6)],
            vec![receives(0, 4), receives(0, 6), sends(0, 7)],
        ];
        assert_eq!(matched(&entries), Ok(Pairs::from([((0, 1), 10), ((1, 0), 7)])));
        assert_eq!(matched(&[vec![sends(0, 3), receives(0, 3)]]), Ok(Pairs::from([((0, 0), 3)])));
        assert_eq!(matched(&[vec![sends(1, 0)], vec![receives(0, 0)]]), Ok(Pairs::new()));
    }

    #[test]
    fn mismatches_are_named() {
        let none = Vec::new;
        let cases = [
            (
                [none(), vec![sends(2, 40)], vec![receives(1, 44)]],
                "rank 1 sends 40 bytes to rank 2, which receives 44",
            ),
            (
                [vec![of(DataType::F32, sends(1, 40))], vec![of(DataType::I32, receives(0, 40))], none()],
                "rank 0 sends 10 f32 to rank 1, which receives 10 i32",
            ),
            ([none(), none(), vec![receives(0, 4)]], "rank 2 receives from rank 0, which does not send"),
            ([vec![sends(2, 4)], none(), none()], "rank 0 sends to rank 2, which does not receive"),
            ([vec![sends(3, 4)], none(), none()], "rank 0 sends to rank 3, but there are 3 ranks"),
            ([vec![receives(9, 4)], none(), none()], "rank 0 receives from rank 9, but there are 3 ranks"),
            (
                [vec![sends(1, 4), sends(1, 4)], vec![receives(0, 4)], none()],
                "rank 0 sends to rank 1 2 times, which receives once",
            ),
            (
                [vec![sends(1, 4), sends(1, 8)], vec![receives(0, 4), receives(0, 9)], none()],
                "rank 0 sends 8 bytes to rank 1 in message 2, which receives 9",
            ),
        ];
        for (entries, error) in cases {
            assert_eq!(matched(&entries), Err(error.to_owned()));
        }
    }

    #[test]
    fn the_number_of_plans_is_limited() {
        let kept = crate::on_threads(3, |mut comm| {
            for ways in 0..512 {
                let goes = |pair: &usize| ways >> pair & 1 == 1;
                let (me, mine, mut theirs) = (comm.rank(), [1_u8; 9], [[0_u8; 9]; 3]);
                comm.group(|group| {
                    let mut sent = (0..9).filter(goes).filter(|pair| pair / 3 == me);
                    sent.try_for_each(|pair| group.send(pair % 3, &mine[..pair + 1]))?;
                    for (from, target) in
                        theirs.iter_mut().enumerate().filter(|(from, _)| goes(&(from * 3 + me)))
                    {
                        group.receive(from, &mut target[..from * 3 + me + 1])?;
                    }
                    Ok(())
                })?;
            }
            Ok((comm.patterns.len(), comm.engines.len()))
        });
        for (patterns, engines) in kept.unwrap() {
            // One message or several, so of one length or of different ones, and what the all-gather and the all-to-all need.
            assert!(patterns == PATTERNS_MAX && engines <= 2 * PATTERNS_MAX + 8, "{patterns} {engines}");
        }
    }
}
