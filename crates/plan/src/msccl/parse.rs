//! Parses text to a program: a pull parser that keeps what the runtimes use and ignores everything else, as they do.
//!
//! Attributes that the runtimes require but other writers leave out have defaults; numbers are decimal.

use quick_xml::Reader;
use quick_xml::events::Event;
use quick_xml::events::attributes::Attributes;

use super::error::{At, MscclError};
use super::program::{BUFFERS, Block, COLLECTIVES, Gpu, Kind, PROTOCOLS, Place, Program, Step, with_root};
use crate::plan::{Aliasing, Collective};

/// Bytes of a file; files in use have a megabyte.
const BYTES_MAX: usize = 64 << 20;
/// Steps times their chunks, over all gpus; files in use have twenty thousand.
pub(super) const CHUNK_STEPS_MAX: u64 = 1 << 20;
/// Gpus: as many as can be proved with one tb each.
const GPUS_MAX: usize = 4096;
/// Thread blocks of a gpu; RCCL has 64, MSCCL 216.
const BLOCKS_MAX: usize = 256;
/// Chunks of a step: the limit of RCCL and MSCCL.
const COUNT_MAX: u32 = 71;
/// Channels of a gpu; RCCL has 128.
const CHANNELS_MAX: u32 = 1024;
/// Chunks of a buffer.
const CHUNKS_MAX: u32 = 1 << 20;

/// Reads a file.
pub(super) fn program(text: &str) -> Result<Program, MscclError> {
    if text.len() > BYTES_MAX {
        let reason = format!("the file has {} bytes, more than the limit of {BYTES_MAX}", text.len());
        return Err(MscclError::Text { line: 1, reason });
    }
    // The byte order mark, which the reader's positions do not count.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut parser = Parser { text, algo: None, gpus: Vec::new(), blocks: Vec::new(), chunk_steps: 0 };
    let mut reader = Reader::from_str(text);
    // The number of open elements of the chain algo, gpu, tb, step. Other elements are skipped with their content.
    let (mut kept, mut passed_over) = (0, 0);
    loop {
        let start = reader.buffer_position() as usize;
        let event = reader.read_event().map_err(|error| parser.at(start, error.to_string()))?;
        let end = reader.buffer_position() as usize;
        match event {
            Event::Start(_) if passed_over > 0 => passed_over += 1,
            Event::Empty(_) if passed_over > 0 => {}
            Event::Start(_) => match parser.element(start..end, kept)? {
                true => kept += 1,
                false => passed_over = 1,
            },
            Event::Empty(_) => {
                parser.element(start..end, kept)?;
            }
            Event::End(_) if passed_over > 0 => passed_over -= 1,
            Event::End(_) => kept = kept.saturating_sub(1),
            Event::Eof if kept > 0 || passed_over > 0 => {
                return Err(parser.at(end, "the file ends inside an element; it is truncated"));
            }
            Event::Eof => return parser.finish(),
            _ => {}
        }
    }
}

/// The elements that are kept, by depth.
const ELEMENTS: [&str; 4] = ["algo", "gpu", "tb", "step"];

struct Parser<'a> {
    text: &'a str,
    algo: Option<Algo>,
    gpus: Vec<(u32, Gpu)>,
    /// The blocks of the last gpu, in the file's order.
    blocks: Vec<(u32, Block)>,
    chunk_steps: u64,
}

struct Algo {
    name: String,
    protocol: crate::plan::Protocol,
    collective: Collective,
    root: Option<u32>,
    chunks: u32,
    ranks: u32,
    aliasing: Vec<Aliasing>,
}

