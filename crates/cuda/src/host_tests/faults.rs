//! Calls that overlap, differ or fail, and kernels that know the order of their steps.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use weftlink_plan::plan::Protocol;
use weftlink_plan::{Algorithm, Aliasing, Collective, DataType, Plan, Reduction, Shape, Verified, verify};
use weftlink_recorder::gpu::ReportKind::{Aborted, Differs, Gone, PeerFailed, TimedOut};
use weftlink_recorder::gpu::{BlockReport, ReportKind, ReportMemory};
use weftlink_recorder::recorder::Owner;

use super::{Build, Launch, Library, arenas_in, parameters};
use crate::program::{Compiler, Program, Sequences, Spread};
use crate::records::{self, ABORTED_BY, DIED, FAILED_AT, LEFT};
use crate::source::Specialisation;

pub(super) const COUNT: usize = 300;
const SPREAD: Spread = Spread { slices: 2, threads: 4, chunk_bytes: 256 };
/// One tile for each call.
const LONG: Spread = Spread { chunk_bytes: 1 << 20, ..SPREAD };
const CANARY: f32 = -1.0;
const REPORTS: usize = 64;

/// What the kernels of a job know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kernels {
    /// Nothing: they read the program.
    Any,
    /// The order of steps.
    Fixed,
    /// All constants; calls have one tile, and run directly if the plan sends packets.
    Direct,
}

/// A plan on ranks that are threads.
pub(super) struct Job {
    programs: Vec<Program>,
    libraries: Vec<Library>,
    _arenas: Vec<Vec<u128>>,
    buffers: Vec<[Vec<f32>; 2]>,
    /// The addresses of all inputs, then of all outputs.
    addresses: Vec<u64>,
    pub(super) reports: Vec<ReportMemory>,
    /// A word of each rank.
    presence: Vec<AtomicU32>,
}

impl Job {
    fn new(plan: Plan, kernels: Kernels) -> Job {
        Job::numbered(&verify(plan).unwrap(), kernels, 0)
    }

    /// A job whose reports name a communicator.
    pub(super) fn numbered(plan: &Verified, kernels: Kernels, job: u64) -> Job {
        Job::built(plan, kernels, job, Build::Plain)
    }

    fn built(plan: &Verified, kernels: Kernels, job: u64, build: Build) -> Job {
        let spread = if kernels == Kernels::Direct { LONG } else { SPREAD };
        let compilers: Vec<_> =
            (0..plan.ranks).map(|rank| Compiler::new(plan.clone(), rank, SPREAD.slices)).collect();
        let memory: Vec<Vec<u128>> = compilers
            .iter()
            .map(|compiler| vec![0; (compiler.arena.bytes + compiler.arena.private_bytes) as usize / 16])
            .collect();
        let arenas = arenas_in(&compilers, &memory);
        let shape = Shape { aliasing: Aliasing::OutOfPlace, element_bytes: 4, count: COUNT, uneven: None };
        let programs: Vec<_> = std::iter::zip(&compilers, &arenas)
            .map(|(compiler, arenas)| compiler.compile(&shape, spread, arenas).unwrap())
            .collect();
        assert!(kernels != Kernels::Direct || programs.iter().all(|program| program.header.tiles == 1));
        let library = |program: &Program| {
            let sequences = match kernels {
                Kernels::Any if compilers[0].switch.is_some() => Sequences::with_switch(),
                Kernels::Any => Sequences::none(),
                Kernels::Fixed | Kernels::Direct => program.sequences.clone(),
            };
            let (data_type, reduction) = (DataType::F32, Reduction::Sum);
            let is_in_shared = program.is_in_shared;
            Library::new(
                &Specialisation { data_type, reduction, sequences, is_in_shared, is_one_gpu: true },
                build,
            )
        };
        let buffers: Vec<_> =
            (0..plan.ranks).map(|rank| [vec![rank as f32 + 1.0; COUNT], vec![CANARY; COUNT]]).collect();
        let sides = (0..2).flat_map(|side| buffers.iter().map(move |buffers| &buffers[side]));
        Job {
            libraries: programs.iter().map(library).collect(),
            addresses: sides.map(|buffer| buffer.as_ptr().addr() as u64).collect(),
            buffers,
            reports: (0..programs.len())
                .map(|rank| {
                    let owner = Owner { rank, size: programs.len(), job };
                    ReportMemory::create(owner, REPORTS).unwrap()
                })
                .collect(),
            presence: (0..plan.ranks).map(|_| AtomicU32::new(0)).collect(),
            programs,
            _arenas: memory,
        }
    }

