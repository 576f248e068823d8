//! The properties that every draw must have.

use std::collections::BTreeSet;

use crate::draw::{Draw, Kind, Phase};
use crate::job::Heard;
use crate::proxy::Harm;
use crate::rank::{CALLS_AFTER_SHRINK, Said};
use crate::scenario::Evidence;
use crate::{counts, early, handler, lane, partition, resume, skew};

/// A death is named within 1 s where nothing else runs; this machine may be busy with other tests.
const NAMED_WITHIN_S: f64 = 10.0;

/// How long after the fault each rank knew of it; or what is not as it should be.
pub(crate) fn judge(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    let killed = |rank: usize| {
        let kills = matches!(draw.kind, Kind::Kill | Kind::Shrink | Kind::SingleCopy | Kind::Addresses)
            || draw.kind == Kind::Early && early::kills(draw);
        // The process of another user is there until its time is over.
        let is_foreign = draw.kind == Kind::ForeignUid && rank == draw.size;
        kills && rank == draw.victim || evidence.second == Some(rank) || is_foreign
    };
    for (rank, heard) in evidence.heard.iter().enumerate() {
        if let Some(what) = heard.wrong() {
            return Err(format!("rank {rank} is wrong: {what}"));
        }
        if heard.errors.contains("panicked") || heard.ended != Some(Some(0)) && !killed(rank) {
            return Err(format!("rank {rank} did not end well"));
        }
    }
    match draw.kind {
        Kind::Kill => killed_or_stopped(draw, evidence, false),
        Kind::Stop => killed_or_stopped(draw, evidence, true),
        Kind::Cut => cut(draw, evidence),
        Kind::Corrupt => corrupt(draw, evidence),
        Kind::Mismatch => mismatch(draw, evidence),
        Kind::Stranger | Kind::Flood | Kind::Descriptors => all_are_done(draw, evidence),
        Kind::Skew => skewed(draw, evidence),
        Kind::Shrink | Kind::Addresses => shrunk(draw, evidence),
        Kind::Counts => counts::judge(draw, evidence),
        Kind::SingleCopy => killed_or_stopped(draw, evidence, false),
        Kind::Lane => lane::judge(draw, evidence),
        Kind::Early => killed_or_stopped(draw, evidence, !early::kills(draw)),
        Kind::Handler => handler::judge(draw, evidence),
        Kind::ForeignUid => all_are_done(draw, evidence),
        Kind::Partition => partition::judge(draw, evidence),
        Kind::Resume => resume::judge(draw, evidence),
    }
}

/// The failure of a rank that must have one.
pub(crate) fn failure(heard: &Heard, rank: usize) -> Result<(&str, &str, f64, f64), String> {
    heard.failure().ok_or_else(|| format!("rank {rank} has no error"))
}

fn killed_or_stopped(draw: &Draw, evidence: &Evidence, stopped: bool) -> Result<Vec<f64>, String> {
    let Draw { victim, phase, size, .. } = *draw;
    let pid = evidence.pids[victim];
    // In a meeting nobody knows its process.
    let by_number = phase == Phase::Meeting || draw.kind == Kind::Early;
    let mut seconds = Vec::new();
    for rank in (0..size).filter(|rank| *rank != victim) {
        let (text, _, began, at) = failure(&evidence.heard[rank], rank)?;
        let named = named(text);
        let is_named =
            named == [(victim, pid)].into() || by_number && named.is_empty() && mentions(text, victim);
        if !is_named {
            return Err(format!("rank {rank} does not name rank {victim} (pid {pid}): {text}"));
        }
        seconds.push(at - evidence.at.max(began));
    }
    if stopped {
        if phase.is_in_calls() && draw.kind == Kind::Stop && !warned_of(victim, evidence) {
            return Err(format!("nobody warned of rank {victim}"));
        }
        warned_of_nobody_else(draw, evidence)?;
        return Ok(seconds);
    }
    match seconds.iter().copied().find(|seconds| *seconds > NAMED_WITHIN_S) {
        Some(late) if !by_number => Err(format!("it took {late:.1} s until rank {victim} was named")),
        _ => Ok(seconds),
    }
}

