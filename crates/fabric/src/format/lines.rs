//! Line numbers for messages.

/// Line numbers of increasing offsets; each byte is counted once.
pub(super) struct Lines<'a> {
    text: &'a [u8],
    offset: usize,
    line: usize,
}

impl<'a> Lines<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self { text: text.as_bytes(), offset: 0, line: 1 }
    }

    /// The line of an offset, which is no smaller than that of the last call.
    pub(super) fn at(&mut self, offset: usize) -> usize {
        if let Some(passed) = self.text.get(self.offset..offset) {
            self.line += passed.iter().filter(|&&b| b == b'\n').count();
            self.offset = offset;
        }
        self.line
    }
}
