//! A network partition, after which both sides shrink. The side with more than half of the ranks continues, or with exactly half the side
//! with the lowest rank; the other side gets errors, so that there is one group and not two.

use crate::draw::Draw;
use crate::job::RankLog;
use crate::judge::failure;
use crate::proxy::Ends;
use crate::rank::{CALLS_AFTER_SHRINK, Event};
use crate::scenario::Evidence;

/// Whether a rank is on the victim's side: consecutive hosts, beginning with the victim's.
pub(crate) fn is_with_victim(draw: &Draw, rank: usize) -> bool {
    let hosts = draw.host(draw.size - 1) + 1;
    let with_victim = 1 + (draw.way as usize / 8) % (hosts - 1);
    (draw.host(rank) + hosts - draw.host(draw.victim)) % hosts < with_victim
}

/// All pairs of ranks on different sides.
pub(crate) fn links(draw: &Draw) -> Vec<Ends> {
    let pairs = (0..draw.size).flat_map(|one| (one + 1..draw.size).map(move |other| (one, other)));
    pairs.filter(|(one, other)| is_with_victim(draw, *one) != is_with_victim(draw, *other)).collect()
}

/// The ranks that continue.
fn winners(draw: &Draw) -> Vec<usize> {
    let sides = [true, false].map(|side| {
        (0..draw.size).filter(|rank| is_with_victim(draw, *rank) == side).collect::<Vec<usize>>()
    });
    let wins = |side: &Vec<usize>| 2 * side.len() > draw.size || 2 * side.len() == draw.size && side[0] == 0;
    sides.into_iter().find(wins).unwrap_or_default()
}

pub(crate) fn judge(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    let winners = winners(draw);
    let mut seconds = Vec::new();
    for rank in 0..draw.size {
        let log = &evidence.logs[rank];
        let (text, _, began, at) = failure(log, rank)?;
        seconds.push(at - evidence.at.max(began));
        let across = |other: &usize| is_with_victim(draw, *other) != is_with_victim(draw, rank);
        let named = crate::judge::named(text);
        if named.is_empty() || !named.iter().any(|(named, _)| across(named)) {
            return Err(format!("rank {rank} does not name a rank of the other side: {text}"));
        }
        let group = last_group(log);
        if winners.contains(&rank) {
            let is_right = group == Some(&winners);
            let calls = log.events.iter().find_map(|event| match event {
                Event::Done { calls } => Some(*calls),
                _ => None,
            });
            if !is_right || calls.is_none_or(|calls| calls < CALLS_AFTER_SHRINK) {
                return Err(format!(
                    "rank {rank} continued with {group:?} instead of {winners:?}: {calls:?} calls"
                ));
            }
        } else if group.is_some() {
            return Err(format!("rank {rank} continued with {group:?}, beside the group of {winners:?}"));
        }
    }
    Ok(seconds)
}

/// The last group that a rank was in after it shrank.
fn last_group(log: &RankLog) -> Option<&Vec<usize>> {
    log.events.iter().rev().find_map(|event| match event {
        Event::Shrunk { origins, .. } => Some(origins),
        _ => None,
    })
}
