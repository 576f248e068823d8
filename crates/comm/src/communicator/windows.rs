//! Symmetric memory: windows that all ranks have mapped, and buffers that lie in them.

use std::sync::Arc;

use rustix::param::page_size;
use weftlink_recorder::header::{CallKind, Header, Location};

use super::Communicator;
use crate::buffers::Buffers;
use crate::data::{Data, Elements};
use crate::error::Error;
use crate::shared::WindowPlace;
use crate::symmetric::{Symmetric, User};
use crate::window::Window;

impl Communicator {
    /// Allocates zeroed symmetric memory of `length` elements per rank. All ranks call it with the same length.
    pub fn window<T: Data>(&mut self, length: usize) -> Result<Window<T>, Error> {
        self.usable()?;
        let too_long = || Error::Misuse(format!("a window of {length} elements per rank is too large"));
        let stride =
            length.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_next_multiple_of(page_size()));
        let total = stride.and_then(|stride| stride.checked_mul(self.size)).ok_or_else(too_long)?;
        let stride = total / self.size;
        // The last number is reserved for ordinary memory.
        let number = u16::try_from(self.windows.len()).ok().filter(|number| *number < u16::MAX);
        let number = number
            .ok_or_else(|| Error::Misuse(format!("a communicator has at most {} windows", u16::MAX)))?;
        let header = Header::allocating(CallKind::Window, 0, length, Elements::of::<T>().announced());
        let memory = Symmetric::new(self.share(header, total)?, self.user());
        self.shared.windows.push(WindowPlace { base: memory.memory().as_ptr(), stride });
        self.windows.push(Arc::clone(&memory));
        Ok(Window::new(memory, self.rank, stride, length, number, self.identity))
    }

    /// Registers a window of another communicator with this one, for calls on raw addresses. Both communicators have the same ranks in
    /// the same order; all ranks adopt the same windows in the same order, while no call uses them.
    ///
    /// From then on the communicators fail together: after a failed call on the window the rank keeps a private copy of its part, which
    /// its peers do not see, so calls of the others on the window would be wrong.
    pub fn adopt<T: Data>(&mut self, window: &Window<T>) -> Result<(), Error> {
        self.usable()?;
        let (memory, stride) = window.whole();
        let is_ours = window.rank() == self.rank;
        if self.spans_hosts || !is_ours || stride * self.size != memory.memory().len() {
            return Err(Error::Misuse(
                "only a communicator of the same ranks, on one host, can adopt a window".to_owned(),
            ));
        }
        if self.windows.len() >= usize::from(u16::MAX) {
            return Err(Error::Misuse(format!("a communicator has at most {} windows", u16::MAX)));
        }
        if !memory.adopt(self.user()) {
            return Err(Error::Misuse(
                "a call on this window has failed, so it is no longer shared; allocate a new one".to_owned(),
            ));
        }
        self.shared.windows.push(WindowPlace { base: memory.memory().as_ptr(), stride });
        self.windows.push(Arc::clone(memory));
        Ok(())
    }

    /// This communicator, as one that uses a window.
    fn user(&self) -> User {
        User {
            identity: self.identity,
            rank: self.rank as u32,
            waiter: self.shared.waiter,
            report: Box::new(self.bootstrap.notifier()),
            _control: Arc::clone(&self.control),
        }
    }

    /// Marks buffers that lie in this rank's part of a window as symmetric.
    pub(crate) fn located<'a>(&self, buffers: Buffers<'a>) -> Buffers<'a> {
        if self.windows.is_empty() {
            return buffers;
        }
        buffers.located(self.identity, |address, bytes| {
            let window = |(number, window): (u16, &WindowPlace)| {
                let part = window.base.wrapping_add(self.rank * window.stride) as usize;
                let offset = (address as usize).checked_sub(part)?;
                let within = offset.checked_add(bytes)? <= window.stride;
                within.then_some(Location::Window { number, offset: offset as u64 })
            };
            (0..).zip(&self.shared.windows).find_map(window)
        })
    }
}
