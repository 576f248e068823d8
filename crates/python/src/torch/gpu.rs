//! The calls of a process group on tensors of a GPU. `weftlink/torch/gpu.py` chooses their streams and keeps their tensors.

// Passes addresses of tensors.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use weftlink::cuda::driver::{Context as CudaContext, Event, Stream};
use weftlink::cuda::{self, WindowMemory, devices};
use weftlink::plan::Collective;
use weftlink::{Communicator, Reduction};

use super::error::{Context, cuda_exception};
use super::group::{Group, OpenGroup, buffers, collective, public_name};
use super::operation;
use super::record::{self, NewEntry};
use super::tensor::{Tensor, usage};
use crate::cuda::Arguments;
use crate::wait::interruptible;

/// Events that are kept for later calls.
const SPARE_MAX: usize = 1024;

/// The calls of a group on tensors of a GPU.
#[pyclass(module = "weftlink._native", frozen)]
pub(crate) struct GroupOnGpu {
    group: Py<Group>,
    events: Arc<Events>,
}

/// The events of a group's calls.
#[derive(Default)]
struct Events {
    /// That of the first call's GPU, the group's only one.
    context: Mutex<Option<CudaContext>>,
    spare: Mutex<Vec<Event>>,
}

/// Where a call runs.
struct Place {
    device: usize,
    stream: u64,
    /// Whether a graph of the stream is captured.
    captures: bool,
    timeout: Duration,
}

#[pymethods]
impl GroupOnGpu {
    #[new]
    fn new(group: Py<Group>) -> Self {
        Self { group, events: Arc::default() }
    }

    /// Enqueues a collective like `enqueue`, and returns its end. With `beside`, it is enqueued there, after what is on `stream`.
    #[pyo3(signature = (what, input, output, *, device, stream, beside=None, captures=false, root=0, op=None, factor=None, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn start(
        &self,
        py: Python<'_>,
        what: &str,
        input: Option<&Bound<'_, PyAny>>,
        output: Option<&Bound<'_, PyAny>>,
        device: usize,
        stream: u64,
        beside: Option<u64>,
        captures: bool,
        root: u32,
        op: Option<u8>,
        factor: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<GpuEnd> {
        // If the context is lost, the driver does not know which rank died.
        let refused = |error: cuda::Error| match self.failure(py) {
            Some(failure) => PyErr::from_value(failure),
            None => cuda_exception(py, None, &error),
        };
        if let Some(beside) = beside {
            py.detach(|| self.events.follow(device, stream, beside, captures)).map_err(refused)?;
        }
        let place = beside.unwrap_or(stream);
        let record =
            self.enqueue(py, what, input, output, device, place, captures, root, op, factor, timeout)?;
        let event = py.detach(|| self.events.recorded(device, place)).map_err(|error| {
            record.into_iter().for_each(|record| record::mark_ended(record, false));
            refused(error)
        })?;
        Ok(GpuEnd { event: Some(event), events: Arc::clone(&self.events), device, captures, record })
    }

    /// The end of what is on a stream.
    fn end(&self, py: Python<'_>, device: usize, stream: u64, captures: bool) -> PyResult<GpuEnd> {
        let event = py.detach(|| self.events.recorded(device, stream));
        let event = event.map_err(|error| cuda_exception(py, None, &error))?;
        Ok(GpuEnd { event: Some(event), events: Arc::clone(&self.events), device, captures, record: None })
    }

