//! A plan in which a switch computes.

use weftlink_plan::plan::{
    Buffer, Collective, Group, Grouped, Input, Lane, Output, Plan, Program, Step, Switch, Wait,
};

/// All-reduce by a switch: after all ranks have entered, each reads the sum of its share from the switch and multicasts it.
pub fn switched(ranks: u32) -> Plan {
    const WRITTEN: u32 = 0;
    let program = |rank: u32| {
        let peers = || (0..ranks).filter(move |&peer| peer != rank);
        let share = |buffer| Grouped { group: 0, buffer, chunk: rank.into() };
        let sum = Step::copy(Input::Switch(share(Buffer::Input)))
            .after(peers().map(Wait::entered))
            .to(Output::Multicast(share(Buffer::Output)))
            .signal(WRITTEN);
        let leave = Step::sync().after(peers().map(|peer| Wait::reached(peer, WRITTEN, 1)));
        Program { lanes: vec![Lane { channel: 0, nodes: vec![sum.into(), leave.into()] }] }
    };
    Plan {
        groups: vec![Group { switch: Switch::Nvswitch, members: (0..ranks).collect() }],
        counters: 1,
        programs: (0..ranks).map(program).collect(),
        ..Plan::outline("switched", Collective::AllReduce, ranks, ranks)
    }
}
