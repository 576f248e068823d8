//! Who is at the other end of a Unix socket, as the kernel knows it.

#![allow(unsafe_code)] // A socket's option is read through the C library.

use std::os::fd::{AsFd, AsRawFd};

use rustix::process::Pid;

/// The process that made the other end of a Unix socket, by the number it has here; nothing if it has none, because it is in a PID
/// namespace that this process does not see, or if the socket is of another kind.
///
/// The kernel says 0 for a process without a number. rustix has a function for this, but a type that cannot hold 0, so it must not be
/// used.
pub(super) fn peer_process(socket: &impl AsFd) -> Option<Pid> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to the structure, all of whose bits are values, and the length to its place.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if asked == 0 { Pid::from_raw(peer.pid) } else { None }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_other_end_of_a_unix_socket_has_a_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(peer_process(&one), Some(rustix::process::getpid()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert_eq!(peer_process(&listener), None);
    }
}
