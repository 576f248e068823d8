//! Bytes to elements: a pull parser with a bounded stack that keeps the elements NCCL knows, where NCCL expects them,
//! and passes over everything else.

use quick_xml::Reader;
use quick_xml::errors::{Error, IllFormedError};
use quick_xml::events::Event;
use quick_xml::events::attributes::Attributes;

use crate::format::{ReadError, excerpt};

/// Elements inside elements. Real files go eight deep.
const MAX_DEPTH: usize = 256;
/// Elements that are kept. NCCL stops at 256, RCCL at 8192.
const MAX_ELEMENTS: usize = 32_768;
/// Attributes of one element. NCCL looks at the first 16.
const MAX_ATTRIBUTES: usize = 64;
/// Attributes of all elements together.
const MAX_ATTRIBUTES_IN_ALL: usize = 16 * MAX_ELEMENTS;
/// Characters of a name or a value; NCCL's buffers hold no more.
const MAX_TEXT: usize = 255;

/// An element that NCCL knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    System,
    Cpu,
    Pci,
    PciLink,
    Gpu,
    NvLink,
    Xgmi,
    C2c,
    Nic,
    Net,
}

impl Tag {
    /// What an element is to NCCL, given what it is in. The same name elsewhere is passed over.
    fn known(parent: Option<Self>, name: &str) -> Option<Self> {
        match (parent, name) {
            (None, "system") => Some(Self::System),
            (Some(Self::System), "cpu") => Some(Self::Cpu),
            (Some(Self::Cpu | Self::Pci), "pci") => Some(Self::Pci),
            (Some(Self::Cpu | Self::Pci), "nic") => Some(Self::Nic),
            (Some(Self::Pci), "gpu") => Some(Self::Gpu),
            (Some(Self::Pci), "pcilink") => Some(Self::PciLink),
            (Some(Self::Gpu), "nvlink") => Some(Self::NvLink),
            (Some(Self::Gpu), "xgmi") => Some(Self::Xgmi),
            (Some(Self::Gpu), "c2c") => Some(Self::C2c),
            (Some(Self::Nic), "net") => Some(Self::Net),
            _ => None,
        }
    }
}

/// An element of a file.
#[derive(Debug)]
pub(super) struct Element<'a> {
    pub(super) tag: Tag,
    /// Its position in [`Document::elements`].
    pub(super) parent: usize,
    /// Where its tag begins.
    pub(super) line: usize,
    /// In the file's order; of a repeated name the first, as NCCL has it.
    pub(super) attributes: Vec<(&'a str, &'a str)>,
}

/// A file's known elements, parents before their children, the root first.
#[derive(Debug, Default)]
pub(super) struct Document<'a> {
    pub(super) elements: Vec<Element<'a>>,
    /// The first few elements that were passed over: name and line.
    pub(super) ignored: Vec<(String, usize)>,
    /// How many were passed over in all, not counting what was inside them.
    pub(super) ignored_count: usize,
}

impl Document<'_> {
    /// GPU links have a name of their own in each dialect: RCCL's (version 2) knows no nvlink, and NCCL's no xgmi.
    fn dialect_has(&self, tag: Tag) -> bool {
        let is_rccl = self.elements.first().is_some_and(|root| root.number("version") == Some(2));
        match tag {
            Tag::NvLink => !is_rccl,
            Tag::Xgmi => is_rccl,
            _ => true,
        }
    }
}

/// Reads the elements of a file.
pub(super) fn parse(text: &str) -> Result<Document<'_>, ReadError> {
    let mut parser = Parser {
        document: Document::default(),
        open: Vec::new(),
        attributes: 0,
        lines: Lines { text: text.as_bytes(), offset: 0, line: 1 },
        text,
    };
    let mut reader = Reader::from_str(text);
    loop {
        let start = reader.buffer_position() as usize;
        let event = reader.read_event().map_err(|error| parser.syntax_error(start, &error))?;
        let end = reader.buffer_position() as usize;
        match event {
            Event::Start(_) => parser.element(start, end, false)?,
            Event::Empty(_) => parser.element(start, end, true)?,
            Event::End(_) => {
                parser.open.pop();
            }
            Event::Text(_) | Event::CData(_) | Event::GeneralRef(_) => parser.loose_text(start, end)?,
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
            Event::Eof => return parser.finish(),
        }
    }
}