/// Whether somebody warned of a rank.
fn warned_of(victim: usize, evidence: &Evidence) -> bool {
    // A rank whose lanes wait for several others does not say for whom.
    let warnings = [format!("for rank {victim} ("), "for other ranks".to_owned()];
    evidence.heard.iter().any(|heard| {
        let is_one = |line: &str| warnings.iter().any(|warning| line.contains(warning));
        heard.errors.lines().any(|line| line.contains("WARN") && is_one(line))
    })
}

/// Nobody warns of a rank that itself waits for the one that is stopped. Before that others may have been slow.
fn warned_of_nobody_else(draw: &Draw, evidence: &Evidence) -> Result<(), String> {
    let Draw { victim, size, .. } = *draw;
    let last = |heard: &Heard| heard.errors.lines().rfind(|line| line.contains("WARN")).map(str::to_owned);
    let others = (0..size).filter(|rank| *rank != victim).map(|rank| &evidence.heard[rank]);
    let wrong = others.filter_map(last).find(|line| {
        let whom = line.split_once(" s for ").map(|(_, whom)| whom);
        whom.is_some_and(|whom| named(whom).iter().any(|(rank, _)| *rank != victim))
    });
    match wrong {
        Some(line) => Err(format!("somebody else than rank {victim} is warned of: {line}")),
        None => Ok(()),
    }
}

/// Either nobody was disturbed, because nothing went over what was harmed, or all know between whom it was.
fn cut(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    if evidence.heard.iter().all(Heard::is_done) && draw.phase != Phase::Making {
        return Ok(Vec::new());
    }
    let ends: BTreeSet<usize> = evidence.links.iter().flat_map(|&(one, other)| [one, other]).collect();
    let mut seconds = Vec::new();
    for rank in 0..draw.size {
        let (text, _, began, at) = failure(&evidence.heard[rank], rank)?;
        names_an_end(text, rank, &ends, draw.phase, evidence)?;
        is_across(draw, rank, text)?;
        seconds.push(at - evidence.at.max(began));
    }
    let limit = if evidence.harm == Some(Harm::Silence) { 3.0 } else { 0.0 } + NAMED_WITHIN_S;
    match seconds.iter().copied().find(|seconds| *seconds > limit) {
        Some(late) => Err(format!("it took {late:.1} s until it was told")),
        None => Ok(seconds),
    }
}

/// Where a host was cut off, nobody blames a rank on the same side as itself.
fn is_across(draw: &Draw, rank: usize, text: &str) -> Result<(), String> {
    if draw.cuts_one_link() || draw.phase == Phase::Meeting {
        return Ok(());
    }
    let is_inside = |rank: usize| draw.host(rank) == draw.host(draw.victim);
    match named(text).into_iter().find(|(named, _)| is_inside(*named) == is_inside(rank)) {
        Some((named, _)) => Err(format!("rank {rank} blames rank {named}, which it can reach: {text}")),
        None => Ok(()),
    }
}

fn corrupt(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    if evidence.heard.iter().all(Heard::is_done) {
        return match (evidence.links.is_empty(), draw.phase) {
            // What was changed was part of a try that was made again.
            (false, phase) if phase != Phase::Meeting && !evidence.in_handshake => {
                Err("nobody noticed that a bit was changed".to_owned())
            }
            _ => Ok(Vec::new()),
        };
    }
    let ends: BTreeSet<usize> = evidence.links.iter().flat_map(|&(one, other)| [one, other]).collect();
    let mut seconds = Vec::new();
    for rank in 0..draw.size {
        let (text, _, began, at) = failure(&evidence.heard[rank], rank)?;
        names_an_end(text, rank, &ends, draw.phase, evidence)?;
        seconds.push(at - evidence.at.max(began));
    }
    Ok(seconds)
}

/// Whoever is named is at an end of what was harmed, and somebody is.
fn names_an_end(
    text: &str,
    rank: usize,
    ends: &BTreeSet<usize>,
    phase: Phase,
    evidence: &Evidence,
) -> Result<(), String> {
    let named = named(text);
    let are_ends = named.iter().all(|(named, pid)| ends.contains(named) && evidence.pids[*named] == *pid);
    let is_one = !named.is_empty()
        || text.contains("timed out") && ends.iter().any(|end| mentions(text, *end))
        || phase == Phase::Meeting
            && (text.contains("refused") || ends.iter().any(|end| mentions(text, *end)));
    if are_ends && is_one {
        Ok(())
    } else {
        Err(format!("rank {rank} does not name those at the ends, {ends:?}: {text}"))
    }
}

