//! Processes that are not of the job, or not as its other ranks are, are refused, with the reason.
#![allow(clippy::unwrap_used)] // All of this is test.

#[path = "bootstrap/meeting.rs"]
mod meeting;

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use meeting::{BRIEF, DEED, address, exchange, loopback, meeting};
use weftlink_comm::bootstrap::{Bootstrap, BootstrapError, Network, Refusal, Rendezvous, Token};
use weftlink_knobs::Knobs;
use weftlink_testkit::processes::this_program;

#[test]
fn invalid_clients_are_refused_and_ranks_still_join() {
    let meeting = meeting("refusals", 3);
    thread::scope(|scope| {
        let zero = scope.spawn(|| Bootstrap::listen(&meeting).unwrap());
        let one = scope.spawn(|| Bootstrap::join(&meeting, 1).unwrap());

        let refused = |meeting: &Rendezvous, rank| match Bootstrap::join(meeting, rank).unwrap_err() {
            BootstrapError::Refused { reason, rank: named, .. } if named == rank => reason,
            other => panic!("{other}"),
        };
        let stranger = Rendezvous { token: Token::new("guess").unwrap(), ..meeting.clone() };
        assert_eq!(refused(&stranger, 2), Refusal::Token);
        let larger = Rendezvous { size: 4, ..meeting.clone() };
        assert_eq!(refused(&larger, 2), Refusal::Size { joiner: 4, listener: 3 });
        assert_eq!(refused(&larger, 3), Refusal::Size { joiner: 4, listener: 3 });

        // Another version, not Weft at all, nothing at all, and one that goes without a hello.
        for greeting in [&b"weftlink\x63\0\0\0"[..], b"GET / HTTP/1.1\r\n\r\n", b""] {
            let mut stream = UnixStream::connect_addr(&address(&meeting)).unwrap();
            stream.write_all(greeting).unwrap();
        }

        let two = Bootstrap::join(&meeting, 2).unwrap();
        for end in [zero.join().unwrap(), one.join().unwrap(), two] {
            scope.spawn(|| exchange(end));
        }
    });
}

#[test]
fn duplicate_ranks_are_refused() {
    let meeting = meeting("twice", 3);
    thread::scope(|scope| {
        let zero = scope.spawn(|| Bootstrap::listen(&meeting).unwrap());
        // One that came and ended has left its place.
        let impatient = Rendezvous { deadline: 3 * BRIEF, ..meeting.clone() };
        assert!(Bootstrap::join(&impatient, 1).is_err());
        // Whichever of the two comes first is in; rank 2 comes when the other has been refused.
        let (tell, told) = std::sync::mpsc::channel();
        let ones: Vec<_> = (0..2)
            .map(|_| {
                let (tell, meeting) = (tell.clone(), &meeting);
                scope.spawn(move || {
                    let end = Bootstrap::join(meeting, 1);
                    tell.send(end.as_ref().err().cloned()).unwrap();
                    end.ok()
                })
            })
            .collect();
        let error = told.recv().unwrap().expect("nobody is in before rank 2 comes");
        let expected = Refusal::Duplicate { rank: 1, pid: std::process::id() };
        assert!(matches!(&error, BootstrapError::Refused { reason, .. } if *reason == expected), "{error}");
        let two = Bootstrap::join(&meeting, 2).unwrap();
        let one = ones.into_iter().filter_map(|one| one.join().unwrap()).next().unwrap();
        for end in [zero.join().unwrap(), one, two] {
            scope.spawn(|| exchange(end));
        }
    });
}

#[test]
fn version_errors_name_both_versions() {
    let meeting = meeting("version", 2);
    let listener = UnixListener::bind_addr(&address(&meeting)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| listener.accept().unwrap().0.write_all(b"weftlink\x63\0\0\0").unwrap());
        let error = Bootstrap::join(&meeting, 1).unwrap_err().to_string();
        assert!(error.contains("version 9.") && error.contains("version 99"), "{error}");
    });
    thread::scope(|scope| {
        scope.spawn(|| listener.accept().unwrap().0.write_all(b"HTTP/1.1 400 Bad\r\n").unwrap());
        let error = Bootstrap::join(&meeting, 1).unwrap_err();
        assert!(matches!(error, BootstrapError::Refused { reason: Refusal::NotWeft, .. }), "{error}");
    });
}

#[test]
fn differing_settings_are_refused_by_name() {
    let meeting = Rendezvous { address: loopback(), ..meeting("", 2) };
    thread::scope(|scope| {
        let zero = scope.spawn(|| Bootstrap::listen(&meeting).unwrap());
        let terms = vec![("WEFT_ENCRYPT".to_owned(), "on".to_owned())];
        let other = Rendezvous { network: Network { terms, ..Network::default() }, ..meeting.clone() };
        let error = Bootstrap::join(&other, 1).unwrap_err().to_string();
        assert!(
            error.contains("WEFT_ENCRYPT: it has on, rank 0 has unset. Give all ranks the same"),
            "{error}"
        );
        let wrong = Rendezvous { token: Token::new("guess").unwrap(), ..meeting.clone() };
        let error = Bootstrap::join(&wrong, 1).unwrap_err();
        assert!(matches!(error, BootstrapError::Refused { reason: Refusal::Token, .. }), "{error}");
        Bootstrap::join(&meeting, 1).unwrap();
        zero.join().unwrap();
    });
}

#[test]
fn an_empty_secret_is_an_error() {
    const TEST: &str = "an_empty_secret_is_an_error";
    if std::env::var(DEED).is_ok() {
        let knobs = Knobs::from_environment().unwrap();
        return println!("{}", Bootstrap::from_environment(&knobs).unwrap_err());
    }
    assert!(Token::new("").is_err());
    for name in ["WEFT_SECRET", "WEFT_SECRET_FILE"] {
        let output = this_program()
            .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
            .env_clear()
            .envs([
                (DEED, "meet"),
                ("RANK", "0"),
                ("WORLD_SIZE", "2"),
                ("WEFT_RENDEZVOUS", "127.0.0.1:1"),
                (name, " "),
            ])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains(&format!("{name} is set and empty")), "{said}");
    }
}
