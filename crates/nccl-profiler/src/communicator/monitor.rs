//! The thread that looks for calls that do not end: it notes in the flight record what their rank waits for, and writes the trace then, so
//! that a job which is killed leaves one.
//!
//! It runs while there is a communicator with a flight record.

use std::sync::Mutex;
use std::time::Duration;

use weftlink_recorder::waiting::Waiting;
use weftlink_shm::clock::now_ns;

use crate::communicator::Communicator;
use crate::communicator::process::{self, Now, lock, pool};
use crate::event::{Kind, WAITS_FOR_DATA, WAITS_FOR_RECEIVER};
use crate::pool::{Event, Pool};

const PERIOD: Duration = Duration::from_millis(500);

/// Whether the thread runs.
static IS_RUNNING: Mutex<bool> = Mutex::new(false);

/// Starts the thread, unless it runs.
pub(crate) fn start() {
    let mut is_running = lock(&IS_RUNNING);
    if !*is_running {
        let started = std::thread::Builder::new().name("weft-profiler".to_owned()).spawn(run);
        *is_running = started.is_ok();
    }
}

fn run() {
    loop {
        std::thread::sleep(PERIOD);
        {
            let mut is_running = lock(&IS_RUNNING);
            if !process::is_live() {
                *is_running = false;
                return;
            }
        }
        // What goes wrong here concerns nobody else.
        let looked =
            std::panic::catch_unwind(|| process::communicators().into_iter().filter(|one| look(one)).count());
        if looked.is_ok_and(|new| new > 0) {
            process::write_trace(Now::Running);
        }
    }
}

/// Notes the wait of a call that does not end. Returns whether that is new.
fn look(communicator: &Communicator) -> bool {
    let now_ns = now_ns();
    let stuck = communicator.with_record(|calls| {
        calls.anchor();
        calls.stuck(now_ns)
    });
    let Some((call, _)) = stuck.flatten() else { return false };
    let waiting = waiting(pool(), communicator.index, call);
    communicator.with_record(|calls| {
        calls.stuck(now_ns).is_some_and(|(now, _)| now == call) && calls.note(call, waiting)
    }) == Some(true)
}

/// What a call waits for: a single rank, if all steps of its proxies wait for that one.
fn waiting(pool: &Pool, communicator: u32, call: u32) -> Waiting {
    let steps = pool.events().into_iter().filter(|event| {
        event.is_running
            && event.kind == Kind::ProxyStep
            && event.communicator == communicator
            && event.call == call
    });
    let awaited: Vec<(u64, u32)> = steps.filter_map(|step| awaited(pool, &step)).collect();
    let of = |state: u64| {
        let mut peers = awaited.iter().filter(|(waits, _)| *waits == state).map(|(_, peer)| *peer);
        let first = peers.next()?;
        peers.all(|peer| peer == first).then_some(first)
    };
    match (of(WAITS_FOR_DATA), of(WAITS_FOR_RECEIVER)) {
        (Some(from), _) => Waiting::Message { from },
        (None, Some(to)) => Waiting::Slot { to },
        (None, None) => Waiting::Anything,
    }
}

/// The state of a step that waits for another rank, and that rank.
fn awaited(pool: &Pool, step: &Event) -> Option<(u64, u32)> {
    let (_, state, _) = *step.states.last()?;
    let operation = pool.event(step.parent).filter(|parent| parent.kind == Kind::ProxyOp)?;
    let peer = u32::try_from(operation.words[2] as i64).ok()?;
    [WAITS_FOR_DATA, WAITS_FOR_RECEIVER].contains(&state).then_some((state, peer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Start, WORDS, Words};

    fn start(pool: &Pool, kind: Kind, parent: u64, words: Words) -> u64 {
        pool.start(&Start { kind, parent, rank: 0, communicator: 0, words }, 3, 41, 1)
    }

    fn step(pool: &Pool, peer: i64, state: u64) -> u64 {
        let mut words = [0; WORDS];
        words[2] = peer as u64;
        let operation = start(pool, Kind::ProxyOp, 0, words);
        let step = start(pool, Kind::ProxyStep, operation, [0; WORDS]);
        pool.add_state(step, state, 0, 2);
        step
    }

    #[test]
    fn steps_of_proxies_say_which_rank_is_awaited() {
        let pool = Pool::new(64);
        let said = |pool: &Pool| format!("{:?}", waiting(pool, 3, 41));
        assert_eq!(said(&pool), "Anything");
        step(&pool, 5, WAITS_FOR_RECEIVER);
        assert_eq!(said(&pool), "Slot { to: 5 }");
        let first = step(&pool, 2, WAITS_FOR_DATA);
        assert_eq!(said(&pool), "Message { from: 2 }");
        step(&pool, 2, WAITS_FOR_DATA);
        step(&pool, 9, 8);
        step(&pool, -1, WAITS_FOR_DATA);
        assert_eq!(said(&pool), "Message { from: 2 }");
        step(&pool, 4, WAITS_FOR_DATA);
        assert_eq!(said(&pool), "Slot { to: 5 }", "two ranks");
        pool.add_state(first, 11, 0, 3);
        assert_eq!(format!("{:?}", waiting(&pool, 3, 40)), "Anything", "another call");
        assert_eq!(format!("{:?}", waiting(&pool, 1, 41)), "Anything", "another communicator");
    }
}