fn mismatch(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    let Draw { victim, size, way, .. } = *draw;
    let leaves = way % 7 == 5;
    for rank in (0..size).filter(|rank| *rank != victim || !leaves) {
        let (text, variant, ..) = failure(&evidence.heard[rank], rank)?;
        let expected = if leaves { "Left" } else { "Mismatch" };
        // Ranks that load the plan of a first call may find out there, and show both sides as well.
        // One that hears of it from another shows what that one said.
        let is_right = variant == expected
            || leaves && ["Bootstrap", "Aborted"].contains(&variant)
            || variant == "Aborted" && text.contains(" does not match: ")
            || text.starts_with("ranks must make the same calls in the same order");
        let is_named = rank == victim || mentions(text, victim);
        if !is_right || !is_named {
            return Err(format!("rank {rank} does not show the call of rank {victim}: {variant}: {text}"));
        }
    }
    Ok(Vec::new())
}

pub(crate) fn all_are_done(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    match evidence.heard.iter().take(draw.size).position(|heard| !heard.is_done()) {
        Some(rank) => Err(format!("rank {rank} was disturbed")),
        None => Ok(Vec::new()),
    }
}

fn skewed(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    let refused = evidence.heard[draw.victim.max(1)].said.iter().find_map(|said| match said {
        Said::Refused(text) => Some(text.as_str()),
        _ => None,
    });
    let expected = match draw.way % 3 {
        0 => return all_are_done(draw, evidence),
        1 => ["it has on".to_owned(), "rank 0 has unset".to_owned()],
        _ => [format!("version {} of Weft's protocol", skew::version(draw)), "this is version 8".to_owned()],
    };
    match refused {
        Some(text) if expected.iter().all(|part| text.contains(part)) => all_are_done(draw, evidence),
        other => Err(format!("{expected:?} is not what it was refused with: {other:?}")),
    }
}

/// The first error names who was killed first; then those who are left make all their calls together.
fn shrunk(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    let seconds = killed_or_stopped(draw, evidence, false)?;
    let is_killed = |rank: usize| rank == draw.victim || evidence.second == Some(rank);
    let left: Vec<usize> = (0..draw.size).filter(|rank| !is_killed(*rank)).collect();
    for &rank in &left {
        let said = &evidence.heard[rank].said;
        let last = said.iter().rev().find_map(|said| match said {
            Said::Shrunk { origins, .. } => Some(origins),
            _ => None,
        });
        // One that was killed when all was done was in.
        let with_second = (0..draw.size).filter(|rank| *rank != draw.victim);
        let are_right = last.is_some_and(|last| *last == left || last.iter().copied().eq(with_second));
        let calls =
            said.iter().find_map(|said| if let Said::Done { calls } = said { Some(*calls) } else { None });
        if !are_right || calls.is_none_or(|calls| calls < CALLS_AFTER_SHRINK) {
            return Err(format!(
                "rank {rank} did not go on with ranks {left:?}, but with {last:?}: {calls:?} calls"
            ));
        }
    }
    Ok(seconds)
}

/// All `rank N (… pid P)` of a text.
pub(crate) fn named(text: &str) -> BTreeSet<(usize, u32)> {
    let read = |rest: &str| {
        let (number, rest) = rest.split_once(" (")?;
        let inside = rest.split_once(')')?.0;
        let pid = inside.rsplit_once("pid ")?.1;
        Some((number.parse().ok()?, pid.parse().ok()?))
    };
    text.match_indices("rank ").filter_map(|(at, _)| read(&text[at + 5..])).collect()
}

/// Whether a text is about a rank: `rank 3`, or in a list `ranks 1, 3 and 5`.
pub(crate) fn mentions(text: &str, rank: usize) -> bool {
    let lists = text.match_indices("rank").map(|(at, _)| &text[at + 4..]);
    let list = |rest: &str| -> Vec<usize> {
        let rest = rest.trim_start_matches('s');
        let words = rest.split([' ', ',']).filter(|word| !word.is_empty());
        let numbers = words.take_while(|word| *word == "and" || word.parse::<usize>().is_ok());
        numbers.filter_map(|word| word.parse().ok()).collect()
    };
    lists.into_iter().any(|rest| list(rest).contains(&rank))
}
