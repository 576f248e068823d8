//! The device code as fibers of the host: the cases that every backend must pass, under schedules that a seed determines. The steps must
//! be the plan's.

// Calls the compiled library, with addresses of buffers.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod gone;
mod messages;
mod readers;
mod switch;
mod waits;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use weftlink_plan::interpret::{Event, Shape as RunShape};
use weftlink_plan::{Algorithm, DataType, Lengths, Reduction, Shape, Verified, verify};
use weftlink_testkit::cases::values::expected;
use weftlink_testkit::cases::{By, Case, Counts, cases_of};
use weftlink_testkit::trace::replay;

use crate::call::Key;
use crate::cases::{Buffers, Family, adapted, family_of, operation_of, representative};
use crate::program::{Arenas, Compiler, Program, Sequences, Spread, Unfit};
use crate::records::{self, CALL_BYTES};
use crate::source::Specialisation;

const SLICES_MAX: u32 = 3;
const FLAGS: [&str; 9] =
    ["-std=c++20", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"];
/// Of the scheduler's time: ten million switches.
const TIMEOUT_NS: u64 = 1_000_000_000;

/// Gives a library the scheduler.
type Attach = unsafe extern "C" fn(*mut c_void);
/// A thread of a kernel: the call, the shared memory of the block.
type Enter = unsafe extern "C" fn(*const u8, *mut c_void);
/// Says where the memory of all ranks is: a table of addresses, of this many windows and ranks.
type Multicast = unsafe extern "C" fn(*const u64, u32, u32);

/// A kernel of a rank, as device/fibers.h defines it. Those of one stream run one after the other.
#[repr(C)]
struct Launch {
    attach: Attach,
    enter: Enter,
    call: *const u8,
    blocks: u32,
    threads: u32,
    shared_bytes: u32,
    stream: u32,
}

/// How the device code is compiled.
#[derive(Clone, Copy, PartialEq)]
enum Build {
    /// As for a GPU: blocks copy their program to shared memory.
    Plain,
    /// Blocks meet after every step and record it.
    Traced,
    /// As plain, for a thread sanitizer.
    Sanitized,
    /// As plain, with the order of steps and their shapes as constants.
    Fixed,
    /// The same, for a thread sanitizer.
    FixedSanitized,
}

impl Build {
    fn is_fixed(self) -> bool {
        matches!(self, Build::Fixed | Build::FixedSanitized)
    }
}

struct Library {
    attach: Attach,
    enter: Enter,
    run: unsafe extern "C" fn(*const Launch, u32, u64, u32) -> bool,
    /// Of kernels of plans.
    multicast: Option<Multicast>,
    shared_bytes: u32,
}

impl Library {
    /// The device code for elements of a size, compiled for the host.
    fn of(bytes: usize, family: Family, build: Build) -> &'static Library {
        static LIBRARIES: [[OnceLock<Library>; 5]; 9] = [const { [const { OnceLock::new() }; 5] }; 9];
        LIBRARIES[3 * build as usize + family as usize][bytes.ilog2() as usize].get_or_init(|| {
            let (data_type, reduction) = representative(bytes, family);
            let (sequences, is_in_shared, is_one_gpu) = (Sequences::none(), build != Build::Traced, true);
            Library::new(&Specialisation { data_type, reduction, sequences, is_in_shared, is_one_gpu }, build)
        })
    }

    /// The kernel of one program, as on a GPU.
    fn fixed(program: &Program, bytes: usize, family: Family, build: Build) -> &'static Library {
        Library::of_program(program, representative(bytes, family), build)
    }

    fn of_program(program: &Program, of: (DataType, Reduction), build: Build) -> &'static Library {
        let ((data_type, reduction), is_one_gpu) = (of, true);
        let Program { sequences, is_in_shared, .. } = program.clone();
        let kernel = Specialisation { data_type, reduction, sequences, is_in_shared, is_one_gpu };
        Box::leak(Box::new(Library::new(&kernel, build)))
    }

    fn new(kernel: &Specialisation, build: Build) -> Library {
        Library::of_source(kernel.host_source(build == Build::Traced), build)
    }

    /// A library with the entries of device/host.cc.
    fn of_source(source: String, build: Build) -> Library {
        let [kernel_flags, fibers_flags]: [&[&str]; 2] = match build {
            Build::Sanitized | Build::FixedSanitized => [&["-fsanitize=thread", "-g"], &["-DWEFT_SANITIZED"]],
            // GPUs refuse accesses at other addresses, and CPUs do not.
            Build::Fixed => [&["-fsanitize=alignment", "-fno-sanitize-recover=alignment"], &[]],
            Build::Plain | Build::Traced => [&[], &[]],
        };
        let fibers = [include_str!("../device/fibers.h"), include_str!("../device/fibers.cc")].concat();
        let [library, scheduler] = [(source, kernel_flags), (fibers, fibers_flags)]
            .map(|(source, flags)| Box::leak(Box::new(compiled(&source, flags))));
        // SAFETY: device/host.cc and device/fibers.cc define them with these signatures.
        unsafe {
            let shared_bytes =
                library.get::<unsafe extern "C" fn() -> u32>(b"weft_host_shared_bytes").unwrap();
            Library {
                attach: *library.get(b"weft_host_attach").unwrap(),
                enter: *library.get(b"weft_host_enter").unwrap(),
                run: *scheduler.get(b"weft_host_run").unwrap(),
                multicast: library.get(b"weft_host_multicast").ok().map(|entry| *entry),
                shared_bytes: shared_bytes(),
            }
        }
    }

    fn launch(&self, call: &[u128], program: &Program, threads: u32) -> Launch {
        let records::CallHeader { rank, lanes, slices, .. } = program.header;
        let Library { attach, enter, shared_bytes, .. } = *self;
        Launch {
            attach,
            enter,
            call: call.as_ptr().cast(),
            blocks: lanes * slices,
            threads,
            shared_bytes,
            stream: rank,
        }
    }

    /// Runs kernels of this and of other libraries. With a seed of zero they run in turn; others draw the order, and which rank is slow.
    ///
    /// # Safety
    /// Calls have all that their kernels read, and every address in them is valid.
    unsafe fn run(&self, launches: &[Launch], seed: u64) {
        let slow = if seed.is_multiple_of(2) { u32::MAX } else { seed as u32 / 2 % 8 };
        // SAFETY: as the caller promises.
        let has_ended = unsafe { (self.run)(launches.as_ptr(), launches.len() as u32, seed, slow) };
        assert!(has_ended, "threads wait at a barrier that others do not reach, seed {seed}");
    }
}

