//! Ranks meet and share memory, as threads and as processes.
#![allow(clippy::unwrap_used)] // All of this is test.

#[path = "bootstrap/meeting.rs"]
mod meeting;

use std::os::unix::net::UnixListener;
use std::thread;
use std::time::Duration;

use meeting::{AMPLE, assert_success, exchange, group, meeting, on_all, others, role, run};
use weftlink_comm::bootstrap::{Bootstrap, BootstrapError, Rendezvous, RendezvousAddress, Token};
use weftlink_shm::memory::SharedMemory;

#[test]
fn threads_share() {
    for size in [1, 2, 8] {
        let ends = Bootstrap::threads(size);
        assert_eq!(ends.len(), size);
        thread::scope(|scope| {
            for end in ends {
                scope.spawn(|| exchange(end));
            }
        });
    }
    assert!(Bootstrap::threads(0).is_empty());
}

#[test]
fn processes_share() {
    if let Some((rank, meeting)) = role() {
        return exchange(Bootstrap::join(&meeting, rank).unwrap());
    }
    for size in 1..=4 {
        let meeting = meeting("share", size);
        let children = others("processes_share", &meeting);
        let end = Bootstrap::listen(&meeting).unwrap();
        assert_eq!(end.pids()[0], std::process::id());
        for (index, child) in children.iter().enumerate() {
            assert_eq!(end.pids()[index + 1], child.id());
        }
        exchange(end);
        children.into_iter().for_each(assert_success);
    }
}

#[test]
fn stale_sockets_are_replaced() {
    let path = std::env::temp_dir().join(format!("weft-test-{}.socket", std::process::id()));
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let meeting = Rendezvous { address: RendezvousAddress::Path(path.clone()), ..meeting("path", 2) };
    thread::scope(|scope| {
        scope.spawn(|| exchange(Bootstrap::join(&meeting, 1).unwrap()));
        exchange(Bootstrap::listen(&meeting).unwrap());
    });
    assert!(!path.exists());

    let _taken = UnixListener::bind(&path).unwrap();
    let error = Bootstrap::listen(&meeting).unwrap_err();
    assert!(matches!(error, BootstrapError::RendezvousAddress { .. }), "{error}");
    assert!(path.exists());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn other_files_are_not_removed() {
    let file = std::env::temp_dir().join(format!("weft-no-socket-{}", std::process::id()));
    std::fs::write(&file, "precious").unwrap();
    let place = RendezvousAddress::Path(file.clone());
    let (token, deadline) = (Token::new("t").unwrap(), Duration::from_secs(1));
    let error = Bootstrap::listen(&Rendezvous::new(place, token, 2, deadline)).unwrap_err().to_string();
    assert!(error.contains("something else than a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn meaningless_calls_are_refused() {
    let meeting = |size| meeting("nonsense", size);
    let errors = [
        Bootstrap::listen(&meeting(0)),
        Bootstrap::listen(&meeting(100_000)),
        Bootstrap::join(&meeting(2), 2),
        Bootstrap::join(&meeting(2), 0),
    ]
    .map(Result::unwrap_err);
    for error in errors {
        assert!(matches!(error, BootstrapError::BadCall { .. }), "{error}");
    }
    assert!(Token::new("x".repeat(4097)).is_err());
    let mut end = Bootstrap::threads(1).remove(0);
    assert!(matches!(end.share(&"x".repeat(201), 1, AMPLE), Err(BootstrapError::BadCall { .. })));
}

#[test]
fn no_descriptors_are_leaked() {
    if role().is_none() {
        // In a process of its own, where no other test opens anything.
        return assert_success(run("no_descriptors_are_leaked", &meeting("leak", 2), 1));
    }
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("/memfd:").count();
    for make in [|| Bootstrap::threads(2), || group("leak-inner", 2)] {
        let before = open();
        let during = on_all(make(), |mut end| {
            let shared: Vec<SharedMemory> =
                (0..100).map(|bytes| end.share("heap", bytes * 100, AMPLE).unwrap()).collect();
            (shared, end)
        });
        // A listener, an eventfd and a connection for each end, but nothing for what they share.
        assert!(open() <= before + 8, "{} descriptors, {before} before", open());
        assert_eq!(mapped(), 2 * 99); // The one without bytes maps nothing.
        drop(during);
        assert_eq!((open(), mapped()), (before, 0));
    }
}
