//! Frames: the seven words beside a flag in one cache line of a ring, or the header of a message between hosts.

use weftlink_plan::DataType;

use weftlink_shm::line::PAYLOAD_WORDS;

/// Words of a frame that can carry payload.
const INLINE_WORDS: usize = PAYLOAD_WORDS - 3;
/// The bytes of payload that travel in the frame's own line.
pub const INLINE_BYTES: usize = INLINE_WORDS * size_of::<u64>();

/// One frame between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it says.
    pub kind: Kind,
    /// The length of the message, of the piece, or of the receive that does not fit.
    pub bytes: u64,
    /// The type of the elements of that message or receive; nothing for bytes.
    pub data_type: Option<DataType>,
    /// The message's tag; answers and pieces use it as [`Kind`] says.
    pub tag: u64,
    /// The send or the receive, by the number that its own rank gave it.
    pub id: u64,
    /// Payload of up to [`INLINE_BYTES`].
    pub inline: [u64; INLINE_WORDS],
}

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole message: `tag`, and the payload.
    Eager = 1,
    /// The sender has a message: `tag`, the send's `id`, and its address in the first inline word.
    Offer = 2,
    /// The receiver accepts it in pieces: the send's `id`, and in `tag` the receive's.
    Accept = 3,
    /// A piece of it: the receive's `id`, in `tag` the offset, and the payload.
    Piece = 4,
    /// The receiver has finished with the send `id`; `tag` is the [`Verdict`].
    Over = 5,
    /// Credit: the receiver has taken `bytes` of eager messages in all. Between hosts only; ranks of one host share a counter.
    Taken = 6,
}

/// How an offered message ended for its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The message was received.
    Received = 0,
    /// The receive has another length or type, which the frame carries.
    Differs = 1,
    /// The receiver could not read the sender's memory.
    Unreadable = 2,
}

impl Frame {
    /// A frame without type and payload.
    pub fn new(kind: Kind, bytes: usize, tag: u64, id: u64) -> Frame {
        Frame { kind, bytes: bytes as u64, data_type: None, tag, id, inline: [0; INLINE_WORDS] }
    }

    /// The same frame about elements of a type.
    pub fn of_type(self, data_type: Option<DataType>) -> Frame {
        Frame { data_type, ..self }
    }

    /// The answer that ends an offer.
    pub fn over(id: u64, verdict: Verdict, bytes: usize) -> Frame {
        Frame::new(Kind::Over, bytes, verdict as u64, id)
    }

    /// How the offer ended, if this is [`Kind::Over`].
    pub fn verdict(&self) -> Verdict {
        match self.tag {
            tag if tag == Verdict::Received as u64 => Verdict::Received,
            tag if tag == Verdict::Differs as u64 => Verdict::Differs,
            _ => Verdict::Unreadable,
        }
    }

    /// As words.
    pub fn pack(&self) -> [u64; PAYLOAD_WORDS] {
        let [a, b, c, d] = self.inline;
        let data_type = self.data_type.map_or(0, |data_type| data_type as u64 + 1);
        [self.bytes << 16 | data_type << 8 | self.kind as u64, self.tag, self.id, a, b, c, d]
    }

    /// A frame out of its words; nothing if no rank of this version can have written them.
    pub fn unpack([first, tag, id, a, b, c, d]: [u64; PAYLOAD_WORDS]) -> Option<Frame> {
        const KINDS: [Kind; 6] =
            [Kind::Eager, Kind::Offer, Kind::Accept, Kind::Piece, Kind::Over, Kind::Taken];
        let kind = *KINDS.get(((first & 0xff) as usize).wrapping_sub(1))?;
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
