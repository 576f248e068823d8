//! Calls: places their buffers, orders them across streams, and launches their kernels.

// Launches kernels with addresses.
#![allow(unsafe_code)]

use weftlink_bootstrap::{BlameKind, Failure};
use weftlink_plan::{Aliasing, DataType};

use super::access::{self, Peers};
use super::{Captured, Communicator, Last, Loaded, PlanId, Resources, captured_since};
use crate::Error;
use crate::call::{Key, Operation};
use crate::driver::{
    Capture, DeviceAddress, DeviceBuffer, Event, Launch, Parameters, RelaxedCapture, Stream,
};
use crate::records;
use crate::registration::{CallState, Obstacle};
use crate::staging::{Buffer, Staged};

/// The handles of the default stream: null and 1. That of a thread, 2, is another one in each thread.
const DEFAULT_STREAMS_MAX: usize = 1;
/// Graphs that are captured at the same time, and whose calls are ordered.
const CAPTURES_MAX: usize = 8;

/// Where the buffers of a call are.
struct Placed {
    /// As each rank addresses them.
    views: Vec<[DeviceAddress; 2]>,
    /// What stands in for them.
    staged: Option<Staged>,
    /// Whether ranks in other processes use them in a call that is not captured.
    is_registered: bool,
}

impl Communicator {
    /// Enqueues a call of a loaded plan on a stream. All ranks make the same calls in the same order. Calls run one after the other, also
    /// on different streams. So do the captured calls of a graph; graphs and other calls run as the caller orders them.
    ///
    /// If the plan accesses buffers of ranks in other processes, the first call with a buffer waits until these have mapped it. They keep it
    /// mapped, and its memory allocated, until many other buffers were used, and after a captured call as long as the communicator lives.
    /// Buffers of memory that cannot be mapped there (managed, of `cudaMallocAsync`, without a handle) are copied, up to 1 GiB each.
    ///
    /// If the plan uses a switch, the buffers that it accesses are in windows of [`Communicator::multicast_window`], at the same offsets on all
    /// ranks; ranks at other offsets are in another call.
    ///
    /// An error on one rank ends the calls of all, except misuse, after which the rank may call again while the others wait.
    ///
    /// # Safety
    /// The buffers are device memory of this rank's blocks, valid until the call has ended on the stream, for the other ranks too, whose
    /// kernels access them. After a failure, they stay valid until every rank has seen it.
    pub unsafe fn run(
        &mut self,
        plan: PlanId,
        stream: &Stream,
        buffers: [DeviceAddress; 2],
        count: usize,
        data_type: DataType,
        operation: impl Into<Operation>,
    ) -> Result<(), Error> {
        match self.check_recorded() {
            // It has ended the calls of all if the reason is this rank's.
            Err(error @ Error::Failed { .. }) => return Err(error),
            checked => checked.map_err(|error| self.failed(error))?,
        }
        // SAFETY: the caller's.
        let enqueued = unsafe { self.enqueue(plan, stream, buffers, count, data_type, operation.into()) };
        enqueued.map_err(|error| self.failed(error))
    }

    /// The error to return in place of one. Ends the calls of all ranks, unless it is misuse.
    pub(super) fn failed(&self, error: Error) -> Error {
        let error = self.explained(error);
        if !matches!(error, Error::Misuse { .. }) {
            self.abort_because(&error);
            let blamed = vec![self.group.blame(self.rank() as u32, BlameKind::Failed)];
            self.calls.fail(&Failure { why: error.to_string(), blamed, aborted_by: None });
        }
        error
    }

