//! Ranks with an endpoint, and messages that own their memory.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use weftlink_comm::{Communicator, Endpoint, Error, Options};

/// Long enough that only a hang reaches it.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Runs the work on `ranks` threads that pull long messages, and again on as many that do not.
pub(crate) fn on_communicators(size: usize, work: impl Fn(Communicator) + Sync) {
    for single_copy in [true, false] {
        let options = Options { deadline: LONG, single_copy: Some(single_copy), ..Options::default() };
        let ranks = Communicator::threads(size, options).unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}

/// The same for work that needs an endpoint only.
pub(crate) fn on_ranks(size: usize, work: impl Fn(Endpoint) + Sync) {
    on_communicators(size, |mut comm| {
        work(comm.endpoint().unwrap());
        // No rank leaves while others still work.
        comm.barrier().unwrap();
    });
}

/// Bytes that differ by place and by number.
pub(crate) fn filled(bytes: usize, number: u64) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(31) ^ at >> 8 ^ number.wrapping_mul(77)) as u8).collect()
}

/// Messages without a waiting thread, which own their memory until they complete.
pub(crate) trait StartOwned {
    fn post_send(&self, to: usize, tag: u64, message: Vec<u8>) -> Receiver<Result<(), Error>>;
    fn post_receive(
        &self,
        from: Option<usize>,
        tag: u64,
        bytes: usize,
    ) -> Receiver<Result<(usize, Vec<u8>), Error>>;
}

impl StartOwned for Endpoint {
    fn post_send(&self, to: usize, tag: u64, message: Vec<u8>) -> Receiver<Result<(), Error>> {
        let (sender, receiver) = channel();
        let (address, bytes) = (message.as_ptr(), message.len());
        let done = move |result| {
            drop(message);
            let _ = sender.send(result);
        };
        // SAFETY: the callback owns the message.
        unsafe { self.start_send(to, tag, address, bytes, LONG, done) };
        receiver
    }

    fn post_receive(
        &self,
        from: Option<usize>,
        tag: u64,
        bytes: usize,
    ) -> Receiver<Result<(usize, Vec<u8>), Error>> {
        let (sender, receiver) = channel();
        let mut message = vec![0; bytes];
        let address = message.as_mut_ptr();
        let done = move |result: Result<usize, Error>| {
            let _ = sender.send(result.map(|from| (from, message)));
        };
        // SAFETY: the callback owns the memory.
        unsafe { self.start_receive(from, tag, address, bytes, LONG, done) };
        receiver
    }
}
