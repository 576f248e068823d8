//! Frames on a connection: each a header and the payload of one message, or a header alone.
//!
//! ```text
//! bytes   0      1   2..4    4..8   8..12      12..20      20..24   24..28   28..32     32..36
//!         kind   0   check   fifo   sequence   signature   length   number   checksum   mark
//! ```
//!
//! All numbers are little-endian. `sequence` numbers the messages of a FIFO and `number` the frames of a connection, which
//! detects missing, repeated or reordered ones; the checksum (CRC32C, of the header without it and of the payload) detects
//! changed bytes; `check` covers the header alone, so that the receiver does not wait for a corrupt length.
//! TCP's own checksum has 16 bits and ends at every network card that offloads it.
//!
//! On request frames are encrypted: header and pieces of the payload one after the other, each with an authentication tag in place
//! of the checksum, under the keys of the handshake.

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 36;
const MARK: u32 = u32::from_le_bytes(*b"weft");

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message of a FIFO.
    Message = 1,
    /// A release: the receiver has read all messages of a FIFO up to this one.
    Released = 2,
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) fifo: u32,
    pub(super) sequence: u32,
    /// Hash of the call and its number: wide enough to be unique.
    pub(super) signature: u64,
    pub(super) length: u32,
    pub(super) number: u32,
    pub(super) checksum: u32,
}

impl Header {
    /// The bytes of the header, checksum included.
    pub(super) fn pack(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        let [low, high] = [self.signature as u32, (self.signature >> 32) as u32];
        let words = [self.fifo, self.sequence, low, high, self.length, self.number, self.checksum, MARK];
        for (place, word) in bytes[4..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let check = check(&bytes);
        bytes[2..4].copy_from_slice(&check);
        bytes
    }

    /// A header out of its bytes; nothing if they are none.
    pub(super) fn unpack(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let word = |at: usize| bytes[at..].first_chunk::<4>().map_or(0, |four| u32::from_le_bytes(*four));
        let kind = match bytes[..2] {
            [1, 0] => Kind::Message,
            [2, 0] => Kind::Released,
            _ => return None,
        };
        let is_whole = mutant!("header-unchecked") || bytes[2..4] == check(bytes);
        (is_whole && word(32) == MARK).then(|| Header {
            kind,
            fifo: word(4),
            sequence: word(8),
            signature: u64::from(word(16)) << 32 | u64::from(word(12)),
            length: word(20),
            number: word(24),
            checksum: word(28),
        })
    }

    /// The checksum of this header and its payload.
    pub(super) fn checksum_of(&self, payload: &[u8]) -> u32 {
        let header = Header { checksum: 0, ..*self }.pack();
        crc32c::crc32c_append(
            crc32c::crc32c(&header),
            if mutant!("checksum-without-payload") { &[] } else { payload },
        )
    }
}

/// The check of a header, without the two bytes that hold it.
fn check(bytes: &[u8; HEADER_BYTES]) -> [u8; 2] {
    let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..2]), &bytes[4..]);
    [sum as u8, (sum >> 8) as u8]
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        kind: Kind::Message,
        fifo: 1,
        sequence: u32::MAX,
        signature: 0xdead_beef_0123_4567,
        length: 65_536,
        number: 7,
        checksum: 9,
    };

    #[test]
    fn a_header_survives_packing() {
        for kind in [Kind::Message, Kind::Released] {
            let header = Header { kind, ..HEADER };
            assert_eq!(Header::unpack(&header.pack()), Some(header));
        }
        assert_eq!(Header::unpack(&[0; HEADER_BYTES]), None);
        assert_eq!(Header::unpack(&[0xff; HEADER_BYTES]), None);
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let payload: Vec<u8> = (0..200).collect();
        let header = Header { checksum: HEADER.checksum_of(&payload), ..HEADER };
        let is_right = |bytes: &[u8; HEADER_BYTES], payload: &[u8]| {
            Header::unpack(bytes).is_some_and(|found| found.checksum == found.checksum_of(payload))
        };
        let packed = header.pack();
        assert!(is_right(&packed, &payload));
        for bit in 0..HEADER_BYTES * 8 {
            let mut changed = packed;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_right(&changed, &payload), "bit {bit} of the header");
            assert_eq!(
                Header::unpack(&changed),
                None,
                "bit {bit} of the header, before the payload has come"
            );
        }
        for bit in 0..payload.len() * 8 {
            let mut changed = payload.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_right(&packed, &changed), "bit {bit} of the payload");
        }
    }
}
