//! Ranks of one process load kernels together.
//!
//! Loading a module waits for all kernels of the context, and the driver launches nothing for other threads meanwhile (measured:
//! `bench/gpu/blocking.cu`). A rank that loaded one while another rank's kernel waits for it, or waits for a third rank that has not launched
//! yet, would wait for ever. Freeing memory waits in the same way. So the ranks of a process meet before they load what a call needs, when all of them have launched all
//! calls before it, and again before any of them launches that call.
//!
//! All ranks make the same calls in the same order, so they also load the same ones in the same order: by plan, count, type and operation, not by
//! what a rank happens to have loaded. A rank that is in another call is found out here, because its kernel could not.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::Error;

/// How often a rank that waits looks at the others.
const POLL: Duration = Duration::from_micros(50);

/// The groups of ranks in this process, by number.
static GROUPS: Mutex<Vec<(u64, Weak<Group>)>> = Mutex::new(Vec::new());

/// The ranks of a communicator in this process.
#[derive(Debug)]
struct Group {
    number: u64,
    members: Mutex<Vec<Member>>,
}

#[derive(Clone, Debug, Default)]
struct Member {
    /// Its rank in the communicator.
    rank: usize,
    /// Calls that it has launched, except those that it has captured.
    calls: u64,
    /// Whether it has captured calls: launches of graphs are not counted, so its calls cannot be compared with those of others.
    has_captured: bool,
    /// Loads that it has begun, the last of them for this call with these arguments.
    begun: u64,
    at: (u64, u64),
    /// Loads that it has ended.
    ended: u64,
    /// Why the last one failed.
    failure: Option<String>,
    /// Whether it makes no more calls.
    has_left: bool,
}

impl Member {
    fn check_not_left(&self) -> Result<(), Error> {
        match self.has_left {
            true => Err(Error::Failed { why: format!("rank {} has left the communicator", self.rank) }),
            false => Ok(()),
        }
    }
}

/// A rank among those of its process.
#[derive(Debug)]
pub(crate) struct Loading {
    group: Arc<Group>,
    place: usize,
}

/// A load that all ranks of the process have begun. The others wait until it ends.
#[derive(Debug)]
#[must_use]
pub(crate) struct Begun {
    number: u64,
}

