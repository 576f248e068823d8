use weftlink_plan::{Algorithm, Aliasing, Collective, Plan, Reduction, verify};
use weftlink_recorder::header::{CallKind, Header, Location};

use std::time::Duration;

use super::*;
use crate::data::Elements;
use crate::operation::Operation;

/// The result of each of two ranks, or `None` if it panicked. Deadlines are long, because timeouts are not tested here.
fn on_two<T: Send>(work: impl Fn(&mut Communicator) -> T + Sync) -> [Option<T>; 2] {
    let options = Options { deadline: Duration::from_secs(60), ..Options::default() };
    let ranks = Communicator::threads(2, options).unwrap();
    // No rank leaves before both are done, because the other would notice.
    let done = std::sync::Barrier::new(2);
    let run = |mut comm: Communicator| {
        let gave = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&mut comm)));
        done.wait();
        gave.ok()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| run(comm))).collect();
        let gave: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        gave.try_into().unwrap_or_else(|_| unreachable!("there are two"))
    })
}

fn request<'a>(buffers: impl Into<Buffers<'a>>, plan: PlanId) -> CallArgs<'a> {
    let args = CallArgs::new(&Collective::AllReduce, buffers).with(Reduction::Sum.into());
    CallArgs { plan: Some(plan), ..args }
}

struct Panics(bool);

impl Tracer for Panics {
    fn step(&mut self, _: u32, _: u32, _: u32) {
        assert!(!self.0, "on purpose");
    }
}

#[test]
fn a_panic_in_a_call_aborts_all_ranks() {
    for algorithm in [Algorithm::Ring, Algorithm::TwoShot] {
        let gave = on_two(|comm| {
            let plan = comm.built_in(algorithm, &Collective::AllReduce).unwrap();
            let mut window = comm.window::<f32>(5000).unwrap();
            let mut panics = Panics(comm.rank() == 1);
            comm.perform(request(&mut window, plan), &mut panics).unwrap_err()
        });
        let aborted = matches!(gave[0], Some(Error::Aborted { by: 1, reason: "it panicked", .. }));
        assert!(aborted && gave[1].is_none(), "{gave:?}");
    }
}

#[test]
fn communicators_report_an_earlier_panic() {
    let gave = on_two(|comm| {
        let plan = comm.built_in(Algorithm::Ring, &Collective::AllReduce).unwrap();
        let mut panics = Panics(comm.rank() == 1);
        let mut call = || comm.perform(request(&mut [1.0; 10], plan), &mut panics);
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut call));
        comm.all_reduce(&mut [1.0], Reduction::Sum).unwrap_err().to_string()
    });
    assert!(gave.iter().flatten().all(|error| error.contains("panicked")), "{gave:?}");
}

#[test]
fn signature_collisions_are_harmless() {
    // Of enough plans there are two whose hashes are so near that another count makes up for it.
    let named = |name: usize| {
        let plan = Plan { name: name.to_string(), ..Algorithm::TwoShot.plan(2, 1) };
        verify(plan).unwrap()
    };
    let at = Location::Window { number: 0, offset: 0 };
    let signature = |plan: &Verified, count: usize| {
        let allocating = Header::allocating(
            CallKind::Collective(0),
            plan.hash(),
            count,
            Elements::of::<f32>().announced(),
        );
        let reduction = Some(Reduction::Sum);
        let header = Header { aliasing: Aliasing::InPlace, reduction, input: at, output: at, ..allocating };
        header.signature()
    };
    let mut plans: Vec<_> = (0..400).map(|name| (signature(&named(name), 0), name)).collect();
    plans.sort_unstable();
    let nearest = plans.windows(2).min_by_key(|pair| pair[1].0 - pair[0].0).unwrap();
    let names = [nearest[0].1, nearest[1].1];
    let counts = [1000 + (nearest[1].0 - nearest[0].0) as usize, 1000];
    let signatures = [0, 1].map(|rank| signature(&named(names[rank]), counts[rank]));
    assert_eq!(signatures[0], signatures[1]);
    let gave = on_two(|comm| {
        let plans = names.map(|name| comm.load(named(name)).unwrap());
        let mut window = comm.window::<f32>(counts[0]).unwrap();
        comm.call(request(window.part_mut(0..counts[comm.rank()]), plans[comm.rank()]))
    });
    let differ = |gave: &Option<Result<(), Error>>| matches!(gave, Some(Err(Error::Mismatch { .. })));
    assert!(gave.iter().all(differ), "{counts:?}: {gave:?}");
}

#[test]
fn premultiplied_sums_without_a_factor_are_refused() {
    let gave = on_two(|comm| {
        let mut values = [1.0_f32, 2.0];
        comm.all_reduce(&mut values[..], Operation::premultiplied_sum(2.0_f32)).unwrap();
        comm.all_reduce(&mut values[..], Reduction::PremultipliedSum).unwrap_err().to_string()
    });
    assert!(gave.iter().flatten().all(|error| error.contains("needs a factor")), "{gave:?}");
}

#[test]
fn empty_buffers_of_any_element_size_are_reduced() {
    let gave = on_two(|comm| {
        let sum = |a: [f64; 200], _: [f64; 200]| a;
        comm.all_reduce(&mut [[0.0_f64; 200]; 0][..], Operation::user_defined(true, sum))
    });
    assert!(gave.iter().flatten().all(Result::is_ok), "{gave:?}");
}
