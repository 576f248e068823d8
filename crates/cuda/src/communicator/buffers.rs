//! Buffers of the program that other ranks write to without a call of their owner.

use super::access::{self, Peers};
use super::run::is_over;
use super::{Communicator, Resources};
use crate::Error;
use crate::driver::DeviceAddress;
use crate::registration::{CallState, Obstacle};

impl Communicator {
    /// The address of a buffer of this rank's GPU for the GPU of each rank, which has it mapped when this returns. The calling threads of other
    /// ranks take no part. It stays mapped until [`Communicator::unshare_buffer`]; the memory must stay allocated as long.
    ///
    /// Memory of `cudaMalloc` and of `cuMemCreate` with a handle can be shared. With [`Memory::Host`](crate::Memory::Host), none can.
    pub fn share_buffer(
        &mut self,
        address: DeviceAddress,
        bytes: usize,
    ) -> Result<Vec<DeviceAddress>, Error> {
        self.check()?;
        let misuse = |why: String| Error::Misuse {
            attempt: format!("share the {bytes} bytes at {address:#x} with other ranks"),
            why,
        };
        if !self.accesses_buffers() {
            return Err(misuse("GPUs do not access each other's memory here".to_owned()));
        }
        let buffer = (address, bytes as u64);
        let peers = Peers { context: &self.context, devices: &self.peers };
        if !self.peers.is_empty()
            && let Some(why) = access::obstacle(&peers, buffer)?
        {
            return Err(misuse(why));
        }
        let ranks = self.in_process.len();
        let Resources { registry, reports, .. } = &mut *self.resources;
        let Some(registry) = registry else { return Ok(vec![address; ranks]) };
        let has_failed = || reports.failure().is_some();
        let (last, event, actions) = (&self.last, &self.event, &self.actions);
        let are_over = || !self.has_captured && is_over(last, event, actions).unwrap_or(false);
        let calls = &CallState { are_over: &are_over, has_failed: &has_failed };
        registry.hold(buffer, calls).map_err(|obstacle| match obstacle {
            Obstacle::Error(why) => why,
            Obstacle::Unshareable(why) => misuse(why),
        })
    }

    /// Other ranks write to the buffer no more: the next [`Communicator::release_buffers`] lets them unmap it.
    pub fn unshare_buffer(&mut self, address: DeviceAddress, bytes: usize) {
        if let Some(registry) = &mut self.resources.registry {
            registry.let_go((address, bytes as u64));
        }
    }
}