/// A library of the host, next to the test's program: other tests and later runs find it there.
fn compiled(source: &str, more_flags: &[&str]) -> libloading::Library {
    static COMPILED: AtomicU32 = AtomicU32::new(0);
    let flags = [&FLAGS, more_flags].concat();
    let mut hasher = DefaultHasher::new();
    (source, &flags).hash(&mut hasher);
    let program = std::env::current_exe().unwrap();
    let path = program.with_file_name(format!("weft-device-{:016x}.so", hasher.finish()));
    if !path.exists() {
        let number = COMPILED.fetch_add(1, Ordering::Relaxed);
        let [text, library] = ["cc", "so"].map(|kind| {
            program.with_file_name(format!("weft-device-{}-{number}.{kind}", std::process::id()))
        });
        std::fs::write(&text, source).unwrap();
        let done = Command::new("g++").args(flags).arg(&text).arg("-o").arg(&library).output().unwrap();
        std::fs::remove_file(&text).unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        std::fs::rename(&library, &path).unwrap();
    }
    // SAFETY: the library has no initialisers but those of the C++ runtime.
    unsafe { libloading::Library::new(&path).unwrap() }
}

/// A plan on ranks that are threads, with what they keep from call to call.
struct Ranks {
    plan: Verified,
    compilers: Vec<Compiler>,
    memory: Vec<Vec<u128>>,
    calls: u64,
    /// Calls that kernels with constants ran without a program.
    direct: u64,
    build: Build,
}

impl Ranks {
    /// Ranks that run a build. Every third plain call is traced instead.
    fn new(plan: &Verified, build: Build) -> Ranks {
        let compilers: Vec<_> =
            (0..plan.ranks).map(|rank| Compiler::new(plan.clone(), rank, SLICES_MAX)).collect();
        let memory = compilers
            .iter()
            .map(|compiler| vec![0; (compiler.arena.bytes + compiler.arena.private_bytes) as usize / 16])
            .collect();
        Ranks { plan: plan.clone(), compilers, memory, calls: 0, direct: 0, build }
    }

