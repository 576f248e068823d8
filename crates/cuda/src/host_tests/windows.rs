//! The device code of windows as fibers of the host: kernels that put, get, signal and wait, as kernels of a program and those that the host
//! enqueues do.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytemuck::{Pod, Zeroable};

use super::{Build, Launch, Library, races_of};
use crate::records::{ABORTED, ABORTED_BY, DIED, GONE, LEFT, OUTSIDE, PEER_FAILED, Report, TIMED_OUT};
use crate::reports::{ELSEWHERE, REPORTS_MAX, describe};
use crate::window::{DeviceWindow, HOST, Layout};

const RANKS: usize = 4;
/// No multiple of a vector, so that some are moved by bytes.
const BYTES: usize = 1003;
const TIMEOUT: Duration = Duration::from_secs(1);

/// A kernel that runs a list of actions. A failed wait ends it.
const ENTRY: &str = r#"
namespace weft {
struct Action {
    u32 kind, peer;
    u64 offset, local, bytes, stride; // Each block is `stride` bytes further.
};
struct TestCall {
    Window window;
    u64 actions, count;
};
inline void run_actions(const TestCall& call) {
    multicast_table.store((const u64*)call.window.peers, std::memory_order_relaxed);
    multicast_windows.store(1, std::memory_order_relaxed);
    multicast_ranks.store(call.window.ranks, std::memory_order_relaxed);
    for (u64 i = 0; i < call.count; i++) {
        const Action& a = ((const Action*)call.actions)[i];
        const u64 offset = a.offset + block_index() * a.stride, local = a.local + block_index() * a.stride;
        switch (a.kind) {
        case 0: put(call.window, a.peer, offset, (const void*)local, a.bytes); break;
        case 1: get(call.window, a.peer, offset, (void*)local, a.bytes), barrier(); break;
        case 2: signal(call.window, a.peer); break;
        case 3:
            if (!wait(call.window, a.peer)) return;
            break;
        case 4: put_to_all(call.window, offset, (const void*)local, a.bytes); break;
        default: sum_to_all(call.window, offset, a.bytes, multicast_sum_f32);
        }
    }
}
} // namespace weft
extern "C" void weft_host_attach(weft::Host* host) { weft::host = host; }
extern "C" void weft_host_enter(const void* call, void*) { weft::run_actions(*(const weft::TestCall*)call); }
extern "C" unsigned weft_host_shared_bytes() { return sizeof(weft::Window); }
"#;

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct Action {
    kind: u32,
    peer: u32,
    offset: u64,
    local: u64,
    bytes: u64,
    stride: u64,
}

const PUT: u32 = 0;
const GET: u32 = 1;
const SIGNAL: u32 = 2;
const WAIT: u32 = 3;
const PUT_TO_ALL: u32 = 4;
const SUM_TO_ALL: u32 = 5;

fn with(kind: u32, peer: usize) -> Action {
    Action { kind, peer: peer as u32, ..Action::default() }
}

fn put(peer: usize, offset: usize, local: &[u8]) -> Action {
    let (local, bytes) = (local.as_ptr().addr() as u64, local.len() as u64);
    Action { offset: offset as u64, local, bytes, ..with(PUT, peer) }
}