    /// A call of one rank, with its signature, which is its number, too. The program is in the parameters.
    fn call(&self, rank: usize, signature: u32, timeout: Duration) -> Vec<u128> {
        let program = &self.programs[rank];
        let ranks = self.programs.len();
        let [input, output] = [self.addresses[rank], self.addresses[ranks + rank]];
        let header = records::CallHeader {
            signature,
            input,
            output,
            presence: self.presence.as_ptr().addr() as u64,
            reports: (self.reports[rank].start().addr() + self.reports[rank].reports_at()) as u64,
            number: signature,
            timeout_ns: timeout.as_nanos() as u64,
            ..program.header
        };
        let mut call = bytemuck::bytes_of(&header).to_vec();
        // Multicast addresses are those of the first rank.
        let of_all = records::View { input: self.addresses[0], output: self.addresses[ranks] };
        let view = |peer| if peer == rank { of_all } else { records::View { input, output } };
        (0..ranks).for_each(|peer| call.extend(bytemuck::bytes_of(&view(peer))));
        call.extend(&program.bytes);
        parameters(call)
    }

    /// Makes calls: the rank and the signature of each. Those of one rank follow each other.
    pub(super) fn run(&self, calls: &[(usize, u32)], timeout: Duration, seed: u64) {
        let parameters: Vec<_> =
            calls.iter().map(|&(rank, signature)| self.call(rank, signature, timeout)).collect();
        let launches: Vec<_> =
            std::iter::zip(calls, &parameters).map(|(&(rank, _), call)| self.launch(rank, call)).collect();
        self.multicast();
        // SAFETY: the calls have all that the kernels read, and the job owns every address in them.
        unsafe { self.libraries[0].run(&launches, seed) }
    }

    fn launch(&self, rank: usize, call: &[u128]) -> Launch {
        self.libraries[rank].launch(call, &self.programs[rank], SPREAD.threads)
    }

    /// Tells kernels that run next on this thread where the memory of all ranks is.
    fn multicast(&self) {
        for library in &self.libraries {
            let (table, ranks) = (self.addresses.as_ptr(), self.programs.len() as u32);
            // SAFETY: the table has two addresses for each rank, and lives as long as the kernels run.
            library.multicast.iter().for_each(|set| unsafe { set(table, 2, ranks) });
        }
    }

    /// Makes calls of all ranks, which do not wait for each other between them.
    fn run_all(&self, calls: u32, seed: u64) {
        let each = (0..self.programs.len()).flat_map(|rank| (0..calls).map(move |call| (rank, call)));
        self.run(&each.collect::<Vec<_>>(), Duration::from_secs(1), seed);
        (0..self.programs.len()).for_each(|rank| assert_eq!(self.failure(rank), None, "rank {rank}"));
    }

    /// The kind of a rank's failure, and the rank that its report names.
    fn failure(&self, rank: usize) -> Option<(ReportKind, u32)> {
        self.report(rank).map(|report| (report.kind, report.rank))
    }

    /// The report of a rank's failure.
    fn report(&self, rank: usize) -> Option<BlockReport> {
        let memory = &self.reports[rank];
        let first: *const records::Report = memory.start().wrapping_add(memory.reports_at()).cast();
        // SAFETY: the memory has reports and lives as long as the job; no kernel runs.
        BlockReport::of_bytes(bytemuck::bytes_of(&unsafe { first.read_volatile() }))
    }

    /// How many blocks of a rank say that they wait.
    fn waits(&self, rank: usize) -> usize {
        let memory = &self.reports[rank];
        let first: *const records::Report = memory.start().wrapping_add(memory.reports_at()).cast();
        // SAFETY: as above.
        (1..REPORTS).filter(|at| unsafe { first.add(*at).read_volatile() }.kind != 0).count()
    }