    /// Enqueues a collective on contiguous tensors of a GPU, and returns its number in the flight record; nothing if it is captured. All
    /// ranks join on their GPUs in the first call, and load a plan in the first of each kind.
    #[pyo3(signature = (what, input, output, *, device, stream, captures=false, root=0, op=None, factor=None, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn enqueue(
        &self,
        py: Python<'_>,
        what: &str,
        input: Option<&Bound<'_, PyAny>>,
        output: Option<&Bound<'_, PyAny>>,
        device: usize,
        stream: u64,
        captures: bool,
        root: u32,
        op: Option<u8>,
        factor: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<Option<u64>> {
        let group = self.group.get();
        let Some((recorded, collective)) = collective(what, root, 0) else {
            return Err(usage(py, &format!("unknown collective {what:?}")));
        };
        let on_gpu = |tensor: &Bound<'_, PyAny>| Tensor::on_gpu(tensor, device);
        let sides = match (input, output) {
            (Some(input), Some(output)) if input.is(output) => [Some(on_gpu(input)?); 2],
            _ => [input.map(on_gpu).transpose()?, output.map(on_gpu).transpose()?],
        };
        let sides = group.in_place(py, &collective, sides)?;
        let place = Place { device, stream, captures, timeout: group.deadline(timeout) };
        let number = group.next_call();
        let entry = (!captures).then(|| {
            record::enter(NewEntry {
                group: group.number,
                what: recorded.to_owned(),
                number,
                is_message: false,
                input: sides[0].as_ref(),
                output: sides[1].as_ref(),
                timeout_ms: place.timeout.as_millis() as u64,
            })
        });
        let enqueued =
            self.enqueue_at(py, &place, public_name(recorded), collective, sides, op.zip(Some(factor)));
        match (entry, enqueued.is_ok()) {
            (Some(entry), true) => record::mark_started(entry),
            (Some(entry), false) => record::mark_ended(entry, false),
            (None, _) => {}
        }
        enqueued.map(|()| entry)
    }

    /// Marks a call as ended in the flight record.
    fn mark_ended(&self, entry: u64, succeeded: bool) {
        record::mark_ended(entry, succeeded);
    }

    /// The error of a call that has failed on the GPU; None without one.
    fn failure<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let gpus = &self.group.get().gpus;
        let failure = py.detach(|| gpus.failure())?;
        Some(
            cuda_exception(py, None, &weftlink::cuda::Error::Failed { why: failure })
                .into_value(py)
                .into_bound(py)
                .into_any(),
        )
    }

    /// Allocates symmetric memory on the GPUs of all ranks, zeroed. All ranks call it.
    fn window(&self, py: Python<'_>, bytes: usize, device: usize) -> PyResult<GpuWindow> {
        let group = self.group.get();
        self.join(py, "window", device)?;
        let gpus = group.gpus.clone();
        let memory = interruptible(py, move || gpus.window(bytes))?;
        let memory = memory.map_err(|error| cuda_exception(py, Some("window"), &error))?;
        Ok(GpuWindow { memory, rank: group.own_rank() })
    }
}

impl GroupOnGpu {
    fn enqueue_at(
        &self,
        py: Python<'_>,
        place: &Place,
        name: &'static str,
        collective: Collective,
        sides: [Option<Tensor>; 2],
        operation: Option<(u8, Option<f64>)>,
    ) -> PyResult<()> {
        let group = self.group.get();
        let [reads, writes] = sides;
        let tensor = reads.or(writes).unwrap_or(Tensor::NONE);
        let (reduction, factor) = match operation {
            Some((op, factor)) => {
                let operation = operation::operation(py, op, factor, &tensor)?;
                (
                    operation::reduction(op, &tensor).unwrap_or(Reduction::Sum),
                    operation.factor().map(<[u8]>::to_vec),
                )
            }
            None => (Reduction::Sum, None),
        };
        if place.captures && !group.gpus.has_joined() {
            return Err(usage(
                py,
                &format!("{name}: make a call on this GPU before the capture, in which the ranks join"),
            ));
        }
        self.join(py, name, place.device)?;
        let arguments = Arguments {
            collective,
            reduction,
            factor,
            buffers: buffers(&tensor, reads, writes),
            device: place.device,
            stream: place.stream,
            timeout: Some(place.timeout),
            is_prepared_before: place.captures,
        };
        let interrupted = || group.abort(py, &format!("interrupted in {name}"));
        // SAFETY: `gpu.py` passes a stream of the tensors' GPU, and keeps the tensors until the call has ended there, or until work of their
        // own stream that comes before their reuse waits for it.
        let enqueued = unsafe { group.gpus.call(py, arguments, interrupted) }?;
        enqueued.map_err(|error| cuda_exception(py, Some(name), &error))
    }