    /// Makes the call of a case on all ranks and compares results, memory around them and steps. Returns whether the plan can run it.
    fn run(&mut self, case: &Case, number: u64) -> bool {
        self.calls += 1;
        let size = case.data_type.bytes();
        let seed = number + 1000 * self.calls;
        // Plans with scratch always run with the same slices.
        let slices = if self.plan.chunks.scratch > 0 { 2 } else { 1 + (seed % u64::from(SLICES_MAX)) as u32 };
        let slices = slices.min(self.compilers[0].arena.slices_max);
        // Blocks of a GPU have at least 32 threads; kernels with constants rely on one for each peer.
        let threads = if self.build.is_fixed() { 8 } else { [1, 2, 4][(seed / 3) as usize % 3] };
        let longest = (0..case.ranks)
            .flat_map(|rank| [case.given(rank), case.gotten(rank)].concat())
            .max()
            .unwrap_or(0);
        let is_fixed = self.build.is_fixed();
        let tiles = if is_fixed && self.calls.is_multiple_of(2) { 1 } else { 5 };
        let chunk_bytes = (longest * size / tiles).max(64);
        let spread = Spread { slices, threads, chunk_bytes };
        let arenas = arenas_in(&self.compilers, &self.memory);
        let shapes: Vec<_> = (0..case.ranks).map(|rank| shape(case, rank, longest)).collect();
        let compiled: Result<Vec<Program>, _> = std::iter::zip(&self.compilers, &shapes)
            .zip(&arenas)
            .map(|((compiler, shape), arenas)| compiler.compile(shape, spread, arenas))
            .collect();
        let reduction = case.reduction.unwrap_or(Reduction::Sum);
        self.compilers[0].check(case.data_type, reduction).unwrap_or_else(|why| panic!("{case}: {why}"));
        let programs = match compiled {
            // A plan that reads peers' buffers needs lengths that only the peers know.
            Err(Unfit::Length) => return false,
            compiled => compiled.unwrap_or_else(|why| panic!("{case}: {why}")),
        };
        let has_switch = self.compilers[0].switch.is_some();
        // A switch accesses the same places of all ranks.
        let place = if has_switch { 0 } else { seed };
        let mut buffers: Vec<_> = (0..case.ranks).map(|rank| Buffers::new(case, rank, place)).collect();
        let views: Vec<_> = buffers.iter_mut().map(Buffers::view).collect();
        let windows = switch::table(&buffers);
        let mut trace = vec![0_u64; 2 + 2 * 400_000];
        trace[1] = 400_000;
        let (presence, mut reports) =
            (vec![0_u32; case.ranks as usize], vec![records::Report::default(); 64 * case.ranks as usize]);
        let calls: Vec<Vec<u128>> = (0..case.ranks as usize)
            .map(|rank| {
                let program = &programs[rank];
                let is_in_parameters = is_fixed && program.is_in_parameters;
                let key = Key { count: 0, data_type: case.data_type, reduction, aliasing: case.aliasing };
                let header = records::CallHeader {
                    signature: number as u32,
                    factor: operation_of(case, rank as u32).factor_of(&key).unwrap(),
                    input: views[rank].input,
                    output: views[rank].output,
                    program: if is_in_parameters { 0 } else { program.bytes.as_ptr().addr() as u64 },
                    presence: presence.as_ptr().addr() as u64,
                    reports: (&raw mut reports[64 * rank]).addr() as u64,
                    timeout_ns: TIMEOUT_NS,
                    trace: trace.as_mut_ptr().addr() as u64,
                    ..program.header
                };
                let mut call = bytemuck::bytes_of(&header).to_vec();
                let switched = switch::view(&windows, &views, rank);
                let view = |peer| if has_switch && peer == rank { &switched } else { &views[rank] };
                (0..case.ranks as usize).for_each(|peer| call.extend(bytemuck::bytes_of(view(peer))));
                if is_in_parameters {
                    call.extend(&program.bytes);
                }
                parameters(call)
            })
            .collect();
        let fits_in_shared = programs.iter().all(|program| program.is_in_shared);
        let build = match self.build {
            Build::Plain if seed.is_multiple_of(3) || !fits_in_shared => Build::Traced,
            Build::Sanitized if !fits_in_shared => return false,
            build => build,
        };
        let is_direct = |program: &Program| program.sequences.is_direct() && program.header.tiles == 1;
        self.direct += u64::from(is_fixed && programs.iter().all(is_direct));
        let family = family_of(case);
        let library = |program: &Program| match build {
            build if has_switch => switch::library(program, case, build),
            Build::Fixed | Build::FixedSanitized => Library::fixed(program, size, family, build),
            build => Library::of(size, family, build),
        };
        let libraries: Vec<_> = programs.iter().map(library).collect();
        let launches: Vec<_> = std::iter::zip(&libraries, std::iter::zip(&calls, &programs))
            .map(|(library, (call, program))| library.launch(call, program, threads))
            .collect();
        if matches!(build, Build::Sanitized | Build::FixedSanitized) {
            println!("{case}, {spread:?}, seed {seed}");
        }
        for library in &libraries {
            // SAFETY: the table has this many addresses, and lives as long as the kernels run.
            library.multicast.iter().for_each(|set| unsafe { set(windows.as_ptr(), 2, case.ranks) });
        }
        // SAFETY: the calls have all that kernels read, and every address in them is valid until the end of this function.
        unsafe { libraries[0].run(&launches, if seed.is_multiple_of(3) { 0 } else { seed }) };
        let failed: Vec<_> = reports.iter().filter(|report| report.kind > 0).collect();
        assert!(failed.is_empty(), "{case}: {failed:?}");
        let blocks = |rank: usize| {
            self.compilers[rank]
                .blocks(&shapes[rank], spread, programs[rank].header.unit_elements as usize)
                .unwrap()
        };
        let (outputs, _) = expected(case, &self.plan, |count, _| blocks(0).cut(count));
        for (rank, (buffers, output)) in std::iter::zip(&buffers, &outputs).enumerate() {
            let differs = std::iter::zip(buffers.output(), output).position(|(one, other)| one != other);
            let lengths = (buffers.output().len(), output.len());
            assert!(
                differs.is_none() && lengths.0 == lengths.1,
                "{case}, rank {rank}, {spread:?}: byte {differs:?} of {lengths:?}"
            );
            buffers.check(case, rank as u32);
        }
        if build == Build::Traced {
            self.check_steps(case, &trace, slices, programs[0].header.tiles as u32);
        }
        true
    }

