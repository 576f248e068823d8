//! What ranks put into each other's rings: seven words beside a flag, in one cache line.

use weftlink_plan::DataType;

use weftlink_shm::line::PAYLOAD_WORDS;

/// Words of a frame that payload may be in.
const INLINE_WORDS: usize = PAYLOAD_WORDS - 3;
/// So many bytes of payload travel in the frame's own line.
pub(super) const INLINE_BYTES: usize = INLINE_WORDS * size_of::<u64>();

/// One line of the conversation between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    /// The length of the message, of the piece, or of the receive that did not fit.
    pub(super) bytes: u64,
    /// The type of the message's elements, or of those of the receive that did not fit; nothing for bytes.
    pub(super) data_type: Option<DataType>,
    /// The message's tag; beside answers and pieces what else they need.
    pub(super) tag: u64,
    /// The send or the receive, as its own rank numbers them.
    pub(super) id: u64,
    pub(super) inline: [u64; INLINE_WORDS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A whole message: `tag`, and the payload.
    Eager = 1,
    /// A message that waits at its sender: `tag`, the send's `id`, and its address in the first inline word.
    Offer = 2,
    /// It may be sent in pieces: the send's `id`, and in `tag` the receive's.
    Accept = 3,
    /// A piece of it: the receive's `id`, in `tag` where it goes, and the payload.
    Piece = 4,
    /// The receiver is through with the send `id`; `tag` is the [`Verdict`].
    Over = 5,
    /// So much of what was sent ahead has been taken, in all: `bytes`. Only between hosts, where no counter is shared.
    Taken = 6,
}

/// How a message that was offered ended for its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Received = 0,
    /// The receive has another length or type, which the frame tells.
    Differs = 1,
    /// The kernel did not read it.
    Unreadable = 2,
}

impl Frame {
    pub(super) fn new(kind: Kind, bytes: usize, tag: u64, id: u64) -> Frame {
        Frame { kind, bytes: bytes as u64, data_type: None, tag, id, inline: [0; INLINE_WORDS] }
    }

    /// The same, about elements of a type.
    pub(super) fn of_type(self, data_type: Option<DataType>) -> Frame {
        Frame { data_type, ..self }
    }

    pub(super) fn over(id: u64, verdict: Verdict, bytes: usize) -> Frame {
        Frame::new(Kind::Over, bytes, verdict as u64, id)
    }

    pub(super) fn verdict(&self) -> Verdict {
        match self.tag {
            tag if tag == Verdict::Received as u64 => Verdict::Received,
            tag if tag == Verdict::Differs as u64 => Verdict::Differs,
            _ => Verdict::Unreadable,
        }
    }

    pub(super) fn pack(&self) -> [u64; PAYLOAD_WORDS] {
        let [a, b, c, d] = self.inline;
        let data_type = self.data_type.map_or(0, |data_type| data_type as u64 + 1);
        [self.bytes << 16 | data_type << 8 | self.kind as u64, self.tag, self.id, a, b, c, d]
    }

    /// Nothing if no rank of ours has written it.
    pub(super) fn unpack([first, tag, id, a, b, c, d]: [u64; PAYLOAD_WORDS]) -> Option<Frame> {
        let kinds = [Kind::Eager, Kind::Offer, Kind::Accept, Kind::Piece, Kind::Over, Kind::Taken];
        let kind = kinds.into_iter().find(|kind| *kind as u64 == first & 0xff)?;
        let data_type = DataType::ALL.get(((first >> 8) as u8 as usize).wrapping_sub(1)).copied();
        Some(Frame { kind, bytes: first >> 16, data_type, tag, id, inline: [a, b, c, d] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_packing() {
        for kind in [Kind::Eager, Kind::Offer, Kind::Accept, Kind::Piece, Kind::Over, Kind::Taken] {
            let bytes = (1 << 48) - 1;
            let frame =
                Frame { kind, bytes, data_type: None, tag: u64::MAX, id: 7, inline: [1, 2, 3, u64::MAX] };
            for data_type in DataType::ALL.into_iter().map(Some).chain([None]) {
                assert_eq!(Frame::unpack(frame.of_type(data_type).pack()), Some(frame.of_type(data_type)));
            }
        }
        assert_eq!(Frame::unpack([0; PAYLOAD_WORDS]), None);
        for verdict in [Verdict::Received, Verdict::Differs, Verdict::Unreadable] {
            assert_eq!(Frame::over(3, verdict, 5).verdict(), verdict);
        }
    }
}
