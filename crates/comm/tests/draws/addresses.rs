//! Ranks on hosts of their own that have three addresses each: network namespaces, which it takes root (or a kernel that lets
//! everybody have them) to make. A rank is killed, and the rank that leads the shrink is stopped before it begins, or killed as
//! well: the others wait for one that is only stopped, and nobody goes on in a group of its own.

use std::time::Duration;

use rustix::process::Signal;
use weftlink_testkit::hosts::Hosts;

use crate::draw::Draw;
use crate::job::Heard;
use crate::rank::{Gate, Said, now};
use crate::scenario::Scene;

/// Where rank 0 listens: nobody else does on its host.
pub(crate) const PORT: u16 = 29_500;

/// The hosts of a draw; or why there can be none here.
pub(crate) fn hosts(draw: &Draw) -> Result<Hosts, String> {
    let hosts = Hosts::new(draw.size)?;
    for host in 0..draw.size {
        // Beside the two that they have: one more that all reach, or one that every host has for itself, as with containers.
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

/// What happens to the ranks of such a draw.
pub(crate) fn play(scene: &mut Scene) {
    let (victim, leader) = (scene.draw.victim, leader(&scene.draw));
    let is_over = |one: &Heard| one.ended.is_some();
    scene.job.wait(|all| all.iter().all(|one| one.said.contains(&Said::Warm) || is_over(one)));
    std::thread::sleep(scene.draw.delay);
    scene.at = now();
    scene.job.signal(victim, Signal::KILL);
    scene.job.wait(|all| all[leader].is_holding(Gate::Shrink) || is_over(&all[leader]));
    scene.job.signal(leader, Signal::STOP);
    // Long enough for the others to give up at all of its addresses.
    std::thread::sleep(Duration::from_secs(6) + 20 * scene.draw.delay);
    if scene.draw.way % 4 < 2 {
        scene.job.release([leader]);
        scene.job.signal(leader, Signal::CONT);
    } else {
        scene.second = Some(leader);
        scene.job.signal(leader, Signal::KILL);
    }
}
