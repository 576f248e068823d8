//! Correct plans with features that built-in algorithms use rarely or not at all.

mod moves;
mod switched;

use weftlink_plan::plan::{
    Agreement, Channel, Chunks, Collective, Input, Lane, Output, Place, Plan, Program, Protocol, Step, Wait,
};

pub use moves::{barrier, exclusive_scan, messages, neighbours, scan};
pub use switched::switched;

/// All of these plans that exist for `ranks`.
pub fn all(ranks: u32) -> Vec<Plan> {
    let mut plans = vec![push(ranks), split(ranks), switched(ranks), scan(ranks), exclusive_scan(ranks)];
    plans
        .extend([barrier(ranks), messages(ranks, &[(0, ranks - 1), (ranks - 1, 0), (0, ranks - 1), (0, 0)])]);
    plans.extend([neighbours([1, 1, ranks]), neighbours([1, ranks, 1])]);
    plans.push(own_first(ranks));
    plans.extend((ranks == 2).then(credit));
    plans.extend((ranks == 4).then(|| neighbours([2, 1, 2])));
    plans
}

/// All-reduce by writing into the peers' scratch, which every tile reuses: a rank begins the next tile after its
/// peers have read this one.
pub fn push(ranks: u32) -> Plan {
    const WRITTEN: u32 = 0;
    const READ: u32 = 1;
    let program = |rank| {
        let peers = || (0..ranks).filter(move |&peer| peer != rank);
        let spread = Step::copy(Input::Local(Place::input(0)))
            .to_all(peers().map(|peer| Output::held_by(peer, rank, Place::scratch(rank))))
            .signal(WRITTEN);
        let part = |owner| if owner == rank { Place::input(0) } else { Place::scratch(owner) };
        let combine = Step::reduce((0..ranks).map(|owner| Input::Local(part(owner))).collect())
            .after(peers().map(|peer| Wait::reached(peer, WRITTEN, 1)))
            .to(Output::Local(Place::output(0)))
            .signal(READ);
        let credit = Step::sync().after(peers().map(|peer| Wait::reached(peer, READ, 1)));
        Program {
            lanes: vec![Lane { channel: 0, nodes: vec![spread.into(), combine.into(), credit.into()] }],
        }
    };
    Plan {
        chunks: Chunks { input: 1, output: 1, scratch: ranks },
        channels: vec![],
        counters: 2,
        programs: (0..ranks).map(program).collect(),
        ..Plan::outline("push", Collective::AllReduce, ranks, 1)
    }
}

/// All-reduce by messages with a lane that sends and a lane that receives. They synchronise on a counter
/// of the rank, because in place the receiver must not overwrite what the sender still reads.
pub fn split(ranks: u32) -> Plan {
    const SENT: u32 = 0;
    let mine = || Input::Local(Place::input(0));
    let program = |rank| {
        let peers = (0..ranks).filter(|&peer| peer != rank);
        let send = Step::copy(mine()).to_all(peers.map(Output::sent)).signal(SENT);
        let part = |peer| if peer == rank { mine() } else { Input::received(peer) };
        let combine = Step::reduce((0..ranks).map(part).collect())
            .after([Wait::reached(rank, SENT, 1)])
            .to(Output::Local(Place::output(0)));
        let lane = |step: Step| Lane { channel: 0, nodes: vec![step.into()] };
        Program { lanes: vec![lane(send), lane(combine)] }
    };
    Plan {
        chunks: Chunks { input: 1, output: 1, scratch: 0 },
        channels: vec![Channel { protocol: Protocol::Simple, depth: 2 }],
        counters: 1,
        programs: (0..ranks).map(program).collect(),
        ..Plan::outline("split", Collective::AllReduce, ranks, 1)
    }
}

/// All-reduce by messages in which each rank adds the others' inputs to its own, so that results differ between ranks in the last bits.
pub fn own_first(ranks: u32) -> Plan {
    let mine = || Input::Local(Place::input(0));
    let program = |rank| {
        let peers = || (1..ranks).map(move |by| (rank + by) % ranks);
        let send = Step::copy(mine()).to_all(peers().map(Output::sent));
        let parts = [mine()].into_iter().chain(peers().map(Input::received)).collect();
        let combine = Step::reduce(parts).to(Output::Local(Place::output(0)));
        Program { lanes: vec![Lane { channel: 0, nodes: vec![send.into(), combine.into()] }] }
    };
    Plan {
        agreement: Agreement::UpToRounding,
        channels: vec![Channel { protocol: Protocol::Simple, depth: 2 }],
        programs: (0..ranks).map(program).collect(),
        ..Plan::outline("own-first", Collective::AllReduce, ranks, 1)
    }
}

/// All-reduce on two ranks in which a FIFO's only slot is the credit for scratch: rank 0 writes rank 1's scratch and
/// sends a message, which rank 1 takes after it has read the scratch. With a second slot rank 0 could overwrite what
/// rank 1 has not read, although a run in which both keep pace would not show it.
pub fn credit() -> Plan {
    const WRITTEN: u32 = 0;
    const DONE: u32 = 1;
    let mine = || Input::Local(Place::input(0));
    let output = || Output::Local(Place::output(0));
    let zero = vec![
        Step::copy(mine())
            .to(Output::held_by(1, 0, Place::scratch(0)))
            .to(Output::sent(1))
            .signal(WRITTEN)
            .into(),
        Step::reduce(vec![mine(), Input::received(1)]).to(output()).signal(DONE).into(),
    ];
    let one = vec![
        Step::copy(mine()).to(Output::sent(0)).into(),
        Step::reduce(vec![Input::Local(Place::scratch(0)), mine()])
            .after([Wait::reached(0, WRITTEN, 1)])
            .to(output())
            .into(),
        Step::copy(Input::received(0)).to(Output::Local(Place::scratch(1))).into(),
        Step::sync().after([Wait::reached(0, DONE, 1)]).into(),
    ];
    let program = |nodes| Program { lanes: vec![Lane { channel: 0, nodes }] };
    Plan {
        chunks: Chunks { input: 1, output: 1, scratch: 2 },
        channels: vec![Channel { protocol: Protocol::Simple, depth: 1 }],
        counters: 2,
        programs: vec![program(zero), program(one)],
        ..Plan::outline("credit", Collective::AllReduce, 2, 1)
    }
}