    fn output(&self, rank: usize) -> Vec<f32> {
        let output = &self.buffers[rank][1];
        // SAFETY: the output lives as long as the job, and no kernel runs.
        output.iter().map(|value| unsafe { std::ptr::from_ref(value).read_volatile() }).collect()
    }
}

pub(super) fn all_reduce(algorithm: Algorithm, ranks: u32, lanes: u32, protocol: Protocol) -> Plan {
    algorithm.flat_with(&Collective::AllReduce, ranks, lanes, protocol).unwrap()
}

/// All-reduces of two ranks by packets, messages, memory and a switch.
fn jobs_of_two() -> impl Iterator<Item = (String, Job)> {
    let plans = [
        (all_reduce(Algorithm::Exchange, 2, 1, Protocol::Ll), Kernels::Any),
        (all_reduce(Algorithm::Exchange, 2, 1, Protocol::Ll), Kernels::Direct),
        (all_reduce(Algorithm::Ring, 2, 1, Protocol::Simple), Kernels::Any),
        (Algorithm::TwoShot.flat(&Collective::AllReduce, 2, 1).unwrap(), Kernels::Any),
        (Algorithm::TwoShot.flat(&Collective::AllReduce, 2, 1).unwrap(), Kernels::Direct),
        (Algorithm::Nvls.flat(&Collective::AllReduce, 2, 1).unwrap(), Kernels::Any),
        (Algorithm::Nvls.flat(&Collective::AllReduce, 2, 1).unwrap(), Kernels::Direct),
    ];
    plans.into_iter().map(|(plan, kernels)| (format!("{} {kernels:?}", plan.name), Job::new(plan, kernels)))
}

fn kernels_of(seed: u64) -> Kernels {
    [Kernels::Any, Kernels::Fixed, Kernels::Direct][seed as usize % 3]
}

#[test]
fn kernels_that_know_the_order_of_steps_run_overlapping_calls() {
    for plan in [
        all_reduce(Algorithm::Exchange, 3, 1, Protocol::Ll),
        all_reduce(Algorithm::Ring, 3, 2, Protocol::Simple),
        Algorithm::TwoShot.flat(&Collective::AllReduce, 3, 1).unwrap(),
        Algorithm::Nvls.flat(&Collective::AllReduce, 3, 1).unwrap(),
    ] {
        for kernels in [Kernels::Fixed, Kernels::Direct] {
            let name = plan.name.clone();
            let job = Job::new(plan.clone(), kernels);
            (0..20).for_each(|seed| job.run_all(4, seed));
            for rank in 0..3 {
                assert_eq!(job.output(rank), vec![6.0; COUNT], "{name}, {kernels:?}, rank {rank}");
            }
        }
    }
}

#[test]
fn a_rank_that_is_a_call_ahead_does_not_stop_the_others() {
    let messages = [(0, 1), (2, 0)].into();
    let plan = Algorithm::OneShot.flat(&Collective::SendReceive { messages }, 3, 1).unwrap();
    let job = Job::new(plan, Kernels::Any);
    (0..20).for_each(|seed| job.run_all(5, seed));
    assert_eq!((job.output(0), job.output(1)), (vec![3.0; COUNT], vec![1.0; COUNT]));
}

#[test]
fn a_missing_rank_ends_this_call_and_all_later_ones() {
    for (name, job) in jobs_of_two() {
        let timeout = Duration::from_millis(50);
        job.run(&[(0, 7)], timeout, 0);
        assert_eq!(job.failure(0), Some((TimedOut, 1)), "{name}");
        assert_eq!(job.report(0).unwrap().call, 7, "{name}");
        assert_eq!(job.waits(0), 0, "{name}: no block waits any more");
        assert_eq!(job.output(0), vec![CANARY; COUNT], "{name}: nothing was received");
        // The other rank is late, and the first tries again.
        job.run(&[(0, 7), (1, 7)], timeout, 0);
        assert_eq!(job.failure(1), Some((PeerFailed, 0)), "{name}");
        assert_eq!(job.output(0), vec![CANARY; COUNT], "{name}: rank 0 has given up its buffers");
    }
}