impl<'a> Parser<'a> {
    /// Reads the tag at this place of the text, with `depth` kept elements around it; returns whether it is kept.
    fn element(&mut self, range: std::ops::Range<usize>, depth: usize) -> Result<bool, MscclError> {
        let tag =
            self.text[range.clone()].trim_start_matches('<').trim_end_matches('>').trim_end_matches('/');
        let name = &tag[..tag.find(|c: char| c.is_ascii_whitespace()).unwrap_or(tag.len())];
        if depth == 0 && name != "algo" {
            let reason = format!("the root element is <{}>; an MSCCL program has <algo>", excerpt(name));
            return Err(self.at(range.start, reason));
        }
        if depth == 3 && name == "op" {
            let reason = "<op> belongs to a newer version of the format; let msccl-tools write the old one";
            return Err(self.at(range.start, reason));
        }
        if ELEMENTS.get(depth) != Some(&name) || (depth == 0 && self.algo.is_some()) {
            return Ok(false);
        }
        let mut found: Vec<(&str, &str)> = Vec::new();
        // HTML mode, because the runtimes accept numbers without quotes. Of a repeated attribute the first counts.
        for attribute in Attributes::html(tag, name.len()).with_checks(false) {
            let attribute = attribute.map_err(|error| self.at(range.start, error.to_string()))?;
            if let std::borrow::Cow::Borrowed(value) = attribute.value {
                found.push((attribute.key.0, value));
            }
        }
        let attributes = Element { found, at: self.place(depth) };
        match depth {
            0 => self.algo = Some(algo(&attributes)?),
            1 => self.gpu(&attributes)?,
            2 => self.block(&attributes)?,
            _ => self.step(&attributes)?,
        }
        Ok(true)
    }

    /// The place of the next element of this depth, as far as it is known before the element is read.
    fn place(&self, depth: usize) -> At {
        let gpu = self.gpus.last().filter(|_| depth > 1).map(|(id, _)| *id);
        let block = self.blocks.last().filter(|_| depth > 2);
        let step = block.map(|(_, block)| block.steps.len() as u32);
        At { gpu, tb: block.map(|(id, _)| *id), step }
    }

    fn gpu(&mut self, attributes: &Element<'_>) -> Result<(), MscclError> {
        self.close_gpu()?;
        let id = attributes.number("id", None, u32::MAX)?;
        let at = At { gpu: Some(id), ..At::default() };
        if self.gpus.iter().any(|(other, _)| *other == id) {
            return Err(at.error("two gpus have this id; number the gpus from 0"));
        }
        if self.gpus.len() == GPUS_MAX {
            return Err(at.error(format!("a program may have at most {GPUS_MAX} gpus")));
        }
        let attributes = Element { found: attributes.found.clone(), at };
        let chunks = |name| attributes.number(name, Some(0), CHUNKS_MAX);
        let (input_chunks, output_chunks) = (chunks("i_chunks")?, chunks("o_chunks")?);
        let scratch_chunks = chunks("s_chunks")?;
        self.gpus.push((id, Gpu { input_chunks, output_chunks, scratch_chunks, blocks: Vec::new() }));
        Ok(())
    }

    fn block(&mut self, attributes: &Element<'_>) -> Result<(), MscclError> {
        let id = attributes.number("id", None, u32::MAX)?;
        let at = At { tb: Some(id), ..attributes.at };
        if self.blocks.iter().any(|(other, _)| *other == id) {
            return Err(at.error("two tbs of the gpu have this id; number the tbs of a gpu from 0"));
        }
        if self.blocks.len() == BLOCKS_MAX {
            return Err(at.error(format!("a gpu may have at most {BLOCKS_MAX} tbs")));
        }
        let attributes = Element { found: attributes.found.clone(), at };
        let (send, receive) = (attributes.optional("send")?, attributes.optional("recv")?);
        if let Some(gpu) = at.gpu.filter(|gpu| send == Some(*gpu) || receive == Some(*gpu)) {
            return Err(at.error(format!("its peer is gpu {gpu} itself; name another, or -1 for none")));
        }
        let channel = attributes.number("chan", Some(0), CHANNELS_MAX - 1)?;
        self.blocks.push((id, Block { send, receive, channel, steps: Vec::new() }));
        Ok(())
    }

