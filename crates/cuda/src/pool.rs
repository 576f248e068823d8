//! The memory of a rank's buffers. A buffer gives its memory back when it is dropped, and the next one that fits uses it again, in the
//! order of the rank's stream: calls on the old buffer end before those on the new one begin. Freeing waits for the stream; a drop does not.

use std::mem::{forget, take};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Memory that no buffer has.
#[derive(Debug)]
pub(crate) struct Pool<M> {
    state: Mutex<State<M>>,
}

#[derive(Debug)]
struct State<M> {
    /// With its bytes.
    idle: Vec<(usize, M)>,
    end: Option<End>,
}

/// What becomes of memory after the rank is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Its calls have ended: memory is freed.
    Ended,
    /// A call failed, so other ranks may still write: memory is never freed.
    Failed,
}

impl<M> Pool<M> {
    pub(crate) fn new() -> Pool<M> {
        Pool { state: Mutex::new(State { idle: Vec::new(), end: None }) }
    }

    /// The smallest idle memory that has this many bytes, and not more than twice as many.
    pub(crate) fn take(&self, bytes: usize) -> Option<M> {
        let mut state = self.state();
        let fits =
            |(_, (length, _)): &(usize, &(usize, M))| (bytes..=bytes.saturating_mul(2)).contains(length);
        let (best, _) = state.idle.iter().enumerate().filter(fits).min_by_key(|(_, (length, _))| *length)?;
        Some(state.idle.swap_remove(best).1)
    }

    /// Takes back what a buffer had.
    pub(crate) fn give(&self, bytes: usize, memory: M) {
        let mut state = self.state();
        match state.end {
            None => state.idle.push((bytes, memory)),
            Some(End::Ended) => drop(memory),
            Some(End::Failed) => forget(memory),
        }
    }

    /// Frees what is idle. Returns whether there was any. The caller has waited for the stream.
    pub(crate) fn free_idle(&self) -> bool {
        !take(&mut self.state().idle).is_empty()
    }

    /// The rank is gone.
    pub(crate) fn end(&self, end: End) {
        let mut state = self.state();
        state.end = Some(end);
        let idle = take(&mut state.idle);
        match end {
            End::Ended => drop(idle),
            End::Failed => forget(idle),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn the_smallest_that_fits_is_used_again() {
        let pool = Pool::new();
        for (bytes, memory) in [(400, 'a'), (150, 'b'), (120, 'c'), (99, 'd')] {
            pool.give(bytes, memory);
        }
        assert_eq!(
            [100, 100, 100, 90].map(|bytes| pool.take(bytes)),
            [Some('c'), Some('b'), None, Some('d')]
        );
        assert!(pool.free_idle());
        assert!(!pool.free_idle());
        assert_eq!(pool.take(400), None);
    }

    #[test]
    fn memory_is_freed_after_the_rank_unless_a_call_failed() {
        for (end, kept) in [(End::Ended, 0), (End::Failed, 2)] {
            let (pool, memory) = (Pool::new(), Rc::new(()));
            pool.give(8, Rc::clone(&memory));
            pool.end(end);
            pool.give(8, Rc::clone(&memory));
            assert_eq!(Rc::strong_count(&memory) - 1, kept, "{end:?}");
        }
    }
}