fn get(peer: usize, offset: usize, local: &mut [u8]) -> Action {
    let (local, bytes) = (local.as_mut_ptr().addr() as u64, local.len() as u64);
    Action { offset: offset as u64, local, bytes, ..with(GET, peer) }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct TestCall {
    window: DeviceWindow,
    actions: u64,
    count: u64,
}

/// A window of ranks that are streams of fibers.
struct Job {
    library: &'static Library,
    layout: Layout,
    /// Shared, then private memory.
    memory: Vec<Vec<u128>>,
    reports: Vec<Vec<Report>>,
    presence: Vec<AtomicU32>,
    timeout: Duration,
    is_multicast: bool,
}

/// A kernel of a rank.
struct Kernel {
    rank: usize,
    blocks: u32,
    threads: u32,
    actions: Vec<Action>,
}

impl Job {
    fn new(ranks: usize, build: Build) -> Job {
        static LIBRARIES: [OnceLock<Library>; 2] = [const { OnceLock::new() }; 2];
        let library = LIBRARIES[usize::from(build == Build::Sanitized)].get_or_init(|| {
            Library::of_source(format!("#define WEFT_HOST\n{}{ENTRY}", HOST.concat()), build)
        });
        assert_eq!(library.shared_bytes as usize, size_of::<DeviceWindow>());
        let layout = Layout::new(BYTES, ranks).unwrap();
        let [shared, private] = layout.sizes();
        let mut memory: Vec<Vec<u128>> = vec![vec![0; (shared + private).div_ceil(16)]; ranks];
        let table: Vec<u64> = memory.iter().map(|memory| memory.as_ptr().addr() as u64).collect();
        for memory in &mut memory {
            let private: &mut [u8] = &mut bytemuck::cast_slice_mut(memory)[shared..];
            private[..8 * ranks].copy_from_slice(bytemuck::cast_slice(&table));
        }
        Job {
            library,
            layout,
            memory,
            reports: vec![vec![Report::default(); REPORTS_MAX]; ranks],
            presence: (0..ranks).map(|_| AtomicU32::new(0)).collect(),
            timeout: TIMEOUT,
            is_multicast: false,
        }
    }

    /// Runs kernels; those of one rank follow each other.
    fn run(&self, kernels: &[Kernel], seed: u64) {
        let call = |kernel: &Kernel| {
            let private = self.memory[kernel.rank].as_ptr().addr() + self.layout.sizes()[0];
            let multicast = if self.is_multicast { self.memory[0].as_ptr().addr() as u64 } else { 0 };
            let window = self.layout.for_kernels(kernel.rank, 5, private as u64).with(
                self.presence.as_ptr().addr() as u64,
                self.reports[kernel.rank].as_ptr().addr() as u64,
                self.timeout,
            );
            let window = window.with_multicast(multicast);
            let (actions, count) = (kernel.actions.as_ptr().addr() as u64, kernel.actions.len() as u64);
            TestCall { window, actions, count }
        };
        let calls: Vec<TestCall> = kernels.iter().map(call).collect();
        let launch = |(kernel, call): (&Kernel, &TestCall)| Launch {
            attach: self.library.attach,
            enter: self.library.enter,
            call: std::ptr::from_ref(call).cast(),
            blocks: kernel.blocks,
            threads: kernel.threads,
            shared_bytes: self.library.shared_bytes,
            stream: kernel.rank as u32,
        };
        let launches: Vec<_> = std::iter::zip(kernels, &calls).map(launch).collect();
        // SAFETY: the calls have all that the kernels read; the job owns windows and reports, and the caller the rest.
        unsafe { self.library.run(&launches, seed) }
    }

    /// The report of a rank's failure.
    fn failure(&self, rank: usize) -> Report {
        // SAFETY: the report lives as long as the job, and no kernel runs.
        unsafe { (&raw const self.reports[rank][0]).read_volatile() }
    }

    fn check(&self) {
        (0..self.memory.len()).for_each(|rank| assert_eq!(self.failure(rank).kind, 0, "rank {rank}"));
    }
}

fn one_thread(rank: usize, actions: Vec<Action>) -> Kernel {
    Kernel { rank, blocks: 1, threads: 1, actions }
}

fn pattern(rank: usize, round: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (rank * 50 + round * 7 + at) as u8).collect()
}

/// Every rank sends to the next, reads what it got, and lets the rank before send again.
fn ring(build: Build, seed: u64) {
    const ROUNDS: usize = 3;
    let job = Job::new(RANKS, build);
    let threads = [1, 2, 4][seed as usize % 3];
    // Vectors, words or bytes.
    let offset = [0, 4, 1][seed as usize / 3 % 3];
    let data: Vec<Vec<Vec<u8>>> =
        (0..RANKS).map(|rank| (0..ROUNDS).map(|round| pattern(rank, round)).collect()).collect();
    let mut received = vec![vec![vec![0_u8; BYTES]; ROUNDS]; RANKS];
    let mut kernels = Vec::new();
    for (rank, received) in received.iter_mut().enumerate() {
        let (next, before) = ((rank + 1) % RANKS, (rank + RANKS - 1) % RANKS);
        let mut actions = Vec::new();
        for (round, received) in received.iter_mut().enumerate() {
            if round > 0 {
                actions.push(with(WAIT, next));
            }
            actions.extend([put(next, offset, &data[rank][round][offset..]), with(SIGNAL, next)]);
            actions.extend([with(WAIT, before), get(rank, offset, &mut received[offset..])]);
            if round + 1 < ROUNDS {
                actions.push(with(SIGNAL, before));
            }
        }
        // Some as one kernel, some as one for each action, as the host enqueues them.
        if rank % 2 == 0 {
            kernels.push(Kernel { rank, blocks: 1, threads, actions });
        } else {
            let alone = |action| Kernel { rank, blocks: 1, threads, actions: vec![action] };
            kernels.extend(actions.into_iter().map(alone));
        }
    }
    // The same parameters again, as a graph that is launched again.
    for launch in 0..2 {
        job.run(&kernels, seed + 100 * launch);
        job.check();
        for (rank, received) in received.iter().enumerate() {
            for (round, received) in received.iter().enumerate() {
                let before = (rank + RANKS - 1) % RANKS;
                assert_eq!(received[offset..], data[before][round][offset..], "rank {rank}, round {round}");
            }
        }
        // Otherwise what the first launch got would be taken for the second's.
        received.iter_mut().flatten().for_each(|received| received.fill(0));
    }
}