/// Two ranks time out at the same time, and tell each other. One of them at least names the rank that is missing.
#[test]
fn the_missing_rank_is_named_where_several_fail() {
    for seed in 0..40 {
        let job = Job::new(all_reduce(Algorithm::Exchange, 3, 1, Protocol::Ll), kernels_of(seed));
        job.run(&[(0, 7), (1, 7)], Duration::from_millis(1), seed);
        let reasons = [0, 1].map(|rank| job.failure(rank));
        assert!(reasons.contains(&Some((TimedOut, 2))) && !reasons.contains(&None), "{reasons:?}");
    }
}

#[test]
fn ranks_in_different_calls_are_told_apart() {
    for (name, job) in jobs_of_two() {
        job.run(&[(0, 7), (1, 8)], Duration::from_millis(50), 2);
        let failures = [0, 1].map(|rank| job.failure(rank).map(|(kind, _)| kind));
        assert!(failures.contains(&Some(Differs)) && !failures.contains(&None), "{name}: {failures:?}");
    }
}

/// A rank has its buffers elsewhere in a window: the others must not access what lies there.
#[test]
fn a_switch_is_not_used_if_one_rank_is_in_another_call() {
    for seed in 0..20 {
        for collective in [Collective::AllReduce, Collective::Broadcast { root: 0 }] {
            let plan = Algorithm::Nvls.flat(&collective, 3, 1).unwrap();
            let job = Job::new(plan, kernels_of(seed));
            job.run(&[(0, 7), (1, 7), (2, 8)], Duration::from_millis(5), seed);
            for rank in 0..3 {
                assert!(job.failure(rank).is_some(), "{collective}, seed {seed}, rank {rank}");
                assert_eq!(job.output(rank), vec![CANARY; COUNT], "{collective}, seed {seed}, rank {rank}");
            }
            let kinds = [0, 1, 2].map(|rank| job.failure(rank).map(|(kind, _)| kind));
            assert!(kinds.contains(&Some(Differs)), "{collective}, seed {seed}: {kinds:?}");
        }
    }
}

/// A call reads at once what peers have stored through a switch in the call before it.
pub(super) fn run_behind_a_switch(build: Build, seed: u64) {
    const RANKS: usize = 3;
    let job = |algorithm, protocol| {
        let plan = verify(all_reduce(algorithm, RANKS as u32, 1, protocol)).unwrap();
        Job::built(&plan, Kernels::Any, 0, build)
    };
    let (first, mut second) =
        (job(Algorithm::Nvls, Protocol::Simple), job(Algorithm::Exchange, Protocol::Ll));
    second.addresses[..RANKS].copy_from_slice(&first.addresses[RANKS..]);
    let each = || (0..RANKS).flat_map(|rank| [(&first, rank), (&second, rank)]);
    let calls: Vec<_> = each().map(|(job, rank)| job.call(rank, 7, Duration::from_secs(1))).collect();
    let launches: Vec<_> =
        std::iter::zip(each(), &calls).map(|((job, rank), call)| job.launch(rank, call)).collect();
    first.multicast();
    // SAFETY: the calls have all that the kernels read, and the jobs own every address in them.
    unsafe { first.libraries[0].run(&launches, seed) }
    for rank in 0..RANKS {
        assert_eq!([first.failure(rank), second.failure(rank)], [None; 2], "seed {seed}, rank {rank}");
        assert_eq!(second.output(rank), vec![18.0; COUNT], "seed {seed}, rank {rank}");
    }
}

/// Rank 0 is in another call than the ranks behind it. Rank 1 must not send its packets on as its own.
#[test]
fn packets_of_another_call_are_not_sent_on() {
    for seed in 0..20 {
        let plan =
            Algorithm::Chain.flat_with(&Collective::Broadcast { root: 0 }, 3, 1, Protocol::Ll).unwrap();
        let job = Job::new(plan, kernels_of(seed));
        job.run(&[(0, 7), (1, 8), (2, 8)], Duration::from_millis(5), seed);
        assert_eq!(job.report(1).unwrap().kind, Differs, "seed {seed}");
        assert!(job.failure(2).is_some(), "seed {seed}");
        assert_eq!(job.output(2), vec![CANARY; COUNT], "seed {seed}");
    }
}