    /// The steps of each slice, in the order they were taken, must be an order of the plan.
    fn check_steps(&self, case: &Case, trace: &[u64], slices: u32, tiles: u32) {
        assert!(trace[0] <= trace[1], "{case}: {} steps", trace[0]);
        let taken: &[records::Trace] = bytemuck::cast_slice(&trace[2..2 + 2 * trace[0] as usize]);
        for slice in 0..slices {
            let order: Vec<_> = taken
                .iter()
                .filter(|step| step.slice == slice)
                .map(|step| Event {
                    rank: step.rank.into(),
                    lane: step.lane.into(),
                    call: 0,
                    tile: step.tile,
                    ordinal: step.step,
                })
                .collect();
            let shape = RunShape { calls: 1, tiles, aliasing: case.aliasing };
            replay(&self.plan, shape, &order).unwrap_or_else(|why| panic!("{case}, slice {slice}: {why}"));
        }
    }
}

/// The addresses that each rank uses: its private memory follows its arena.
fn arenas_in(compilers: &[Compiler], memory: &[Vec<u128>]) -> Vec<Arenas> {
    let of_ranks: Vec<u64> = memory.iter().map(|memory| memory.as_ptr().addr() as u64).collect();
    let of = |(compiler, own): (&Compiler, &u64)| Arenas {
        of_ranks: of_ranks.clone(),
        private: own + compiler.arena.bytes,
    };
    std::iter::zip(compilers, &of_ranks).map(of).collect()
}

/// The parameters of a kernel.
fn parameters(mut call: Vec<u8>) -> Vec<u128> {
    assert!(call.len() <= CALL_BYTES);
    call.resize(CALL_BYTES, 0);
    call.chunks(16).map(|part| u128::from_ne_bytes(part.try_into().unwrap())).collect()
}

fn shape(case: &Case, rank: u32, longest: usize) -> Shape {
    let uneven = match case.counts {
        Counts::Even(_) => None,
        Counts::Uneven(_) => Some(Box::new(Lengths { input: case.given(rank), output: case.gotten(rank) })),
    };
    let count = if let Counts::Even(count) = case.counts { count } else { longest };
    Shape { aliasing: case.aliasing, element_bytes: case.data_type.bytes(), count, uneven }
}

