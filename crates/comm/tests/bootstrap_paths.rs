//! Ranks that meet at a path of the file system and have networks of their own, as in containers: they share memory, but reach each
//! other through rank 0 only. A rank that cannot be reached by name is not dead.
#![allow(clippy::unwrap_used)] // All of this is test.

#[path = "bootstrap/meeting.rs"]
mod meeting;

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use meeting::{AMPLE, DEED, PLACE, ROLE, SIZE, assert_success, exchange, role};
use weftlink_comm::bootstrap::{Bootstrap, BootstrapError, Event, Rendezvous, RendezvousAddress};
use weftlink_testkit::processes::command;

/// This test again in as many network namespaces as ranks; nothing where that is not allowed.
fn ranks_apart(test: &str, deed: &str, size: usize) -> Option<Vec<Child>> {
    let apart = || {
        let mut command = command("unshare");
        command.arg("-n");
        command
    };
    let is_allowed =
        |command: &mut Command| command.arg("true").status().is_ok_and(|status| status.success());
    if !is_allowed(&mut apart()) {
        println!("skipped: no network namespaces here");
        return None;
    }
    let path = std::env::temp_dir().join(format!("weft-test-{test}-{deed}-{}", std::process::id()));
    let start = |rank: usize| {
        let mut command = apart();
        command.arg(std::env::current_exe().unwrap()).args([
            "--exact",
            test,
            "--nocapture",
            "--test-threads=1",
        ]);
        command.env(ROLE, rank.to_string()).env(SIZE, size.to_string()).env(PLACE, &path).env(DEED, deed);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    Some((0..size).map(start).collect())
}

/// This process's end of the group, if it is one of those.
fn meet() -> Option<Bootstrap> {
    let (rank, meeting) = role()?;
    let address = RendezvousAddress::Path(std::env::var(PLACE).unwrap().into());
    let meeting = Rendezvous { address, ..meeting };
    Some(if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) }.unwrap())
}

#[test]
fn ranks_of_several_networks_share_memory_and_do_not_shrink_to_one_each() {
    const TEST: &str = "ranks_of_several_networks_share_memory_and_do_not_shrink_to_one_each";
    if let Some(mut end) = meet() {
        assert!(end.hosts().iter().all(|host| *host == 0));
        end.share("memory", 64, AMPLE).unwrap();
        if end.rank() == 2 {
            std::process::exit(0); // Without leaving: the others take it for dead, or lost.
        }
        end.share("memory", 64, AMPLE).unwrap_err();
        let error = end.shrink(Duration::from_secs(2)).unwrap_err();
        let is_right = matches!(error, BootstrapError::Minority { .. } | BootstrapError::Missing { .. });
        assert!(is_right || matches!(error, BootstrapError::NoAnswer { .. }), "{error}");
        return;
    }
    let mut ranks = ranks_apart(TEST, "shrink", 3).unwrap_or_default();
    if let Some(mut gone) = ranks.pop() {
        ranks.into_iter().for_each(assert_success);
        gone.wait().unwrap();
    }
}

#[test]
fn a_rank_that_leaves_takes_no_rank_of_another_network_with_it() {
    const TEST: &str = "a_rank_that_leaves_takes_no_rank_of_another_network_with_it";
    if let Some(end) = meet() {
        let has_died = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&has_died);
        end.set_event_handler(Box::new(move |event| {
            if matches!(event, Event::Died { .. } | Event::Lost { .. }) {
                seen.store(true, Ordering::Relaxed);
            }
            None
        }));
        if end.rank() == 6 {
            drop(end);
            return thread::sleep(Duration::from_secs(3));
        }
        // Longer than it takes to miss the children that rank 6 would have in another tree.
        thread::sleep(Duration::from_secs(2));
        assert!(!has_died.load(Ordering::Relaxed), "rank {} heard of a death", end.rank());
        return thread::sleep(Duration::from_secs(1));
    }
    ranks_apart(TEST, "leave", 8).into_iter().flatten().for_each(assert_success);
}

#[test]
fn ranks_of_several_networks_exchange() {
    const TEST: &str = "ranks_of_several_networks_exchange";
    if let Some(end) = meet() {
        return exchange(end);
    }
    ranks_apart(TEST, "exchange", 4).into_iter().flatten().for_each(assert_success);
}
