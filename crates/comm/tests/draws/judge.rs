//! Checks the outcome of a draw.

use std::collections::BTreeSet;

use crate::draw::{Draw, Kind, Phase};
use crate::job::RankLog;
use crate::proxy::LinkFault;
use crate::rank::{CALLS_AFTER_SHRINK, Event};
use crate::scenario::Evidence;
use crate::{counts, early, handler, lane, partition, resume, skew};

/// Ranks name a dead rank within 1 s on an idle machine; this one may run other tests.
const NAMED_WITHIN_S: f64 = 10.0;

/// The seconds from the fault to the error of each rank, or what was wrong.
pub(crate) fn judge(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    let killed = |rank: usize| {
        let kills = matches!(draw.kind, Kind::Kill | Kind::Shrink | Kind::SingleCopy | Kind::Addresses)
            || draw.kind == Kind::Early && early::kills(draw);
        // The harness kills the process of the other user.
        let is_foreign = draw.kind == Kind::ForeignUid && rank == draw.size;
        kills && rank == draw.victim || evidence.second == Some(rank) || is_foreign
    };
    for (rank, log) in evidence.logs.iter().enumerate() {
        if let Some(what) = log.wrong() {
            return Err(format!("rank {rank} got a wrong result: {what}"));
        }
        if log.errors.contains("panicked") || log.ended != Some(Some(0)) && !killed(rank) {
            return Err(format!("rank {rank} panicked or exited with an error"));
        }
    }
    match draw.kind {
        Kind::Kill => killed_or_stopped(draw, evidence, false),
        Kind::Stop => killed_or_stopped(draw, evidence, true),
        Kind::Cut => cut(draw, evidence),
        Kind::Corrupt => corrupt(draw, evidence),
        Kind::Mismatch => mismatch(draw, evidence),
        Kind::Stranger | Kind::Flood | Kind::Descriptors => all_finished(draw, evidence),
        Kind::Skew => skewed(draw, evidence),
        Kind::Shrink | Kind::Addresses => after_shrink(draw, evidence),
        Kind::Counts => counts::judge(draw, evidence),
        Kind::SingleCopy => killed_or_stopped(draw, evidence, false),
        Kind::Lane => lane::judge(draw, evidence),
        Kind::Early => killed_or_stopped(draw, evidence, !early::kills(draw)),
        Kind::Handler => handler::judge(draw, evidence),
        Kind::ForeignUid => all_finished(draw, evidence),
        Kind::Partition => partition::judge(draw, evidence),
        Kind::Resume => resume::judge(draw, evidence),
    }
}

/// The failure of a rank that must have one.
pub(crate) fn failure(log: &RankLog, rank: usize) -> Result<(&str, &str, f64, f64), String> {
    log.failure().ok_or_else(|| format!("rank {rank} has no error"))
}

fn killed_or_stopped(draw: &Draw, evidence: &Evidence, stopped: bool) -> Result<Vec<f64>, String> {
    let Draw { victim, phase, size, .. } = *draw;
    let pid = evidence.pids[victim];
    // Before the rendezvous is complete, errors have no pid.
    let by_number = phase == Phase::Rendezvous || draw.kind == Kind::Early;
    let mut seconds = Vec::new();
    for rank in (0..size).filter(|rank| *rank != victim) {
        let (text, _, began, at) = failure(&evidence.logs[rank], rank)?;
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
            return Err(format!("no warning names rank {victim}"));
        }
        no_other_warning(draw, evidence)?;
        return Ok(seconds);
    }
    match seconds.iter().copied().find(|seconds| *seconds > NAMED_WITHIN_S) {
        Some(late) if !by_number => Err(format!("rank {victim} was named {late:.1} s after the fault")),
        _ => Ok(seconds),
    }
}

/// Whether a warning names a rank.
fn warned_of(victim: usize, evidence: &Evidence) -> bool {
    // A rank whose lanes wait for several others names none of them.
    let warnings = [format!("for rank {victim} ("), "for other ranks".to_owned()];
    evidence.logs.iter().any(|log| {
        let is_one = |line: &str| warnings.iter().any(|warning| line.contains(warning));
        log.errors.lines().any(|line| line.contains("WARN") && is_one(line))
    })
}

/// No rank's last warning names a rank other than the stopped one. Earlier warnings may name ranks that were slow.
fn no_other_warning(draw: &Draw, evidence: &Evidence) -> Result<(), String> {
    let Draw { victim, size, .. } = *draw;
    let last = |log: &RankLog| log.errors.lines().rfind(|line| line.contains("WARN")).map(str::to_owned);
    let others = (0..size).filter(|rank| *rank != victim).map(|rank| &evidence.logs[rank]);
    let wrong = others.filter_map(last).find(|line| {
        let whom = line.split_once(" s for ").map(|(_, whom)| whom);
        whom.is_some_and(|whom| named(whom).iter().any(|(rank, _)| *rank != victim))
    });
    match wrong {
        Some(line) => Err(format!("a warning names another rank than {victim}: {line}")),
        None => Ok(()),
    }
}

