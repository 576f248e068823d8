//! Reads the output of a rank in pieces of whole lines.
//!
//! The memory is bounded: a line longer than a piece continues in the next one. A slow reader blocks the rank at its pipe, as
//! without `weft run`.

use std::io::{self, Read};

use super::wire::Stream;

/// The longest line that stays in one piece.
pub(super) const PIECE_BYTES_MAX: usize = 64 << 10;

/// Forwards pieces until the end: whole lines if `by_lines`, otherwise as they arrive. The flag says that the line continues.
pub(super) fn pieces(
    mut source: impl Read,
    by_lines: bool,
    mut put: impl FnMut(&[u8], bool),
) -> io::Result<()> {
    let mut held = vec![0; PIECE_BYTES_MAX];
    let mut length = 0;
    loop {
        let more = match source.read(&mut held[length..]) {
            Ok(more) => more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let fresh = length;
        length += more;
        if more == 0 {
            if length > 0 {
                put(&held[..length], false);
            }
            return Ok(());
        }
        // The part held so far has no newline.
        let ends = held[fresh..length].iter().rposition(|byte| *byte == b'\n').map(|at| fresh + at + 1);
        let whole = match ends {
            Some(ends) if by_lines => ends,
            _ if !by_lines || length == held.len() => length,
            _ => continue,
        };
        put(&held[..whole], held[whole - 1] != b'\n');
        held.copy_within(whole..length, 0);
        length -= whole;
    }
}

/// The last lines of a stream, printed when its rank fails.
#[derive(Debug, Default)]
pub(super) struct Tail {
    bytes: std::collections::VecDeque<u8>,
}

const TAIL_BYTES_MAX: usize = 4096;
const TAIL_LINES_MAX: usize = 10;

impl Tail {
    pub(super) fn add(&mut self, stream: Stream, bytes: &[u8]) {
        if stream == Stream::Err {
            self.bytes.extend(&bytes[bytes.len().saturating_sub(TAIL_BYTES_MAX)..]);
            let excess = self.bytes.len().saturating_sub(TAIL_BYTES_MAX);
            self.bytes.drain(..excess);
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(TAIL_LINES_MAX)..].iter().map(|line| (*line).to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives what it has in pieces of these sizes, in turn.
    struct Dripping<'a>(&'a [u8], &'a [usize], usize);

    impl Read for Dripping<'_> {
        fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
            let size = self.1[self.2 % self.1.len()].min(target.len()).min(self.0.len());
            self.2 += 1;
            target[..size].copy_from_slice(&self.0[..size]);
            self.0 = &self.0[size..];
            Ok(size)
        }
    }

    fn read(text: &[u8], sizes: &[usize], by_lines: bool) -> Vec<(Vec<u8>, bool)> {
        let mut all = Vec::new();
        pieces(Dripping(text, sizes, 0), by_lines, |piece, cut| all.push((piece.to_vec(), cut))).unwrap();
        all
    }

    #[test]
    fn lines_stay_whole() {
        let long = [vec![b'x'; 3 * PIECE_BYTES_MAX + 5], b"\nend".to_vec()].concat();
        for text in [&b"one\ntwo\n\nthree"[..], b"", b"\n", &long] {
            for sizes in [&[1][..], &[2, 3], &[7, 1], &[100_000]] {
                let all = read(text, sizes, true);
                assert_eq!(all.iter().flat_map(|(piece, _)| piece.clone()).collect::<Vec<_>>(), text);
                for (index, (piece, cut)) in all.iter().enumerate() {
                    assert!(piece.len() <= PIECE_BYTES_MAX);
                    assert!(!cut || piece.len() == PIECE_BYTES_MAX, "cut only when full");
                    assert!(*cut || piece.ends_with(b"\n") || index + 1 == all.len());
                }
            }
        }
    }

    #[test]
    fn without_lines_everything_comes_at_once() {
        assert_eq!(read(b"ab\ncd", &[1], false).len(), 5);
    }

    #[test]
    fn tails_are_short() {
        let mut tail = Tail::default();
        tail.add(Stream::Out, b"not this\n");
        (0..10_000).for_each(|line| tail.add(Stream::Err, format!("line {line}\n").as_bytes()));
        assert_eq!(tail.lines().len(), TAIL_LINES_MAX);
        assert_eq!(tail.lines().last().unwrap(), "line 9999");
        tail.add(Stream::Err, &vec![b'y'; 1 << 20]);
        assert_eq!(tail.lines().concat().len(), TAIL_BYTES_MAX);
    }
}
