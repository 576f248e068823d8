//! A plan in words. Steps have the numbers that refusals use: in the order they are written, from 0 in each lane.

use std::fmt::Write as _;
use std::io::{self, Write};

use weftlink_plan::plan::{
    Channel, Grouped, Input, Lane, Node, Op, Output, Place, Program, Protocol, Remote, Step, Wait,
};
use weftlink_plan::{Affine, Plan, Verified};

use crate::counted;
use crate::screen::{prose, say};

/// Prints a plan, or what one rank does in it.
pub(super) fn print(out: &mut impl Write, plan: &Verified, show: Option<u32>) -> io::Result<()> {
    print_outline(out, plan, &format!("proved, hash {:016x}", plan.hash()))?;
    for (rank, program) in (0..).zip(&plan.programs) {
        if show.is_none_or(|shown| shown == rank) {
            print_program(out, plan, rank, program)?;
        }
    }
    Ok(())
}

/// Prints what one rank does; the plan holds only the program of that rank.
pub(super) fn print_one(out: &mut impl Write, plan: &Plan, rank: u32) -> io::Result<()> {
    print_outline(out, plan, "one rank only, not proved")?;
    plan.programs.iter().try_for_each(|program| print_program(out, plan, rank, program))
}

fn print_outline(out: &mut impl Write, plan: &Plan, standing: &str) -> io::Result<()> {
    let (name, collective, ranks) = (&plan.name, &plan.collective, counted(plan.ranks, "rank"));
    say!(out, "{name}: {collective} on {ranks}, {}; {standing}", ways(plan))?;
    let chunks = plan.chunks;
    let scratch = if chunks.scratch > 0 { format!(", scratch {}", chunks.scratch) } else { String::new() };
    writeln!(out, "  chunks: input {}, output {}{scratch}", chunks.input, chunks.output)?;
    for (number, channel) in plan.channels.iter().enumerate() {
        say!(out, "  channel {number}: {}", about_channel(channel))?;
    }
    if plan.counters > 0 {
        writeln!(out, "  counters: {} of each rank", plan.counters)?;
    }
    if plan.needs_windows() {
        writeln!(out, "  buffers: symmetric memory, because ranks access each other's")?;
    }
    Ok(())
}

fn print_program(out: &mut impl Write, plan: &Plan, rank: u32, program: &Program) -> io::Result<()> {
    writeln!(out, "\nrank {rank}")?;
    for (number, lane) in program.lanes.iter().enumerate() {
        writeln!(out, "{}", prose(about_lane(number, lane, !plan.channels.is_empty()).trim_end()))?;
    }
    Ok(())
}

/// Whether buffers may be in place, out of place or both.
pub(super) fn ways(plan: &Plan) -> String {
    let ways: Vec<String> = plan.aliasing.iter().map(ToString::to_string).collect();
    match ways.as_slice() {
        [only] => format!("{only} only"),
        ways => ways.join(" and "),
    }
}

fn about_channel(channel: &Channel) -> String {
    let protocol = match channel.protocol {
        Protocol::Simple => "simple (payload, then a flag)",
        Protocol::Ll => "ll (payload and flag in one cache line)",
        Protocol::Ll128 => "ll128 (payload and flag in 128 bytes)",
    };
    format!("{protocol}, at most {} in flight", counted(channel.depth, "message"))
}

fn about_lane(number: usize, lane: &Lane, has_channels: bool) -> String {
    let channel = if has_channels { format!(", channel {}", lane.channel) } else { String::new() };
    let mut text = format!("  lane {number}{channel}\n");
    let mut next_step = 0;
    add_nodes(&mut text, &lane.nodes, 0, &mut next_step);
    text
}

fn add_nodes(text: &mut String, nodes: &[Node], depth: usize, next_step: &mut usize) {
    let indent = "  ".repeat(depth);
    for node in nodes {
        // Writing to a string does not fail.
        let _ = match node {
            Node::Step(step) => {
                let number = *next_step;
                *next_step += 1;
                writeln!(text, "  {number:>4}  {indent}{}", about_step(step))
            }
            Node::Loop(inner) => {
                let variable = variable(depth);
                let times = match inner.times {
                    0 => "never".to_owned(),
                    1 => format!("once, {variable} = 0"),
                    times => format!("for {variable} = 0 to {}", times - 1),
                };
                let _ = writeln!(text, "        {indent}{times}:");
                add_nodes(text, &inner.body, depth + 1, next_step);
                Ok(())
            }
        };
    }
}

