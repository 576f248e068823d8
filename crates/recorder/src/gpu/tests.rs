#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use weftlink_bootstrap::{Blame, BlameKind};

use super::*;
use crate::attach::attach;
use crate::header::{CallKind, Header};
use crate::recorder::{Outputs, Recorder};
use crate::why::explain;

const REPORTS: usize = 5;
const OWNER: Owner = Owner { rank: 1, size: 3, job: 0x77 };

/// The words of a report: kind, rank, poll, call, time.
fn report([kind, rank, poll, call, waited_ms]: [u32; 5]) -> [u32; 16] {
    let mut words = [0; 16];
    (words[0], words[2], words[4], words[5], words[6], words[9], words[10]) =
        (kind, 3, 7, rank, poll, call, waited_ms);
    words
}

/// Memory with reports, of which the first is the failure.
fn memory(started: u32, reports: &[[u32; 16]]) -> Vec<u8> {
    let head = [MAGIC, VERSION, REPORTS as u64, OWNER.rank as u64, OWNER.size as u64, 42, OWNER.job];
    let mut bytes = head.map(u64::to_le_bytes).concat();
    bytes.resize(HEAD_BYTES, 0);
    bytes.extend(reports.iter().flatten().flat_map(|word| word.to_le_bytes()));
    bytes.resize(bytes_of(REPORTS), 0);
    bytes[HEAD_BYTES + 44..HEAD_BYTES + 48].copy_from_slice(&started.to_le_bytes());
    bytes
}

fn read(bytes: &[u8]) -> Option<KernelReports> {
    KernelReports::of_copies([bytes, bytes, bytes])
}

const NONE: [u32; 16] = [0; 16];

#[test]
fn waits_of_blocks_are_read() {
    let found = read(&memory(41, &[NONE, report([1, 2, 2, 41, 12_000]), NONE, report([1, 0, 0, 41, 900])]));
    let found = found.unwrap();
    assert_eq!((found.rank, found.pid, found.job, found.started), (1, 42, 0x77, Some(41)));
    assert_eq!(found.failure, None);
    let waits: Vec<_> = found.waits.iter().map(|wait| (wait.rank, wait.poll, wait.waited_ms)).collect();
    assert_eq!(waits, [(2, Poll::Arrived, 12_000), (0, Poll::Entered, 900)]);
    assert_eq!((found.waits[0].call, found.waits[0].lane, found.waits[0].step), (41, 3, 7));
    assert_eq!(read(&memory(0, &[NONE])).unwrap().started, None);
}

#[test]
fn reports_that_change_are_left_out() {
    let same = report([1, 2, 2, 41, 5]);
    let [before, copy, after] = [
        [NONE, report([1, 2, 2, 41, 4]), same, report([1, 0, 2, 41, 5]), NONE],
        [NONE, same, same, same, same],
        [NONE, report([1, 2, 2, 41, 6]), NONE, same, same],
    ]
    .map(|reports| memory(41, &reports));
    let found = KernelReports::of_copies([&before, &copy, &after]).unwrap();
    assert_eq!(found.waits.len(), 1, "only the time of the first one changed: {found:?}");
    let other = memory(41, &[NONE]).iter().map(|byte| byte ^ 1).collect::<Vec<_>>();
    assert_eq!(KernelReports::of_copies([&copy, &copy, &other]), None);
}

#[test]
fn groups_of_messages_are_read() {
    let found = read(&memory(0, &[report([3, 2, 5, 0, 0]), report([1, 2, 6, 0, 10])])).unwrap();
    assert_eq!((found.waits[0].rank, found.waits[0].poll), (2, Poll::Credit));
    let failure = found.failure.unwrap();
    let said = failure.failure();
    assert!(said.starts_with("the kernel failed, which"), "{said}");
    assert!(said.ends_with("rank 2 sent a message of another length than this rank receives"), "{said}");
    assert_eq!(failure.blamed(), (vec![Blame::new(2, BlameKind::Differs)], None));
}

