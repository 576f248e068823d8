//! The device code of messages as fibers of the host: random groups of sends and receives, wrong lengths, ranks that are late or gone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytemuck::{Pod, Zeroable};

use super::{Build, Launch, Library, races_of};
use crate::Message;
use crate::messages::{
    GROUP_BYTES, Group, GroupHeader, MessageLayout, PART_RECORDS_MAX, RECORD_BYTES, TablePartHeader,
    host_source,
};
use crate::records::{ABORTED, ABORTED_BY, DIED, GONE, LEFT, MISMATCH, PEER_FAILED, Report, TIMED_OUT};
use crate::reports::{ELSEWHERE, REPORTS_MAX, describe};
use crate::window::Layout;

const TIMEOUT: Duration = Duration::from_secs(1);
const FOREVER: Duration = Duration::from_secs(1_000_000);
const SMALL: MessageLayout = MessageLayout { ranks: 2, channels: 3, slots: 2, slot_bytes: 48 };

/// A kernel of a group, or one that copies a part of a table.
const ENTRY: &str = r#"
struct TestCall {
    unsigned long long is_table, parameters;
};
extern "C" void weft_host_attach(weft::Host* host) { weft::host = host; }
extern "C" void weft_host_enter(const void* of_test, void* shared) {
    const TestCall& call = *(const TestCall*)of_test;
    if (call.is_table != 0) weft::copy_table(*(const weft::TablePart*)call.parameters);
    else weft::run_group(*(const weft::GroupCall*)call.parameters, *(weft::GroupShared*)shared);
}
extern "C" unsigned weft_host_shared_bytes() { return sizeof(weft::GroupShared); }
static_assert(sizeof(weft::Group) == GROUP_HEADER_BYTES && sizeof(weft::GroupCall) == weft::GROUP_BYTES);
static_assert(sizeof(weft::TablePart) == weft::GROUP_BYTES && offsetof(weft::TablePart, rest) == PART_HEADER_BYTES);
static_assert(offsetof(weft::Group, blocks) == GROUP_HEADER_BYTES - 4 && offsetof(weft::Group, table) == GROUP_HEADER_BYTES - 32);
"#;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct TestCall {
    is_table: u64,
    parameters: u64,
}

/// The window of ranks that are streams of fibers.
struct Job {
    library: &'static Library,
    layout: MessageLayout,
    window: Layout,
    /// Shared, then private memory.
    memory: Vec<Vec<u128>>,
    reports: Vec<Vec<Report>>,
    presence: Vec<AtomicU32>,
    timeout: Duration,
}

/// A group of a rank.
struct Kernel {
    rank: usize,
    sends: Vec<Message>,
    receives: Vec<Message>,
    blocks_max: usize,
    threads: u32,
}

/// A kernel with all its parameters.
struct Enqueued {
    is_table: bool,
    parameters: Vec<u128>,
    rank: usize,
    blocks: u32,
    threads: u32,
}

impl Job {
    fn new(layout: MessageLayout, build: Build) -> Job {
        static LIBRARIES: [OnceLock<Library>; 2] = [const { OnceLock::new() }; 2];
        let library = LIBRARIES[usize::from(build == Build::Sanitized)].get_or_init(|| {
            let sizes = [size_of::<GroupHeader>(), size_of::<TablePartHeader>()];
            let macros =
                format!("#define GROUP_HEADER_BYTES {}\n#define PART_HEADER_BYTES {}\n", sizes[0], sizes[1]);
            let source = format!("#define WEFT_HOST\n#include <cstddef>\n{macros}{}{ENTRY}", host_source());
            Library::of_source(source, build)
        });
        let ranks = layout.ranks;
        let window = Layout::new(layout.bytes(), ranks).unwrap();
        let [shared, private] = window.sizes();
        let mut memory: Vec<Vec<u128>> = vec![vec![0; (shared + private).div_ceil(16)]; ranks];
        let table: Vec<u64> = memory.iter().map(|memory| memory.as_ptr().addr() as u64).collect();
        for memory in &mut memory {
            let private: &mut [u8] = &mut bytemuck::cast_slice_mut(memory)[shared..];
            private[..8 * ranks].copy_from_slice(bytemuck::cast_slice(&table));
        }
        Job {
            library,
            layout,
            window,
            memory,
            reports: vec![vec![Report::default(); REPORTS_MAX]; ranks],
            presence: (0..ranks).map(|_| AtomicU32::new(0)).collect(),
            timeout: TIMEOUT,
        }
    }