/// An element whose end has not come yet.
struct Open<'a> {
    name: &'a str,
    line: usize,
    /// Its position among the kept elements, or nothing where it is passed over with all that it holds.
    kept: Option<usize>,
}

struct Parser<'a> {
    text: &'a str,
    lines: Lines<'a>,
    document: Document<'a>,
    open: Vec<Open<'a>>,
    attributes: usize,
}

impl<'a> Parser<'a> {
    /// Takes the tag at `start..end` of the text, `<` and `>` included.
    fn element(&mut self, start: usize, end: usize, empty: bool) -> Result<(), ReadError> {
        let line = self.lines.at(start);
        let tag_text = self.text[start..end].trim_start_matches('<').trim_end_matches('>');
        let inner = if empty { tag_text.strip_suffix('/').unwrap_or(tag_text) } else { tag_text };
        let name_length = inner.find(|c: char| c.is_ascii_whitespace()).unwrap_or(inner.len());
        let name = &inner[..name_length];
        let kept = self.keep(name, line, inner)?;
        if !empty {
            if self.open.len() == MAX_DEPTH {
                return Err(ReadError::at(
                    line,
                    format!("elements are nested more than {MAX_DEPTH} deep; no machine is"),
                ));
            }
            self.open.push(Open { name, line, kept });
        }
        Ok(())
    }

    /// Keeps an element if NCCL would, and says where.
    fn keep(&mut self, name: &'a str, line: usize, inner: &'a str) -> Result<Option<usize>, ReadError> {
        let parent = match self.open.last() {
            None => None,
            Some(Open { kept: None, .. }) => return Ok(None),
            Some(Open { kept, .. }) => *kept,
        };
        if parent.is_none() && self.document.elements.is_empty() && name != "system" {
            return Err(ReadError::at(line, wrong_root(name)));
        }
        let second_root = parent.is_none() && !self.document.elements.is_empty();
        let tag = Tag::known(parent.map(|at| self.document.elements[at].tag), name);
        let tag = tag.filter(|tag| self.document.dialect_has(*tag));
        let (Some(tag), false) = (tag, second_root) else {
            self.document.ignored_count += 1;
            if self.document.ignored.len() < 3 {
                self.document.ignored.push((excerpt(name), line));
            }
            return Ok(None);
        };
        let at = self.document.elements.len();
        if at == MAX_ELEMENTS {
            return Err(ReadError::at(
                line,
                format!("more than {MAX_ELEMENTS} elements; no machine has so many devices"),
            ));
        }
        let attributes = self.attributes(name, line, inner)?;
        self.document.elements.push(Element { tag, parent: parent.unwrap_or(0), line, attributes });
        Ok(Some(at))
    }

    fn attributes(
        &mut self,
        name: &str,
        line: usize,
        inner: &'a str,
    ) -> Result<Vec<(&'a str, &'a str)>, ReadError> {
        let mut found: Vec<(&str, &str)> = Vec::new();
        // NCCL takes a name without a value; so does the HTML flavour.
        let mut attributes = Attributes::html(inner, name.len());
        for attribute in attributes.with_checks(false) {
            let attribute = attribute.map_err(|error| {
                ReadError::at(line, format!("the attributes of <{}>: {error}", excerpt(name)))
            })?;
            let key = attribute.key.0;
            let std::borrow::Cow::Borrowed(value) = attribute.value else {
                return Err(ReadError::at(line, format!("attribute `{}`", excerpt(key))));
            };
            check_attribute(key, value).map_err(|reason| ReadError::at(line, reason))?;
            if found.iter().any(|(other, _)| *other == key) {
                continue;
            }
            self.attributes += 1;
            if found.len() == MAX_ATTRIBUTES || self.attributes > MAX_ATTRIBUTES_IN_ALL {
                return Err(ReadError::at(
                    line,
                    format!(
                        "too many attributes; an element may have {MAX_ATTRIBUTES}, a file {MAX_ATTRIBUTES_IN_ALL}"
                    ),
                ));
            }
            found.push((key, value));
        }
        Ok(found)
    }

