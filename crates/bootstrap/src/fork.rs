//! Connections that a forked process does not keep.
//!
//! A rank that forks (a data loader's workers, a shell command) hands its open connections to the child. If the rank dies
//! then, they stay open as long as the child lives, and ranks on other hosts, who have nothing but the connection to tell by,
//! would wait for it. So the child lets go of them before it does anything else: [`Kept`] notes every connection between ranks
//! in a table, and every socket at which one listens, and what the C library calls in the child of every fork puts nothing in the place of what is there.
//!
//! The table is made of atomics, because the child of a program with threads may take no lock. A number is taken out before
//! its connection is closed, so that the child never closes what somebody else has opened under it since.
//!
//! Deliberately absent: programs that fork without the C library (a bare `clone`). Those keep the connections.

#![allow(unsafe_code)] // A handler that the C library calls, and descriptors by number.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Connections beyond these are kept by forked processes.
const PLACES: usize = 8192;
const FREE: i32 = -1;

static TABLE: [AtomicI32; PLACES] = [const { AtomicI32::new(FREE) }; PLACES];
static HANDLER: Once = Once::new();
/// How often this process and those before it were forked, since the handler is there.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A connection of this process alone.
#[derive(Debug)]
pub struct Kept {
    _noted: ForkGuard,
    socket: OwnedFd,
}

/// That a socket is of this process alone. To be dropped before the socket is.
#[derive(Debug)]
pub(super) struct ForkGuard {
    place: Option<usize>,
}

impl Kept {
    /// Keeps a socket in this process only.
    pub fn new(socket: OwnedFd) -> Kept {
        Kept { _noted: ForkGuard::new(&socket), socket }
    }
}

/// Has this process's children know that they were forked.
fn watch_forks() {
    HANDLER.call_once(|| {
        // SAFETY: the handler is a function of this program, which only makes system calls. If there is no memory to note
        // it, forked processes keep connections, and everything else goes on.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// A number that is another in a process that is forked from now on. Unlike the process's number it is known without a system
/// call.
pub fn generation() -> u32 {
    watch_forks();
    FORKS.load(Ordering::Relaxed)
}

impl ForkGuard {
    pub(super) fn new(socket: &impl AsFd) -> ForkGuard {
        watch_forks();
        let number = socket.as_fd().as_raw_fd();
        let is_taken = |place: &AtomicI32| {
            place.compare_exchange(FREE, number, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        ForkGuard { place: TABLE.iter().position(is_taken) }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            TABLE[place].store(FREE, Ordering::Relaxed);
        }
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: system calls that may be made in the child of a fork, on connections of the parent, whose owners do not run here.
    // What takes their numbers stays open, because copies of the owners may still close them, but not in a program that the child
    // becomes.
    unsafe {
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for place in &TABLE {
            let number = place.swap(FREE, Ordering::Relaxed);
            if number != FREE && nothing >= 0 {
                libc::dup3(nothing, number, libc::O_CLOEXEC);
            }
        }
        if nothing >= 0 {
            libc::close(nothing);
        }
    }
}
