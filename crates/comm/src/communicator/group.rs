//! Messages between ranks of which only the sender and the receiver know, as one call: `ncclGroupStart`, `ncclSend` and
//! `ncclRecv`.
//!
//! Plans are of collectives whose messages all ranks know. So a group first tells: every rank gathers what every other sends
//! and receives, a word each, 15 of them in one all-gather of 128 bytes a rank; if some rank has more, the rest in a second one.
//! From then on all ranks know the same. They match the n-th message from a rank to another with the n-th that the other
//! receives from it, and if that does not work out, all of them say so alike, nothing has been moved, and the communicator
//! stays as it was. If it does, one send-receive moves everything, in which all messages from a rank to another are one.
//!
//! What it costs: the all-gather before every group, which is what a call of 128 bytes a rank takes. A rank that sends to
//! several ranks, or several messages, copies them together first; one that receives several copies them apart. The first group
//! in which messages go from the same ranks to the same ranks loads a plan; after [`PATTERNS_MAX`] of these, groups that go
//! otherwise are run as an all-to-all, which has one plan for all.

use std::collections::BTreeMap;

use weftlink_plan::{Collective, DataType};
use weftlink_recorder::header::GROUP;

use super::Communicator;
use crate::buffers::Buffers;
use crate::data::{Data, data_type_of};
use crate::error::Error;
use crate::request::CallArgs;

/// How many groups whose messages go different ways have a plan of their own.
const PATTERNS_MAX: usize = 64;
/// How many pairs of ranks a plan of their own may have: between more of them, an all-to-all is what it is.
const PAIRS_MAX: usize = 1 << 9;
/// Words that every rank tells at once: how many messages there are, then the first of them.
const WORDS: usize = 16;
/// How many messages a rank may have in a group.
const MESSAGES_MAX: usize = 1 << 16;

const BYTES_BITS: u32 = 42;
const TYPE_BITS: u32 = 5;
const RANK_BITS: u32 = 16;
const _: () =
    assert!(BYTES_BITS + TYPE_BITS + RANK_BITS + 1 == u64::BITS && DataType::ALL.len() < 1 << TYPE_BITS);

/// What a rank sends and receives as one group. See [`Communicator::group`].
#[derive(Debug, Default)]
pub struct Group<'a> {
    rank: usize,
    sends: Vec<(usize, &'a [u8])>,
    receives: Vec<(usize, &'a mut [u8])>,
    order: Vec<Told>,
}

impl<'a> Group<'a> {
    /// The rank whose messages these are.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Sends elements to a rank, itself included.
    pub fn send<T: Data>(&mut self, to: usize, elements: &'a [T]) -> Result<(), Error> {
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        self.tell(Told { sends: true, peer: to, data_type: data_type_of::<T>(), bytes: bytes.len() })?;
        self.sends.push((to, bytes));
        Ok(())
    }

    /// Receives elements from a rank: the next ones that it sends to this rank in the same group.
    pub fn receive<T: Data>(&mut self, from: usize, elements: &'a mut [T]) -> Result<(), Error> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(elements);
        self.tell(Told { sends: false, peer: from, data_type: data_type_of::<T>(), bytes: bytes.len() })?;
        self.receives.push((from, bytes));
        Ok(())
    }

    fn tell(&mut self, told: Told) -> Result<(), Error> {
        if self.order.len() == MESSAGES_MAX {
            return Err(Error::Misuse(format!("a rank has at most {MESSAGES_MAX} messages in a group")));
        }
        if told.bytes >> BYTES_BITS != 0 {
            return Err(Error::Misuse(format!("a message of {} bytes is too long for a group", told.bytes)));
        }
        self.order.push(told);
        Ok(())
    }
}

/// A message as one of its ranks tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    sends: bool,
    peer: usize,
    /// Nothing for types that have no name.
    data_type: Option<DataType>,
    bytes: usize,
}

impl Told {
    fn pack(self) -> u64 {
        // No rank has the last number, so what does not fit is refused as a rank that does not exist.
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
        Told {
            sends: word >> 63 == 1,
            peer,
            data_type: DataType::ALL.get(data_type.wrapping_sub(1)).copied(),
            bytes: (word & ((1 << BYTES_BITS) - 1)) as usize,
        }
    }

