//! Plans for scans, barriers, messages and neighbour exchanges.

use weftlink_plan::plan::{
    Aliasing, Channel, Chunks, Collective, Input, Lane, Output, Place, Plan, Program, Protocol, Step, Wait,
};

use crate::promise::{blocks, parts};

const CHANNEL: Channel = Channel { protocol: Protocol::Simple, depth: 2 };

fn own() -> Input {
    Input::Local(Place::input(0))
}

fn keep() -> Output {
    Output::Local(Place::output(0))
}

fn one_lane(steps: impl IntoIterator<Item = Step>) -> Program {
    Program { lanes: vec![Lane { channel: 0, nodes: steps.into_iter().map(Into::into).collect() }] }
}

/// The scan along a row: each rank adds its input to the sum that it receives from the rank before.
pub fn scan(ranks: u32) -> Plan {
    let program = |rank: u32| {
        let step = match rank {
            0 => Step::copy(own()),
            _ => Step::reduce(vec![Input::received(rank - 1), own()]),
        };
        let next = (rank + 1 < ranks).then(|| Output::sent(rank + 1));
        one_lane([step.to(keep()).to_all(next)])
    };
    let programs = (0..ranks).map(program).collect();
    Plan { channels: vec![CHANNEL], programs, ..Plan::outline("row", Collective::Scan, ranks, 1) }
}

/// The exclusive scan along a row. The sum from the rank before is kept in scratch, because in place it must not
/// overwrite the input before the rank has added that for the next.
pub fn exclusive_scan(ranks: u32) -> Plan {
    let aside = || Place::scratch(0);
    let program = |rank: u32| {
        let (is_first, is_last) = (rank == 0, rank + 1 == ranks);
        let received = || Step::copy(Input::received(rank.saturating_sub(1)));
        one_lane(match (is_first, is_last) {
            (true, true) => vec![],
            (true, false) => vec![Step::copy(own()).to(Output::sent(1))],
            (false, true) => vec![received().to(keep())],
            (false, false) => vec![
                received().to(Output::Local(aside())),
                Step::reduce(vec![Input::Local(aside()), own()]).to(Output::sent(rank + 1)),
                Step::copy(Input::Local(aside())).to(keep()),
            ],
        })
    };
    Plan {
        chunks: Chunks { input: 1, output: 1, scratch: 1 },
        channels: vec![CHANNEL],
        programs: (0..ranks).map(program).collect(),
        ..Plan::outline("row", Collective::ExclusiveScan, ranks, 1)
    }
}

/// The dissemination barrier: in round k a rank signals that the 2^k ranks up to itself have entered.
pub fn barrier(ranks: u32) -> Plan {
    let rounds = ranks.next_power_of_two().trailing_zeros();
    let program = |rank: u32| {
        let reached = |round: u32| Wait::reached((rank + ranks - (1 << round) % ranks) % ranks, round, 1);
        let before = |round: u32| round.checked_sub(1).map(reached);
        let signal = |round: u32| Step::sync().after(before(round)).signal(round);
        one_lane((0..rounds).map(signal).chain([Step::sync().after(before(rounds))]))
    };
    let programs = (0..ranks).map(program).collect();
    Plan { counters: rounds, programs, ..Plan::outline("dissemination", Collective::Barrier, ranks, 1) }
}

/// Messages between ranks.
pub fn messages(ranks: u32, list: &[(u32, u32)]) -> Plan {
    handed_over(Collective::SendReceive { messages: list.to_vec() }, ranks)
}

/// Blocks exchanged by neighbours on a torus.
pub fn neighbours(torus: [u32; 3]) -> Plan {
    handed_over(Collective::Neighbours { torus }, torus.iter().product())
}

/// Sends every block from its source to its target: one lane sends, one receives, both in the order of the sources' blocks, which is the
/// order of messages in FIFOs.
fn handed_over(collective: Collective, ranks: u32) -> Plan {
    let mut moves = Vec::new();
    for to in 0..ranks {
        for block in 0..blocks(&collective, ranks as usize, to as usize).1 {
            let (from, source) = parts(&collective, ranks as usize, to as usize, block)[0];
            moves.push((from as u32, source as u32, to, block as u32));
        }
    }
    moves.sort_unstable();
    let program = |rank: u32| {
        let mine = |(from, source, to, _): &(u32, u32, u32, u32)| {
            (*from == rank && *to != rank)
                .then(|| Step::copy(Input::Local(Place::input(*source))).to(Output::sent(*to)))
        };
        let theirs = |(from, source, to, target): &(u32, u32, u32, u32)| {
            let input =
                if *from == rank { Input::Local(Place::input(*source)) } else { Input::received(*from) };
            (*to == rank).then(|| Step::copy(input).to(Output::Local(Place::output(*target))))
        };
        let lane = |steps: Vec<Step>| Lane { channel: 0, nodes: steps.into_iter().map(Into::into).collect() };
        let (sent, received) =
            (moves.iter().filter_map(mine).collect(), moves.iter().filter_map(theirs).collect());
        Program { lanes: vec![lane(sent), lane(received)] }
    };
    Plan {
        // In place, a block would overwrite one that has not been sent yet.
        aliasing: vec![Aliasing::OutOfPlace],
        uneven: true,
        channels: vec![CHANNEL],
        programs: (0..ranks).map(program).collect(),
        ..Plan::outline("handed-over", collective, ranks, 1)
    }
}
