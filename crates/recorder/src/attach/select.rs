//! The processes of a job.
//!
//! A job consists of all processes that share a communicator or the launcher's variables with the first matches. This includes ranks
//! without a communicator, and ranks that `weft run` did not start.

use super::error::AttachError;
use super::processes::ProcessInfo;

/// Digits of a communicator's number in records.
const NUMBER_DIGITS: usize = 12;

/// The processes of a job, in order.
pub(super) fn select<'a>(all: &'a [ProcessInfo], job: &str) -> Result<Vec<&'a ProcessInfo>, AttachError> {
    let pid = job.parse().ok().filter(|pid| all.iter().any(|seen| seen.pid == *pid));
    let of_pid = pid.map(|pid| with_children(all, pid)).unwrap_or_default();
    let name = |seen: &&ProcessInfo| seen.variables.as_ref().is_some_and(|variables| variables.job == job);
    let number = Some(job)
        .filter(|job| job.len() == NUMBER_DIGITS && job.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .and_then(|job| u64::from_str_radix(job, 16).ok());
    let has_number = |seen: &&ProcessInfo| seen.rings.iter().any(|ring| Some(ring.job) == number);
    let ways: [Vec<&ProcessInfo>; 3] = [
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
    // An unreadable recorder may be the requested one.
    let denied = all.iter().filter(|seen| seen.denied.is_some());
    let hidden = |seen: &&ProcessInfo| matches!(seen.denied, Some(super::AccessDenied::Debugger { .. }));
    let of_others = |seen: &&ProcessInfo| matches!(seen.denied, Some(super::AccessDenied::User { .. }));
    match denied.clone().find(hidden).and_then(|seen| Some((seen.pid, seen.denied.clone()?))) {
        Some((pid, denied)) if number.is_some() => Err(AttachError::NotPermitted { pid, denied }),
        _ => Err(AttachError::NotFound { job: job.to_owned(), unseen: denied.filter(of_others).count() }),
    }
}

/// Whether a process is visibly part of a job.
fn is_part(seen: &ProcessInfo) -> bool {
    !seen.rings.is_empty() || seen.variables.is_some()
}

/// A process and its descendants.
fn with_children(all: &[ProcessInfo], pid: u32) -> Vec<&ProcessInfo> {
    let mut found: Vec<&ProcessInfo> = all.iter().filter(|seen| seen.pid == pid).collect();
    let mut next = 0;
    while let Some(parent) = found.get(next).map(|seen| seen.pid) {
        let is_new =
            |seen: &&ProcessInfo| seen.parent == parent && found.iter().all(|known| known.pid != seen.pid);
        let children: Vec<&ProcessInfo> = all.iter().filter(is_new).collect();
        found.extend(children);
        next += 1;
    }
    found
}

/// All processes that share a job or a communicator with one of these.
fn together<'a>(all: &'a [ProcessInfo], some: &[&ProcessInfo]) -> Vec<&'a ProcessInfo> {
    let shares = |seen: &&ProcessInfo| {
        some.iter().any(|one| {
            let variables_of_both = one.variables.as_ref().zip(seen.variables.as_ref());
            variables_of_both.is_some_and(|(one, other)| (&one.job, &one.place) == (&other.job, &other.place))
                || one.rings.iter().any(|ring| seen.rings.iter().any(|other| other.job == ring.job))
        })
    };
    all.iter().filter(shares).collect()
}

#[cfg(test)]
mod tests {
    use super::super::processes::JobVariables;
    use super::*;
    use crate::attach::AccessDenied;
    use crate::recorder::Process;

    fn seen(pid: u32, parent: u32, job: Option<(&str, &str)>) -> ProcessInfo {
        ProcessInfo {
            pid,
            parent,
            process: Process::Runs,
            start: 0,
            inner_pid: pid,
            variables: job.map(|(job, place)| JobVariables {
                job: job.to_owned(),
                place: place.to_owned(),
                rank: None,
            }),
            rings: Vec::new(),
            denied: None,
        }
    }

    fn pids(all: &[ProcessInfo], job: &str) -> Vec<u32> {
        select(all, job).unwrap().iter().map(|seen| seen.pid).collect()
    }

    #[test]
    fn a_job_is_all_processes_with_its_variables() {
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
    fn processes_outside_of_a_job_are_errors() {
        let mut all = [seen(10, 1, None), seen(11, 1, None), seen(12, 11, None)];
        all[2].denied = Some(AccessDenied::User { theirs: 7, ours: 8 });
        assert_eq!(
            select(&all, "10").unwrap_err().to_string(),
            "process 10 is not part of a job: neither it nor its children have a communicator or were started by `weft run`"
        );
        assert_eq!(
            select(&all, "11").unwrap_err().to_string(),
            "no permission to read process 12: it belongs to user 7, and this is user 8. Run this as user 7, or as root"
        );
        let error = select(&all, "other").unwrap_err().to_string();
        assert!(
            error.ends_with(
                ". One process of another user could not be read: run this as its user, or as root"
            ),
            "{error}"
        );
        all[2].denied = Some(AccessDenied::Debugger { scope: Some(1) });
        let error = select(&all, "00000000002a").unwrap_err().to_string();
        assert!(error.contains("(kernel.yama.ptrace_scope is 1)"), "{error}");
    }
}
