//! Which processes a job is.
//!
//! Whatever it is called by, it is all processes that have a communicator in common with those found first, or were told by
//! one launcher that they are one job. So a rank that has no communicator yet is found, and so are ranks that no launcher
//! of Weft's has started.

use super::error::AttachError;
use super::processes::Seen;

/// Digits of a communicator's number, as records have it.
const NUMBER_DIGITS: usize = 12;

/// The processes of a job, in order.
pub(super) fn select<'a>(all: &'a [Seen], job: &str) -> Result<Vec<&'a Seen>, AttachError> {
    let pid = job.parse().ok().filter(|pid| all.iter().any(|seen| seen.pid == *pid));
    let of_pid = pid.map(|pid| with_children(all, pid)).unwrap_or_default();
    let name = |seen: &&Seen| seen.told.as_ref().is_some_and(|told| told.job == job);
    let number = Some(job)
        .filter(|job| job.len() == NUMBER_DIGITS && job.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .and_then(|job| u64::from_str_radix(job, 16).ok());
    let has_number = |seen: &&Seen| seen.rings.iter().any(|ring| Some(ring.job) == number);
    let ways: [Vec<&Seen>; 3] = [
        of_pid.iter().copied().filter(|seen| is_part(seen)).collect(),
        all.iter().filter(name).collect(),
        all.iter().filter(has_number).collect(),
    ];
    if let Some(found) = ways.into_iter().find(|way| !way.is_empty()) {
        return Ok(together(all, &found));
    }
    if let Some(pid) = pid {
        let denied = of_pid.iter().find_map(|seen| Some((seen.pid, seen.denied.clone()?)));
        return Err(match denied {
            Some((pid, denied)) => AttachError::NotPermitted { pid, denied },
            None => AttachError::NoRank { pid },
        });
    }
    // A recorder that may not be read may be the one that is looked for.
    let denied = all.iter().filter(|seen| seen.denied.is_some());
    let hidden = |seen: &&Seen| matches!(seen.denied, Some(super::Denied::Debugger { .. }));
    let of_others = |seen: &&Seen| matches!(seen.denied, Some(super::Denied::User { .. }));
    match denied.clone().find(hidden).and_then(|seen| Some((seen.pid, seen.denied.clone()?))) {
        Some((pid, denied)) if number.is_some() => Err(AttachError::NotPermitted { pid, denied }),
        _ => Err(AttachError::NotFound { job: job.to_owned(), unseen: denied.filter(of_others).count() }),
    }
}

/// Whether a process is part of some job, for all that can be seen.
fn is_part(seen: &Seen) -> bool {
    !seen.rings.is_empty() || seen.told.is_some()
}

/// A process and all that it started and that is still its own.
fn with_children(all: &[Seen], pid: u32) -> Vec<&Seen> {
    let mut found: Vec<&Seen> = all.iter().filter(|seen| seen.pid == pid).collect();
    let mut next = 0;
    while let Some(parent) = found.get(next).map(|seen| seen.pid) {
        let is_new = |seen: &&Seen| seen.parent == parent && found.iter().all(|known| known.pid != seen.pid);
        let children: Vec<&Seen> = all.iter().filter(is_new).collect();
        found.extend(children);
        next += 1;
    }
    found
}

/// All processes that have something in common with some of these.
fn together<'a>(all: &'a [Seen], some: &[&Seen]) -> Vec<&'a Seen> {
    let shares = |seen: &&Seen| {
        some.iter().any(|one| {
            let told_alike = one.told.as_ref().zip(seen.told.as_ref());
            told_alike.is_some_and(|(one, other)| (&one.job, &one.place) == (&other.job, &other.place))
                || one.rings.iter().any(|ring| seen.rings.iter().any(|other| other.job == ring.job))
        })
    };
    all.iter().filter(shares).collect()
}

#[cfg(test)]
mod tests {
    use super::super::processes::Told;
    use super::*;
    use crate::attach::Denied;
    use crate::recorder::Process;

    fn seen(pid: u32, parent: u32, job: Option<(&str, &str)>) -> Seen {
        Seen {
            pid,
            parent,
            process: Process::Runs,
            start: 0,
            inner_pid: pid,
            told: job.map(|(job, place)| Told { job: job.to_owned(), place: place.to_owned(), rank: None }),
            rings: Vec::new(),
            denied: None,
        }
    }

    fn pids(all: &[Seen], job: &str) -> Vec<u32> {
        select(all, job).unwrap().iter().map(|seen| seen.pid).collect()
    }

    #[test]
    fn a_job_is_all_that_were_told_so() {
        let mine = Some(("mine", "a:1"));
        let all = [
            seen(1, 0, None),
            seen(10, 1, None),
            seen(11, 10, mine),
            seen(12, 10, mine),
            seen(13, 1, Some(("mine", "a:2"))),
            seen(14, 1, Some(("10", "a:3"))),
            seen(15, 1, Some(("99", "a:4"))),
        ];
        assert_eq!(pids(&all, "10"), [11, 12], "a process comes before a name");
        assert_eq!(pids(&all, "12"), [11, 12]);
        assert_eq!(pids(&all, "mine"), [11, 12, 13]);
        assert_eq!(pids(&all, "99"), [15]);
        let error = |job: &str| select(&all, job).unwrap_err().to_string();
        assert!(error("other").starts_with("there is no job other on this host: "), "{}", error("other"));
        assert!(error("98").starts_with("there is no job 98 "), "{}", error("98"));
    }

    #[test]
    fn processes_that_are_none_of_a_job_say_so() {
        let mut all = [seen(10, 1, None), seen(11, 1, None), seen(12, 11, None)];
        all[2].denied = Some(Denied::User { theirs: 7, ours: 8 });
        assert_eq!(
            select(&all, "10").unwrap_err().to_string(),
            "process 10 is no rank of a job: neither it nor what it started has a communicator or was started by `weft run`"
        );
        assert_eq!(
            select(&all, "11").unwrap_err().to_string(),
            "the kernel does not let this user look into process 12: it belongs to user 7, and this is user 8. Ask as user \
             7, or as root"
        );
        let error = select(&all, "other").unwrap_err().to_string();
        assert!(
            error.ends_with(
                ". One process of another user could not be looked at: ask as its user, or as root"
            ),
            "{error}"
        );
        all[2].denied = Some(Denied::Debugger { scope: Some(1) });
        let error = select(&all, "00000000002a").unwrap_err().to_string();
        assert!(error.contains("(kernel.yama.ptrace_scope is 1)"), "{error}");
    }
}