impl Loading {
    /// The first rank of a process, of those in `ranks`. Others find it by its number.
    pub(crate) fn first(ranks: &[usize]) -> Loading {
        let members = ranks.iter().map(|&rank| Member { rank, ..Member::default() }).collect();
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|(_, group)| group.strong_count() > 0);
        let number = groups.last().map_or(1, |(number, _)| number + 1);
        let group = Arc::new(Group { number, members: Mutex::new(members) });
        groups.push((number, Arc::downgrade(&group)));
        Loading { group, place: 0 }
    }

    /// The rank at a place among those of the process.
    pub(crate) fn joining(number: u64, place: usize) -> Option<Loading> {
        let groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, group) = groups.iter().find(|(other, _)| *other == number)?;
        Some(Loading { group: group.upgrade()?, place })
    }

    pub(crate) fn number(&self) -> u64 {
        self.group.number
    }

    /// This rank has launched a call, or captured it.
    pub(crate) fn launched(&self, is_captured: bool) {
        self.with(|members| match is_captured {
            true => members[self.place].has_captured = true,
            false => members[self.place].calls += 1,
        });
    }

    /// Waits until all ranks of the process have launched the calls before the next one, and are about to load what it needs. `digest` is of
    /// its arguments; `check` returns an error if the ranks should not wait any more.
    pub(crate) fn begin(
        &self,
        digest: u64,
        timeout: Duration,
        check: impl Fn() -> Result<(), Error>,
    ) -> Result<Begun, Error> {
        let (number, at, has_captured) = self.with(|members| {
            let own = &mut members[self.place];
            own.begun += 1;
            (own.at, own.failure) = ((own.calls, digest), None);
            (own.begun, own.at, own.has_captured)
        });
        let is_there = |other: &Member| {
            let has_begun = other.begun >= number;
            let is_elsewhere = match has_captured || other.has_captured {
                true => has_begun && other.at.1 != digest,
                false => other.calls > at.0 || (has_begun && other.at != at),
            };
            if is_elsewhere {
                let why = format!(
                    "rank {} is in another call than this rank: its plan, count, type or operation differs",
                    other.rank
                );
                return Err(Error::Failed { why });
            }
            if has_begun { Ok(true) } else { other.check_not_left().map(|()| false) }
        };
        self.await_all(
            timeout,
            check,
            is_there,
            "make the call, whose kernels all ranks of a process load together",
        )?;
        Ok(Begun { number })
    }

    /// This rank has loaded what the call needs, or has not. Waits for the others.
    pub(crate) fn end<T>(
        &self,
        begun: &Begun,
        loaded: Result<T, Error>,
        timeout: Duration,
        check: impl Fn() -> Result<(), Error>,
    ) -> Result<T, Error> {
        self.with(|members| {
            let own = &mut members[self.place];
            own.ended = begun.number;
            own.failure = loaded.as_ref().err().map(ToString::to_string);
        });
        let loaded = loaded?;
        let is_there = |other: &Member| match &other.failure {
            Some(why) if other.ended == begun.number => {
                Err(Error::Failed { why: format!("rank {} could not load a kernel: {why}", other.rank) })
            }
            _ if other.ended >= begun.number => Ok(true),
            _ => other.check_not_left().map(|()| false),
        };
        self.await_all(timeout, check, is_there, "load a kernel")?;
        Ok(loaded)
    }

    /// This rank makes no more calls.
    pub(crate) fn leave(&self) {
        self.with(|members| members[self.place].has_left = true);
    }

    /// This rank has left and is about to free memory, which waits for kernels as loading does. Waits until the others have launched what
    /// this rank has: then no kernel waits for a launch any more, unless it is in a graph.
    pub(crate) fn settle(
        &self,
        timeout: Duration,
        check: impl Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let own = self.with(|members| members[self.place].clone());
        let is_there = |other: &Member| {
            let is_counted = !own.has_captured && !other.has_captured;
            Ok(!is_counted || other.has_left || other.calls >= own.calls)
        };
        self.await_all(timeout, check, is_there, "make this rank's last call")
    }

    fn with<T>(&self, look: impl FnOnce(&mut Vec<Member>) -> T) -> T {
        look(&mut self.group.members.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn await_all(
        &self,
        timeout: Duration,
        check: impl Fn() -> Result<(), Error>,
        is_there: impl Fn(&Member) -> Result<bool, Error>,
        what: &str,
    ) -> Result<(), Error> {
        let began = Instant::now();
        loop {
            let missing = self.with(|members| {
                let others = members.iter().enumerate().filter(|(place, _)| *place != self.place);
                let mut missing = None;
                for (_, other) in others {
                    if !is_there(other)? {
                        missing = Some(other.rank);
                    }
                }
                Ok(missing)
            })?;
            let Some(missing) = missing else { return Ok(()) };
            check()?;
            if began.elapsed() > timeout {
                let seconds = timeout.as_secs_f64();
                return Err(Error::Failed {
                    why: format!("rank {missing} did not {what}, within {seconds} s"),
                });
            }
            std::thread::sleep(POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn ranks(count: usize) -> Vec<Loading> {
        let numbers: Vec<usize> = (0..count).map(|place| 10 * place).collect();
        let first = Loading::first(&numbers);
        let number = first.number();
        let others = (1..count).map(|place| Loading::joining(number, place).unwrap());
        std::iter::once(first).chain(others.collect::<Vec<_>>()).collect()
    }

    /// Runs a function for each rank on a thread.
    fn together<R: Send>(ranks: &[Loading], run: impl Fn(&Loading) -> R + Sync) -> Vec<R> {
        std::thread::scope(|scope| {
            let run = &run;
            let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || run(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn nobody_loads_before_all_have_launched_and_nobody_launches_before_all_have_loaded() {
        let ranks = ranks(4);
        let loads = Mutex::new((0, 0));
        together(&ranks, |rank| {
            for round in 0..50 {
                let begun = rank.begin(round, LONG, || Ok(())).unwrap();
                assert!(rank.with(|members| members.iter().all(|member| member.calls >= round)));
                loads.lock().unwrap().0 += 1;
                rank.end(&begun, Ok(()), LONG, || Ok(())).unwrap();
                let mut loads = loads.lock().unwrap();
                assert!(loads.0 >= 4 * (round + 1), "{loads:?}");
                loads.1 += 1;
                drop(loads);
                rank.launched(false);
            }
        });
        assert_eq!(*loads.lock().unwrap(), (200, 200));
    }

    #[test]
    fn a_rank_in_another_call_is_named() {
        // Another digest, and a call that needs no load.
        for launches in [false, true] {
            let ranks = ranks(3);
            let results = together(&ranks, |rank| {
                if launches && rank.place == 1 {
                    rank.launched(false);
                    return String::new();
                }
                let digest = u64::from(rank.place == 1);
                rank.begin(digest, LONG, || Ok(())).unwrap_err().to_string()
            });
            assert!(results[0].starts_with("rank 10 is in another call"), "{results:?}");
            assert!(results[2].starts_with("rank 10 is in another call"), "{results:?}");
            assert!(launches || results[1].contains(" is in another call"), "{results:?}");
        }
    }

    #[test]
    fn waits_end() {
        let ranks = ranks(2);
        let late = ranks[0].begin(0, Duration::from_millis(1), || Ok(())).unwrap_err().to_string();
        assert!(late.starts_with("rank 10 did not make the call"), "{late}");
        let aborted = || Err(Error::Failed { why: "rank 1 aborted".to_owned() });
        let ended = ranks[0].begin(0, LONG, aborted).unwrap_err().to_string();
        assert!(ended.contains("rank 1 aborted"), "{ended}");
    }

    #[test]
    fn a_rank_frees_memory_when_the_others_have_made_its_calls_or_left() {
        let ranks = ranks(3);
        ranks[0].launched(false);
        ranks[0].leave();
        let late = ranks[0].settle(Duration::from_millis(1), || Ok(())).unwrap_err().to_string();
        assert!(late.contains("did not make this rank's last call"), "{late}");
        ranks[1].launched(false);
        ranks[2].leave();
        ranks[0].settle(LONG, || Ok(())).unwrap();
    }

    #[test]
    fn a_rank_that_has_left_is_not_waited_for() {
        let ranks = ranks(3);
        ranks[1].leave();
        let left = ranks[0].begin(0, LONG, || Ok(())).unwrap_err().to_string();
        assert_eq!(left, "rank 10 has left the communicator");
    }

    /// A rank captures calls that another one makes.
    #[test]
    fn captured_calls_are_not_counted() {
        let ranks = ranks(2);
        ranks[0].launched(true);
        (0..5).for_each(|_| ranks[1].launched(false));
        together(&ranks, |rank| {
            let begun = rank.begin(3, LONG, || Ok(())).unwrap();
            rank.end(&begun, Ok(()), LONG, || Ok(())).unwrap();
        });
        ranks[1].settle(LONG, || Ok(())).unwrap();
        let errors =
            together(&ranks, |rank| rank.begin(rank.place as u64, LONG, || Ok(())).unwrap_err().to_string());
        assert!(errors.iter().all(|error| error.contains(" is in another call")), "{errors:?}");
    }

    #[test]
    fn a_failed_load_ends_those_of_the_others() {
        let ranks = ranks(3);
        let results = together(&ranks, |rank| {
            let begun = rank.begin(7, LONG, || Ok(())).unwrap();
            let loaded = match rank.place {
                2 => Err(Error::Failed { why: "too large".to_owned() }),
                _ => Ok(()),
            };
            rank.end(&begun, loaded, LONG, || Ok(())).unwrap_err().to_string()
        });
        assert!(results[0].contains("rank 20 could not load a kernel"), "{results:?}");
        assert!(results[1].contains("too large") && results[2].contains("too large"), "{results:?}");
    }
}