    /// Its elements, if they have a name.
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
    /// Sends and receives as one group, so that both sides may send first. Every rank calls it, with nothing to say if it takes
    /// no part. The n-th message that a rank sends to another is the n-th that the other receives from it, and of the same
    /// length and type. If ranks do not agree about their messages, all get the same error, nothing is moved, and the communicator can be
    /// used as before; a rank whose closure fails does not take part, and the others wait for it.
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
        let told = self.tell(&group.order)?;
        let pairs = matched(&told).map_err(Error::Misuse)?;
        if !pairs.is_empty() {
            self.exchange(group, &pairs)?;
        }
        Ok(listed)
    }

    /// What every rank sends and receives.
    fn tell(&mut self, mine: &[Told]) -> Result<Vec<Vec<Told>>, Error> {
        let mut words = vec![0; WORDS * self.size];
        let own = &mut words[WORDS * self.rank..][..WORDS];
        own[0] = mine.len() as u64;
        own[1..].iter_mut().zip(mine).for_each(|(word, told)| *word = told.pack());
        self.call(CallArgs { tag: GROUP, ..CallArgs::new(&Collective::AllGather, &mut words[..]) })?;
        let blocks = words.chunks_exact(WORDS);
        let counts: Vec<usize> = blocks.clone().map(|block| block[0] as usize).collect();
        let mut told: Vec<Vec<Told>> = blocks
            .zip(&counts)
            .map(|(block, count)| block[1..].iter().take(*count).map(|word| Told::unpack(*word)).collect())
            .collect();
        let more: Vec<usize> = counts.iter().map(|count| count.saturating_sub(WORDS - 1)).collect();
        if more.iter().any(|count| *count > 0) {
            let mine: Vec<u64> = mine.iter().skip(WORDS - 1).map(|told| told.pack()).collect();
            let mut all = vec![0; more.iter().sum()];
            self.all_gather_v((&mine[..], &mut all[..]), &more)?;
            let mut all = all.into_iter().map(Told::unpack);
            for (told, count) in told.iter_mut().zip(more) {
                told.extend(all.by_ref().take(count));
            }
        }
        Ok(told)
    }

    /// Moves what all ranks have agreed on.
    fn exchange(&mut self, group: Group<'_>, pairs: &Pairs) -> Result<(), Error> {
        let rank = self.rank;
        let Group { mut sends, mut receives, .. } = group;
        // Messages of one rank to another stay in their order.
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
        // All ranks know all lengths by now, so they need not compare them again.
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

/// What goes from whom to whom, or what is wrong, as all ranks find it.
fn matched(told: &[Vec<Told>]) -> Result<Pairs, String> {
    let size = told.len();
    let mut between: BTreeMap<(usize, usize), [Vec<Told>; 2]> = BTreeMap::new();
    for (rank, messages) in told.iter().enumerate() {
        for &told @ Told { sends, peer, .. } in messages {
            let (pair, side) = if sends { ((rank, peer), 0) } else { ((peer, rank), 1) };
            if peer >= size {
                let does = if sends { "sends to" } else { "receives from" };
                return Err(format!("rank {rank} {does} rank {peer}, but there are {size} ranks"));
            }
            between.entry(pair).or_default()[side].push(told);
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
        let bytes: usize = sent.iter().map(|told| told.bytes).sum();
        if bytes > 0 {
            pairs.insert((from, to), bytes);
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sends(peer: usize, bytes: usize) -> Told {
        Told { sends: true, peer, data_type: None, bytes }
    }

    fn receives(peer: usize, bytes: usize) -> Told {
        Told { sends: false, peer, data_type: None, bytes }
    }

    fn of(data_type: DataType, told: Told) -> Told {
        Told { data_type: Some(data_type), ..told }
    }

    #[test]
    fn messages_survive_packing() {
        for told in [sends(0, 0), receives(3, 1), sends(65_534, (1 << BYTES_BITS) - 1)] {
            assert_eq!(Told::unpack(told.pack()), told);
            for data_type in DataType::ALL {
                assert_eq!(Told::unpack(of(data_type, told).pack()), of(data_type, told));
            }
        }
        assert_eq!(Told::unpack(sends(1 << 40, 8).pack()).peer, 65_535);
    }

    #[test]
    fn messages_are_matched_in_their_order() {
        let told = [
            vec![sends(1, 4), receives(1, 7), sends(1, 6)],
            vec![receives(0, 4), receives(0, 6), sends(0, 7)],
        ];
        assert_eq!(matched(&told), Ok(Pairs::from([((0, 1), 10), ((1, 0), 7)])));
        assert_eq!(matched(&[vec![sends(0, 3), receives(0, 3)]]), Ok(Pairs::from([((0, 0), 3)])));
        assert_eq!(matched(&[vec![sends(1, 0)], vec![receives(0, 0)]]), Ok(Pairs::new()));
    }

    #[test]
    fn what_does_not_match_is_told() {
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
        for (told, error) in cases {
            assert_eq!(matched(&told), Err(error.to_owned()));
        }
    }

    #[test]
    fn plans_are_kept_for_so_many_ways_and_no_more() {
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