/// Blocks of two ranks put parts and signal at the same time; the third rank waits for all signals.
fn crowd(build: Build, seed: u64) {
    const BLOCKS: usize = 5;
    const PART: usize = 100;
    let job = Job::new(3, build);
    let data = [pattern(0, 0), pattern(1, 0)];
    let mut received = vec![0_u8; 2 * PART * BLOCKS];
    let send = |rank: usize| {
        let put = put(2, rank * BLOCKS * PART, &data[rank][..PART]);
        let actions = vec![Action { stride: PART as u64, ..put }, with(SIGNAL, 2)];
        Kernel { rank, blocks: BLOCKS as u32, threads: 2, actions }
    };
    let mut waits: Vec<_> = (0..2 * BLOCKS).map(|number| with(WAIT, number % 2)).collect();
    waits.push(get(2, 0, &mut received));
    job.run(&[send(0), send(1), one_thread(2, waits)], seed);
    job.check();
    for rank in 0..2 {
        let half = &received[rank * BLOCKS * PART..][..BLOCKS * PART];
        assert_eq!(half, &data[rank][..BLOCKS * PART], "rank {rank}, seed {seed}");
    }
}

/// Every rank puts its elements, sums a share of all for all, and writes a last vector to all.
fn sums(build: Build, seed: u64) {
    const SHARE: usize = 48;
    let job = Job { is_multicast: true, ..Job::new(RANKS, build) };
    let data: Vec<Vec<f32>> =
        (0..RANKS).map(|rank| (0..SHARE * RANKS / 4).map(|at| (at * 10 + rank) as f32).collect()).collect();
    let last = [0.5_f32, 1.5, 2.5, 3.5];
    let mut received = vec![vec![0_f32; SHARE * RANKS / 4 + 4]; RANKS];
    let mut kernels = Vec::new();
    for (rank, received) in received.iter_mut().enumerate() {
        let others = || (0..RANKS).filter(|other| *other != rank);
        let meet =
            || others().map(|other| with(SIGNAL, other)).chain(others().map(|other| with(WAIT, other)));
        let mut actions = vec![put(rank, 0, bytemuck::cast_slice(&data[rank]))];
        actions.extend(meet());
        let share = Action { offset: (rank * SHARE) as u64, bytes: SHARE as u64, ..with(SUM_TO_ALL, 0) };
        actions.push(share);
        if rank == 2 {
            let last = put(0, SHARE * RANKS, bytemuck::cast_slice(&last));
            actions.push(Action { kind: PUT_TO_ALL, ..last });
        }
        actions.extend(meet());
        actions.push(get(rank, 0, bytemuck::cast_slice_mut(received)));
        kernels.push(Kernel { rank, blocks: 1, threads: 2, actions });
    }
    job.run(&kernels, seed);
    job.check();
    for received in received {
        let sum = |at: usize| data.iter().map(|data| data[at]).sum::<f32>();
        let expected: Vec<f32> = (0..SHARE * RANKS / 4).map(sum).chain(last).collect();
        assert_eq!(received, expected, "seed {seed}");
    }
}

#[test]
fn sums_go_to_all_ranks() {
    (0..40).for_each(|seed| sums(Build::Plain, seed));
}

#[test]
fn ranks_in_a_ring_put_signal_and_wait() {
    (0..60).for_each(|seed| ring(Build::Plain, seed));
}

#[test]
fn signals_of_many_blocks_are_all_counted() {
    (0..40).for_each(|seed| crowd(Build::Plain, seed));
}

/// Run by the test below, in a process that has the sanitizer's library.
#[test]
#[ignore = "needs a sanitizer's library: windows_have_no_data_race runs it"]
fn sanitized() {
    (0..9).for_each(|seed| ring(Build::Sanitized, seed));
    (0..5).for_each(|seed| crowd(Build::Sanitized, seed));
    (0..5).for_each(|seed| sums(Build::Sanitized, seed));
    println!("windows end");
}

#[test]
fn windows_have_no_data_race() {
    let races = races_of("host_tests::windows::sanitized", "windows end");
    assert!(races.is_empty(), "{} races, the first one {}", races.len(), races[0]);
}

