//! The note that a rank writes into its departure line when it aborts a communicator on purpose.

use weftlink_bootstrap::{Blame, BlameKind, Reason};
use weftlink_shm::counter::Counter;
use weftlink_shm::line::PAYLOAD_WORDS;
use weftlink_shm::wait::Waiter;

use crate::error::Error;

/// The bytes of a note.
const NOTE_BYTES_MAX: usize = PAYLOAD_WORDS * size_of::<u64>();

/// The error of a call on a communicator that a rank has aborted on purpose.
#[cold]
pub(crate) fn ended_by(
    waiter: &Waiter<'static>,
    departures: &[Counter<'static>],
    rank: u32,
    call: u32,
    blame: impl FnOnce(u32, BlameKind) -> Blame,
) -> Error {
    let (by, what) = purpose(waiter, departures, rank);
    Error::Cancelled { call, rank, by: blame(by, BlameKind::Aborted), what }
}

/// The rank that aborted the communicator on purpose, and what it did.
#[cold]
pub(crate) fn purpose(waiter: &Waiter<'static>, departures: &[Counter<'static>], rank: u32) -> (u32, String) {
    let (reason, by) = match waiter.aborted() {
        Some(code) => (Reason::name(code.reason), code.rank),
        None => ("no rank has", rank),
    };
    let departure = departures.get(by as usize);
    let what = departure.map(|departure| text_of(departure.announcement())).unwrap_or_default();
    // Without a note, the reason in the abort word.
    let what = if what.is_empty() { format!("aborted ({reason})") } else { what };
    (by, what)
}

/// The beginning of a text, as much as a note holds, in whole characters.
pub(crate) fn note(text: &str) -> [u64; PAYLOAD_WORDS] {
    let mut bytes = [0; NOTE_BYTES_MAX];
    let length =
        (0..=text.len().min(NOTE_BYTES_MAX)).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    std::array::from_fn(|word| {
        let at = word * size_of::<u64>();
        u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
    })
}

fn text_of(note: [u64; PAYLOAD_WORDS]) -> String {
    let bytes: Vec<u8> = note.into_iter().flat_map(u64::to_le_bytes).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_hold_whole_characters() {
        for text in ["", "cancelled all-reduce #7", &"x".repeat(56)] {
            assert_eq!(text_of(note(text)), text);
        }
        assert_eq!(text_of(note(&"x".repeat(57))), "x".repeat(56));
        assert_eq!(text_of(note(&"ä".repeat(40))), "ä".repeat(28));
        assert_eq!(text_of(note(&format!("x{}", "ä".repeat(40)))), format!("x{}", "ä".repeat(27)));
    }
}
