//! A process of another user has the address and the secret of a job on one host, and tries to join as a rank or to listen as rank 0.
//! Starting it needs root.

use std::os::unix::process::CommandExt;
use std::process::Command;

use weftlink_comm::bootstrap::Bootstrap;

use crate::draw::Draw;
use crate::job::RankLog;
use crate::rank::{Event, Gate, Role, now, report};
use crate::scenario::Scenario;

/// The user `nobody`, on all distributions.
const UID: u32 = 65_534;

/// Why this machine cannot run such a draw.
pub(crate) fn skip() -> Option<String> {
    (!rustix::process::geteuid().is_root())
        .then(|| "starting a process of another user needs root".to_owned())
}

/// Whether the other user listens as rank 0 instead of joining.
pub(crate) fn listens(draw: &Draw) -> bool {
    draw.way % 2 == 1
}

/// The rank that the other user claims.
pub(crate) fn rank(draw: &Draw) -> usize {
    if listens(draw) { 0 } else { draw.victim.max(1) }
}

/// Runs a command as another user.
pub(crate) fn run_as_other_user(command: &mut Command) {
    command.uid(UID).gid(UID);
}

/// The process of the other user.
pub(crate) fn run(role: &Role, draw: &Draw) {
    let rendezvous = role.rendezvous(draw);
    report(&Event::Holding(Gate::Join));
    let bootstrap =
        if role.rank == 0 { Bootstrap::listen(&rendezvous) } else { Bootstrap::join(&rendezvous, role.rank) };
    match bootstrap {
        Ok(_) => report(&Event::Wrong("a process of another user became a rank".to_owned())),
        Err(error) => report(&Event::Refused(error.to_string())),
    }
}

/// Drives the draw. The last process of the job is the foreign one.
pub(crate) fn drive(scenario: &mut Scenario) {
    let (size, wanted) = (scenario.draw.size, rank(&scenario.draw));
    let has_begun = |one: &RankLog| one.is_holding(Gate::Join) || one.ended.is_some();
    scenario.job.wait(|all| all.iter().all(has_begun));
    scenario.at = now();
    // The rank that the foreign process claims joins last: after the foreign process was refused, or after a while.
    scenario.job.release((0..size).filter(|rank| *rank != wanted));
    scenario.job.wait_for(scenario.draw.delay * 10, |all| all[size].ended.is_some());
    if listens(&scenario.draw) {
        scenario.job.signal(size, rustix::process::Signal::KILL);
        scenario.job.wait(|all| all[size].ended.is_some());
    }
    scenario.job.release([wanted]);
    scenario.job.finish();
}
