#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use weftlink_membership::durations::{HELLO, HELLO_WITHOUT_THREAD};

use super::*;
use crate::pending::PendingConnections;

pub(crate) const AMPLE: Duration = Duration::from_secs(60);

pub(crate) fn monitor() -> Monitor {
    Monitor::new(&Token::new("monitor").unwrap(), Host::here().unwrap()).unwrap()
}

/// Polls until there is a result.
pub(crate) fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(began.elapsed() < AMPLE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

const ORPHAN: Introduction = Introduction::Orphan { group: 7, from: 1 };

/// A monitor that watches a group of two ranks that are not connected, its contact and that of the other rank.
fn of_two() -> (Monitor, Monitor, Arc<Group>, Contact) {
    let (here, there) = (monitor(), monitor());
    let contact = here.contact(Vec::new());
    let group = Group::alone(7, vec![contact.clone(), there.contact(Vec::new())]);
    here.watch(&group);
    (here, there, group, contact)
}

#[test]
fn a_rank_that_takes_in_another_counts_as_a_helper() {
    let (here, there, group, contact) = of_two();
    let channel = there.dial(&contact, &ORPHAN, Deadline::new(AMPLE)).unwrap();
    let (answer, _) = channel.receive(Deadline::new(AMPLE)).unwrap();
    assert!(matches!(answer, Message::Accepted { .. }), "{answer:?}");
    assert_eq!(here.inner.state().helpers, 1);
    assert!(group.links().is_empty());
    channel.send(&answer, None, Deadline::new(AMPLE)).unwrap();
    until(|| (here.inner.state().helpers == 0).then_some(()));
    assert_eq!(group.links().len(), 1);
}

#[test]
fn without_a_thread_no_rank_is_taken_in() {
    let (mut here, there, group, contact) = of_two();
    // This thread stands for the monitor thread.
    here.inner.quit.store(true, Ordering::Release);
    here.inner.wake();
    here.thread.take().unwrap().join().unwrap();
    let listener = Arc::clone(&here.inner.state().listeners[0].1);
    let mut pending = PendingConnections::new(here.inner.limits);
    std::thread::scope(|scope| {
        let orphan = scope.spawn(|| {
            let channel = there.dial(&contact, &ORPHAN, Deadline::new(AMPLE)).unwrap();
            channel.receive(Deadline::new(AMPLE)).unwrap().0
        });
        let connection = until(|| {
            listener.accept(false).into_iter().for_each(|socket| pending.enter(socket));
            pending.next(HELLO)
        });
        here.inner.state().helpers += 1;
        here.inner.serve(connection, HELLO_WITHOUT_THREAD);
        assert_eq!(orphan.join().unwrap(), Message::NotInGroup { gone: None });
    });
    assert_eq!(here.inner.state().helpers, 0);
    assert!(group.links().is_empty());
}