    /// The kernels of a group: first those that copy its table.
    fn enqueued(&self, kernel: &Kernel) -> Vec<Enqueued> {
        let own = self.memory[kernel.rank].as_ptr().addr() as u64;
        let window = self.window.for_kernels(kernel.rank, 5, own + self.window.sizes()[0] as u64).with(
            self.presence.as_ptr().addr() as u64,
            self.reports[kernel.rank].as_ptr().addr() as u64,
            self.timeout,
        );
        let group = Group::new(self.layout, kernel.rank, &kernel.sends, &kernel.receives).unwrap();
        let [blocks, _] = group.spread(kernel.blocks_max);
        let table = own + self.layout.table() as u64;
        let header = GroupHeader::new(self.layout, window, &group, table, blocks);
        let parameters = |header: &[u8], rest: &[u8]| {
            let mut call = vec![0_u128; GROUP_BYTES / 16];
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut call);
            bytes[..header.len()].copy_from_slice(header);
            bytes[header.len()..][..rest.len()].copy_from_slice(rest);
            call
        };
        let enqueued = |is_table, parameters, blocks| {
            let Kernel { rank, threads, .. } = *kernel;
            Enqueued { is_table, parameters, rank, blocks, threads }
        };
        let (mut all, mut rows) = (Vec::new(), group.table());
        if group.is_long() {
            for (number, part) in rows.chunks(PART_RECORDS_MAX * RECORD_BYTES).enumerate() {
                let to = table + (number * PART_RECORDS_MAX * RECORD_BYTES) as u64;
                let header = TablePartHeader { to, records: (part.len() / RECORD_BYTES) as u32, reserved: 0 };
                all.push(enqueued(true, parameters(bytemuck::bytes_of(&header), part), 1));
            }
            rows.clear();
        }
        all.push(enqueued(false, parameters(bytemuck::bytes_of(&header), &rows), blocks));
        all
    }

    /// Runs groups; those of one rank follow each other.
    fn run(&self, kernels: &[Kernel], seed: u64) {
        let all: Vec<Enqueued> = kernels.iter().flat_map(|kernel| self.enqueued(kernel)).collect();
        let call = |one: &Enqueued| TestCall {
            is_table: u64::from(one.is_table),
            parameters: one.parameters.as_ptr().addr() as u64,
        };
        let calls: Vec<TestCall> = all.iter().map(call).collect();
        let launch = |(one, call): (&Enqueued, &TestCall)| Launch {
            attach: self.library.attach,
            enter: self.library.enter,
            call: std::ptr::from_ref(call).cast(),
            blocks: one.blocks,
            threads: one.threads,
            shared_bytes: self.library.shared_bytes,
            stream: one.rank as u32,
        };
        let launches: Vec<_> = std::iter::zip(&all, &calls).map(launch).collect();
        // SAFETY: the calls have all that the kernels read; the job owns windows and reports, and the caller the rest.
        unsafe { self.library.run(&launches, seed) }
    }

    /// The report of a rank's failure.
    fn failure(&self, rank: usize) -> Report {
        // SAFETY: the report lives as long as the job, and no kernel runs.
        unsafe { (&raw const self.reports[rank][0]).read_volatile() }
    }

    fn check(&self, what: &str) {
        for rank in 0..self.memory.len() {
            let report = self.failure(rank);
            assert_eq!(report.kind, 0, "{what}: {}", describe(rank, &report));
        }
    }
}

fn one_block(rank: usize, sends: Vec<Message>, receives: Vec<Message>) -> Kernel {
    Kernel { rank, sends, receives, blocks_max: 1, threads: 1 }
}

fn sent(peer: usize, bytes: &[u8]) -> Message {
    Message { peer, address: bytes.as_ptr().addr() as u64, bytes: bytes.len() }
}

fn received(peer: usize, bytes: &mut [u8]) -> Message {
    Message { peer, address: bytes.as_mut_ptr().addr() as u64, bytes: bytes.len() }
}

fn draw(random: &mut u64, below: u64) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    ((*random >> 11) % below) as usize
}

/// A message from one rank to another, in memory with a margin.
struct Sent {
    ranks: [usize; 2],
    phase: usize,
    data: Vec<u8>,
    margin: usize,
    buffer: Vec<u8>,
}

const POISON: u8 = 0xa5;

fn random_messages(random: &mut u64, ranks: usize, phases: usize, longest: u64) -> Vec<Sent> {
    let mut all = Vec::new();
    for phase in 0..phases {
        for _ in 0..draw(random, 3 * ranks as u64) {
            let from = draw(random, ranks as u64);
            let to = (from + 1 + draw(random, ranks as u64 - 1)) % ranks;
            // Some are empty, and most are short.
            let bytes = match draw(random, 5) {
                0 => 0,
                1..4 => draw(random, 60),
                _ => draw(random, longest),
            };
            let first = draw(random, 256);
            let data: Vec<u8> = (0..bytes).map(|at| (first + 3 * at) as u8).collect();
            let margin = draw(random, 17);
            all.push(Sent {
                ranks: [from, to],
                phase,
                data,
                margin,
                buffer: vec![POISON; bytes + 2 * margin],
            });
        }
    }
    all
}

