//! Windows of a communicator, and the signals that the host enqueues.

// Launches kernels with addresses.
#![allow(unsafe_code)]

use super::{Communicator, Resources};
use crate::Error;
use crate::driver::{Capture, Event, Launch, Parameters, RelaxedCapture, Stream};
use crate::sharing::{Sharing, agree};
use crate::window::{DeviceWindow, Layout, WindowMemory};

/// A signal and a wait are kernels of one thread.
const ONE_THREAD: Launch = Launch { blocks: 1, threads: 1, shared_bytes: 0, is_cooperative: false };

/// What a kernel does with a peer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Signal,
    /// For this many signals.
    Wait(u32),
}

/// The window that a rank wants, and whether its GPU can multicast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wish {
    bytes: u64,
    is_multicast: bool,
    has_multicast: bool,
}

impl Wish {
    fn to_bytes(self) -> Vec<u8> {
        let flags = u8::from(self.is_multicast) | u8::from(self.has_multicast) << 1;
        [&self.bytes.to_le_bytes()[..], &[flags]].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Wish> {
        let (bytes, [flags]) = bytes.split_first_chunk()? else { return None };
        let (is_multicast, has_multicast) = (flags & 1 != 0, flags & 2 != 0);
        Some(Wish { bytes: u64::from_le_bytes(*bytes), is_multicast, has_multicast })
    }

    /// Why this rank cannot make its window together with another rank, if so.
    fn check(self, rank: usize, theirs: Option<Wish>, ranks_on_gpu: usize) -> Result<(), String> {
        let Some(theirs) = theirs else { return Err(format!("rank {rank} sent an unreadable message")) };
        if theirs.bytes != self.bytes {
            let bytes = theirs.bytes;
            return Err(format!(
                "rank {rank} allocates one of {bytes} bytes; all ranks pass the same length"
            ));
        }
        if theirs.is_multicast != self.is_multicast {
            return Err(format!("rank {rank} allocates one of another kind"));
        }
        if self.is_multicast && !theirs.has_multicast {
            return Err(format!("the GPU of rank {rank} does not support multicast objects"));
        }
        if self.is_multicast && ranks_on_gpu > 1 {
            return Err(format!("{ranks_on_gpu} ranks share a GPU, and each needs one of its own"));
        }
        Ok(())
    }
}

impl Communicator {
    /// Memory of this many bytes on every rank's GPU, zeroed, which all ranks map. All ranks call it, with the same length. Where GPUs cannot
    /// access each other it is host memory.
    pub fn window(&mut self, bytes: usize) -> Result<WindowMemory, Error> {
        self.new_window(bytes, false)
    }

    /// The same, with an address through which the NVLink switch stores to the memory of all ranks and adds it up
    /// ([`WindowMemory::multicast_address`]): for calls of plans with a switch, and kernels of the program. Each rank needs a GPU of its own that supports multicast objects (Hopper or later, behind an
    /// NVSwitch). Compiled and never run on such GPUs.
    ///
    /// A rank that drops the window takes its memory out of that address: all ranks must have ended their accesses through it before.
    pub fn multicast_window(&mut self, bytes: usize) -> Result<WindowMemory, Error> {
        self.new_window(bytes, true)
    }

    fn new_window(&mut self, bytes: usize, is_multicast: bool) -> Result<WindowMemory, Error> {
        let checked = self.check();
        self.check_for_all(checked)?;
        let kind = if is_multicast { "multicast window" } else { "window" };
        let misuse =
            |why: String| Err(Error::Misuse { attempt: format!("allocate a {kind} of {bytes} bytes"), why });
        let Some(layout) = Layout::new(bytes, self.in_process.len()) else {
            return misuse("no GPU has so much memory".to_owned());
        };
        // A thread may capture a graph.
        let ready = RelaxedCapture::begin(self.context.driver());
        let own =
            Wish { bytes: bytes as u64, is_multicast, has_multicast: self.context.device().has_multicast };
        let (_relaxed, all) = agree(&mut self.group, "a window", ready, |_| own.to_bytes(), self.timeout)?;
        for (rank, theirs) in all.iter().map(|bytes| Wish::from_bytes(bytes)).enumerate() {
            if let Err(why) = own.check(rank, theirs, self.ranks_on_gpu_max) {
                return misuse(why);
            }
        }
        // Loading waits for kernels: all ranks have launched their calls, and launch no more before all have shared memory.
        let loaded = self.resources.kernels.window().map(|_| ());
        agree(&mut self.group, "kernels of windows", loaded, |()| Vec::new(), self.timeout)?;
        let shared = self.share("windows", layout.sizes())?;
        let number = self.windows;
        self.windows += 1;
        let rank = self.rank();
        let window = WindowMemory::new(shared, layout, [rank, self.number], number, &self.stream);
        // The others have the window, and may wait for this rank in it.
        let mut window = window.map_err(|error| self.failed(error))?;
        if is_multicast {
            let sharing = Sharing {
                what: "windows",
                context: &self.context,
                stream: &self.stream,
                in_process: &self.in_process,
                timeout: self.timeout,
            };
            window.bind(&sharing, &mut self.group, &self.multicast)?;
        }
        Ok(window)
    }