fn about_step(step: &Step) -> String {
    let mut parts = Vec::new();
    if !step.waits.is_empty() {
        let waits: Vec<String> = step.waits.iter().map(about_wait).collect();
        parts.push(format!("wait until {}", waits.join(" and ")));
    }
    let inputs: Vec<String> = step.inputs.iter().map(about_input).collect();
    match step.op {
        Op::Sync => {}
        Op::Copy => parts.push(format!("take {}", inputs.join(", "))),
        Op::Reduce => parts.push(format!("combine {}", inputs.join(" + "))),
    }
    parts.extend(step.outputs.iter().map(about_output));
    parts.extend(step.signals.iter().map(|counter| format!("signal counter {counter}")));
    match parts.is_empty() {
        true => "nothing".to_owned(),
        false => parts.join(", "),
    }
}

fn about_wait(wait: &Wait) -> String {
    match wait {
        Wait::Entered { rank } => format!("rank {} has entered", formula(rank)),
        Wait::Reached { rank, counter, count } => {
            format!("counter {counter} of rank {} is {}", formula(rank), formula(count))
        }
    }
}

fn about_input(input: &Input) -> String {
    match input {
        Input::Local(local) => place(local),
        Input::Received { from } => format!("message from rank {}", formula(from)),
        Input::Peer(peer) => remote(peer),
        Input::Switch(all) => format!("the switch's sum of {}", grouped(all)),
    }
}

fn about_output(output: &Output) -> String {
    match output {
        Output::Local(local) => format!("store in {}", place(local)),
        Output::Sent { to } => format!("send to rank {}", formula(to)),
        Output::Peer(peer) => format!("store in {}", remote(peer)),
        Output::Multicast(all) => format!("multicast to {}", grouped(all)),
    }
}

fn place(place: &Place) -> String {
    format!("{}[{}]", place.buffer, formula(&place.chunk))
}

fn grouped(all: &Grouped) -> String {
    format!("{}[{}] of group {}", all.buffer, formula(&all.chunk), all.group)
}

fn remote(remote: &Remote) -> String {
    format!("{}[{}] of rank {}", remote.buffer, formula(&remote.chunk), formula(&remote.rank))
}

/// A number that depends on loops, as one would write it: `(3 - i) mod 4 + 8`.
fn formula(affine: &Affine) -> String {
    let mut text = String::new();
    let by = affine.by.iter().enumerate().filter(|(_, factor)| **factor != 0);
    if affine.base != 0 || by.clone().next().is_none() {
        text += &affine.base.to_string();
    }
    for (depth, &factor) in by {
        let sign = match (text.is_empty(), factor < 0) {
            (true, true) => "-",
            (true, false) => "",
            (false, true) => " - ",
            (false, false) => " + ",
        };
        let size = factor.unsigned_abs();
        let times = if size == 1 { String::new() } else { size.to_string() };
        text += &format!("{sign}{times}{}", variable(depth));
    }
    if let Some(modulo) = affine.modulo {
        text = match text.contains(' ') || text.starts_with('-') {
            true => format!("({text}) mod {modulo}"),
            false => format!("{text} mod {modulo}"),
        };
    }
    match affine.offset {
        0 => text,
        offset if offset < 0 => format!("{text} - {}", offset.unsigned_abs()),
        offset => format!("{text} + {offset}"),
    }
}

/// The iteration of the loop at a depth.
fn variable(depth: usize) -> String {
    match depth {
        0..=2 => ["i", "j", "k"][depth].to_owned(),
        deeper => format!("i{deeper}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_are_readable() {
        let affine = |offset, base, by: &[i64], modulo| Affine { offset, base, by: by.to_vec(), modulo };
        for (number, written) in [
            (affine(0, 7, &[], None), "7"),
            (affine(0, 3, &[-1], Some(4)), "(3 - i) mod 4"),
            (affine(8, 0, &[1], Some(4)), "i mod 4 + 8"),
            (affine(0, 0, &[-1], Some(4)), "(-i) mod 4"),
            (affine(-1, 1, &[0, 2], None), "1 + 2j - 1"),
            (affine(0, 0, &[0], None), "0"),
        ] {
            assert_eq!(formula(&number), written);
        }
    }
}