/// The groups of all ranks. Ranks merge phases as they like: what they enqueue earlier than their peers waits.
fn groups_of(all: &mut [Sent], random: &mut u64, ranks: usize, phases: usize) -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for rank in 0..ranks {
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for phase in 0..phases {
            for message in all.iter_mut().filter(|message| message.phase == phase) {
                let [from, to] = message.ranks;
                if from == rank {
                    sends.push(sent(to, &message.data));
                }
                if to == rank {
                    let margin = message.margin;
                    let end = message.buffer.len() - margin;
                    receives.push(received(from, &mut message.buffer[margin..end]));
                }
            }
            if phase + 1 < phases && draw(random, 3) == 0 {
                continue;
            }
            let (sends, receives) = (std::mem::take(&mut sends), std::mem::take(&mut receives));
            if sends.is_empty() && receives.is_empty() {
                continue;
            }
            let (blocks_max, threads) = (1 + draw(random, 6), [1, 2, 4][draw(random, 3)]);
            kernels.push(Kernel { rank, sends, receives, blocks_max, threads });
        }
    }
    kernels
}

fn random_groups(build: Build, seed: u64) {
    let mut random = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let ranks = 2 + draw(&mut random, 4);
    let layout = MessageLayout {
        ranks,
        channels: 1 + draw(&mut random, 3),
        slots: 1 + draw(&mut random, 3),
        slot_bytes: 16 * (1 + draw(&mut random, 4)),
    };
    let job = Job::new(layout, build);
    let phases = 1 + draw(&mut random, 4);
    let mut all = random_messages(&mut random, ranks, phases, 600);
    let kernels = groups_of(&mut all, &mut random, ranks, phases);
    // The same parameters again, as a graph that is launched again.
    for launch in 0..2 {
        job.run(&kernels, seed + 1000 * launch);
        job.check(&format!("seed {seed}, launch {launch}"));
        for Sent { ranks, data, margin, buffer, .. } in &mut all {
            let end = buffer.len() - *margin;
            assert_eq!(buffer[*margin..end], data[..], "{ranks:?}, seed {seed}, launch {launch}");
            let around = buffer[..*margin].iter().chain(&buffer[end..]);
            assert!(around.copied().all(|byte| byte == POISON), "{ranks:?}, seed {seed}");
            // Otherwise what the first launch got would be taken for the second's.
            buffer.fill(POISON);
        }
    }
}

#[test]
fn random_groups_arrive_whole_and_in_order() {
    (0..150).for_each(|seed| random_groups(Build::Plain, seed));
}

#[test]
fn groups_with_long_tables_arrive() {
    let job = Job::new(SMALL, Build::Plain);
    let data: Vec<Vec<u8>> = (0..600).map(|number: usize| vec![number as u8; 1 + number % 5]).collect();
    let mut buffers: Vec<Vec<u8>> = data.iter().map(|data| vec![POISON; data.len()]).collect();
    let sends: Vec<Message> = data.iter().map(|data| sent(1, data)).collect();
    let receives: Vec<Message> = buffers.iter_mut().map(|buffer| received(0, buffer)).collect();
    let kernel = |rank, sends, receives| Kernel { rank, sends, receives, blocks_max: 2, threads: 2 };
    job.run(&[kernel(0, sends, Vec::new()), kernel(1, Vec::new(), receives)], 3);
    job.check("a long table");
    assert_eq!(buffers, data);
}

/// Run by the test below, in a process that has the sanitizer's library.
#[test]
#[ignore = "needs a sanitizer's library: messages_have_no_data_race runs it"]
fn sanitized() {
    (0..25).for_each(|seed| random_groups(Build::Sanitized, seed));
    println!("messages end");
}

#[test]
fn messages_have_no_data_race() {
    let races = races_of("host_tests::messages::sanitized", "messages end");
    assert!(races.is_empty(), "{} races, the first one {}", races.len(), races[0]);
}

