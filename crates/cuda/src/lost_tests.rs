//! Every entry point in processes whose contexts are lost, with a stand-in for the driver that runs no kernels.

#![allow(unsafe_code, reason = "calls the stand-in for the driver, and calls that take addresses")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use libloading::os::unix::Library;
use rustix::process::{Signal, getpid, kill_process};
use weftlink_bootstrap::{Bootstrap, Rendezvous, RendezvousAddress, Token};
use weftlink_plan::{Collective, DataType, Reduction};
use weftlink_testkit::processes::{command, this_program};

use crate::driver::Stream;
use crate::{Collectives, Error, Rank, devices};

const NAME: &str = "lost_tests::every_entry_point_names_the_rank_whose_death_destroyed_the_context";
const RANKS: usize = 3;
const VICTIM: usize = 1;
const ROLE: &str = "WEFT_TEST_ROLE";
const PLACE: &str = "WEFT_TEST_PLACE";
const ENTRY: &str = "WEFT_TEST_ENTRY";
const TIMEOUT: Duration = Duration::from_secs(30);
/// From the notice of a death to the loss of the context.
const LOST_AFTER: Duration = Duration::from_millis(100);
/// From the loss of the context to the error.
const BOUND: Duration = Duration::from_secs(4);
const ENTRIES: [&str; 14] = [
    "synchronize",
    "read",
    "write",
    "buffer",
    "barrier",
    "shrink",
    "drop",
    "load",
    "call",
    "check",
    "failure",
    "release",
    "late loss",
    "survives",
];

