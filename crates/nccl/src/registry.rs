//! The objects that the program holds by a pointer. The pointer is a number that is never used again, so a stale one is an error and not a crash.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use weftlink::bootstrap::generation;

use crate::abi;
use crate::comm::Comm;
use crate::failure::Failure;
use crate::lock::lock;

static COMMS: RwLock<Option<HashMap<usize, Arc<Comm>>>> = RwLock::new(None);

/// The numbers are multiples of this, as addresses of objects would be: programs print them.
const STEP: usize = 64;
const FIRST: usize = 0x1000;

/// Adds a communicator.
pub(crate) fn add(comm: Arc<Comm>) -> abi::Comm {
    let mut comms = COMMS.write().unwrap_or_else(PoisonError::into_inner);
    let comms = comms.get_or_insert_with(HashMap::new);
    let number = next();
    comms.insert(number, comm);
    number as *mut c_void
}

fn next() -> usize {
    static NEXT: Mutex<usize> = Mutex::new(FIRST);
    let mut next = lock(&NEXT);
    *next += STEP;
    *next
}

/// The communicator of a pointer.
pub(crate) fn find(comm: abi::Comm) -> Result<Arc<Comm>, Failure> {
    let comms = COMMS.read().unwrap_or_else(PoisonError::into_inner);
    let found = comms.as_ref().and_then(|comms| comms.get(&(comm as usize)));
    own(found.ok_or_else(|| unknown(comm))?).cloned()
}

/// Refuses communicators of a parent process, whose threads do not exist here.
fn own(comm: &Arc<Comm>) -> Result<&Arc<Comm>, Failure> {
    if comm.generation == generation() {
        return Ok(comm);
    }
    Err(Failure::usage(format!(
        "process {} made the communicator, and this one is its child: a process that was forked makes its own",
        comm.process
    )))
}

/// Takes a communicator out. Threads that still use it keep it.
pub(crate) fn remove(comm: abi::Comm) -> Result<Arc<Comm>, Failure> {
    let mut comms = COMMS.write().unwrap_or_else(PoisonError::into_inner);
    let comms = comms.get_or_insert_with(HashMap::new);
    // One of a parent stays: its end would wait for threads.
    own(comms.get(&(comm as usize)).ok_or_else(|| unknown(comm))?)?;
    comms.remove(&(comm as usize)).ok_or_else(|| unknown(comm))
}

fn unknown(comm: abi::Comm) -> Failure {
    match comm.is_null() {
        true => Failure::argument("the communicator is NULL"),
        false => {
            Failure::argument(format!("there is no communicator {comm:p}: it was destroyed, or never made"))
        }
    }
}
