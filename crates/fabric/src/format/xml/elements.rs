//! Parses elements: a pull parser with a bounded stack that keeps the elements NCCL knows, where NCCL expects them, and
//! ignores everything else.

use quick_xml::Reader;
use quick_xml::errors::{Error, IllFormedError};
use quick_xml::events::Event;
use quick_xml::events::attributes::Attributes;

use crate::format::lines::Lines;
use crate::format::{ReadError, excerpt};

/// Nesting of elements. Real files have eight levels.
const DEPTH_MAX: usize = 256;
/// Elements that are kept. NCCL stops at 256, RCCL at 8192.
const ELEMENTS_MAX: usize = 32_768;
/// Attributes of one element. NCCL reads the first 16.
const ATTRIBUTES_MAX: usize = 64;
/// Attributes of all elements together.
const ATTRIBUTES_TOTAL_MAX: usize = 16 * ELEMENTS_MAX;
/// Characters of a name or a value, the size of NCCL's buffers.
const TEXT_MAX: usize = 255;

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
    /// The element that NCCL sees, given the parent. The same name elsewhere is ignored.
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
    /// The line of its start tag.
    pub(super) line: usize,
    /// In the file's order; of a repeated name only the first, as in NCCL.
    pub(super) attributes: Vec<(&'a str, &'a str)>,
}

/// A file's known elements, parents before their children, the root first.
#[derive(Debug, Default)]
pub(super) struct Document<'a> {
    pub(super) elements: Vec<Element<'a>>,
    /// The first few ignored elements: name and line.
    pub(super) ignored: Vec<(String, usize)>,
    /// The number of ignored elements, without those inside them.
    pub(super) ignored_count: usize,
}

impl Document<'_> {
    /// Each dialect has its own name for GPU links: RCCL's (version 2) has no nvlink, NCCL's no xgmi.
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
        lines: Lines::of(text),
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

/// An element whose end tag has not been read yet.
struct Open<'a> {
    name: &'a str,
    line: usize,
    /// Its position among the kept elements; none if it and its content are ignored.
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
    /// Handles the tag at `start..end` of the text, including `<` and `>`.
    fn element(&mut self, start: usize, end: usize, empty: bool) -> Result<(), ReadError> {
        let line = self.lines.at(start);
        let tag_text = self.text[start..end].trim_start_matches('<').trim_end_matches('>');
        let inner = if empty { tag_text.strip_suffix('/').unwrap_or(tag_text) } else { tag_text };
        let name_length = inner.find(|c: char| c.is_ascii_whitespace()).unwrap_or(inner.len());
        let name = &inner[..name_length];
        let kept = self.keep(name, line, inner)?;
        if !empty {
            if self.open.len() == DEPTH_MAX {
                return Err(ReadError::at(
                    line,
                    format!("elements are nested more than {DEPTH_MAX} levels deep, which is the limit"),
                ));
            }
            self.open.push(Open { name, line, kept });
        }
        Ok(())
    }

    /// Keeps an element if NCCL would, and returns its position.
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
        if at == ELEMENTS_MAX {
            return Err(ReadError::at(
                line,
                format!("the file has more than {ELEMENTS_MAX} elements, which is the limit"),
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
        let mut kept: Vec<(&str, &str)> = Vec::new();
        // NCCL accepts a name without a value, and so does the HTML variant.
        let mut attributes = Attributes::html(inner, name.len());
        for attribute in attributes.with_checks(false) {
            let attribute = attribute.map_err(|error| {
                ReadError::at(line, format!("malformed attributes of <{}>: {error}", excerpt(name)))
            })?;
            let key = attribute.key.0;
            let std::borrow::Cow::Borrowed(value) = attribute.value else {
                return Err(ReadError::at(line, format!("malformed value of attribute `{}`", excerpt(key))));
            };
            check_attribute(key, value).map_err(|reason| ReadError::at(line, reason))?;
            if kept.iter().any(|(other, _)| *other == key) {
                continue;
            }
            self.attributes += 1;
            if kept.len() == ATTRIBUTES_MAX || self.attributes > ATTRIBUTES_TOTAL_MAX {
                return Err(ReadError::at(
                    line,
                    format!(
                        "too many attributes: the limit is {ATTRIBUTES_MAX} per element and {ATTRIBUTES_TOTAL_MAX} per file"
                    ),
                ));
            }
            kept.push((key, value));
        }
        Ok(kept)
    }

    /// Text between elements is a mistake, except inside ignored elements.
    fn loose_text(&mut self, start: usize, end: usize) -> Result<(), ReadError> {
        let text = &self.text[start..end];
        let lead = text.len() - text.trim_start().len();
        let ignored = matches!(self.open.last(), Some(Open { kept: None, .. }));
        if ignored || lead == text.len() {
            return Ok(());
        }
        Err(ReadError::at(
            self.lines.at(start + lead),
            format!("unexpected text `{}` between elements; remove it", excerpt(text.trim())),
        ))
    }

    fn syntax_error(&mut self, start: usize, error: &Error) -> ReadError {
        match error {
            Error::Syntax(_) => ReadError::at(
                self.lines.at(start),
                "the file is truncated: the tag or comment here does not end",
            ),
            Error::IllFormed(IllFormedError::MismatchedEndTag { found, .. }) => {
                let line = self.lines.at(start);
                let reason = match self.open.last() {
                    Some(open) => format!(
                        "found </{}>, expected </{}> for line {}",
                        excerpt(found),
                        excerpt(open.name),
                        open.line
                    ),
                    None => no_start_tag(found),
                };
                ReadError::at(line, reason)
            }
            Error::IllFormed(IllFormedError::UnmatchedEndTag(found)) => {
                ReadError::at(self.lines.at(start), no_start_tag(found))
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
                    "the file is truncated: <{}> on line {} has no end tag",
                    excerpt(open.name),
                    open.line
                ),
            ));
        }
        if self.document.elements.is_empty() {
            return Err(ReadError::at(last_line, "the file has no <system> element"));
        }
        Ok(self.document)
    }
}

fn no_start_tag(name: &str) -> String {
    format!("</{0}> without a <{0}> before it; remove it", excerpt(name))
}

/// Refuses attributes that could not be written back.
fn check_attribute(key: &str, value: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
    if key.is_empty() || !key.chars().all(plain) {
        return Err(format!("`{}` is not a valid attribute name", excerpt(key)));
    }
    if key.len() > TEXT_MAX || value.len() > TEXT_MAX {
        return Err(format!(
            "attribute `{}` is longer than {TEXT_MAX} characters, which is NCCL's limit",
            excerpt(key)
        ));
    }
    if value.contains('"') && value.contains('\'') {
        return Err(format!("the value of `{key}` contains both kinds of quotes; use one"));
    }
    Ok(())
}

fn wrong_root(name: &str) -> String {
    let hint = match name {
        "graphs" => ": this is a graph file (NCCL_GRAPH_FILE), not a topology file (NCCL_TOPO_FILE)",
        "cpu" | "pci" | "gpu" => ": this is a part of a topology file",
        _ => "",
    };
    format!("the root element is <{}>, expected <system>{hint}", excerpt(name))
}
