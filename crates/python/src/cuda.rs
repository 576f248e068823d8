//! Calls on arrays of a GPU: they are enqueued on the current stream of the library that the array belongs to, and return.

#![allow(unsafe_code)] // Passes addresses of arrays.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::intern;
use pyo3::prelude::*;
use weftlink::bootstrap::Bootstrap;
use weftlink::cuda::driver::{Driver, Stream};
use weftlink::cuda::{self, Arranged, Collectives, Lengths, arrange, devices};
use weftlink::plan::Collective;
use weftlink::{DataType, Error, RawBuffers, Reduction};

use crate::array::Place;
use crate::error::{failed, raised};
use crate::wait::interruptible;

/// The ranks of a communicator on GPUs.
pub(crate) struct Gpu {
    /// The number of this rank's.
    device: usize,
    collectives: Collectives,
    /// Calls whose plans are loaded and compiled.
    known: HashSet<Call>,
}

/// What a call needs prepared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    pub(crate) data_type: DataType,
    pub(crate) reduction: Reduction,
    arranged: Arranged,
}

impl Gpu {
    /// Joins the ranks of a group. All ranks call it.
    pub(crate) fn new(group: Bootstrap, device: usize, timeout: Duration) -> Result<Gpu, cuda::Error> {
        let gpu = device_numbered(device)?;
        let mut collectives = Collectives::new(group, &gpu, timeout)?;
        collectives.set_call_timeout(timeout);
        Ok(Gpu { device, collectives, known: HashSet::new() })
    }

    /// Ends the calls of all ranks that wait.
    pub(crate) fn abort(&self) {
        self.collectives.abort();
    }

    /// Why a call failed, if one has.
    pub(crate) fn failure(&self) -> Option<String> {
        self.collectives.failure()
    }

    /// The blocks of a call in these buffers, or why they do not have them.
    pub(crate) fn arranged(
        &self,
        collective: Collective,
        buffers: &RawBuffers,
        reduction: Reduction,
    ) -> Result<Call, Error> {
        let (rank, ranks) = (self.collectives.rank() as u32, self.collectives.ranks());
        let lengths = match (buffers.input_length, buffers.output_length) {
            (_, output) if buffers.input == buffers.output.cast_const() => Lengths::InPlace(output),
            (input, _) if buffers.output.is_null() => Lengths::Input(input),
            (_, output) if buffers.input.is_null() => Lengths::InPlace(output),
            (input, output) => Lengths::Separate(input, output),
        };
        let arranged = arrange(&collective, rank, ranks, lengths).map_err(Error::Misuse)?;
        Ok(Call { collective, data_type: buffers.data_type, reduction, arranged })
    }
}

/// Enqueues a call on a stream of the program. The first call of a kind loads its plan and waits for the other ranks, while signals are
/// handled.
pub(crate) fn enqueue(
    py: Python<'_>,
    gpu: &Arc<Mutex<Option<Gpu>>>,
    call: Call,
    buffers: &RawBuffers,
    stream: u64,
    timeout: Option<Duration>,
) -> PyResult<()> {
    let size = call.data_type.bytes();
    let Arranged { count: _, input, output } = call.arranged;
    let [first, last] = [buffers.input as u64, buffers.output as u64];
    // A side that the rank does not use has no address of its own.
    let at = |own: u64, other: u64, elements: usize| {
        (if own == 0 { other } else { own }) + (elements * size) as u64
    };
    let addresses = [at(first, last, input), at(last, first, output)];
    let is_known = lock(gpu).as_ref().is_some_and(|gpu| gpu.known.contains(&call));
    let gpu = Arc::clone(gpu);
    let run = move || {
        let mut gpu = lock(&gpu);
        let gpu = gpu.as_mut().ok_or_else(closed)?;
        if let Some(timeout) = timeout {
            gpu.collectives.set_call_timeout(timeout);
        }
        // SAFETY: the library that the array belongs to says that this is its current stream.
        let stream = unsafe { Stream::borrowed(gpu.collectives.context(), stream as *mut _) };
        let Call { collective, data_type, reduction, arranged } = &call;
        let count = arranged.count;
        // SAFETY: `arrange` has checked the lengths. The program must not free or touch the arrays before the call has ended on its stream, as
        // with any work that it enqueues there.
        unsafe { gpu.collectives.call(collective, &stream, addresses, count, *data_type, *reduction)? };
        gpu.known.insert(call);
        Ok(())
    };
    let done: Result<(), cuda::Error> = if is_known { py.detach(run) } else { interruptible(py, run)? };
    done.map_err(|error| exception(py, &error))
}

/// The exception for an error on a GPU.
pub(crate) fn exception(py: Python<'_>, error: &cuda::Error) -> PyErr {
    match error {
        cuda::Error::Misuse { .. } => raised(py, &Error::Misuse(error.to_string()), None),
        _ => failed(py, &error.to_string()),
    }
}

fn closed() -> cuda::Error {
    cuda::Error::Failed { why: "the communicator is closed".to_owned() }
}

fn device_numbered(number: usize) -> Result<cuda::driver::Device, cuda::Error> {
    let missing = |count: usize| cuda::Error::Misuse {
        attempt: format!("use GPU {number}"),
        why: format!("this process sees {count} GPUs"),
    };
    let mut all = devices()?;
    if number < all.len() { Ok(all.swap_remove(number)) } else { Err(missing(all.len())) }
}

/// The number of the GPU that arrays lie on, or that of an address if they do not say.
pub(crate) fn device_of(place: Place, address: *mut u8) -> Result<usize, cuda::Error> {
    if let Place::Gpu(Some(device)) = place {
        return Ok(device);
    }
    let pointer = Driver::load()?.pointer(address as u64)?;
    pointer.map(|pointer| pointer.device).ok_or_else(|| cuda::Error::Misuse {
        attempt: format!("use the array at {address:p}"),
        why: "it is not in memory of a GPU".to_owned(),
    })
}

/// The stream on which the library of an array works now: that of PyTorch or CuPy, what the array says itself, or the default stream.
pub(crate) fn stream_of(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    let py = object.py();
    let module = object.get_type().module()?.to_string();
    match module.split('.').next().unwrap_or_default() {
        "torch" => {
            let device = object.getattr(intern!(py, "device"))?;
            let cuda = py.import("torch.cuda")?;
            cuda.call_method1("current_stream", (device,))?.getattr("cuda_stream")?.extract()
        }
        "cupy" => py.import("cupy.cuda")?.call_method0("get_current_stream")?.getattr("ptr")?.extract(),
        _ => {
            let Ok(interface) = object.getattr(intern!(py, "__cuda_array_interface__")) else { return Ok(0) };
            let stream = interface.call_method1("get", ("stream",))?;
            Ok(stream.extract::<Option<u64>>()?.unwrap_or(0))
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu {
    /// The number of its GPU.
    pub(crate) fn device(&self) -> usize {
        self.device
    }
}
