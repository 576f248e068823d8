//! Parses documents, and finds the line of an entry with a mistake.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use toml::de::DeTable;

use super::assemble::{DocumentError, assemble};
use super::schema::{Document, VERSION, Version};
use crate::fabric::Fabric;
use crate::format::{INPUT_BYTES_MAX, ReadError, text};

/// Limits that are checked before parsing. The parsers' trees take up to a hundred times the memory of the input; the
/// limits keep it below 256 MB for any input.
struct Limits {
    bytes: usize,
    /// Characters that open a table or a list, including the dots of TOML's dotted keys.
    lists: usize,
    /// Characters that precede a value.
    values: usize,
    /// How to reduce a document that is too large.
    advice: &'static str,
}

const TOML: Limits = Limits {
    bytes: 3 << 20,
    lists: 70_000,
    values: 300_000,
    advice: "start from a `base`, or write it as JSON, which may be larger",
};

const JSON: Limits =
    Limits { bytes: INPUT_BYTES_MAX, lists: 600_000, values: 1_500_000, advice: "start from a `base`" };

/// Reads a fabric from a TOML document.
pub fn read_toml(bytes: &[u8]) -> Result<Fabric, ReadError> {
    let text = TOML.check(text(bytes)?)?;
    let document = toml::from_str::<Document>(text).map_err(|error| {
        let version = toml::from_str::<Version>(text).ok();
        let line = error.span().map_or(1, |span| line_at(text, span.start));
        other_version(version, line).unwrap_or_else(|| ReadError::at(line, error.message()))
    })?;
    finish(document, |list, index| {
        let tree = DeTable::parse(text).ok()?;
        let value = tree.get_ref().get(list)?;
        let entry = match value.get_ref().as_array() {
            Some(entries) => entries.get(index)?,
            None => value,
        };
        Some(line_at(text, entry.span().start))
    })
}

/// Reads a fabric from a JSON document, or from the `fabric` key in the output of `weft topo --json`.
pub fn read_json(bytes: &[u8]) -> Result<Fabric, ReadError> {
    let whole = JSON.check(text(bytes)?)?;
    let text = serde_json::from_str::<Report<'_>>(whole).map_or(whole, |report| report.fabric.get());
    let lines_before = line_at(whole, text.as_ptr() as usize - whole.as_ptr() as usize) - 1;
    read_json_document(text).map_err(|error| match error {
        ReadError::At { line, reason } => ReadError::At { line: line + lines_before, reason },
        other => other,
    })
}

/// The output of `weft topo --json`, which contains a document.
#[derive(serde::Deserialize)]
struct Report<'a> {
    #[serde(borrow)]
    fabric: &'a RawValue,
}

fn read_json_document(text: &str) -> Result<Fabric, ReadError> {
    let document = serde_json::from_str::<Document>(text).map_err(|error| {
        let version = serde_json::from_str::<Version>(text).ok();
        let message = error.to_string();
        // The line is already in the error.
        let reason = message.rsplit_once(" at line ").map_or(&*message, |(reason, _)| reason);
        let line = error.line().max(1);
        other_version(version, line).unwrap_or_else(|| ReadError::at(line, reason))
    })?;
    finish(document, |list, index| {
        let lists: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
        let value = *lists.get(list)?;
        let entry = match serde_json::from_str::<Vec<&RawValue>>(value.get()) {
            Ok(entries) => *entries.get(index)?,
            Err(_) => value,
        };
        // A raw value is a slice of the text, so its address gives its position.
        let offset = entry.get().as_ptr() as usize - text.as_ptr() as usize;
        Some(line_at(text, offset))
    })
}

impl Limits {
    fn check<'a>(&self, text: &'a str) -> Result<&'a str, ReadError> {
        if text.trim().is_empty() {
            return Err(ReadError::at(
                1,
                format!("the input is empty; a document starts with `weft = {VERSION}`"),
            ));
        }
        let (mut lists, mut values) = (0, 0);
        for byte in text.bytes() {
            lists += usize::from(matches!(byte, b'[' | b'{' | b'.'));
            values += usize::from(matches!(byte, b',' | b'='));
        }
        for (what, found, limit) in [
            ("bytes", text.len(), self.bytes),
            ("tables and lists", lists, self.lists),
            ("values", values, self.values),
        ] {
            if found > limit {
                let reason =
                    format!("the document has {found} {what}; the limit is {limit}: {}", self.advice);
                return Err(ReadError::at(1, reason));
            }
        }
        Ok(text)
    }
}

/// Builds the fabric; `locate` returns the line of an entry of a list.
fn finish(document: Document, locate: impl Fn(&str, usize) -> Option<usize>) -> Result<Fabric, ReadError> {
    let wrong_version = match document.weft {
        None => Some(format!("the document has no format version: add `weft = {VERSION}`")),
        Some(VERSION) => None,
        Some(other) => Some(version_reason(other)),
    };
    if let Some(reason) = wrong_version {
        return Err(ReadError::at(1, reason));
    }
    assemble(document).map_err(|error| match error {
        DocumentError::Entry { list, index, reason } => {
            ReadError::at(locate(list, index).unwrap_or(1), reason)
        }
        DocumentError::Fabric(error) => ReadError::Fabric(error),
    })
}

/// A later format may have keys that are unknown here: report the version instead.
fn other_version(version: Option<Version>, line: usize) -> Option<ReadError> {
    let found = version.filter(|version| version.weft != VERSION)?.weft;
    Some(ReadError::at(line, version_reason(found)))
}

fn version_reason(found: u32) -> String {
    format!("the document has format version {found}; this program reads version {VERSION}")
}

fn line_at(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|&&byte| byte == b'\n').count()
}
