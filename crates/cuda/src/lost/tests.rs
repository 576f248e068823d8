#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::Cell;
use std::process::Child;

use rustix::process::{Signal, getpid, kill_process};
use rustix::time::{ClockId, clock_gettime};
use weftlink_bootstrap::{Bootstrap, Rendezvous, RendezvousAddress, Token};
use weftlink_testkit::processes::this_program;

use super::*;
use crate::communicator::shrunk;

const TIMEOUT: Duration = Duration::from_secs(30);

fn cuda(code: u32) -> Error {
    let (attempt, name) = ("wait for a stream on GPU 0".to_owned(), "CUDA_ERROR".to_owned());
    Error::Cuda { attempt, code, name, text: "text".to_owned(), advice: "" }
}

fn failed() -> Error {
    Error::Failed { why: "timed out".to_owned() }
}

fn words() -> Words {
    let mut group = Bootstrap::alone();
    Words::share(&mut group, TIMEOUT).unwrap()
}

fn dead_in(error: &Error) -> Option<&[usize]> {
    match error {
        Error::ContextLost { dead, .. } => Some(dead),
        _ => None,
    }
}

#[test]
fn a_lost_context_is_the_error_of_every_later_call() {
    let watch = ContextWatch::new(words(), false, false);
    let no_probe = || -> Result<(), Error> { panic!("no rank has died, so there is nothing to probe") };
    assert_eq!(watch.explained(failed(), no_probe), failed());
    assert_eq!(watch.explained(cuda(2), no_probe), cuda(2));
    let begin = Instant::now();
    let lost = watch.explained(cuda(700), no_probe);
    assert!(begin.elapsed() < NOTICED_WITHIN / 2, "there is no other process to wait for");
    assert_eq!((dead_in(&lost), lost.code()), (Some(&[][..]), Some(700)));
    assert!(lost.needs_restart());
    for error in [failed(), cuda(709), cuda(2), Error::Group { why: "lost".to_owned() }] {
        assert_eq!(watch.explained(error, no_probe), lost);
    }
    let misuse = Error::Misuse { attempt: "call".to_owned(), why: "wrong".to_owned() };
    assert_eq!(watch.explained(misuse.clone(), no_probe), misuse);
}

#[test]
fn a_lost_context_waits_for_the_report_of_a_death() {
    let words = words();
    let watch = ContextWatch::new(words.clone(), true, true);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            words.report_death(0);
        });
        let lost = watch.explained(cuda(709), || Ok(()));
        assert_eq!(dead_in(&lost), Some(&[0][..]), "{lost}");
    });
    assert!(begin.elapsed() < NOTICED_WITHIN);
}

#[test]
fn a_lost_context_without_a_death_is_an_error_within_a_bound() {
    let words = words();
    let watch = ContextWatch::new(words.clone(), true, true);
    let begin = Instant::now();
    let lost = watch.explained(cuda(805), || Ok(()));
    assert_eq!(dead_in(&lost), Some(&[][..]), "{lost}");
    assert!((NOTICED_WITHIN..2 * NOTICED_WITHIN).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    // The process took longer to exit.
    words.report_death(0);
    for lost in [watch.lost().unwrap(), watch.explained(failed(), || Ok(()))] {
        assert_eq!((dead_in(&lost), lost.code()), (Some(&[0][..]), Some(805)), "{lost}");
    }
}

/// A kernel ends because of the death before the context is lost.
#[test]
fn a_death_under_mps_waits_for_the_loss_of_the_context() {
    let words = words();
    words.report_death(0);
    let (watch, probes) = (ContextWatch::new(words.clone(), true, true), Cell::new(0));
    let lost = watch.explained(failed(), || {
        probes.set(probes.get() + 1);
        if probes.get() < 4 { Ok(()) } else { Err(cuda(700)) }
    });
    assert_eq!((dead_in(&lost), probes.get()), (Some(&[0][..]), 4), "{lost}");

    // No kernel of that rank ran: the context stays, and later errors do not wait.
    let watch = ContextWatch::new(words.clone(), true, true);
    let begin = Instant::now();
    assert_eq!(watch.explained(failed(), || Ok(())), failed());
    assert!(begin.elapsed() >= DESTROYED_WITHIN);
    assert_eq!(watch.explained(failed(), || panic!("it has waited before")), failed());

    // Without MPS there is nothing to wait for.
    let watch = ContextWatch::new(words, true, false);
    assert_eq!(watch.explained(failed(), || panic!("without MPS")), failed());
}

fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// One of several processes is killed; the others learn it within a second, report it as the reason for the loss of their contexts, and form a
/// group in which a communicator can be made.
#[test]
fn survivors_name_the_rank_that_was_killed_and_shrink() {
    const RANKS: usize = 4;
    const VICTIM: usize = 2;
    const ROLE: &str = "WEFT_TEST_ROLE";
    const PLACE: &str = "WEFT_TEST_PLACE";
    let name = "lost::tests::survivors_name_the_rank_that_was_killed_and_shrink";
    let (Ok(rank), Ok(place)) = (std::env::var(ROLE), std::env::var(PLACE)) else {
        let place = format!("weft-test-{}-lost", std::process::id());
        let start = |rank: usize| {
            let mut program = this_program();
            program.args(["--exact", name, "--nocapture"]).env(ROLE, rank.to_string()).env(PLACE, &place);
            program.spawn().unwrap()
        };
        let children: Vec<Child> = (0..RANKS).map(start).collect();
        for (rank, mut child) in children.into_iter().enumerate() {
            let status = child.wait().unwrap();
            assert_eq!(status.success(), rank != VICTIM, "rank {rank}: {status}");
        }
        return;
    };
    let token = Token::new("lost").unwrap();
    let meeting = Rendezvous::new(RendezvousAddress::Abstract(place), token, RANKS, TIMEOUT);
    let mut group = match rank.parse().unwrap() {
        0 => Bootstrap::listen(&meeting).unwrap(),
        rank => Bootstrap::join(&meeting, rank).unwrap(),
    };
    let words = Words::share(&mut group, TIMEOUT).unwrap();
    let at = now() + Duration::from_millis(200);
    let at = group.exchange("a time", (at.as_nanos() as u64).to_le_bytes().to_vec(), TIMEOUT).unwrap();
    let at = Duration::from_nanos(u64::from_le_bytes(at[VICTIM][..].try_into().unwrap()));
    std::thread::sleep(at.saturating_sub(now()));
    if group.rank() == VICTIM {
        kill_process(getpid(), Signal::KILL).unwrap();
    }
    let watch = ContextWatch::new(words.clone(), true, true);
    let lost = watch.explained(cuda(700), || Ok(()));
    let noticed = now().saturating_sub(at);
    println!("rank {} noticed the death after {:.1} ms", group.rank(), noticed.as_secs_f64() * 1e3);
    assert!(lost.to_string().starts_with("rank 2 died, and the CUDA context of this process was"), "{lost}");
    assert!(noticed < Duration::from_secs(1), "{noticed:?}");
    let mut group = shrunk(group, TIMEOUT).unwrap();
    assert_eq!((group.size(), group.origins()), (RANKS - 1, &[0, 1, 3][..]));
    let words = Words::share(&mut group, TIMEOUT).unwrap();
    assert_eq!(words.failure(), None);
    group.exchange("the end", Vec::new(), TIMEOUT).unwrap();
}
