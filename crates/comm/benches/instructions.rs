//! Instructions of the hot paths: one call of rank 0 after its peer has made the same call, so that rank 0 does not wait. Run under
//! callgrind by `instructions.py`, which counts the instructions of `hot` and compares them with instructions.csv.
//!
//! Without valgrind it only shows that the calls work.
#![allow(clippy::unwrap_used)] // A benchmark fails by panicking.

use std::hint::black_box;
use std::time::Duration;

use weftlink_comm::{Communicator, Options, Reduction, Request};
use weftlink_plan::Collective;

/// Calls that are counted, after some that compile plans and fill caches.
const CALLS: usize = 20;
const WARM_UP: usize = 3;
/// Long enough for the peer to make its call and sleep in it, even under valgrind.
const PAUSE: Duration = Duration::from_millis(30);

type Call = fn(&mut Communicator, &mut [f32]);

const PATHS: [(&str, usize, Call); 9] = [
    ("all-reduce-8-bytes", 2, |comm, values| comm.all_reduce(values, Reduction::Sum).unwrap()),
    ("all-reduce-448-bytes", 112, |comm, values| comm.all_reduce(values, Reduction::Sum).unwrap()),
    ("all-reduce-4-kib", 1024, |comm, values| comm.all_reduce(values, Reduction::Sum).unwrap()),
    ("broadcast-8-bytes", 2, |comm, values| comm.broadcast(values, 1).unwrap()),
    ("all-gather-8-bytes", 4, |comm, values| comm.all_gather(values).unwrap()),
    ("request-8-bytes", 2, |comm, values| {
        comm.run(Request::new(&Collective::AllReduce, values).operation(Reduction::Sum)).unwrap();
    }),
    ("barrier", 0, |comm, _| comm.barrier().unwrap()),
    ("send-receive-8-bytes", 4, |comm, values| {
        let (mine, theirs) = values.split_at_mut(2);
        comm.send_receive((&*mine, theirs), &[(0, 1), (1, 0)], 2).unwrap();
    }),
    ("group-8-bytes", 4, |comm, values| {
        let peer = 1 - comm.rank();
        let (mine, theirs) = values.split_at_mut(2);
        comm.group(|group| group.send(peer, &*mine).and_then(|()| group.receive(peer, theirs))).unwrap();
    }),
];

fn main() {
    let wanted = std::env::args().nth(1).filter(|name| !name.starts_with('-'));
    for (name, count, call) in PATHS {
        if wanted.as_ref().is_none_or(|wanted| wanted == name) {
            run(count, call);
            println!("{name}: {CALLS} calls");
        }
    }
}

fn run(count: usize, call: Call) {
    let options = Options { spin: Some(false), single_copy: Some(false), ..Options::default() };
    let mut ranks = Communicator::threads(2, options).unwrap().into_iter();
    let (mut zero, mut one) = (ranks.next().unwrap(), ranks.next().unwrap());
    let peer = std::thread::spawn(move || {
        let mut values = vec![1.0; count];
        (0..WARM_UP + CALLS).for_each(|_| call(&mut one, &mut values));
    });
    let mut values = vec![1.0; count];
    for number in 0..WARM_UP + CALLS {
        std::thread::sleep(PAUSE);
        if number < WARM_UP { call(&mut zero, &mut values) } else { hot(call, &mut zero, &mut values) }
    }
    peer.join().unwrap();
    black_box(values);
}

/// The function whose instructions are counted.
#[inline(never)]
fn hot(call: Call, comm: &mut Communicator, values: &mut [f32]) {
    black_box(call)(comm, values);
}
