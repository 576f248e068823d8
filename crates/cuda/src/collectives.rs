//! Collectives by name: each call runs the plan that [`choose`] selects for it, loaded at first use.

// Calls a function that takes addresses.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::time::Duration;

use weftlink_bootstrap::Bootstrap;
use weftlink_plan::{Aliasing, Collective, DataType, Reduction, Verified};

use crate::choose::{Choice, choose, choose_through_switch};
use crate::driver::{Context, Device, DeviceAddress, Stream};
use crate::{Aborter, Communicator, Error, Memory, Operation, PlanId};

/// A communicator that chooses plans.
#[derive(Debug)]
pub struct Collectives {
    communicator: Communicator,
    ranks: u32,
    plans: HashMap<(Collective, Choice), LoadedPlan>,
}

/// A plan that calls can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedPlan {
    id: PlanId,
    collective: Collective,
    /// Its name.
    pub name: String,
    /// How it takes buffers.
    pub aliasing: Vec<Aliasing>,
}

impl LoadedPlan {
    /// What it computes.
    pub fn collective(&self) -> &Collective {
        &self.collective
    }
}

impl Collectives {
    /// Joins the ranks of a group on a GPU. All ranks call it.
    pub fn new(group: Bootstrap, device: &Device, timeout: Duration) -> Result<Collectives, Error> {
        let ranks = group.size() as u32;
        let communicator = Communicator::new(group, device, timeout)?;
        Ok(Collectives { communicator, ranks, plans: HashMap::new() })
    }

