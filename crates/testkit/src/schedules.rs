//! Seeded schedules: tests that run many ranks in one process under virtual time, where a seed decides delays and faults.

mod queue;

use std::fmt::Debug;

use crate::random::Random;
pub use queue::Queue;

/// The most failures that are printed.
const SHOWN_MAX: usize = 50;

/// The random numbers of the schedule with this seed.
pub fn random(seed: u64) -> Random {
    Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(1))
}

/// Runs `count` schedules and returns the sum of their outcomes. Panics with the seeds of those that fail.
///
/// `WEFT_SCHEDULES` sets another count and `WEFT_FIRST_SEED` the first seed. `WEFT_SEED` runs one schedule, which prints its trace if it
/// fails, and nothing is returned.
pub fn run<T: Debug + Default>(
    count: u64,
    schedule: impl Fn(u64, bool) -> Result<T, String>,
    add: impl Fn(&mut T, &T),
) -> Option<T> {
    if let Some(seed) = setting("WEFT_SEED") {
        match schedule(seed, true) {
            Ok(outcome) => println!("{outcome:?}"),
            Err(error) => panic!("WEFT_SEED={seed}: {error}"),
        }
        return None;
    }
    let count = setting("WEFT_SCHEDULES").unwrap_or(count);
    let first = setting("WEFT_FIRST_SEED").unwrap_or(0);
    let (mut total, mut failed) = (T::default(), Vec::new());
    for seed in first..first.saturating_add(count) {
        match schedule(seed, false) {
            Ok(outcome) => add(&mut total, &outcome),
            Err(error) => failed.push(format!("WEFT_SEED={seed}: {error}")),
        }
    }
    println!("{count} schedules: {total:?}");
    let shown = failed[..failed.len().min(SHOWN_MAX)].join("\n");
    assert!(failed.is_empty(), "{} of {count} schedules fail:\n{shown}", failed.len());
    Some(total)
}

/// The number in an environment variable.
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}