    /// The parameter of kernels that use a window. It has the time limit of calls that is set now. Window and communicator must live until
    /// such a kernel has ended.
    pub fn device_window(&self, window: &WindowMemory) -> Result<DeviceWindow, Error> {
        if !window.is_of(self.number) {
            let why = "it belongs to another communicator".to_owned();
            return Err(Error::Misuse { attempt: "use a window".to_owned(), why });
        }
        let Resources { presence, reports, .. } = &*self.resources;
        Ok(window.for_kernels().with(presence.address(), reports.address(), self.call_timeout))
    }

    /// Enqueues a signal to a rank on a stream. It orders what came before it on the stream: the rank that has waited for the signal sees it.
    /// It may be captured.
    ///
    /// # Safety
    /// The window and the communicator live until the stream has executed it, and until the last launch of a graph that has it.
    pub unsafe fn signal(
        &mut self,
        window: &WindowMemory,
        stream: &Stream,
        peer: usize,
    ) -> Result<(), Error> {
        // SAFETY: the caller's.
        unsafe { self.enqueue_action(Action::Signal, window, stream, peer) }
    }

    /// Enqueues a wait for the next signal of a rank: the first wait is for its first signal, and so on. Later work of the stream sees what
    /// the rank did before the signal. It may be captured. If the rank is gone or late, the wait ends and [`Communicator::failure`] says so;
    /// later work of the stream still runs.
    ///
    /// # Safety
    /// As for [`Communicator::signal`].
    pub unsafe fn wait(&mut self, window: &WindowMemory, stream: &Stream, peer: usize) -> Result<(), Error> {
        // SAFETY: the caller's.
        unsafe { self.wait_for(window, stream, peer, 1) }
    }

    /// The same for the next signals of a rank, this many.
    ///
    /// # Safety
    /// As for [`Communicator::signal`].
    pub unsafe fn wait_for(
        &mut self,
        window: &WindowMemory,
        stream: &Stream,
        peer: usize,
        signals: u32,
    ) -> Result<(), Error> {
        // SAFETY: the caller's.
        unsafe { self.enqueue_action(Action::Wait(signals), window, stream, peer) }
    }

    /// # Safety
    /// As for [`Communicator::signal`].
    unsafe fn enqueue_action(
        &mut self,
        action: Action,
        window: &WindowMemory,
        stream: &Stream,
        peer: usize,
    ) -> Result<(), Error> {
        self.check()?;
        window.place(peer, 0, 0)?;
        let parameter = self.device_window(window)?;
        let is_captured = match stream.capture()? {
            Capture::None => false,
            Capture::Active => true,
            Capture::Invalidated => {
                let why = "the capture of its stream has failed".to_owned();
                return Err(Error::Misuse { attempt: format!("{action:?} a rank"), why });
            }
        };
        self.has_captured |= is_captured;
        let kernels = self.resources.kernels.window()?;
        let (kernel, count) = match action {
            Action::Signal => (&kernels.signal, 1),
            Action::Wait(signals) => (&kernels.wait, signals),
        };
        let peer = peer as u32;
        let parameters = [(&raw const parameter).cast(), (&raw const peer).cast(), (&raw const count).cast()];
        // SAFETY: these are the parameters of both kernels; the addresses are valid as the caller promises.
        let launched = unsafe { kernel.launch(stream, ONE_THREAD, Parameters::Pointers(&parameters)) };
        let noted = launched.and_then(|()| if is_captured { Ok(()) } else { self.note_action(stream) });
        if noted.is_err() {
            self.abort();
        }
        noted
    }

    /// Records an event after an action, for [`Communicator::leave`] to wait for.
    fn note_action(&mut self, stream: &Stream) -> Result<(), Error> {
        let known = self.actions.iter().position(|(known, _)| known.raw() == stream.raw());
        if let Some(known) = known {
            let (_, event) = &self.actions[known];
            // The program may have destroyed its stream, and the same handle may be another one by now.
            if stream.is_borrowed() {
                stream.wait_for(event)?;
            }
            return event.record(stream);
        }
        // A thread may capture a graph.
        let _relaxed = RelaxedCapture::begin(self.context.driver())?;
        self.actions.retain(|(_, event)| !event.is_done().unwrap_or(false));
        let event = Event::new(&self.context)?;
        event.record(stream)?;
        self.actions.push((stream.clone(), event));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_agree_on_a_window() {
        let plain = Wish { bytes: 100, is_multicast: false, has_multicast: false };
        let multicast = Wish { bytes: 100, is_multicast: true, has_multicast: true };
        for wish in [plain, multicast] {
            assert_eq!(Wish::from_bytes(&wish.to_bytes()), Some(wish));
            assert_eq!(wish.check(1, Some(wish), 1), Ok(()));
        }
        assert_eq!(Wish::from_bytes(&[0; 8]), None);
        assert_eq!(plain.check(1, Some(plain), 4), Ok(()));
        let refused = |own: Wish, theirs: Option<Wish>, ranks: usize, text: &str| {
            let why = own.check(3, theirs, ranks).unwrap_err();
            assert!(why.contains(text), "{why}");
        };
        refused(plain, None, 1, "rank 3 sent an unreadable");
        refused(plain, Some(Wish { bytes: 99, ..plain }), 1, "rank 3 allocates one of 99 bytes");
        refused(plain, Some(multicast), 1, "rank 3 allocates one of another kind");
        let without = Wish { has_multicast: false, ..multicast };
        refused(multicast, Some(without), 1, "the GPU of rank 3 does not support");
        refused(multicast, Some(multicast), 2, "2 ranks share a GPU");
    }
}
