//! Virtual time: the events that are still to happen, by time and then in the order in which they were added.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::Debug;
use std::time::Instant;

/// Events at times, and the present time.
#[derive(Debug)]
pub struct Queue<E> {
    start: Instant,
    now: Instant,
    times: BinaryHeap<Reverse<(Instant, u64)>>,
    events: BTreeMap<u64, E>,
    last: u64,
    steps: usize,
    steps_max: usize,
    trace: Option<Vec<String>>,
}

impl<E: Debug> Queue<E> {
    /// No events. More than `steps_max` of them are an error.
    pub fn new(steps_max: usize) -> Queue<E> {
        let now = Instant::now();
        let (times, events) = (BinaryHeap::new(), BTreeMap::new());
        Queue { start: now, now, times, events, last: 0, steps: 0, steps_max, trace: None }
    }

    /// The time at which the queue was made.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// The time of the last event.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The events that have happened.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// A number that no event and no other caller has.
    pub fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Adds an event. One in the past happens now.
    pub fn at(&mut self, when: Instant, event: E) {
        let number = self.number();
        self.times.push(Reverse((when.max(self.now), number)));
        self.events.insert(number, event);
    }

    /// Removes the events for which this does not hold.
    pub fn retain(&mut self, keeps: impl Fn(&E) -> bool) {
        self.events.retain(|_, event| keeps(event));
    }

    /// The next event, whose time is the present time from now on.
    pub fn pop(&mut self) -> Result<Option<E>, String> {
        while let Some(Reverse((when, number))) = self.times.pop() {
            let Some(event) = self.events.remove(&number) else { continue };
            self.now = when;
            self.steps += 1;
            if self.steps > self.steps_max {
                return Err(format!("it does not end: {} steps", self.steps_max));
            }
            self.note(|| format!("{event:?}"));
            return Ok(Some(event));
        }
        Ok(None)
    }

    /// Begins a trace with a line.
    pub fn begin_trace(&mut self, line: String) {
        self.trace = Some(vec![line]);
    }

    /// Adds a line to the trace, if there is one.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        let at = (self.now - self.start).as_micros();
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{at:>10} {}", line()));
        }
    }

    /// Prints the trace, if there is one.
    pub fn print_trace(&self) {
        self.trace.iter().flatten().for_each(|line| println!("{line}"));
    }
}