    /// The same, with the memory for what ranks send each other; see [`Communicator::with_memory`].
    pub fn with_memory(
        group: Bootstrap,
        device: &Device,
        memory: Memory,
        timeout: Duration,
    ) -> Result<Collectives, Error> {
        let ranks = group.size() as u32;
        let communicator = Communicator::with_memory(group, device, memory, timeout)?;
        Ok(Collectives { communicator, ranks, plans: HashMap::new() })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.communicator.rank()
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The context of its GPU.
    pub fn context(&self) -> &Context {
        self.communicator.context()
    }

    /// Why no call can succeed any more, if so; see [`Communicator::check`].
    pub fn failure(&self) -> Option<String> {
        self.communicator.failure()
    }

    /// The error of a call that failed, of a rank that died or aborted, or of a lost context; see [`Communicator::check`].
    pub fn check(&self) -> Result<(), Error> {
        self.communicator.check()
    }

    /// The group of the ranks that are left after a failure; see [`Communicator::shrink`].
    pub fn shrink(self, timeout: Duration) -> Result<Bootstrap, Error> {
        self.communicator.shrink(timeout)
    }

    /// Waits for the ends of processes that have died; see [`Communicator::await_ends`].
    pub fn await_ends(&self) {
        self.communicator.await_ends();
    }

    pub(crate) fn give_up(&mut self) -> Result<Bootstrap, Error> {
        self.communicator.give_up()
    }

    /// The error to return in place of one of the driver.
    pub(crate) fn explained(&self, error: Error) -> Error {
        self.communicator.explained(error)
    }

    /// Sets how long a call waits for another rank before it fails; see [`Communicator::set_call_timeout`].
    pub fn set_call_timeout(&mut self, timeout: Duration) {
        self.communicator.set_call_timeout(timeout);
    }

    /// Ends the calls of all ranks that wait; see [`Communicator::abort`].
    pub fn abort(&self) {
        self.communicator.abort();
    }

    /// Ends calls from any thread, also while another one uses the communicator.
    pub fn aborter(&self) -> Aborter {
        self.communicator.aborter()
    }

    /// Lets ranks in other processes unmap this rank's buffers; see [`Communicator::release_buffers`].
    pub fn release_buffers(&mut self) -> Result<(), Error> {
        self.communicator.release_buffers()
    }

    /// Whether other ranks are in this process and on this GPU: then each needs streams of its own, because a call waits for theirs.
    pub fn shares_context(&self) -> bool {
        self.communicator.shares_context()
    }

    /// Whether all ranks are in this process.
    pub fn is_in_one_process(&self) -> bool {
        self.communicator.is_in_one_process()
    }

    /// Whether windows can be freed without a wait for all kernels of the context. Memory of windows on the host cannot, and kernels of other
    /// ranks there may wait for a call that this rank makes next.
    pub(crate) fn frees_at_once(&self) -> bool {
        self.communicator.accesses_buffers() || !self.communicator.shares_context()
    }

    /// Waits for this rank's calls and makes no more; see [`Communicator::leave`].
    pub fn leave(&self) -> Result<(), Error> {
        self.communicator.leave()
    }

    /// The communicator, for windows.
    pub fn communicator(&mut self) -> &mut Communicator {
        &mut self.communicator
    }

    /// Loads a plan of the caller's. All ranks call it with the same plan.
    pub fn load(&mut self, plan: Verified) -> Result<LoadedPlan, Error> {
        let (name, aliasing, collective) =
            (plan.name.clone(), plan.aliasing.clone(), plan.collective.clone());
        Ok(LoadedPlan { id: self.communicator.load(plan)?, collective, name, aliasing })
    }

    /// The plan of calls of this size, loaded at first use. All ranks call it with the same arguments: loading waits for all of them.
    pub fn plan_of(
        &mut self,
        collective: &Collective,
        count: usize,
        data_type: DataType,
    ) -> Result<LoadedPlan, Error> {
        self.plan_through([false; 2], collective, count, data_type, Reduction::Sum)
    }

    /// The same, of calls whose input or output is in a multicast window. All ranks pass the same.
    pub(crate) fn plan_through(
        &mut self,
        multicast: [bool; 2],
        collective: &Collective,
        count: usize,
        data_type: DataType,
        reduction: Reduction,
    ) -> Result<LoadedPlan, Error> {
        let (ranks, communicator) = (self.ranks, &self.communicator);
        let (gives, gets) = collective.blocks(ranks);
        let bytes = count.saturating_mul(data_type.bytes()).saturating_mul(gives.max(gets) as usize);
        let switched = choose_through_switch(collective, ranks, count, data_type, reduction, multicast);
        let choice = switched.unwrap_or_else(|| {
            choose(collective, bytes, communicator.ranks_on_gpu_max(), communicator.accesses_buffers())
        });
        let key = (collective.clone(), choice);
        if let Some(known) = self.plans.get(&key) {
            return Ok(known.clone());
        }
        let loaded = self.load(choice.plan(collective, ranks)?)?;
        self.plans.insert(key, loaded.clone());
        Ok(loaded)
    }

    /// Compiles the kernel of a call, without loading it. Waits for no other rank.
    pub fn compile_call(
        &mut self,
        plan: &LoadedPlan,
        buffers: [DeviceAddress; 2],
        count: usize,
        data_type: DataType,
        reduction: Reduction,
    ) -> Result<(), Error> {
        self.communicator.compile_call(plan.id, buffers, count, data_type, reduction)
    }

    /// Compiles and loads what a call needs, so that the call itself only launches; see [`Communicator::prepare_call`].
    pub fn prepare_call(
        &mut self,
        plan: &LoadedPlan,
        buffers: [DeviceAddress; 2],
        count: usize,
        data_type: DataType,
        reduction: Reduction,
    ) -> Result<(), Error> {
        self.communicator.prepare_call(plan.id, buffers, count, data_type, reduction).map(|_| ())
    }

    /// Enqueues a call of a loaded plan on a stream.
    ///
    /// # Safety
    /// As for [`Communicator::run`].
    pub unsafe fn run(
        &mut self,
        plan: &LoadedPlan,
        stream: &Stream,
        buffers: [DeviceAddress; 2],
        count: usize,
        data_type: DataType,
        operation: impl Into<Operation>,
    ) -> Result<(), Error> {
        // SAFETY: as the caller promises.
        unsafe { self.communicator.run(plan.id, stream, buffers, count, data_type, operation) }
    }

    /// Enqueues a collective on a stream: `count` elements of a block, input and output as in NCCL. All ranks make the same calls in the
    /// same order. The first call of a kind loads a plan and kernels, and waits for other ranks to do so; a thread that makes the calls of
    /// several ranks lets each load them before, on a thread of its own, by [`Collectives::plan_of`] and [`Collectives::prepare_call`].
    /// Collectives without a reduction ignore it.
    ///
    /// # Safety
    /// As for [`Communicator::run`].
    pub unsafe fn call(
        &mut self,
        collective: &Collective,
        stream: &Stream,
        buffers: [DeviceAddress; 2],
        count: usize,
        data_type: DataType,
        operation: impl Into<Operation>,
    ) -> Result<(), Error> {
        let plan = self.plan_of(collective, count, data_type)?;
        // SAFETY: as the caller promises.
        unsafe { self.run(&plan, stream, buffers, count, data_type, operation) }
    }
}
