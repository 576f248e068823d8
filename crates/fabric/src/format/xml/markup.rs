//! Writes elements as indented text.

use std::borrow::Cow;
use std::fmt::Write as _;

/// XML output.
#[derive(Debug, Default)]
pub(super) struct Markup {
    text: String,
    depth: usize,
    /// The text ends with the start tag of an element that is still empty.
    just_opened: bool,
}

impl Markup {
    /// Writes a start tag.
    pub(super) fn open(&mut self, tag: &str, attributes: &[(&str, impl AsRef<str>)]) {
        self.tag(tag, attributes, ">\n");
        self.depth += 1;
        self.just_opened = true;
    }

    /// Writes an empty element.
    pub(super) fn empty(&mut self, tag: &str, attributes: &[(&str, impl AsRef<str>)]) {
        self.tag(tag, attributes, "/>\n");
    }

    /// Writes an end tag, or makes the element an empty one.
    pub(super) fn close(&mut self, tag: &str) {
        self.depth -= 1;
        if std::mem::take(&mut self.just_opened) {
            self.text.truncate(self.text.len() - ">\n".len());
            self.text.push_str("/>\n");
        } else {
            let _ = writeln!(self.text, "{:1$}</{tag}>", "", 2 * self.depth);
        }
    }

    /// The text.
    pub(super) fn finish(self) -> String {
        self.text
    }

    fn tag(&mut self, tag: &str, attributes: &[(&str, impl AsRef<str>)], end: &str) {
        self.just_opened = false;
        let _ = write!(self.text, "{:1$}<{tag}", "", 2 * self.depth);
        for (name, value) in attributes {
            let value = value.as_ref();
            // NCCL does not decode entities, so the quotes depend on the value; a value with both kinds is changed.
            let (quote, value) = match (value.contains('"'), value.contains('\'')) {
                (true, true) => ('"', Cow::Owned(value.replace('"', "'"))),
                (true, false) => ('\'', Cow::Borrowed(value)),
                (false, _) => ('"', Cow::Borrowed(value)),
            };
            let _ = write!(self.text, " {name}={quote}{value}{quote}");
        }
        self.text.push_str(end);
    }
}