    /// # Safety
    /// As for [`Communicator::run`].
    unsafe fn enqueue(
        &mut self,
        plan: PlanId,
        stream: &Stream,
        [input, output]: [DeviceAddress; 2],
        count: usize,
        data_type: DataType,
        operation: Operation,
    ) -> Result<(), Error> {
        let misuse = |why: &str| Error::Misuse { attempt: "run a plan".to_owned(), why: why.to_owned() };
        let is_captured = match stream.capture()? {
            Capture::None => false,
            Capture::Active => true,
            Capture::Invalidated => return Err(misuse("the capture of its stream has failed")),
        };
        let key = self.prepare_call(plan, [input, output], count, data_type, operation.reduction)?;
        let factor = operation.factor_of(&key).map_err(|why| misuse(&why))?;
        let switched = self.switched(plan, [input, output], &key).map_err(|why| misuse(&why))?;
        let Placed { mut views, staged, is_registered } =
            self.place(plan, [input, output], &key, is_captured)?;
        if let Some(switched) = switched {
            // No peer gets the view of the rank itself, so it has the addresses of all.
            views[self.rank()] = switched.map(|place| place.map_or(0, |place| place.multicast));
        }
        let [input, output] = staged.as_ref().map_or([input, output], |staged| staged.buffers);
        let mut graph = None;
        if is_captured {
            self.has_captured = true;
            self.resources.plans[plan.number].programs.pin(&key);
            graph = self.order_captured(stream)?;
        } else {
            self.order(stream)?;
        }
        if let Some(staged) = &staged {
            // SAFETY: as the caller promises.
            unsafe { staged.copy_in(stream) }?;
        }
        let Loaded { compiler, programs, .. } = &self.resources.plans[plan.number];
        let number = self.calls.begin(plan.number, compiler.plan(), &key, self.group.rank() as u32);
        let prepared = programs.of(&key);
        let header = records::CallHeader {
            signature: match &switched {
                None => prepared.signature,
                Some(places) => key.signature(prepared.program.header.tiles, prepared.spread, places),
            },
            input,
            output,
            program: prepared.in_memory.as_ref().map_or(0, DeviceBuffer::address),
            presence: self.resources.presence.address(),
            reports: self.resources.reports.address(),
            timeout_ns: u64::try_from(self.call_timeout.as_nanos()).unwrap_or(u64::MAX),
            factor,
            number,
            has_whole_words: prepared.program.header.has_whole_words
                * u32::from((input | output).is_multiple_of(4)),
            ..prepared.program.header
        };
        let call = &mut self.parameters;
        let mut at = 0;
        let mut push = |bytes: &[u8]| {
            call[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        push(bytemuck::bytes_of(&header));
        for [input, output] in views {
            push(bytemuck::bytes_of(&records::View { input, output }));
        }
        if prepared.in_memory.is_none() {
            push(&prepared.program.bytes);
        }
        let launch = Launch {
            blocks: header.lanes * header.slices,
            threads: prepared.spread.threads,
            shared_bytes: 0,
            is_cooperative: false,
        };
        // SAFETY: the parameters are those of the kernel; the addresses are valid as the caller promises, and the communicator's own
        // memory lives until it is dropped.
        unsafe { prepared.kernel.function.launch(stream, launch, Parameters::Buffer(&**call)) }?;
        self.calls.enqueued(is_captured);
        if let Some(loading) = &self.loading {
            loading.launched(is_captured);
        }
        if let Some(staged) = &staged {
            // SAFETY: as the caller promises.
            unsafe { staged.copy_out(stream) }?;
        }
        if is_captured {
            self.follow_captured(stream, graph)?;
        } else {
            self.follow(stream)?;
            let recorded =
                || Event::new(&self.context).and_then(|event| event.record(stream).map(|()| event));
            self.resources.retired.launched(recorded)?;
        }
        match &mut self.resources.registry {
            Some(registry) if is_registered => registry.launched(stream),
            _ => Ok(()),
        }
    }

    /// Finds out where the buffers of a call are for each rank. Ranks in other processes map them, or memory that stands in for them, also
    /// where other GPUs of this process may not access them.
    fn place(
        &mut self,
        plan: PlanId,
        buffers: [DeviceAddress; 2],
        key: &Key,
        is_captured: bool,
    ) -> Result<Placed, Error> {
        let rank = self.group.rank() as u32;
        let Resources { plans, registry, staging, reports, .. } = &mut *self.resources;
        let compiler = &plans[plan.number].compiler;
        let plan = compiler.plan();
        // Peers map windows when these are made.
        let accesses_buffers = compiler.accesses_buffers;
        let mut registry = registry.as_mut().filter(|_| accesses_buffers);
        let has_peers = accesses_buffers && !self.peers.is_empty();
        let is_copied = key.is_copied(plan, rank, buffers);
        if registry.is_none() && !has_peers && !is_copied {
            let views = vec![buffers; plan.ranks as usize];
            return Ok(Placed { views, staged: None, is_registered: false });
        }
        let [input, output] = key.bytes_of(plan, rank);
        let buffers = [(buffers[0], input), (buffers[1], output)];
        let has_failed = || reports.failure().is_some();
        let (last, event, actions) = (&self.last, &self.event, &self.actions);
        // Graphs may be under way at any time.
        let are_over = || !self.has_captured && is_over(last, event, actions).unwrap_or(false);
        let calls = &CallState { are_over: &are_over, has_failed: &has_failed };
        let is_registered = registry.is_some() && !is_captured;
        let ranks = plan.ranks as usize;
        let mut views_of = |buffers: [Buffer; 2]| match &mut registry {
            Some(registry) => registry.views(buffers, is_captured, calls),
            None => Ok(vec![buffers.map(|(address, _)| address); ranks]),
        };
        let peers = Peers { context: &self.context, devices: &self.peers };
        let mut unreachable =
            is_copied.then(|| format!("{} is not proved for calls in place", plan.collective));
        for buffer in buffers.into_iter().filter(|_| has_peers) {
            unreachable = unreachable.or(access::obstacle(&peers, buffer)?);
        }
        let placed = unreachable.map_or_else(|| views_of(buffers), |why| Err(Obstacle::Unshareable(why)));
        let (views, staged) = match placed {
            Ok(views) => (views, None),
            Err(Obstacle::Error(why)) => return Err(why),
            Err(Obstacle::Unshareable(why)) => {
                // Memory may be allocated while another thread captures a graph.
                let _relaxed = RelaxedCapture::begin(self.context.driver())?;
                let is_in_place = key.aliasing == Aliasing::InPlace;
                let staged = staging.stage(&self.context, &self.peers, buffers, is_in_place, &why)?;
                let ours = [(staged.buffers[0], input), (staged.buffers[1], output)];
                let views = views_of(ours).map_err(|obstacle| match obstacle {
                    Obstacle::Error(why) => why,
                    Obstacle::Unshareable(why) => {
                        Error::Misuse { attempt: "share a buffer with other processes".to_owned(), why }
                    }
                })?;
                (views, Some(staged))
            }
        };
        Ok(Placed { views, staged, is_registered })
    }

    /// Makes a call wait for the last one, if that is on another stream and neither is captured: an event must not lead into a graph, or
    /// out of one.
    pub(super) fn order(&mut self, stream: &Stream) -> Result<(), Error> {
        match &self.last {
            Some(Last::Own(last)) if last.raw() == stream.raw() => return Ok(()),
            Some(Last::Own(last)) if last.capture()? == Capture::None => {
                self.event.record(last)?;
                stream.wait_for(&self.event)?;
            }
            Some(Last::Own(_)) => return Err(captured_since()),
            // The same handle may be another stream by now.
            Some(Last::Borrowed) => stream.wait_for(&self.event)?,
            None => {}
        }
        self.last = Some(match may_be_destroyed(stream) {
            true => Last::Borrowed,
            false => Last::Own(stream.clone()),
        });
        Ok(())
    }

    /// Makes a captured call wait for the last one of the same graph, which may be on another stream. Returns the graph, if the driver can say.
    pub(super) fn order_captured(&self, stream: &Stream) -> Result<Option<u64>, Error> {
        let graph = stream.capture_id()?;
        if let Some(last) = self.captured.iter().find(|last| Some(last.graph) == graph) {
            stream.wait_for(&last.event)?;
        }
        Ok(graph)
    }

    /// Records an event after a captured call, for the next one of the graph.
    pub(super) fn follow_captured(&mut self, stream: &Stream, graph: Option<u64>) -> Result<(), Error> {
        let Some(graph) = graph else { return Ok(()) };
        if let Some(last) = self.captured.iter().find(|last| last.graph == graph) {
            return last.event.record(stream);
        }
        let event = Event::new(&self.context)?;
        event.record(stream)?;
        if self.captured.len() >= CAPTURES_MAX {
            self.captured.remove(0);
        }
        self.captured.push(Captured { graph, event });
        Ok(())
    }

    /// Records the event after a call that is not captured, if the stream may be gone when the next call waits for this one.
    pub(super) fn follow(&self, stream: &Stream) -> Result<(), Error> {
        if may_be_destroyed(stream) { self.event.record(stream) } else { Ok(()) }
    }
}

/// Whether the program may destroy a stream: it owns all but the default streams.
fn may_be_destroyed(stream: &Stream) -> bool {
    stream.is_borrowed() && stream.raw().addr() > DEFAULT_STREAMS_MAX
}

/// Whether the last call and all actions of windows that were not captured have ended.
pub(super) fn is_over(
    last: &Option<Last>,
    event: &Event,
    actions: &[(Stream, Event)],
) -> Result<bool, Error> {
    for (_, event) in actions {
        if !event.is_done()? {
            return Ok(false);
        }
    }
    match last {
        None => Ok(true),
        Some(Last::Own(stream)) => Ok(stream.capture()? == Capture::None && stream.is_idle()?),
        Some(Last::Borrowed) => event.is_done(),
    }
}