#[test]
fn a_missing_signal_ends_the_wait_and_names_the_rank() {
    let job = Job { timeout: Duration::from_millis(50), ..Job::new(2, Build::Plain) };
    job.run(&[one_thread(0, vec![with(WAIT, 1)])], 0);
    let report = job.failure(0);
    assert_eq!((report.kind, report.rank), (TIMED_OUT, 1));
    let text = describe(0, &report);
    assert_eq!(text, "timed out: rank 0 waited for rank 1 to signal, in signal 1 of window 5");
    // What rank 0 sends after its failure is not taken for valid.
    job.run(&[one_thread(0, vec![with(SIGNAL, 1)]), one_thread(1, vec![with(WAIT, 0)])], 0);
    assert_eq!((job.failure(1).kind, job.failure(1).rank), (PEER_FAILED, 0));
    assert_eq!(job.memory[1][job.layout.signals_at() / 16], 0, "rank 0 has not signalled");
    assert!(describe(1, &job.failure(1)).ends_with(ELSEWHERE));
}

#[test]
fn a_rank_that_is_gone_ends_waits_after_its_last_signal() {
    for (seed, state) in [(0, LEFT), (1, DIED)] {
        let job = Job { timeout: Duration::from_secs(1_000_000), ..Job::new(2, Build::Plain) };
        job.run(&[one_thread(1, vec![with(SIGNAL, 0)])], seed);
        job.presence[1].store(state, Ordering::Release);
        let mut received = [0xa5];
        job.run(&[one_thread(0, vec![with(WAIT, 1), get(0, 0, &mut received)])], seed);
        job.check();
        assert_eq!(received, [0], "the wait was successful");
        job.run(&[one_thread(0, vec![with(WAIT, 1)])], seed);
        assert_eq!((job.failure(0).kind, job.failure(0).rank), (GONE, 1));
    }
}

#[test]
fn an_abort_ends_a_wait() {
    let job = Job { timeout: Duration::from_secs(1_000_000), ..Job::new(2, Build::Plain) };
    std::thread::scope(|scope| {
        scope.spawn(|| job.run(&[one_thread(0, vec![with(WAIT, 1)])], 0));
        std::thread::sleep(Duration::from_millis(20));
        job.presence.iter().for_each(|word| word.store(ABORTED_BY + 1, Ordering::Release));
    });
    assert_eq!((job.failure(0).kind, job.failure(0).other), (ABORTED, 1));
}

#[test]
fn an_access_outside_of_the_window_is_refused() {
    let data = pattern(0, 0);
    let wrong = [
        put(1, 1, &data),
        put(1, usize::MAX, &data),
        put(2, 0, &data),
        get(1, BYTES, &mut [0]),
        with(SIGNAL, 2),
        with(WAIT, 7),
    ];
    for (number, action) in wrong.into_iter().enumerate() {
        let job = Job::new(2, Build::Plain);
        job.run(&[Kernel { rank: 0, blocks: 1, threads: 4, actions: vec![action] }], 0);
        assert_eq!((job.failure(0).kind, job.failure(0).rank), (OUTSIDE, action.peer), "action {number}");
        let shared: &[u8] = &bytemuck::cast_slice(&job.memory[1])[..BYTES];
        assert!(shared.iter().all(|byte| *byte == 0), "action {number}");
        let text = describe(0, &job.failure(0));
        assert!(text.starts_with("a kernel of rank 0 accessed rank "), "{text}");
    }
}

#[test]
fn multicasts_need_a_multicast_window_and_whole_vectors() {
    let data = pattern(0, 0);
    let to_all = |offset, bytes: usize| Action { kind: PUT_TO_ALL, ..put(0, offset, &data[..bytes]) };
    for (is_multicast, action) in [
        (false, to_all(0, 16)),
        (true, to_all(8, 16)),
        (true, to_all(0, 24)),
        (true, to_all(992, 16)),
        (true, Action { kind: SUM_TO_ALL, ..to_all(4, 32) }),
    ] {
        let job = Job { is_multicast, ..Job::new(2, Build::Plain) };
        job.run(&[one_thread(0, vec![action])], 0);
        assert_eq!(job.failure(0).kind, OUTSIDE);
        let text = describe(0, &job.failure(0));
        let is_odd = action.offset != 992;
        assert_eq!(text.contains("needs a multicast window"), is_odd, "{text}");
        let shared: &[u8] = &bytemuck::cast_slice(&job.memory[1])[..BYTES];
        assert!(shared.iter().all(|byte| *byte == 0));
    }
}