    /// Text between elements is a mistake, except inside what is passed over.
    fn loose_text(&mut self, start: usize, end: usize) -> Result<(), ReadError> {
        let text = &self.text[start..end];
        let lead = text.len() - text.trim_start().len();
        let passed_over = matches!(self.open.last(), Some(Open { kept: None, .. }));
        if passed_over || lead == text.len() {
            return Ok(());
        }
        Err(ReadError::at(
            self.lines.at(start + lead),
            format!("`{}` stands between elements", excerpt(text.trim())),
        ))
    }

    fn syntax_error(&mut self, start: usize, error: &Error) -> ReadError {
        match error {
            Error::Syntax(_) => {
                ReadError::at(self.lines.at(start), "the file ends inside what begins here; it is truncated")
            }
            Error::IllFormed(IllFormedError::MismatchedEndTag { found, .. }) => {
                let line = self.lines.at(start);
                let reason = match self.open.last() {
                    Some(open) => format!(
                        "</{}> stands where <{}> of line {} should end",
                        excerpt(found),
                        excerpt(open.name),
                        open.line
                    ),
                    None => format!("</{}> ends nothing", excerpt(found)),
                };
                ReadError::at(line, reason)
            }
            Error::IllFormed(IllFormedError::UnmatchedEndTag(found)) => {
                ReadError::at(self.lines.at(start), format!("</{}> ends nothing", excerpt(found)))
            }
            other => ReadError::at(self.lines.at(start), other.to_string()),
        }
    }

    fn finish(mut self) -> Result<Document<'a>, ReadError> {
        let last_line = self.lines.at(self.text.trim_end().len());
        if let Some(open) = self.open.last() {
            return Err(ReadError::at(
                last_line,
                format!(
                    "the file ends inside <{}> of line {}; it is truncated",
                    excerpt(open.name),
                    open.line
                ),
            ));
        }
        if self.document.elements.is_empty() {
            return Err(ReadError::at(last_line, "the file ends without a <system> element"));
        }
        Ok(self.document)
    }
}

/// What is wrong with an attribute that could not be written back.
fn check_attribute(key: &str, value: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
    if key.is_empty() || !key.chars().all(plain) {
        return Err(format!("`{}` is no name for an attribute", excerpt(key)));
    }
    if key.len() > MAX_TEXT || value.len() > MAX_TEXT {
        return Err(format!(
            "attribute `{}` is longer than {MAX_TEXT} characters; NCCL refuses that",
            excerpt(key)
        ));
    }
    if value.contains('"') && value.contains('\'') {
        return Err(format!("the value of `{key}` is not in one kind of quotes"));
    }
    Ok(())
}

fn wrong_root(name: &str) -> String {
    let hint = match name {
        "graphs" => ": this is a graph file (NCCL_GRAPH_FILE), not a topology file (NCCL_TOPO_FILE)",
        "cpu" | "pci" | "gpu" => ": this is a piece of a topology file",
        _ => "",
    };
    format!("the root element is <{}>, and a topology file has <system>{hint}", excerpt(name))
}

/// Line numbers of ever larger offsets: each byte is looked at once.
struct Lines<'a> {
    text: &'a [u8],
    offset: usize,
    line: usize,
}

impl Lines<'_> {
    fn at(&mut self, offset: usize) -> usize {
        if let Some(passed) = self.text.get(self.offset..offset) {
            self.line += passed.iter().filter(|&&b| b == b'\n').count();
            self.offset = offset;
        }
        self.line
    }
}
