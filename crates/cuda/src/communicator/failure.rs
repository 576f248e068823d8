//! Why no call of a rank can succeed any more.

use crate::presence::{SHRINK, Words};
use crate::records::{ABORTED, DIED, GONE, PEER_FAILED, Report};
use crate::reports::describe;

/// The reason, from the report of this rank's kernel and the words of all ranks, if there is one.
///
/// If the kernel of this rank has it, the calls of all ranks end: this rank makes no more, and the kernels of other plans do not know why.
pub(super) fn failure_of(rank: usize, own: Option<&Report>, words: &Words) -> Option<String> {
    // The failure of another rank is not the reason if a rank has died or aborted.
    let is_elsewhere = own.is_none_or(|report| report.kind == PEER_FAILED);
    if let Some(why) = words.failure().filter(|_| is_elsewhere) {
        return Some(why);
    }
    let report = own?;
    let mut why = describe(rank, report);
    match (report.kind, report.other) {
        (GONE, DIED) => why = format!("{why}. {SHRINK}"),
        (ABORTED, by) => {
            why += &words.reason_of(by as usize).map(|why| format!(": {why}")).unwrap_or_default()
        }
        _ => {}
    }
    if !is_elsewhere && report.kind != ABORTED {
        words.abort_because(&why);
    }
    Some(why)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::time::Duration;

    use weftlink_bootstrap::Bootstrap;

    use super::*;
    use crate::records::{MISMATCH, TIMED_OUT};

    fn report(kind: u32, rank: u32) -> Report {
        Report { kind, rank, ..Report::default() }
    }

    fn words() -> Vec<Words> {
        std::thread::scope(|scope| {
            let share = |mut group| scope.spawn(move || Words::share(&mut group, Duration::from_secs(30)));
            let shared: Vec<_> = Bootstrap::threads(3).into_iter().map(share).collect();
            shared.into_iter().map(|words| words.join().unwrap().unwrap()).collect()
        })
    }

    /// Rank 0 made another call than rank 1, and makes no more. Rank 1 waits for it in the call of another plan.
    #[test]
    fn a_rank_whose_call_failed_ends_the_calls_of_the_others() {
        let words = words();
        assert_eq!(failure_of(0, None, &words[0]), None);
        let why = failure_of(0, Some(&report(MISMATCH, 1)), &words[0]).unwrap();
        assert!(why.starts_with("rank 1 is in another call than rank 0"), "{why}");
        assert!(words.iter().all(|words| words.state(1) >= crate::records::ABORTED_BY));
        let theirs = failure_of(1, None, &words[1]).unwrap();
        assert_eq!(theirs, format!("rank 0 aborted the calls: {why}"));
        // Its kernel noticed the abort.
        let aborted = failure_of(2, Some(&report(ABORTED, 1)), &words[2]).unwrap();
        assert!(aborted.starts_with("rank 0 aborted the calls while rank 2 waited for rank 1"), "{aborted}");
        assert!(aborted.ends_with(&why), "{aborted}");
        assert_eq!(failure_of(0, Some(&report(MISMATCH, 1)), &words[0]), Some(why), "the first reason stays");
    }

    /// The rank with the reason aborts.
    #[test]
    fn the_failure_of_another_rank_ends_no_calls() {
        let words = words();
        let why = failure_of(1, Some(&report(PEER_FAILED, 0)), &words[1]).unwrap();
        assert!(why.starts_with("rank 0 aborted, or its call failed"), "{why}");
        assert!((0..3).all(|rank| words[0].state(rank) == 0));
        let first = failure_of(0, Some(&report(TIMED_OUT, 2)), &words[0]).unwrap();
        let second = failure_of(1, Some(&report(PEER_FAILED, 0)), &words[1]).unwrap();
        assert_eq!(second, format!("rank 0 aborted the calls: {first}"));
    }

    #[test]
    fn a_death_is_the_reason_with_what_to_do() {
        let words = words();
        let dead = Report { other: DIED, ..report(GONE, 2) };
        let why = failure_of(0, Some(&dead), &words[0]).unwrap();
        assert!(why.starts_with("rank 2 has died") && why.ends_with(SHRINK), "{why}");
    }
}
