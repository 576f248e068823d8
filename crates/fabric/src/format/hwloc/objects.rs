//! Parses objects: a pull parser with a bounded stack that keeps the objects that matter and what they contain.

use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};

use crate::format::lines::Lines;
use crate::format::{ReadError, excerpt};

/// Nesting of elements. Real files have about 25 levels.
const DEPTH_MAX: usize = 256;
/// Objects that are kept. A host with thousands of virtual functions has fewer.
const OBJECTS_MAX: usize = 32_768;
/// Bytes of a name or value that is kept.
const TEXT_MAX: usize = 255;

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The machine, a package, a group: what NUMA nodes and PCIe trees are attached to.
    Container,
    NumaNode,
    Bridge,
    PciDevice,
    OsDevice,
}

/// An object, with the attributes and infos that are used.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) kind: Kind,
    /// Its position in the list; of the first object, its own.
    pub(super) parent: usize,
    pub(super) line: usize,
    pub(super) attributes: Vec<(&'static str, String)>,
    pub(super) infos: Vec<(&'static str, String)>,
}

impl Object {
    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn info(&self, name: &str) -> Option<&str> {
        self.infos.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
    }
}

const ATTRIBUTES: [&str; 7] =
    ["os_index", "name", "subtype", "bridge_type", "pci_busid", "pci_type", "pci_link_speed"];
const INFOS: [&str; 7] =
    ["HostName", "Architecture", "CPUVendor", "CPUFamilyNumber", "CPUModelNumber", "GPUModel", "PCIDevice"];

/// Reads the objects of a file, parents before their children.
pub(super) fn parse(text: &str) -> Result<Vec<Object>, ReadError> {
    let mut parser = Parser { objects: Vec::new(), open: Vec::new() };
    let mut lines = Lines::of(text);
    let mut reader = Reader::from_str(text);
    loop {
        let start = reader.buffer_position() as usize;
        let event = reader.read_event();
        let line = lines.at(start);
        match event.map_err(|error| ReadError::at(line, excerpt(&error.to_string())))? {
            Event::Start(tag) => {
                let kept = parser.element(&tag, line)?;
                if parser.open.len() == DEPTH_MAX {
                    let reason =
                        format!("elements are nested more than {DEPTH_MAX} levels deep, which is the limit");
                    return Err(ReadError::at(line, reason));
                }
                parser.open.push(kept);
            }
            Event::Empty(tag) => {
                parser.element(&tag, line)?;
            }
            Event::End(_) => {
                parser.open.pop();
            }
            Event::Eof if !parser.open.is_empty() => {
                return Err(ReadError::at(line, "the file is truncated: an element has no end tag"));
            }
            Event::Eof if parser.objects.is_empty() => {
                return Err(ReadError::at(
                    line,
                    "<topology> has no machine; save it with `lstopo --of xml FILE`",
                ));
            }
            Event::Eof => return Ok(parser.objects),
            _ => {}
        }
    }
}

struct Parser {
    objects: Vec<Object>,
    /// For each open element, the innermost kept object.
    open: Vec<Option<usize>>,
}

impl Parser {
    /// Keeps what an element says; returns the object that elements inside it belong to.
    fn element(&mut self, tag: &BytesStart<'_>, line: usize) -> Result<Option<usize>, ReadError> {
        let inside = self.open.last().copied().flatten();
        match tag.name().0 {
            "object" => self.object(tag, inside, line),
            "info" => {
                // The machine's infos moved out of its object in hwloc 3.
                if let Some(object) = inside.or_else(|| (!self.objects.is_empty()).then_some(0)) {
                    self.info(tag, object, line)?;
                }
                Ok(inside)
            }
            "topology" => match value(tag, "version", line)? {
                Some(version) if !version.starts_with(['2', '3']) => Err(ReadError::at(
                    line,
                    format!("hwloc version {}; save the file with lstopo of hwloc 2 or 3", excerpt(&version)),
                )),
                _ => Ok(inside),
            },
            _ => Ok(inside),
        }
    }

    fn object(
        &mut self,
        tag: &BytesStart<'_>,
        inside: Option<usize>,
        line: usize,
    ) -> Result<Option<usize>, ReadError> {
        let name = value(tag, "type", line)?;
        let kind = match name.as_deref() {
            Some("Machine" | "Package" | "Group" | "Die") => Kind::Container,
            Some("NUMANode") => Kind::NumaNode,
            Some("Bridge") => Kind::Bridge,
            Some("PCIDev") => Kind::PciDevice,
            Some("OSDev") => Kind::OsDevice,
            _ => return Ok(inside),
        };
        if inside.is_none() && (name.as_deref() != Some("Machine") || !self.objects.is_empty()) {
            return Err(ReadError::at(line, "expected one machine around all other objects"));
        }
        let number = self.objects.len();
        if number == OBJECTS_MAX {
            return Err(ReadError::at(
                line,
                format!("the file has more than {OBJECTS_MAX} objects, which is the limit"),
            ));
        }
        let mut attributes = Vec::new();
        for name in ATTRIBUTES {
            attributes.extend(value(tag, name, line)?.map(|value| (name, value)));
        }
        self.objects.push(Object {
            kind,
            parent: inside.unwrap_or(number),
            line,
            attributes,
            infos: Vec::new(),
        });
        Ok(Some(number))
    }

    fn info(&mut self, tag: &BytesStart<'_>, object: usize, line: usize) -> Result<(), ReadError> {
        let name = value(tag, "name", line)?;
        let known = INFOS.into_iter().find(|known| Some(*known) == name.as_deref());
        let infos = &mut self.objects[object].infos;
        if let Some(known) = known
            && infos.iter().all(|(other, _)| *other != known)
        {
            infos.extend(value(tag, "value", line)?.map(|value| (known, value)));
        }
        Ok(())
    }
}

/// The value of an attribute, at most [`TEXT_MAX`] bytes of it.
fn value(tag: &BytesStart<'_>, name: &str, line: usize) -> Result<Option<String>, ReadError> {
    let malformed = |what: String| ReadError::at(line, format!("malformed attributes: {}", excerpt(&what)));
    for attribute in tag.attributes().with_checks(false) {
        let attribute = attribute.map_err(|error| malformed(error.to_string()))?;
        if attribute.key.0 == name {
            let mut value =
                unescape(&attribute.value).map_err(|error| malformed(error.to_string()))?.into_owned();
            if value.len() > TEXT_MAX {
                let end = (0..=TEXT_MAX).rev().find(|end| value.is_char_boundary(*end)).unwrap_or(0);
                value.truncate(end);
            }
            return Ok(Some(value));
        }
    }
    Ok(None)
}
