//! Ranks that are missing, leave, die or make another call: the others hear of it, and the errors name them.
#![allow(clippy::unwrap_used)] // All of this is test.

#[path = "bootstrap/meeting.rs"]
mod meeting;

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use meeting::{AMPLE, BRIEF, PLACE, ROLE, SIZE, group, meeting, on_all, role, run};
use weftlink_comm::bootstrap::{Bootstrap, BootstrapError, Network, Rendezvous};
use weftlink_testkit::processes::this_program;

#[test]
fn timeouts_name_all_missing_ranks() {
    let meeting = Rendezvous { deadline: BRIEF, ..meeting("missing", 4) };
    let error = Bootstrap::listen(&meeting).unwrap_err().to_string();
    assert!(error.starts_with("timed out after 0.03 s waiting for ranks 1, 2 and 3 ("), "{error}");
    let error = Bootstrap::join(&meeting, 1).unwrap_err();
    assert!(matches!(error, BootstrapError::NobodyListens { .. }), "{error}");

    for mut ends in [Bootstrap::threads(3), group("silent", 3)] {
        let mut two = ends.remove(2);
        let _silent = ends.remove(1);
        let (zeros, twos) = thread::scope(|scope| {
            let zero = scope.spawn(|| ends[0].share("heap", 8, BRIEF).unwrap_err());
            let two = scope.spawn(|| two.share("heap", 8, AMPLE).unwrap_err());
            (zero.join().unwrap(), two.join().unwrap())
        });
        let missing = |ranks: &[usize]| BootstrapError::Missing {
            ranks: ranks.to_vec(),
            purpose: "heap".to_owned(),
            limit: BRIEF,
        };
        // Rank 2 may have come after rank 0 gave up, and waits for nobody but rank 1 either.
        for error in [&zeros, &twos] {
            let blamed: Vec<u32> = error.blamed().iter().map(|blame| blame.rank).collect();
            let late = matches!(error, BootstrapError::Late { .. }) && blamed == [1];
            assert!(late || *error == missing(&[1]) || *error == missing(&[1, 2]), "{error}");
        }
        for (mut end, first) in [(ends.remove(0), zeros), (two, twos)] {
            let error = end.share("heap", 8, AMPLE).unwrap_err();
            assert_eq!(error, BootstrapError::Poisoned { cause: first.to_string(), blamed: first.blamed() });
        }
    }
}

#[test]
fn rendezvous_warnings_name_the_missing_ranks() {
    // Rank 0 with nobody else, rank 1 without rank 0, and ranks 0 and 1 without rank 2.
    let start = |name: &str, rank: usize| {
        let place = format!("weft-test-{}-warn-{name}", std::process::id());
        let mut command = this_program();
        command.args(["--exact", "rendezvous_warnings_name_the_missing_ranks", "--nocapture"]);
        command.env(ROLE, rank.to_string()).env(SIZE, "3").env(PLACE, place).env("WEFT_WARN_AFTER", "100ms");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    if let Some((rank, meeting)) = role() {
        let network = Network::of(&weftlink_knobs::Knobs::from_environment().unwrap());
        let meeting = Rendezvous { network, deadline: Duration::from_secs(3), ..meeting };
        let met = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
        return assert!(met.is_err());
    }
    let alone = [(start("zero", 0), "ranks 1 and 2"), (start("one", 1), "rank 0")];
    let together = [(start("both", 0), "rank 2"), (start("both", 1), "rank 2")];
    for (child, whom) in alone.into_iter().chain(together) {
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let is_said = |line: &str| line.contains("weft WARN") && line.ends_with(&format!(" s for {whom}"));
        assert!(
            errors.lines().any(|line| line.contains(" has waited ") && is_said(line)),
            "{whom}: {errors}"
        );
        assert!(output.status.success(), "{errors}");
    }
}

#[test]
fn differing_requests_are_reported_on_every_rank() {
    for ends in [Bootstrap::threads(3), group("mismatch", 3)] {
        let errors = on_all(ends, |mut end| {
            let bytes = if end.rank() == 1 { 4096 } else { 8192 };
            end.share("heap", bytes, AMPLE).unwrap_err()
        });
        for error in &errors {
            let text = error.to_string();
            assert!(matches!(error, BootstrapError::Mismatch { .. }), "{text}");
            assert!(text.contains("rank 1 requested 4096 bytes for \"heap\""), "{text}");
            assert!(text.contains("requested 8192 bytes for \"heap\""), "{text}");
            assert_eq!(error, &errors[0]);
        }
    }
    for ends in [Bootstrap::threads(2), group("mismatch-purpose", 2)] {
        let errors = on_all(ends, |mut end| {
            end.share(["heap", "counters"][end.rank()], 64, AMPLE).unwrap_err().to_string()
        });
        assert!(errors[0].contains("\"heap\"") && errors[0].contains("\"counters\""), "{errors:?}");
        assert_eq!(errors[0], errors[1]);
    }
}

#[test]
fn shortage_is_an_error_on_every_rank() {
    for ends in [Bootstrap::threads(2), group("short", 2)] {
        for error in on_all(ends, |mut end| end.share("all of it", 1 << 46, AMPLE).unwrap_err()) {
            assert!(matches!(error, BootstrapError::Memory { .. }), "{error}");
            assert!(error.to_string().contains("70368744177664 bytes"), "{error}");
        }
    }
}

#[test]
fn all_ranks_name_a_departed_rank() {
    for (ends, leaver) in [
        (Bootstrap::threads(3), 1),
        (group("left-1", 3), 1),
        (Bootstrap::threads(3), 0),
        (group("left-0", 3), 0),
    ] {
        let errors =
            on_all(ends, |mut end| (end.rank() != leaver).then(|| end.share("heap", 8, AMPLE).unwrap_err()));
        for error in errors.into_iter().flatten() {
            let (pid, purpose) = (std::process::id(), "heap".to_owned());
            assert_eq!(error, BootstrapError::Left { rank: leaver, pid, purpose });
        }
    }
}

#[test]
fn all_ranks_name_a_killed_process() {
    if let Some((rank, meeting)) = role() {
        let _end = Bootstrap::join(&meeting, rank).unwrap();
        thread::sleep(AMPLE); // The parent does not let it sleep so long.
        unreachable!("it was to be killed");
    }
    let meeting = meeting("killed", 3);
    thread::scope(|scope| {
        let one = scope.spawn(|| Bootstrap::join(&meeting, 1).unwrap());
        let mut two = run("all_ranks_name_a_killed_process", &meeting, 2);
        let mut zero = Bootstrap::listen(&meeting).unwrap();
        let mut one = one.join().unwrap();
        two.kill().unwrap();
        let one = scope.spawn(move || one.share("heap", 8, AMPLE).unwrap_err());
        for error in [zero.share("heap", 8, AMPLE).unwrap_err(), one.join().unwrap()] {
            assert!(matches!(error, BootstrapError::Died { rank: 2, pid, .. } if pid == two.id()), "{error}");
        }
        two.wait().unwrap();
    });
}
