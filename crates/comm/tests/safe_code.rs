//! Safe code cannot make Weft access invalid memory: such calls are refused or fail.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weftlink_comm::{Background, Communicator, Error, Options, Reduction, on_threads, while_waiting};

const LONG: Duration = Duration::from_secs(60);

fn alone() -> Communicator {
    Communicator::threads(1, Options::default()).unwrap().pop().unwrap()
}

/// A background whose communicator a closure has replaced, and the error that says so.
fn replaced(how: impl FnOnce(&mut Communicator) + Send + 'static) -> (Background, String) {
    let background = alone().into_background().unwrap();
    let replace = move |comm: &mut Communicator| {
        how(comm);
        Ok(())
    };
    let error = background.with(replace).unwrap_err().to_string();
    (background, error)
}

#[test]
fn replaced_communicators_end() {
    let (background, error) = replaced(|comm| *comm = alone());
    assert!(error.contains("replaced its communicator"), "{error}");
    // None of these has anything left to end.
    background.abort("now");
    assert!(!background.barrier().cancel());
    let error = background.barrier().wait().unwrap_err().to_string();
    assert!(error.contains("replaced"), "{error}");
    let error = background.with(|_| -> Result<(), Error> { panic!("in a closure") }).unwrap_err().to_string();
    assert!(error.contains("replaced"), "{error}");
    assert!(background.close().unwrap().barrier().is_err());
}

#[test]
fn communicators_moved_out_of_the_background_end() {
    let out = Arc::new(Mutex::new(Some(alone())));
    let into = Arc::clone(&out);
    let (background, error) =
        replaced(move |comm| std::mem::swap(comm, into.lock().unwrap().as_mut().unwrap()));
    assert!(error.contains("replaced its communicator"), "{error}");
    background.abort("now");
    let mut taken = out.lock().unwrap().take().unwrap();
    let error = taken.barrier().unwrap_err().to_string();
    assert!(error.contains("replaced"), "{error}");
}

#[test]
fn a_panic_after_a_replacement_is_contained() {
    let background = alone().into_background().unwrap();
    let other = alone();
    let work = move |comm: &mut Communicator| -> Result<(), Error> {
        *comm = other;
        panic!("after it was replaced");
    };
    assert!(background.with(work).is_err());
    background.abort("now");
    assert!(background.barrier().wait().is_err());
}

/// A panic in a poll hook must not unwind through the call, whose buffers are in use.
#[test]
fn a_panic_in_a_poll_hook_waits_for_the_message() {
    let got = on_threads(2, |mut comm| {
        let endpoint = comm.endpoint()?;
        comm.barrier()?;
        if comm.rank() == 1 {
            // Long after the other has panicked.
            std::thread::sleep(Duration::from_millis(300));
            endpoint.send(0, 7, &[5; 64], LONG)?;
            comm.barrier()?;
            return Ok((true, Vec::new()));
        }
        let mut bytes = vec![0_u8; 64];
        let receive =
            || while_waiting(|| panic!("meanwhile"), || endpoint.receive(Some(1), 7, &mut bytes, LONG));
        let panicked = catch_unwind(AssertUnwindSafe(receive)).is_err();
        comm.barrier()?;
        Ok((panicked, bytes))
    });
    assert_eq!(got.unwrap(), [(true, vec![5; 64]), (true, Vec::new())]);
}

#[test]
fn a_panic_in_a_poll_hook_waits_for_the_call() {
    let got = on_threads(2, |mut comm| {
        let mut window = comm.window::<u32>(1 << 16)?;
        window.fill(1 + comm.rank() as u32);
        comm.barrier()?;
        let panicked = if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(300));
            comm.all_reduce(&mut window, Reduction::Sum)?;
            true
        } else {
            let call =
                || while_waiting(|| panic!("meanwhile"), || comm.all_reduce(&mut window, Reduction::Sum));
            catch_unwind(AssertUnwindSafe(call)).is_err()
        };
        comm.barrier()?;
        Ok(panicked && window.iter().all(|sum| *sum == 3))
    });
    assert_eq!(got.unwrap(), [true, true]);
}
