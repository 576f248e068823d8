//! Rendezvous of many ranks under many seeded schedules of delays and faults; see `rendezvous/world.rs` for what is checked.
//!
//! `weftlink_testkit::schedules` has the environment variables.

#[path = "rendezvous/checks.rs"]
mod checks;
#[path = "rendezvous/drive.rs"]
mod drive;
#[path = "rendezvous/settle.rs"]
mod settle;
#[path = "rendezvous/world.rs"]
mod world;

use std::time::Duration;

use weftlink_testkit::random::Random;
use weftlink_testkit::schedules;
use world::{Fault, Outcome, Spec, World};

/// As many as `make test` has time for.
const SCHEDULES: u64 = 40_000;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn schedule(seed: u64, is_shown: bool) -> Result<Outcome, String> {
    let mut random = schedules::random(seed);
    let size = match random.below(32) {
        0 => 2 + random.below(63),
        1..=6 => 2 + random.below(15),
        _ => 2 + random.below(6),
    } as u32;
    let hosts = 1 + random.below(u64::from(size).min(5)) as u32;
    let spread = [1, 300, 4_000][random.below(3) as usize];
    let mut world = World::new(random.draw(), size);
    world.is_network = random.one_in(2);
    world.is_star = !world.is_network && random.one_in(3);
    world.has_several_places = world.is_network && random.one_in(4);
    if is_shown {
        world.queue.begin_trace(format!("{size} ranks on {hosts} hosts"));
    }
    let are_patient = random.one_in(2);
    for rank in 0..size {
        let regroup_timeout =
            if are_patient { 12_000 } else { [400, 3_000, 12_000][random.below(3) as usize] };
        let (start, host) = (ms(random.below(spread)), rank * hosts / size);
        let right = Spec {
            rank,
            size,
            host,
            start,
            regroup_timeout: ms(regroup_timeout),
            terms: "same",
            has_secret: true,
        };
        let later = |random: &mut Random| start + ms(random.below(2 * spread));
        let drawn = random.below(24);
        let wrong = match drawn {
            1 => Some(Spec { size: size + 1, ..right }),
            2 => Some(Spec { terms: "another", ..right }),
            3 => Some(Spec { has_secret: false, ..right }),
            4 => Some(Spec { rank: rank + size, ..right }),
            _ => None,
        };
        if let Some(wrong) = wrong.filter(|_| rank > 0) {
            world.process(wrong);
        }
        match drawn {
            // It is missing.
            0 if rank > 0 => continue,
            // Two processes are one rank.
            5 if rank > 0 => drop(world.process(Spec { start: later(&mut random), ..right })),
            // A process is killed, and another started as the same rank.
            6 => {
                let killed = world.process(right);
                world.fault(later(&mut random), Fault::Kill(killed));
                world.process(Spec { start: later(&mut random), ..right });
                continue;
            }
            _ => {}
        }
        if !random.one_in(24) || rank == 0 {
            world.process(right);
        }
    }
    let root_start = world.root_start();
    if random.one_in(8) {
        world.other_user(ms(random.below(root_start.as_millis() as u64 + 1)));
    }
    if random.one_in(2) {
        for _ in 0..=random.below(3) {
            let process = random.below(world.processes() as u64) as usize;
            let latest = [10, 1_000, 8_000][random.below(3) as usize];
            let longest = [100, 2_000, 20_000][random.below(3) as usize];
            let (at, time) = (ms(random.below(latest)), ms(1 + random.below(longest)));
            let fault = match random.below(6) {
                0 | 1 => Fault::Kill(process),
                2 | 3 => Fault::Stop(process, time),
                _ => Fault::Cut(random.below(u64::from(hosts)) as u32, time),
            };
            world.fault(at, fault);
        }
    }
    world.run()
}

#[test]
fn rendezvous_schedules_hold() {
    let total = schedules::run(SCHEDULES, schedule, |total: &mut Outcome, outcome| total.add(outcome));
    let Some(total) = total else { return };
    let Outcome { joined, calm, refused, missing, died, .. } = total;
    assert!(
        [joined, calm, refused, missing, died].iter().all(|seen| *seen > 0),
        "not all is drawn: {total:?}"
    );
}
