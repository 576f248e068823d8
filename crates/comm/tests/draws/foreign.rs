//! A process of another user that knows all there is to know about a job on one host, and tries to be one of its ranks, or to be
//! where its ranks meet. It takes root to start one.

use std::os::unix::process::CommandExt;
use std::process::Command;

use weftlink_comm::bootstrap::Bootstrap;

use crate::draw::Draw;
use crate::job::Heard;
use crate::rank::{Gate, Role, Said, now, say};
use crate::scenario::Scene;

/// Nobody, on all distributions.
const UID: u32 = 65_534;

/// Why such a draw cannot be made here.
pub(crate) fn skip() -> Option<String> {
    (!rustix::process::geteuid().is_root())
        .then(|| "it takes root to start a process of another user".to_owned())
}

/// Whether the other user waits where the ranks meet, instead of coming there.
pub(crate) fn listens(draw: &Draw) -> bool {
    draw.way % 2 == 1
}

/// The rank that the other user wants to be.
pub(crate) fn rank(draw: &Draw) -> usize {
    if listens(draw) { 0 } else { draw.victim.max(1) }
}

/// Makes a command that of another user.
pub(crate) fn of_another_user(command: &mut Command) {
    command.uid(UID).gid(UID);
}

/// What a process of another user does.
pub(crate) fn play(role: &Role, draw: &Draw) {
    let meeting = role.meeting(draw);
    say(&Said::Holding(Gate::Meet));
    let met = if role.rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, role.rank) };
    match met {
        Ok(_) => say(&Said::Wrong("a process of another user became a rank".to_owned())),
        Err(error) => say(&Said::Refused(error.to_string())),
    }
}

/// What happens to the ranks of such a draw. The last process of the job is the foreign one.
pub(crate) fn play_scene(scene: &mut Scene) {
    let (size, wanted) = (scene.draw.size, rank(&scene.draw));
    let has_begun = |one: &Heard| one.is_holding(Gate::Meet) || one.ended.is_some();
    scene.job.wait(|all| all.iter().all(has_begun));
    scene.at = now();
    // All but the one whose place it wants; that one comes when the other has been heard, or has waited a while in vain.
    scene.job.release((0..size).filter(|rank| *rank != wanted));
    scene.job.wait_for(scene.draw.delay * 10, |all| all[size].ended.is_some());
    if listens(&scene.draw) {
        scene.job.signal(size, rustix::process::Signal::KILL);
        scene.job.wait(|all| all[size].ended.is_some());
    }
    scene.job.release([wanted]);
    scene.job.finish();
}