/// A kernel of the program names a rank that does not exist: the failure is shown all the same.
#[test]
fn an_access_outside_of_a_window_is_a_failure() {
    for (rank, text) in
        [(2, "accessed rank 2 outside of window 3"), (99, "accessed rank 99 outside of window 3")]
    {
        let failure = read(&memory(0, &[report([7, rank, 4, 0, 0])])).unwrap().failure.unwrap();
        assert_eq!((failure.kind, failure.blamed()), (ReportKind::Outside, (Vec::new(), None)));
        let said = failure.failure();
        assert!(said.starts_with(&format!("a kernel of the program {text}")), "{said}");
    }
    // Of other kinds, such a rank is damage.
    assert_eq!(read(&memory(0, &[report([2, 99, 0, 1, 0])])).unwrap().failure, None);
}

#[test]
fn other_bytes_are_refused() {
    assert_eq!(read(b""), None);
    assert_eq!(read(&[0xff; 100_000]), None);
    let good = memory(0, &[NONE]);
    assert!(read(&good).is_some());
    assert_eq!(read(&good[..good.len() - 1]), None);
    // Version, number of reports, rank, size.
    for (word, value) in [(1, 2_u64), (2, 0), (2, 1 << 40), (3, 3), (4, 1 << 40)] {
        let mut bytes = good.clone();
        bytes[8 * word..8 * word + 8].copy_from_slice(&value.to_le_bytes());
        assert_eq!(read(&bytes), None, "word {word} is {value}");
    }
    // An abort by a rank that does not exist.
    let mut aborted = report([4, 0, 0, 1, 0]);
    aborted[7] = 3;
    assert_eq!(read(&memory(1, &[aborted])).unwrap().failure, None);
    // A rank that does not exist.
    assert_eq!(read(&memory(1, &[NONE, report([1, 3, 0, 1, 5])])).unwrap().waits, []);
}

proptest! {
    /// Any words are reports, which make a record that can be written, read and explained.
    #[test]
    fn any_reports_can_be_explained(words in proptest::collection::vec(any::<[u32; 16]>(), REPORTS), small in any::<bool>()) {
        let small = |word: u32| if small { word % 8 } else { word };
        let reports: Vec<[u32; 16]> = words.into_iter().map(|words| words.map(small)).collect();
        let recorder = Recorder::new(OWNER, 16, 0, &Outputs::default());
        let mut record = recorder.reader().record();
        read(&memory(small(reports[0][11]), &reports)).unwrap().merge_into(&mut record);
        prop_assert_eq!(&Record::read(record.to_json().as_bytes()).unwrap(), &record);
        prop_assert_eq!(explain(&[record]).jobs.len(), 1);
    }
}

#[test]
fn a_failure_that_the_program_has_not_seen_is_in_the_record() {
    let recorder = Recorder::new(OWNER, 16, 0, &Outputs::default());
    let mut record = recorder.reader().record();
    let wait = report([1, 2, 0, 41, 3_000]);
    read(&memory(41, &[report([2, 2, 0, 41, 0]), wait, wait])).unwrap().merge_into(&mut record);
    let text = "the kernel of call #41 failed, which the program has not noticed yet: it timed out waiting for rank 2";
    assert_eq!((record.state, record.error.as_deref()), (RankState::Failed, Some(text)));
    assert_eq!(record.blamed.iter().map(|blame| blame.rank).collect::<Vec<_>>(), [2]);
    let waiting = record.waiting.unwrap();
    assert_eq!((waiting.rank, waiting.call, waiting.blocks), (Some(2), 41, Some([2, 2])));
    assert_eq!(record.taken_ns.unwrap() - waiting.since_ns, 3_000_000_000);
}