    fn step(&mut self, attributes: &Element<'_>) -> Result<(), MscclError> {
        let Some((_, block)) = self.blocks.last_mut() else { return Ok(()) };
        let at = attributes.at;
        let (position, number) = (block.steps.len() as u32, attributes.number("s", None, u32::MAX)?);
        if number != position {
            let reason = format!("s is {number} here; number the steps of a tb from 0 in the order they run");
            return Err(at.error(reason));
        }
        let kind = attributes.text("type").unwrap_or_default();
        let Some(kind) = Kind::ALL.into_iter().find(|known| known.name() == kind) else {
            return Err(at.error(unknown_kind(kind)));
        };
        let count = attributes.number("cnt", Some(1), COUNT_MAX)?;
        self.chunk_steps += u64::from(count.max(1));
        if self.chunk_steps > CHUNK_STEPS_MAX {
            let reason =
                format!("the program has more than {CHUNK_STEPS_MAX} steps of one chunk, which is the limit");
            return Err(at.error(reason));
        }
        let place = |buffer, chunk| {
            let buffer = attributes.one_of(buffer, &BUFFERS, Some(crate::plan::Buffer::Input))?;
            Ok::<_, MscclError>(Place { buffer, chunk: attributes.optional(chunk)? })
        };
        let after = match attributes.optional("depid")? {
            None => None,
            Some(block) => Some((block, attributes.number("deps", None, u32::MAX)?)),
        };
        block.steps.push(Step {
            kind,
            source: place("srcbuf", "srcoff")?,
            target: place("dstbuf", "dstoff")?,
            count,
            after,
            // A nop never signals: the runtimes make it a part of the next step.
            has_dependents: attributes.number("hasdep", Some(0), 1)? == 1 && kind != Kind::Nop,
        });
        Ok(())
    }

    /// Moves the blocks to their gpu, in the order of their ids.
    fn close_gpu(&mut self) -> Result<(), MscclError> {
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.sort_by_key(|(id, _)| *id);
        let Some((gpu, last)) = self.gpus.last_mut() else { return Ok(()) };
        for (expected, (id, block)) in (0..).zip(blocks) {
            if id != expected {
                let at = At { gpu: Some(*gpu), tb: Some(id), step: None };
                return Err(
                    at.error(format!("there is no tb {expected}; number the tbs of a gpu without gaps"))
                );
            }
            last.blocks.push(block);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Program, MscclError> {
        self.close_gpu()?;
        let Some(algo) = self.algo.take() else {
            return Err(self.at(self.text.len(), "the file ends without an <algo> element"));
        };
        self.gpus.sort_by_key(|(id, _)| *id);
        let at = At::default();
        if self.gpus.len() != algo.ranks as usize {
            let count = self.gpus.len();
            return Err(
                at.error(format!("ngpus is {}, but there are {count} gpus; make them equal", algo.ranks))
            );
        }
        if let Some((expected, (id, _))) = (0..).zip(&self.gpus).find(|(expected, (id, _))| expected != id) {
            let at = At { gpu: Some(*id), ..at };
            return Err(at.error(format!("there is no gpu {expected}; number the gpus without gaps")));
        }
        let gpus: Vec<Gpu> = self.gpus.into_iter().map(|(_, gpu)| gpu).collect();
        let root = algo.root.unwrap_or_else(|| likely_root(&algo.collective, &gpus));
        Ok(Program {
            name: algo.name,
            protocol: algo.protocol,
            collective: with_root(&algo.collective, root),
            chunks: algo.chunks,
            aliasing: algo.aliasing,
            gpus,
        })
    }

    fn at(&self, offset: usize, reason: impl Into<String>) -> MscclError {
        let before = self.text.as_bytes().get(..offset).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        MscclError::Text { line, reason: reason.into() }
    }
}

fn algo(attributes: &Element<'_>) -> Result<Algo, MscclError> {
    let at = attributes.at;
    let in_place = attributes.number("inplace", Some(0), 1)? == 1;
    // Without the attribute, which MSCCL's own files do not have, a program is for one aliasing only.
    let out_of_place = attributes.number("outofplace", Some(u32::from(!in_place)), 1)? == 1;
    let claims = [(out_of_place, Aliasing::OutOfPlace), (in_place, Aliasing::InPlace)];
    let aliasing: Vec<_> = claims.into_iter().filter(|(claimed, _)| *claimed).map(|(_, way)| way).collect();
    if aliasing.is_empty() {
        return Err(
            at.error("inplace and outofplace are both 0, so the program would never run; set one to 1")
        );
    }
    let collective = attributes.one_of("coll", &COLLECTIVES, None)?;
    let ranks = attributes.number("ngpus", None, u32::MAX)?;
    let chunks = attributes.number("nchunksperloop", None, CHUNKS_MAX)?;
    let (input, output) = collective.blocks(ranks);
    let blocks = input.max(output);
    if chunks == 0 || blocks == 0 || !chunks.is_multiple_of(blocks) {
        let name = attributes.text("coll").unwrap_or_default();
        return Err(at.error(format!(
            "nchunksperloop is {chunks}, but the larger buffer of this {name} has {blocks} blocks of equal chunks; make it a \
             multiple of {blocks}"
        )));
    }
    Ok(Algo {
        name: attributes.text("name").unwrap_or("msccl").to_owned(),
        protocol: attributes.one_of("proto", &PROTOCOLS, None)?,
        collective,
        root: attributes.optional("root")?,
        chunks,
        ranks,
        aliasing,
    })
}

/// The root of a program that does not name it: the only gpu that receives nothing (broadcast, scatter) or sends nothing
/// (reduce, gather). The runtimes do not use the root, so this is a guess that the proof confirms.
fn likely_root(collective: &Collective, gpus: &[Gpu]) -> u32 {
    let gives = matches!(collective, Collective::Broadcast { .. } | Collective::Scatter { .. });
    let passive = |gpu: &Gpu| {
        let mut kinds = gpu.blocks.iter().flat_map(|block| &block.steps).map(|step| step.kind);
        if gives { !kinds.any(Kind::receives) } else { !kinds.any(Kind::sends) }
    };
    let mut candidates = (0..).zip(gpus).filter(|(_, gpu)| passive(gpu)).map(|(id, _)| id);
    match (candidates.next(), candidates.next()) {
        (Some(root), None) => root,
        _ => 0,
    }
}

/// An element's attributes, and its place.
struct Element<'a> {
    found: Vec<(&'a str, &'a str)>,
    at: At,
}

impl<'a> Element<'a> {
    fn text(&self, name: &str) -> Option<&'a str> {
        self.found.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    /// A number up to `max`; `default` if the attribute is missing.
    fn number(&self, name: &str, default: Option<u32>, max: u32) -> Result<u32, MscclError> {
        let Some(text) = self.text(name) else {
            return default.ok_or_else(|| self.at.error(format!("the attribute {name} is missing")));
        };
        match text.trim().parse::<u32>() {
            Ok(number) if number <= max => Ok(number),
            _ => Err(self.at.error(format!("{name} is `{}`, but has to be 0 to {max}", excerpt(text)))),
        }
    }