    /// Joins the ranks on GPUs, once. All ranks do it.
    fn join(&self, py: Python<'_>, name: &'static str, device: usize) -> PyResult<()> {
        let group = self.group.get();
        if group.gpus.has_joined() {
            return Ok(());
        }
        let OpenGroup { lanes, identities, .. } = group.opened(py)?;
        let timeout = group.deadline(None);
        let context = Context { operation: Some(name), timeout, identities: Some(identities) };
        let duplicate = move || {
            let first = lanes.first();
            first.check_not_in_call().and_then(|()| first.with(Communicator::duplicate_group))
        };
        let interrupted = |_: &PyErr| group.abort(py, &format!("interrupted in {name}"));
        let duplicated = interruptible(py, duplicate).inspect_err(interrupted)?;
        let duplicated = duplicated.map_err(|error| context.raised(py, &error))?;
        let gpus = group.gpus.clone();
        let joined =
            interruptible(py, move || gpus.join(duplicated, device, timeout)).inspect_err(interrupted)?;
        joined.map_err(|error| cuda_exception(py, Some(name), &error))
    }
}

impl Events {
    /// A stream of the program.
    fn stream(&self, device: usize, handle: u64) -> Result<Stream, cuda::Error> {
        let mut context = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        let context = match &*context {
            Some(context) => context,
            None => {
                let all = devices()?;
                let own = all.get(device).ok_or_else(|| cuda::Error::Misuse {
                    attempt: format!("use GPU {device}"),
                    why: format!("this process sees {} GPUs", all.len()),
                })?;
                context.insert(CudaContext::primary(own)?)
            }
        };
        // SAFETY: PyTorch's streams live as long as the process.
        Ok(unsafe { Stream::borrowed(context, handle as *mut _) })
    }

    /// An event after what is on a stream.
    fn recorded(&self, device: usize, stream: u64) -> Result<Event, cuda::Error> {
        let stream = self.stream(device, stream)?;
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let event = spare.map_or_else(|| Event::new(stream.context()), Ok)?;
        event.record(&stream)?;
        Ok(event)
    }

    /// Makes a stream wait for what is on another.
    fn follow(&self, device: usize, first: u64, then: u64, captures: bool) -> Result<(), cuda::Error> {
        let event = self.recorded(device, first)?;
        self.stream(device, then)?.wait_for(&event)?;
        self.give(event, captures);
        Ok(())
    }

    /// Keeps an event for later calls, unless it is of a graph, whose capture may have failed.
    fn give(&self, event: Event, is_captured: bool) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_captured && spare.len() < SPARE_MAX {
            spare.push(event);
        }
    }
}

/// The end of a call on a stream.
#[pyclass(module = "weftlink._native", frozen)]
pub(crate) struct GpuEnd {
    /// Until it is dropped.
    event: Option<Event>,
    events: Arc<Events>,
    device: usize,
    captures: bool,
    /// The number of the call in the flight record, unless it is captured.
    #[pyo3(get)]
    record: Option<u64>,
}

#[pymethods]
impl GpuEnd {
    /// Whether the call has ended. Nothing runs any more if the context is lost.
    fn query(&self, py: Python<'_>) -> bool {
        py.detach(|| self.event.as_ref().is_none_or(Event::is_over))
    }

    /// Makes a stream wait for it.
    fn wait(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        let Some(event) = &self.event else { return Ok(()) };
        let waited = py.detach(|| self.events.stream(self.device, stream)?.wait_for(event));
        waited.map_err(|error| cuda_exception(py, None, &error))
    }
}

impl Drop for GpuEnd {
    fn drop(&mut self) {
        self.event.take().into_iter().for_each(|event| self.events.give(event, self.captures));
    }
}

/// This rank's part of symmetric memory on GPUs, as bytes. It lives until the group is destroyed, too.
#[pyclass(module = "weftlink._native", frozen)]
pub(crate) struct GpuWindow {
    memory: Arc<WindowMemory>,
    rank: usize,
}

#[pymethods]
impl GpuWindow {
    #[getter(__cuda_array_interface__)]
    fn cuda_array_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", (self.memory.bytes(),))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (self.memory.address(self.rank).unwrap_or(0), false))?;
        Ok(interface)
    }
}