#[test]
fn every_entry_point_names_the_rank_whose_death_destroyed_the_context() {
    if let (Ok(rank), Ok(place), Ok(entry)) =
        (std::env::var(ROLE), std::env::var(PLACE), std::env::var(ENTRY))
    {
        let token = Token::new("entries").unwrap();
        let meeting = Rendezvous::new(RendezvousAddress::Abstract(place), token, RANKS, TIMEOUT);
        return enter(
            &entry,
            match rank.parse().unwrap() {
                0 => Bootstrap::listen(&meeting).unwrap(),
                rank => Bootstrap::join(&meeting, rank).unwrap(),
            },
        );
    }
    let folder = std::env::temp_dir().join(format!("weft-test-driver-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    build_driver(&folder);
    let start = |entry: &str, rank: usize| {
        let mut program = this_program();
        let place = format!("weft-test-{}-{entry}", std::process::id());
        program.args(["--exact", NAME, "--nocapture"]).env("LD_LIBRARY_PATH", &folder).env(PLACE, place);
        if entry != "survives" {
            program.env("STAND_IN_MPS", "1");
        }
        program.env(ROLE, rank.to_string()).env(ENTRY, entry).spawn().unwrap()
    };
    for entries in ENTRIES.chunks(4) {
        let jobs: Vec<(&str, Vec<Child>)> = entries
            .iter()
            .map(|entry| (*entry, (0..RANKS).map(|rank| start(entry, rank)).collect()))
            .collect();
        for (entry, children) in jobs {
            for (rank, mut child) in children.into_iter().enumerate() {
                let status = child.wait().unwrap();
                let expected = if rank == VICTIM { (None, Some(9)) } else { (Some(0), None) };
                assert_eq!((status.code(), status.signal()), expected, "{entry}, rank {rank}");
            }
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Compiles the stand-in for the driver into a folder.
pub(crate) fn build_driver(folder: &Path) {
    build("driver.cc", &folder.join("libcuda.so.1"));
}

/// Compiles a stand-in to a library.
pub(crate) fn build(source: &str, library: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lost_tests").join(source);
    let name = library.file_name().unwrap().to_str().unwrap();
    let mut compile = command("g++");
    compile.args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]);
    compile.arg(format!("-Wl,-soname,{name}")).arg(source).arg("-o").arg(library);
    assert!(compile.status().unwrap().success());
}

/// The driver fails every call from now on.
fn lose() {
    // SAFETY: the stand-in has this function of this type, and stays loaded.
    unsafe {
        let driver = Library::new("libcuda.so.1").unwrap();
        let lose = driver.get::<unsafe extern "C" fn(i32)>("stand_in_lose").unwrap();
        lose(700);
        let _ = driver.into_raw();
    }
}

fn die() {
    kill_process(getpid(), Signal::KILL).unwrap();
}

/// A rank of an entry: one dies, the contexts of the others are lost, and their next call says so.
fn enter(entry: &str, mut group: Bootstrap) {
    let mut all = group.split(Some(0), 0, TIMEOUT).unwrap().unwrap();
    // No rank dies or aborts before all ranks have joined. The death may be reported before the end of the exchange.
    let mut meet = || drop(all.exchange("all ranks", Vec::new(), TIMEOUT));
    let (is_victim, device) = (group.rank() == VICTIM, devices().unwrap().remove(0));
    let lost = match entry {
        "load" | "call" | "check" | "failure" | "release" | "late loss" => {
            let mut collectives = Collectives::new(group, &device, TIMEOUT).unwrap();
            collectives.plan_of(&Collective::AllReduce, 8, DataType::F32).unwrap();
            collectives.check().unwrap();
            meet();
            if is_victim {
                die();
            }
            let stream = Stream::new(collectives.context()).unwrap();
            let call = |collectives: &mut Collectives, collective| {
                // SAFETY: no kernel runs.
                unsafe { collectives.call(&collective, &stream, [64; 2], 8, DataType::F32, Reduction::Sum) }
            };
            if entry == "late loss" {
                // The death is known before the context is lost.
                while collectives.aborter().failure().is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::spawn(|| {
                    std::thread::sleep(LOST_AFTER);
                    lose();
                });
            } else {
                lose();
            }
            let begin = Instant::now();
            let error = match entry {
                "load" => call(&mut collectives, Collective::AllGather).unwrap_err(),
                "call" => call(&mut collectives, Collective::AllReduce).unwrap_err(),
                "release" => collectives.release_buffers().unwrap_err(),
                "failure" => {
                    let text = collectives.failure().unwrap();
                    assert!(text.starts_with("rank 1 died, and the CUDA context of this process"), "{text}");
                    collectives.check().unwrap_err()
                }
                _ => collectives.check().unwrap_err(),
            };
            assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
            // Every later one is the same, at once.
            let begin = Instant::now();
            assert_eq!(collectives.check().unwrap_err(), error);
            assert_eq!(call(&mut collectives, Collective::AllGather).unwrap_err(), error);
            assert_eq!(call(&mut collectives, Collective::AllReduce).unwrap_err(), error);
            drop(collectives);
            assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
            error
        }
        _ => {
            let mut rank = Rank::new(group, &device, TIMEOUT).unwrap();
            let elements = [1.0_f32, 2.0, 3.0];
            let mut buffer = rank.buffer_of(&elements).unwrap();
            assert_eq!(rank.read(&buffer).unwrap(), elements);
            meet();
            if is_victim {
                die();
            }
            if entry == "survives" {
                return survive(rank);
            }
            lose();
            let begin = Instant::now();
            let error = match entry {
                "synchronize" => rank.synchronize().unwrap_err(),
                "read" => rank.read(&buffer).unwrap_err(),
                "write" => rank.write(&mut buffer, &elements).unwrap_err(),
                "buffer" => rank.buffer::<u8>(1 << 20).unwrap_err(),
                "barrier" => rank.barrier().unwrap_err(),
                "shrink" => rank.shrink(TIMEOUT).unwrap_err(),
                "drop" => {
                    drop(rank);
                    assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
                    return;
                }
                entry => panic!("{entry}"),
            };
            assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
            error
        }
    };
    assert!(lost.needs_restart(), "{entry}: {lost}");
    let Error::ContextLost { dead, .. } = &lost else { panic!("{entry}: {lost}") };
    // A survivor that has finished has left, and is not dead.
    assert_eq!(dead[..], [VICTIM], "{entry}: {lost}");
}

/// Without MPS, contexts survive: the others continue in a smaller communicator.
fn survive(rank: Rank) {
    let begin = Instant::now();
    let error = loop {
        match rank.synchronize() {
            Ok(()) => assert!(begin.elapsed() < BOUND, "no call has reported the death"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.to_string(), "rank 1 has died. To continue without it, call shrink");
    assert!(!error.needs_restart());
    let rank = rank.shrink(TIMEOUT).unwrap();
    assert_eq!(rank.size(), RANKS - 1);
    let buffer = rank.buffer_of(&[rank.rank() as u32]).unwrap();
    assert_eq!(rank.read(&buffer).unwrap(), [rank.rank() as u32]);
    rank.synchronize().unwrap();
}
