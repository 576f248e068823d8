//! One of many ranks is stopped for a long time, and continues before any deadline: the others log warnings that name it, and all
//! calls succeed.

use std::time::Duration;

use rustix::process::Signal;

use crate::draw::Draw;
use crate::job::Heard;
use crate::judge::{all_are_done, named};
use crate::rank::Said;
use crate::scenario::{Evidence, Scene};

/// Of calls: longer than anything here takes.
pub(crate) const DEADLINE: Duration = Duration::from_secs(100);
/// Ranks ask each other whom they wait for this often: after some seconds they have sent the one that is stopped more than its
/// sockets hold.
pub(crate) const WARN_AFTER: Duration = Duration::from_millis(100);
/// Who waits longer than this waits for the rank that is stopped, in seconds.
const LONG_S: f64 = 6.0;
/// How long the rank is stopped, at least.
const STOPPED: Duration = Duration::from_secs(12);

pub(crate) fn play(scene: &mut Scene) {
    let is_over = |all: &[Heard]| all.iter().any(|one| one.failure().is_some() || one.ended.is_some());
    scene.job.wait(|all| all.iter().all(|one| one.said.contains(&Said::Warm)) || is_over(all));
    scene.harm();
    scene.job.wait_for(STOPPED + 40 * scene.draw.delay, is_over);
    // Once it continues, whoever has waited for it may wait for any other that is slow.
    scene.seen = warnings(&scene.draw, &scene.job.heard()).err();
    scene.job.signal(scene.draw.victim, Signal::CONT);
    // What was in flight meanwhile is read now.
    scene.job.wait_for(Duration::from_secs(3), is_over);
    scene.job.finish();
}

/// Who waited for long warned of the rank that is stopped, and hardly ever of another.
fn warnings(draw: &Draw, heard: &[Heard]) -> Result<(), String> {
    let victim = draw.victim;
    let lines = heard.iter().flat_map(|heard| heard.errors.lines());
    // With many ranks on few cores, any of them is slow for a moment.
    let waits = lines.filter_map(|line| {
        let (waited, whom) = line.split_once(" has waited ")?.1.split_once(" s for ")?;
        (waited.parse::<f64>().ok()? > LONG_S).then_some((line, whom))
    });
    let (mut right, mut wrong) = (0, Vec::new());
    for (line, whom) in waits {
        match named(whom).iter().all(|(rank, _)| *rank == victim) {
            true => right += 1,
            false => wrong.push(line),
        }
    }
    // Ranks have 50 ms to say for whom they wait. One that has no core for so long seems stopped too, once in hundreds of times.
    match wrong.first() {
        None if right == 0 => Err(format!("nobody warned of rank {victim}")),
        Some(line) if right < 20 * wrong.len() => {
            Err(format!("somebody else than rank {victim} is warned of: {line}"))
        }
        _ => Ok(()),
    }
}

/// A rank that was stopped and resumed disturbs nobody.
pub(crate) fn judge(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    all_are_done(draw, evidence)
}