/// Either all ranks finished, because the faulty links were idle, or all errors name an endpoint of such a link.
fn cut(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    if evidence.logs.iter().all(RankLog::is_done) && draw.phase != Phase::Creating {
        return Ok(Vec::new());
    }
    let ends: BTreeSet<usize> = evidence.links.iter().flat_map(|&(one, other)| [one, other]).collect();
    let mut seconds = Vec::new();
    for rank in 0..draw.size {
        let (text, _, began, at) = failure(&evidence.logs[rank], rank)?;
        names_an_endpoint(text, rank, &ends, draw.phase, evidence)?;
        blames_other_side(draw, rank, text)?;
        seconds.push(at - evidence.at.max(began));
    }
    let limit = if evidence.fault == Some(LinkFault::Stall) { 3.0 } else { 0.0 } + NAMED_WITHIN_S;
    match seconds.iter().copied().find(|seconds| *seconds > limit) {
        Some(late) => Err(format!("the error came {late:.1} s after the fault")),
        None => Ok(seconds),
    }
}

/// When a host is disconnected, no rank blames a rank on its own side.
fn blames_other_side(draw: &Draw, rank: usize, text: &str) -> Result<(), String> {
    if draw.cuts_one_link() || draw.phase == Phase::Rendezvous {
        return Ok(());
    }
    let is_inside = |rank: usize| draw.host(rank) == draw.host(draw.victim);
    match named(text).into_iter().find(|(named, _)| is_inside(*named) == is_inside(rank)) {
        Some((named, _)) => Err(format!("rank {rank} blames rank {named}, which it can reach: {text}")),
        None => Ok(()),
    }
}

fn corrupt(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    if evidence.logs.iter().all(RankLog::is_done) {
        return match (evidence.links.is_empty(), draw.phase) {
            // The flipped bit was in a handshake that the client retried.
            (false, phase) if phase != Phase::Rendezvous && !evidence.in_handshake => {
                Err("no rank noticed the flipped bit".to_owned())
            }
            _ => Ok(Vec::new()),
        };
    }
    let ends: BTreeSet<usize> = evidence.links.iter().flat_map(|&(one, other)| [one, other]).collect();
    let mut seconds = Vec::new();
    for rank in 0..draw.size {
        let (text, _, began, at) = failure(&evidence.logs[rank], rank)?;
        names_an_endpoint(text, rank, &ends, draw.phase, evidence)?;
        seconds.push(at - evidence.at.max(began));
    }
    Ok(seconds)
}

/// The error names at least one endpoint of a faulty link, and no other rank.
fn names_an_endpoint(
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
        || phase == Phase::Rendezvous
            && (text.contains("refused") || ends.iter().any(|end| mentions(text, *end)));
    if are_ends && is_one {
        Ok(())
    } else {
        Err(format!("rank {rank} does not name one of the endpoints {ends:?}: {text}"))
    }
}

fn mismatch(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    let Draw { victim, size, way, .. } = *draw;
    let leaves = way % 7 == 5;
    for rank in (0..size).filter(|rank| *rank != victim || !leaves) {
        let (text, variant, ..) = failure(&evidence.logs[rank], rank)?;
        let expected = if leaves { "Left" } else { "Mismatch" };
        // Ranks that load the plan of a first call may detect the mismatch there, and show both sides as well.
        // A rank that a peer aborted shows the peer's message.
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

pub(crate) fn all_finished(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    match evidence.logs.iter().take(draw.size).position(|log| !log.is_done()) {
        Some(rank) => Err(format!("rank {rank} did not finish")),
        None => Ok(Vec::new()),
    }
}

fn skewed(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    let refused = evidence.logs[draw.victim.max(1)].events.iter().find_map(|event| match event {
        Event::Refused(text) => Some(text.as_str()),
        _ => None,
    });
    let expected = match draw.way % 3 {
        0 => return all_finished(draw, evidence),
        1 => ["it has on".to_owned(), "rank 0 has unset".to_owned()],
        _ => [format!("version {} of Weft's protocol", skew::version(draw)), "this is version 9".to_owned()],
    };
    match refused {
        Some(text) if expected.iter().all(|part| text.contains(part)) => all_finished(draw, evidence),
        other => Err(format!("the refusal does not contain {expected:?}: {other:?}")),
    }
}

/// The first error names the first victim; then the survivors complete all their calls.
fn after_shrink(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    let seconds = killed_or_stopped(draw, evidence, false)?;
    let is_killed = |rank: usize| rank == draw.victim || evidence.second == Some(rank);
    let left: Vec<usize> = (0..draw.size).filter(|rank| !is_killed(*rank)).collect();
    for &rank in &left {
        let events = &evidence.logs[rank].events;
        let last = events.iter().rev().find_map(|event| match event {
            Event::Shrunk { origins, .. } => Some(origins),
            _ => None,
        });
        // A rank that was killed after the last call is still a member.
        let with_second = (0..draw.size).filter(|rank| *rank != draw.victim);
        let are_right = last.is_some_and(|last| *last == left || last.iter().copied().eq(with_second));
        let calls = events
            .iter()
            .find_map(|event| if let Event::Done { calls } = event { Some(*calls) } else { None });
        if !are_right || calls.is_none_or(|calls| calls < CALLS_AFTER_SHRINK) {
            return Err(format!("rank {rank} continued with {last:?} instead of {left:?}: {calls:?} calls"));
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

/// Whether a text mentions a rank: `rank 3`, or in a list `ranks 1, 3 and 5`.
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