#[test]
fn a_receive_of_another_length_fails_and_names_both() {
    for (seed, [sends, receives]) in
        (0..).zip([[100, 50], [50, 100], [0, 1], [1, 0], [1000, 999], [999, 1000], [5, 1000], [1000, 48]])
    {
        for blocks_max in [1, 8] {
            let job = Job::new(SMALL, Build::Plain);
            let data = vec![7; sends];
            // One message before it is right, and one after it is never sent.
            let [mut first, mut wrong, mut last] = [vec![0; 3], vec![0; receives], vec![0; 40]];
            let kernels = [
                Kernel { blocks_max, ..one_block(0, vec![sent(1, &[1, 2, 3]), sent(1, &data)], Vec::new()) },
                Kernel {
                    blocks_max,
                    ..one_block(
                        1,
                        Vec::new(),
                        vec![received(0, &mut first), received(0, &mut wrong), received(0, &mut last)],
                    )
                },
            ];
            job.run(&kernels, seed);
            assert_eq!(first, [1, 2, 3]);
            let report = job.failure(1);
            assert_eq!((report.kind, report.rank), (MISMATCH, 0), "{sends} bytes, {receives} received");
            let text = describe(1, &report);
            let wanted = format!(
                "rank 0 sent a message of {sends} bytes, and rank 1 received one of {receives} bytes from it"
            );
            assert!(text.starts_with(&wanted), "{text}");
            // The sender has ended, or failed; what it does next fails, and writes nothing.
            let before = job.memory[1].clone();
            job.run(&[one_block(0, vec![sent(1, &data)], Vec::new())], seed);
            assert_eq!((job.failure(0).kind, job.failure(0).rank), (PEER_FAILED, 1));
            assert!(before == job.memory[1], "{sends} bytes, {receives} received");
            assert!(describe(0, &job.failure(0)).ends_with(ELSEWHERE));
        }
    }
}

#[test]
fn lengths_beyond_32_bits_are_named() {
    let report = Report {
        kind: MISMATCH,
        rank: 3,
        poll: u32::from(crate::records::MESSAGE_SENT),
        signature: 5,
        step: 1,
        other: 7,
        slice: 2,
        ..Report::default()
    };
    let text = describe(0, &report);
    assert!(text.contains(&format!("message of {} bytes", (2_u64 << 32) + 7)), "{text}");
    assert!(text.contains(&format!("one of {} bytes", (1_u64 << 32) + 5)), "{text}");
}

#[test]
fn a_missing_message_and_a_missing_receive_time_out() {
    let job = Job { timeout: Duration::from_millis(50), ..Job::new(SMALL, Build::Plain) };
    job.run(&[one_block(0, Vec::new(), vec![received(1, &mut [0])])], 0);
    let text = describe(0, &job.failure(0));
    assert_eq!(job.failure(0).kind, TIMED_OUT);
    assert_eq!(
        text,
        "timed out: rank 0 waited for rank 1 to send a message, in chunk 1 of channel 0 between them"
    );
    let job = Job { timeout: Duration::from_millis(50), ..Job::new(SMALL, Build::Plain) };
    job.run(&[one_block(0, vec![sent(1, &[0; 1000])], Vec::new())], 0);
    assert_eq!(job.failure(0).kind, TIMED_OUT);
    let text = describe(0, &job.failure(0));
    assert!(
        text.starts_with("timed out: rank 0 waited for rank 1 to receive a message, in chunk 3"),
        "{text}"
    );
}

#[test]
fn what_a_rank_has_sent_arrives_after_it_is_gone() {
    for (seed, state) in [(0, LEFT), (1, DIED)] {
        let job = Job { timeout: FOREVER, ..Job::new(SMALL, Build::Plain) };
        job.run(&[one_block(1, vec![sent(0, &[9; 40])], Vec::new())], seed);
        job.presence[1].store(state, Ordering::Release);
        let mut buffer = [0; 40];
        job.run(&[one_block(0, Vec::new(), vec![received(1, &mut buffer)])], seed);
        job.check("the message had been sent");
        assert_eq!(buffer, [9; 40]);
        job.run(&[one_block(0, Vec::new(), vec![received(1, &mut buffer)])], seed);
        assert_eq!((job.failure(0).kind, job.failure(0).rank), (GONE, 1));
    }
}

/// A block that waits for several ranks finds out which of them is gone.
#[test]
fn a_gone_rank_is_found_among_several() {
    let layout = MessageLayout { ranks: 4, ..SMALL };
    for gone in 1..4 {
        let job = Job { timeout: FOREVER, ..Job::new(layout, Build::Plain) };
        job.presence[gone].store(DIED, Ordering::Release);
        let mut buffers = [[0; 8]; 3];
        let receives = (1..).zip(&mut buffers).map(|(peer, buffer)| received(peer, buffer)).collect();
        job.run(&[one_block(0, Vec::new(), receives)], 1);
        assert_eq!((job.failure(0).kind, job.failure(0).rank), (GONE, gone as u32));
    }
}

#[test]
fn an_abort_ends_a_group() {
    let job = Job { timeout: FOREVER, ..Job::new(SMALL, Build::Plain) };
    std::thread::scope(|scope| {
        scope.spawn(|| job.run(&[one_block(0, Vec::new(), vec![received(1, &mut [0])])], 0));
        std::thread::sleep(Duration::from_millis(20));
        job.presence.iter().for_each(|word| word.store(ABORTED_BY + 1, Ordering::Release));
    });
    assert_eq!((job.failure(0).kind, job.failure(0).other), (ABORTED, 1));
}
