//! Names that NCCL passes, as numbers: an event has no space for texts, and NCCL's may be gone when the trace is written.

use std::sync::OnceLock;

/// The most names. NCCL has about 60 for functions, types, algorithms, protocols, kernels and phases.
const NAMES_MAX: usize = 256;

/// In place of a name: none was passed, or there are too many.
pub(crate) const NONE: u64 = u64::MAX;

static NAMES: [OnceLock<Box<str>>; NAMES_MAX] = [const { OnceLock::new() }; NAMES_MAX];

/// The number of a name.
pub(crate) fn number(name: Option<&str>) -> u64 {
    let Some(name) = name else { return NONE };
    for (number, place) in NAMES.iter().enumerate() {
        // Whoever comes first takes the place.
        if &**place.get_or_init(|| name.into()) == name {
            return number as u64;
        }
    }
    NONE
}

/// The name of a number.
pub(crate) fn name(number: u64) -> Option<&'static str> {
    let place = NAMES.get(usize::try_from(number).ok()?)?;
    place.get().map(|name| &**name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_have_one_number_in_all_threads() {
        let numbers = |_| ["AllReduce", "RING", "LL128", "AllReduce"].map(|name| number(Some(name)));
        let all: Vec<[u64; 4]> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|at| scope.spawn(move || numbers(at))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.iter().all(|numbers| *numbers == all[0]));
        assert_eq!(all[0][0], all[0][3]);
        assert_eq!(all[0].map(name), ["AllReduce", "RING", "LL128", "AllReduce"].map(Some));
        assert_eq!((number(None), name(NONE), name(255)), (NONE, None, None));
    }
}
