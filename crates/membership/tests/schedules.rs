//! Many ranks under many seeded schedules of delays and faults; see `world` for what is checked.
//!
//! `weftlink_testkit::schedules` has the environment variables.

mod world;

use std::time::Duration;

use weftlink_testkit::schedules;
use world::{Fault, Outcome, World};

/// As many as `make test` has time for.
const SCHEDULES: u64 = 100_000;

fn schedule(seed: u64, is_shown: bool) -> Result<Outcome, String> {
    let mut random = schedules::random(seed);
    let size = match random.below(16) {
        0 => 2 + random.below(63),
        1..=4 => 2 + random.below(15),
        _ => 2 + random.below(6),
    } as u32;
    let hosts = 1 + random.below(u64::from(size).min(5)) as u32;
    let regroup_timeout = Duration::from_millis([500, 3_000, 12_000][random.below(3) as usize]);
    let mut world = World::new(random.draw(), size, hosts, regroup_timeout);
    world.blocks = random.one_in(2);
    if is_shown {
        let line = format!("{size} ranks on {hosts} hosts, {regroup_timeout:?} to regroup");
        world.queue.begin_trace(line);
    }
    for _ in 0..=random.below(4) {
        let rank = random.below(u64::from(size)) as u32;
        let latest = [10_000, 1_000_000, 8_000_000][random.below(3) as usize];
        let at = Duration::from_micros(random.below(latest));
        let longest = [100, 2_000, 30_000][random.below(3) as usize];
        let time = Duration::from_millis(1 + random.below(longest));
        let host = 1 + random.below(u64::from(hosts).saturating_sub(1)) as u32;
        let fault = match random.below(16) {
            0..=3 => Fault::Kill(rank),
            4 => Fault::Leave(rank),
            12 if hosts > 2 => {
                let other = (host + 1 + random.below(u64::from(hosts) - 1) as u32) % hosts;
                Fault::CutPair(host.min(other), host.max(other), time)
            }
            13 => Fault::Ignore(rank),
            14 => Fault::LeaveAndStay(rank),
            15 => {
                // The program is done: all ranks that can leave.
                let end = at + Duration::from_millis(random.below(40_000));
                (0..size).for_each(|rank| world.fault(end, Fault::Leave(rank)));
                Fault::Kill(rank)
            }
            5 if random.one_in(2) => {
                // Ranks mostly leave together: some of them at almost the same time.
                for other in 0..size {
                    if other != rank && random.one_in(2) {
                        let later = at + Duration::from_micros(random.below(200_000));
                        world.fault(later, Fault::Leave(other));
                    }
                }
                Fault::Leave(rank)
            }
            5 => Fault::Abort(rank),
            6 | 7 => Fault::Stop(rank, time),
            8 | 9 if hosts > 1 => Fault::Cut(host, time),
            10 if hosts > 1 => Fault::CutAtCommit(host, time),
            11 => Fault::KillAtCommit,
            _ => Fault::Kill(rank),
        };
        world.fault(at, fault);
        world.queue.note(|| format!("planned: {fault:?} at {at:?}"));
    }
    world.run()
}

#[test]
fn schedules_hold() {
    schedules::run(SCHEDULES, schedule, |total: &mut Outcome, outcome| total.add(outcome));
}