/// Runs every `stride`th case.
fn run_cases(collective: &str, build: Build, stride: usize) {
    let mut groups: BTreeMap<String, Ranks> = BTreeMap::new();
    let mut count = 0;
    let (mut families, mut reduces) = (BTreeSet::new(), false);
    for (number, case) in (0..).zip(cases_of(collective)).step_by(stride) {
        let Some(case) = adapted(case) else { continue };
        let Some(Ok(plan)) = case.plan() else { continue };
        let key = format!("{:?} {} {:?}", case.collective, case.ranks, case.by);
        let ranks = groups.entry(key).or_insert_with(|| Ranks::new(&verify(plan).unwrap(), build));
        // Calls follow each other on most plans anyway; some are repeated at once.
        let times = if number % 4 == 0 { 2 } else { 1 };
        let ran = (0..times).filter(|_| ranks.run(&case, number)).count();
        count += ran;
        reduces |= case.reduction.is_some();
        families.extend((ran > 0).then(|| family_of(&case)));
    }
    println!("{collective}: {count} calls");
    assert!(count * stride > 5, "{collective}: {count} calls");
    assert!(stride > 1 || !reduces || families.len() == 3, "{collective}: only {families:?}");
}

macro_rules! collectives {
    ($($test:ident: $collective:literal;)*) => {
        const COLLECTIVES: &[&str] = &[$($collective),*];
        $(#[test]
        fn $test() {
            run_cases($collective, Build::Plain, 1);
        })*
    };
}

collectives! {
    all_reduce: "all-reduce";
    reduce: "reduce";
    broadcast: "broadcast";
    all_gather: "all-gather";
    reduce_scatter: "reduce-scatter";
    all_to_all: "all-to-all";
    gather: "gather";
    scatter: "scatter";
    scan: "scan";
    exclusive_scan: "exclusive-scan";
    send_receive: "send-receive";
    neighbours: "neighbours";
    barrier: "barrier";
}

/// Runs the first cases of a collective with packets and kernels of their own that fulfil a condition. Returns how many calls ran directly.
fn run_fixed(collective: &str, build: Build, number: usize, is_one: impl Fn(&Case) -> bool) -> u64 {
    let has_packets = |case: &Case| matches!(case.by, By::Algorithm { packets: true, .. });
    let cases = (0..).zip(cases_of(collective)).filter_map(|(number, case)| Some((number, adapted(case)?)));
    let chosen: Vec<_> = cases.filter(|(_, case)| has_packets(case) && is_one(case)).take(number).collect();
    assert!(!chosen.is_empty(), "{collective}");
    let run = |(number, case): (u64, Case)| {
        let mut ranks = Ranks::new(&verify(case.plan().unwrap().unwrap()).unwrap(), build);
        let count = (0..6).filter(|_| ranks.run(&case, number)).count();
        assert!(count == 6, "{case}: {count} calls");
        ranks.direct
    };
    chosen.into_iter().map(run).sum()
}

/// Steps without packets, too, in plans that have packets.
#[test]
fn kernels_with_fixed_shapes_pass_cases_with_packets() {
    for (collective, family) in [
        ("exclusive-scan", Family::Finishing),
        ("exclusive-scan", Family::Scaling),
        ("all-to-all", Family::Plain),
        ("all-reduce", Family::Finishing),
        ("all-reduce", Family::Scaling),
    ] {
        let is_short = |case: &Case| case.ranks == 3 && matches!(case.counts, Counts::Even(64..));
        run_fixed(collective, Build::Fixed, 1, |case| is_short(case) && family_of(case) == family);
    }
}

/// Their elements begin and end inside of words.
#[test]
fn small_calls_of_small_types_pass() {
    for collective in ["all-reduce", "all-gather", "reduce-scatter"] {
        let is_odd = |case: &Case| {
            let is_small = (2..=3).contains(&case.ranks) && case.data_type.bytes() < 4;
            is_small && matches!(case.counts, Counts::Even(count) if count % 2 == 1)
        };
        let is_exchange =
            |case: &Case| matches!(case.by, By::Algorithm { algorithm: Algorithm::Exchange, .. });
        run_fixed(collective, Build::Fixed, 2, |case| is_odd(case) && is_exchange(case));
    }
}

#[test]
fn small_calls_run_directly() {
    for (collective, family) in [
        ("all-reduce", Family::Plain),
        ("all-reduce", Family::Finishing),
        ("all-reduce", Family::Scaling),
        ("all-gather", Family::Plain),
        ("reduce-scatter", Family::Plain),
    ] {
        let is_small =
            |case: &Case| (2..=3).contains(&case.ranks) && matches!(case.counts, Counts::Even(..64));
        let is_exchange =
            |case: &Case| matches!(case.by, By::Algorithm { algorithm: Algorithm::Exchange, .. });
        let direct = run_fixed(collective, Build::Fixed, 3, |case| {
            is_small(case) && is_exchange(case) && family_of(case) == family
        });
        assert!(direct >= 3, "{collective}: {direct} calls");
    }
}