/// The root gives up a call, and has enqueued the next one. A late rank must not take the buffers of that one for its own call's.
#[test]
fn calls_behind_a_failed_one_announce_nothing() {
    let plan = Algorithm::OneShot.flat(&Collective::Scatter { root: 0 }, 3, 1).unwrap();
    let job = Job::new(plan, Kernels::Any);
    job.run(&[(0, 7), (0, 7)], Duration::from_millis(5), 0);
    assert_eq!(job.report(0).unwrap().kind, TimedOut);
    job.run(&[(1, 7)], Duration::from_millis(5), 0);
    assert_eq!(job.failure(1), Some((PeerFailed, 0)));
    assert_eq!(job.output(1), vec![CANARY; COUNT]);
}

/// Ranks 0 and 1 fail because of each other, and both tell rank 2.
#[test]
fn a_call_that_ends_because_several_peers_failed_says_so() {
    for _ in 0..30 {
        let job = Job::new(all_reduce(Algorithm::Exchange, 3, 1, Protocol::Ll), Kernels::Any);
        // SAFETY: the word is in an arena of the job.
        let word = unsafe { AtomicU64::from_ptr(job.programs[2].header.failure as *mut u64) };
        word.store(u64::from(FAILED_AT), Ordering::Relaxed);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    word.store(u64::from(FAILED_AT), Ordering::Relaxed);
                    word.store(u64::from(FAILED_AT + 1), Ordering::Relaxed);
                }
            });
            job.run(&[(2, 7)], Duration::from_secs(1_000_000), 0);
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(matches!(job.failure(2), Some((PeerFailed, 0 | 1))), "{:?}", job.failure(2));
    }
}

#[test]
fn an_abort_ends_a_call_that_waits() {
    for kernels in [Kernels::Any, Kernels::Direct] {
        let job = Job::new(all_reduce(Algorithm::Exchange, 2, 1, Protocol::Ll), kernels);
        std::thread::scope(|scope| {
            scope.spawn(|| job.run(&[(0, 7)], Duration::from_secs(1_000_000), 0));
            std::thread::sleep(Duration::from_millis(20));
            job.presence.iter().for_each(|word| word.store(ABORTED_BY + 1, Ordering::Release));
        });
        assert_eq!((job.failure(0), job.failure(1)), (Some((Aborted, 1)), None));
        assert_eq!(job.report(0).unwrap().blamed().1, Some(1));
    }
}

#[test]
fn a_rank_that_is_gone_ends_calls_that_wait_for_it_and_is_named() {
    for plan in [
        all_reduce(Algorithm::Exchange, 3, 1, Protocol::Ll),
        all_reduce(Algorithm::Ring, 3, 1, Protocol::Simple),
        Algorithm::TwoShot.flat(&Collective::AllReduce, 3, 1).unwrap(),
        Algorithm::Nvls.flat(&Collective::AllReduce, 3, 1).unwrap(),
    ] {
        let name = plan.name.clone();
        for (seed, state) in [(0, LEFT), (1, DIED), (2, LEFT)] {
            let job = Job::new(plan.clone(), kernels_of(seed));
            job.presence[2].store(state, Ordering::Release);
            job.run(&[(0, 7), (1, 7)], Duration::from_secs(1_000_000), seed);
            let reasons = [0, 1].map(|rank| job.failure(rank).unwrap());
            assert!(reasons.contains(&(Gone, 2)), "{name}: {reasons:?}");
            assert!(reasons.iter().all(|(kind, _)| [Gone, PeerFailed].contains(kind)), "{name}: {reasons:?}");
        }
    }
}

/// The root has sent all it had to send and left. The others come later.
#[test]
fn what_a_rank_sent_before_it_left_is_received() {
    for seed in 0..10 {
        let plan =
            Algorithm::Linear.flat_with(&Collective::Broadcast { root: 0 }, 3, 1, Protocol::Ll).unwrap();
        let job = Job::new(plan, kernels_of(seed));
        job.run(&[(0, 7)], Duration::from_secs(1), seed);
        job.presence[0].store(LEFT, Ordering::Release);
        job.run(&[(1, 7), (2, 7)], Duration::from_secs(1), seed);
        assert_eq!([0, 1, 2].map(|rank| job.failure(rank)), [None; 3], "seed {seed}");
        assert_eq!(job.output(2), vec![1.0; COUNT], "seed {seed}");
    }
}