#[test]
fn the_wait_that_began_first_is_the_rank_s() {
    let recorder = Recorder::new(OWNER, 16, 0, &Outputs::default());
    let mut record = recorder.reader().record();
    let waits = [NONE, report([1, 0, 1, 5, 20]), report([1, 2, 3, 5, 30]), report([1, 0, 2, 5, 10])];
    read(&memory(5, &waits)).unwrap().merge_into(&mut record);
    let waiting = record.waiting.clone().unwrap();
    assert_eq!((waiting.rank, waiting.what.as_str(), waiting.blocks), (Some(2), "to receive", Some([1, 3])));
    assert!(!waiting.in_group);
    read(&memory(5, &[NONE, report([1, 0, 4, 0, 20])])).unwrap().merge_into(&mut record);
    let waiting = record.waiting.unwrap();
    assert_eq!((waiting.call, waiting.in_group, waiting.what.as_str()), (0, true, "a signal"));
}

const ROLE: &str = "WEFT_TEST_ROLE";

/// Writes reports as kernels would, but through the descriptor.
fn write(owner: Owner, first: usize, report: [u32; 16]) {
    let folder = std::fs::read_dir("/proc/self/fd").unwrap();
    for entry in folder.map(|entry| entry.unwrap().path()) {
        let link = std::fs::read_link(&entry).unwrap_or_default();
        if !link.to_str().unwrap().starts_with(&format!("/memfd:{NAME} ")) {
            continue;
        }
        let file = std::fs::OpenOptions::new().read(true).write(true).open(entry).unwrap();
        let mut rank = [0; 8];
        file.read_exact_at(&mut rank, 24).unwrap();
        if u64::from_le_bytes(rank) == owner.rank as u64 {
            let bytes = report.map(u32::to_le_bytes).concat();
            file.write_all_at(&bytes, bytes_of(first) as u64).unwrap();
        }
    }
}

/// Another process has two ranks: both have enqueued a call, and the kernel of one waits for the other.
#[test]
fn reports_of_another_process_are_merged_into_its_records() {
    if std::env::var(ROLE).is_ok() {
        let ranks: Vec<_> = [0, 1]
            .map(|rank| {
                let owner = Owner { rank, size: 2, job: 0xfeed };
                let mut recorder = Recorder::new(owner, 16, 0, &Outputs::default());
                let header = Header::allocating(CallKind::Collective(0), 0, 8, (None, 4));
                recorder.describe(1, &header, 32, Some((0, 0)));
                for call in 1..=4 {
                    recorder.begin(call);
                    recorder.enqueued(false);
                }
                (recorder, ReportMemory::create(owner, 8).unwrap())
            })
            .into();
        write(Owner { rank: 0, size: 2, job: 0xfeed }, 3, report([1, 1, 0, 2, 5_000]));
        println!("ready");
        std::thread::sleep(std::time::Duration::from_secs(60));
        drop(ranks);
        return;
    }
    let name = "gpu::tests::reports_of_another_process_are_merged_into_its_records";
    let mut child = weftlink_testkit::processes::this_program()
        .args(["--exact", name, "--nocapture"])
        .env(ROLE, "ranks")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = io::BufRead::lines(io::BufReader::new(child.stdout.take().unwrap()));
    let is_ready = lines.map_while(Result::ok).any(|line| line.ends_with("ready"));
    let attached = attach(&child.id().to_string());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_ready);
    let why = explain(&attached.unwrap().records);
    let [job] = &why.jobs[..] else { panic!("{why:?}") };
    let what = "all-reduce of 8 elements of 4 bytes out of place";
    assert!(job.is_wrong);
    assert_eq!(
        job.sentences,
        [
            format!("Rank 0 waits for rank 1 to make the call in #2, {what}, for 5.0 s."),
            "Rank 1 has enqueued #2, and its kernel has not started: work before it on its stream has not ended, or the GPU has no \
             free queue for it (CUDA_DEVICE_MAX_CONNECTIONS) or no room."
                .to_owned(),
        ]
    );
    let waiting: Vec<_> = job.ranks.iter().map(|rank| (rank.call, rank.call_state, &*rank.waiting)).collect();
    let text = "rank 1 to make the call (lane 3, step 7; one block waits)";
    assert_eq!(waiting, [(Some(2), "running", text), (Some(4), "enqueued", "")]);
}
