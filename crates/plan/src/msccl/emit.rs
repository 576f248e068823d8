//! Writes a program as text.

use std::fmt::Write as _;

use super::program::{BUFFERS, Block, COLLECTIVES, Gpu, PROTOCOLS, Place, Program, Step, with_root};
use crate::plan::Aliasing;

/// The XML of a program, with every attribute that some runtime requires.
pub(super) fn xml(program: &Program) -> String {
    let mut text = String::new();
    let claims = |aliasing| u32::from(program.aliasing.contains(&aliasing));
    let channels = program.gpus.iter().flat_map(|gpu| &gpu.blocks).map(|block| block.channel + 1).max();
    // Writing to a string does not fail.
    let _ = write!(
        text,
        r#"<algo name="{}" proto="{}" nchannels="{}" nchunksperloop="{}" ngpus="{}" coll="{}" inplace="{}" outofplace="{}" minBytes="0" maxBytes="0""#,
        plain(&program.name),
        word(&PROTOCOLS, |protocol| *protocol == program.protocol),
        channels.unwrap_or(1),
        program.chunks,
        program.gpus.len(),
        word(&COLLECTIVES, |known| *known == with_root(&program.collective, 0)),
        claims(Aliasing::InPlace),
        claims(Aliasing::OutOfPlace),
    );
    // No runtime uses the root, and all accept it.
    if let Some(root) = program.collective.root() {
        let _ = write!(text, r#" root="{root}""#);
    }
    text += ">\n";
    for (id, gpu) in program.gpus.iter().enumerate() {
        add_gpu(&mut text, id, gpu);
    }
    text += "</algo>\n";
    text
}

fn add_gpu(text: &mut String, id: usize, gpu: &Gpu) {
    let Gpu { input_chunks, output_chunks, scratch_chunks, blocks } = gpu;
    let _ = writeln!(
        text,
        r#"  <gpu id="{id}" i_chunks="{input_chunks}" o_chunks="{output_chunks}" s_chunks="{scratch_chunks}">"#
    );
    for (id, Block { send, receive, channel, steps }) in blocks.iter().enumerate() {
        let (send, receive) = (number(*send), number(*receive));
        let _ = writeln!(text, r#"    <tb id="{id}" send="{send}" recv="{receive}" chan="{channel}">"#);
        for (number, step) in steps.iter().enumerate() {
            add_step(text, number, step);
        }
        *text += "    </tb>\n";
    }
    *text += "  </gpu>\n";
}

fn add_step(text: &mut String, number_of_step: usize, step: &Step) {
    let buffer = |place: Place| word(&BUFFERS, |buffer| *buffer == place.buffer);
    let Step { kind, source, target, count, after, has_dependents } = step;
    let _ = writeln!(
        text,
        r#"      <step s="{number_of_step}" type="{}" srcbuf="{}" srcoff="{}" dstbuf="{}" dstoff="{}" cnt="{count}" depid="{}" deps="{}" hasdep="{}"/>"#,
        kind.name(),
        buffer(*source),
        number(source.chunk),
        buffer(*target),
        number(target.chunk),
        number(after.map(|(block, _)| block)),
        number(after.map(|(_, step)| step)),
        u32::from(*has_dependents),
    );
}

/// A number, or -1 for none.
fn number(number: Option<u32>) -> i64 {
    number.map_or(-1, i64::from)
}

/// The word for a value.
fn word<T>(known: &[(&'static str, T)], is_meant: impl Fn(&T) -> bool) -> &'static str {
    known.iter().find(|(_, meaning)| is_meant(meaning)).map_or("", |(word, _)| word)
}

/// A name without characters that would end an attribute: no runtime decodes entities.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_control() || "\"<>&".contains(c) { '_' } else { c }).collect()
}
