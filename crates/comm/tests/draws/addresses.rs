//! One rank per host, on hosts with three addresses each. The hosts are network namespaces, which need root or a kernel that allows
//! unprivileged user namespaces. A rank is killed; the leader of the shrink is then stopped, and later continued or killed. The others wait
//! for a stopped leader, and no two groups continue.

use std::time::Duration;

use rustix::process::Signal;
use weftlink_testkit::hosts::Hosts;

use crate::draw::Draw;
use crate::job::RankLog;
use crate::rank::{Event, Gate, now};
use crate::scenario::Scenario;

/// The port of rank 0, which is alone on its host.
pub(crate) const PORT: u16 = 29_500;

/// The hosts of a draw, or why this machine has none.
pub(crate) fn hosts(draw: &Draw) -> Result<Hosts, String> {
    let hosts = Hosts::new(draw.size)?;
    for host in 0..draw.size {
        // A third address: one that all hosts reach, or a bridge address that is the same on every host, as Docker's is.
        if draw.way.is_multiple_of(2) {
            hosts.ip(host, &format!("addr add 10.8.0.{}/24 dev eth0", 1 + host));
        } else {
            hosts.ip(host, "link add docker0 type bridge");
            hosts.ip(host, "addr add 172.17.0.1/16 dev docker0");
            hosts.ip(host, "link set docker0 up");
        }
    }
    Ok(hosts)
}

/// The rank that leads the shrink.
pub(crate) fn leader(draw: &Draw) -> usize {
    usize::from(draw.victim == 0)
}

/// Drives the draw.
pub(crate) fn drive(scenario: &mut Scenario) {
    let (victim, leader) = (scenario.draw.victim, leader(&scenario.draw));
    let is_over = |one: &RankLog| one.ended.is_some();
    scenario.job.wait(|all| all.iter().all(|one| one.events.contains(&Event::Warm) || is_over(one)));
    std::thread::sleep(scenario.draw.delay);
    scenario.at = now();
    scenario.job.signal(victim, Signal::KILL);
    scenario.job.wait(|all| all[leader].is_holding(Gate::Shrink) || is_over(&all[leader]));
    scenario.job.signal(leader, Signal::STOP);
    // Long enough for the others to time out on all of its addresses.
    std::thread::sleep(Duration::from_secs(6) + 20 * scenario.draw.delay);
    if scenario.draw.way % 4 < 2 {
        scenario.job.release([leader]);
        scenario.job.signal(leader, Signal::CONT);
    } else {
        scenario.second = Some(leader);
        scenario.job.signal(leader, Signal::KILL);
    }
}