    /// A number, or nothing where it is -1 or missing.
    fn optional(&self, name: &str) -> Result<Option<u32>, MscclError> {
        match self.text(name).map(str::trim) {
            None | Some("-1") => Ok(None),
            Some(_) => self.number(name, None, u32::MAX - 1).map(Some),
        }
    }

    /// One of the known words; `default` if the attribute is missing.
    fn one_of<T: Clone>(&self, name: &str, known: &[(&str, T)], default: Option<T>) -> Result<T, MscclError> {
        let Some(text) = self.text(name) else {
            return default.ok_or_else(|| self.at.error(format!("the attribute {name} is missing")));
        };
        let found = known.iter().find(|(word, _)| *word == text).map(|(_, meaning)| meaning.clone());
        found.ok_or_else(|| {
            let words: Vec<_> = known.iter().map(|(word, _)| *word).collect();
            let (text, words) = (excerpt(text), words.join(", "));
            self.at.error(format!("{name} is `{text}`, which is unknown; known are {words}"))
        })
    }
}

fn unknown_kind(kind: &str) -> String {
    if kind == "res_add" {
        return "res_add adds buffers that only calls of the original MSCCL have; it is not supported".into();
    }
    let names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
    format!("type is `{}`, which is unknown; known are {}", excerpt(kind), names.join(", "))
}

/// The beginning of a text, on one line.
fn excerpt(text: &str) -> String {
    text.chars().take(40).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
