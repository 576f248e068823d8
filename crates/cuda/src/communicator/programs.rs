//! The programs of a plan, and device memory of those that are too long for the parameters of a kernel.
//!
//! The number of programs is bounded. Programs of captured calls stay: graphs have their addresses. The memory of others is used again, for
//! other programs, once the calls that were launched before have ended. It is never freed before the communicator is dropped: freeing waits for
//! all kernels of the context, which may wait for this rank's next call.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Programs of a plan that are kept for later calls, unless more are in graphs.
const PROGRAMS_MAX: usize = 1024;

/// The programs of a plan, by keys of type `K`.
#[derive(Debug)]
pub(super) struct Programs<K, P> {
    programs: FxHashMap<K, Kept<P>>,
}

#[derive(Debug)]
struct Kept<P> {
    program: P,
    is_in_graph: bool,
}

impl<K: Eq + Hash, P> Programs<K, P> {
    pub(super) fn new() -> Programs<K, P> {
        Programs { programs: FxHashMap::default() }
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.programs.contains_key(key)
    }

    /// The program of a call, which was inserted.
    pub(super) fn of(&self, key: &K) -> &P {
        &self.programs[key].program
    }

    /// A graph has the call of a program, which stays.
    pub(super) fn pin(&mut self, key: &K) {
        if let Some(kept) = self.programs.get_mut(key) {
            kept.is_in_graph = true;
        }
    }

    /// Adds a program. If there are too many, returns those that are in no graph. Calls under way may use them.
    pub(super) fn insert(&mut self, key: K, program: P) -> Vec<P> {
        let is_free = |_: &K, kept: &mut Kept<P>| !kept.is_in_graph;
        let freed = match self.programs.len() >= PROGRAMS_MAX {
            true => self.programs.extract_if(is_free).map(|(_, kept)| kept.program).collect(),
            false => Vec::new(),
        };
        self.programs.insert(key, Kept { program, is_in_graph: false });
        freed
    }
}

/// Memory that calls under way may read, with events of type `E` after them.
#[derive(Debug)]
pub(super) struct Retired<E, M> {
    /// Since the last launch.
    new: Vec<M>,
    waiting: Vec<(E, Vec<M>)>,
    idle: Vec<M>,
}

impl<E, M> Default for Retired<E, M> {
    fn default() -> Self {
        Retired { new: Vec::new(), waiting: Vec::new(), idle: Vec::new() }
    }
}

impl<E, M> Retired<E, M> {
    /// Adds memory that the next call to be launched does not read.
    pub(super) fn add(&mut self, memory: impl Iterator<Item = M>) {
        self.new.extend(memory);
    }

    /// A call was launched, after all that may read the new memory. The event is recorded only if there is some.
    pub(super) fn launched<R>(&mut self, event: impl FnOnce() -> Result<E, R>) -> Result<(), R> {
        if !self.new.is_empty() {
            self.waiting.push((event()?, std::mem::take(&mut self.new)));
        }
        Ok(())
    }

    /// The smallest memory that has this many bytes and that no call reads any more.
    pub(super) fn take<R>(
        &mut self,
        bytes: usize,
        length: impl Fn(&M) -> usize,
        has_ended: impl Fn(&E) -> Result<bool, R>,
    ) -> Result<Option<M>, R> {
        while let Some((event, _)) = self.waiting.first()
            && has_ended(event)?
        {
            self.idle.extend(self.waiting.remove(0).1);
        }
        let fits = self.idle.iter().enumerate().filter(|(_, memory)| length(memory) >= bytes);
        let best = fits.min_by_key(|(_, memory)| length(memory)).map(|(at, _)| at);
        Ok(best.map(|best| self.idle.swap_remove(best)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_bounded_except_those_of_graphs() {
        let mut programs = Programs::new();
        for number in 0..PROGRAMS_MAX {
            assert!(programs.insert(number, number).is_empty());
        }
        [3, 5].iter().for_each(|number| programs.pin(number));
        let mut freed = programs.insert(PROGRAMS_MAX, PROGRAMS_MAX);
        freed.sort_unstable();
        let others: Vec<usize> = (0..PROGRAMS_MAX).filter(|number| ![3, 5].contains(number)).collect();
        assert_eq!(freed, others);
        assert!(
            programs.contains(&3) && !programs.contains(&4) && *programs.of(&PROGRAMS_MAX) == PROGRAMS_MAX
        );
    }

    #[test]
    fn memory_is_used_again_after_the_calls_that_read_it() {
        let mut retired: Retired<u32, usize> = Retired::default();
        let take = |retired: &mut Retired<u32, usize>, bytes, time: u32| {
            retired.take(bytes, |length| *length, |event| Ok::<_, ()>(*event <= time))
        };
        retired.launched(|| -> Result<u32, ()> { unreachable!("there is no memory") }).ok();
        retired.add([100, 300, 200].into_iter());
        assert_eq!(take(&mut retired, 10, 9), Ok(None), "no call was launched since");
        assert_eq!(retired.launched(|| Ok::<_, ()>(3)), Ok(()));
        retired.add([50].into_iter());
        assert_eq!(retired.launched(|| Ok::<_, ()>(5)), Ok(()));
        assert_eq!(take(&mut retired, 10, 2), Ok(None), "the call before runs");
        assert_eq!(
            [150, 150, 150].map(|bytes| take(&mut retired, bytes, 4)),
            [Ok(Some(200)), Ok(Some(300)), Ok(None)]
        );
        assert_eq!(
            [10, 10, 10].map(|bytes| take(&mut retired, bytes, 5)),
            [Ok(Some(50)), Ok(Some(100)), Ok(None)]
        );
    }
}