/// Run by the test below, in a process that has the sanitizer's library.
#[test]
#[ignore = "needs a sanitizer's library: the_device_code_has_no_data_race runs it"]
fn sanitized() {
    COLLECTIVES.iter().for_each(|collective| run_cases(collective, Build::Sanitized, 29));
    let is_exchange = |case: &Case| matches!(case.by, By::Algorithm { algorithm: Algorithm::Exchange, .. });
    let is_one = |case: &Case| {
        (2..=3).contains(&case.ranks) && is_exchange(case) && matches!(case.counts, Counts::Even(..64))
    };
    for collective in ["all-reduce", "all-gather"] {
        let direct = run_fixed(collective, Build::FixedSanitized, 1, is_one);
        assert!(direct >= 3, "{collective}: {direct} calls");
    }
}

#[test]
fn the_device_code_has_no_data_race() {
    let races = races_of("host_tests::sanitized", "barrier: ");
    let races: Vec<_> = races.iter().filter(|report| !follows_a_packet(report)).collect();
    assert!(races.is_empty(), "{} races, the first one {}", races.len(), races[0]);
}

/// Runs an ignored test with a thread sanitizer. Returns what it reports of the device code; the test has printed `end` in its last line.
fn races_of(test: &str, end: &str) -> Vec<String> {
    let library = Command::new("g++").arg("-print-file-name=libtsan.so").output().unwrap();
    let library = String::from_utf8(library.stdout).unwrap();
    // The sanitizer stops where the kernel chooses addresses from a larger range.
    let random_bits = std::fs::read_to_string("/proc/sys/vm/mmap_rnd_bits").unwrap_or_default();
    let is_larger = random_bits.trim().parse().is_ok_and(|bits: u32| bits > 28);
    let fixed: &[&str] = if is_larger { &["setarch", "--addr-no-randomize", "env"] } else { &["env"] };
    let done = Command::new(fixed[0])
        .args(&fixed[1..])
        .args([format!("LD_PRELOAD={}", library.trim()), "TSAN_OPTIONS=exitcode=0".to_owned()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let [text, reports] = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(done.status.success() && text.contains(end), "{text}\n{reports}");
    reports
        .split("==================\n")
        .filter(|report| report.contains("WARNING: ThreadSanitizer") && report.contains("weft_host_enter"))
        .map(str::to_owned)
        .collect()
}

/// Whether a race is a write of a word after another block of the rank read it into a packet.
///
/// A lane that writes what another lane of its rank has sent as packets waits for packets that depend on them, so the read is over. The
/// sanitizer cannot see that: packets order nothing but themselves.
fn follows_a_packet(report: &str) -> bool {
    let Some((write, read)) = report.split_once("Previous read of size") else { return false };
    // Fibers are named by stream, block and thread.
    let fibers =
        report.lines().filter(|line| line.contains("  Thread T")).filter_map(|line| line.split('\'').nth(1));
    let mut blocks =
        fibers.filter_map(|name| name.split_once('/')).map(|(rank, rest)| (rank, rest.split('/').next()));
    let (Some(one), Some(other)) = (blocks.next(), blocks.next()) else { return false };
    one.0 == other.0
        && one.1 != other.1
        && write.contains("  Write of size")
        && write.contains(" weft::store_")
        && write.contains("weft::Packets<")
        && read.contains(" weft::load_")
        && read.contains("weft::Packets<")
}

#[test]
fn records_have_the_same_size_on_both_sides() {
    let source = Specialisation {
        data_type: DataType::F32,
        reduction: Reduction::Sum,
        sequences: Sequences::none(),
        is_in_shared: false,
        is_one_gpu: true,
    };
    let library = compiled(&source.host_source(false), &[]);
    let mut sizes = [0_u32; 32];
    // SAFETY: device/host.cc defines it with this signature, and has fewer records.
    let count = unsafe {
        library.get::<unsafe extern "C" fn(*mut u32) -> u32>(b"weft_host_sizes").unwrap()(sizes.as_mut_ptr())
    };
    let layouts = records::layouts();
    assert_eq!(layouts.len(), count as usize);
    for ((name, bytes, _), size) in std::iter::zip(layouts, sizes) {
        assert_eq!(bytes, size as usize, "{name}");
    }
}
