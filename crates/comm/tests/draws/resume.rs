//! One of many ranks is stopped for a long time, and continues before any deadline: the others log warnings that name it, and all
//! calls succeed.

use std::time::Duration;

use rustix::process::Signal;

use crate::draw::Draw;
use crate::job::RankLog;
use crate::judge::{all_finished, named};
use crate::rank::Event;
use crate::scenario::{Evidence, Scenario};

/// The deadline of calls: longer than the draw.
pub(crate) const DEADLINE: Duration = Duration::from_secs(100);
/// The interval at which ranks ask each other what they wait for: within seconds, these messages fill the socket buffers of the stopped rank.
pub(crate) const WARN_AFTER: Duration = Duration::from_millis(100);
/// A wait longer than this, in seconds, is a wait for the stopped rank.
const LONG_S: f64 = 6.0;
/// The shortest time for which the rank is stopped.
const STOPPED: Duration = Duration::from_secs(12);

pub(crate) fn drive(scenario: &mut Scenario) {
    let is_over = |all: &[RankLog]| all.iter().any(|one| one.failure().is_some() || one.ended.is_some());
    scenario.job.wait(|all| all.iter().all(|one| one.events.contains(&Event::Warm)) || is_over(all));
    scenario.inject();
    scenario.job.wait_for(STOPPED + 40 * scenario.draw.delay, is_over);
    // After it continues, ranks may wait for any slow rank.
    scenario.seen = warnings(&scenario.draw, &scenario.job.logs()).err();
    scenario.job.signal(scenario.draw.victim, Signal::CONT);
    // The resumed rank now reads what was in flight.
    scenario.job.wait_for(Duration::from_secs(3), is_over);
    scenario.job.finish();
}

/// Warnings about long waits name the stopped rank, with few exceptions.
fn warnings(draw: &Draw, logs: &[RankLog]) -> Result<(), String> {
    let victim = draw.victim;
    let lines = logs.iter().flat_map(|log| log.errors.lines());
    // With many ranks on few cores, any rank may be slow for a moment.
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
    // Ranks have 50 ms to answer what they wait for. A rank without a core for that long also seems stopped: once in hundreds of warnings.
    match wrong.first() {
        None if right == 0 => Err(format!("no warning names rank {victim}")),
        Some(line) if right < 20 * wrong.len() => {
            Err(format!("a warning names another rank than {victim}: {line}"))
        }
        _ => Ok(()),
    }
}

/// All ranks finish.
pub(crate) fn judge(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    all_finished(draw, evidence)
}
