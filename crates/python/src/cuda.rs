//! Calls on arrays of a GPU: they are enqueued on the current stream of the library that the array belongs to, and return.

#![allow(unsafe_code)] // Passes addresses of arrays.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use weftlink::bootstrap::Bootstrap;
use weftlink::cuda::{
    self, Aborter, AddressedBuffers, AddressedCall, AddressedRank, Operation, WindowMemory,
};
use weftlink::plan::Collective;
use weftlink::{Error, RawBuffers, Reduction};

use crate::array::Place;
use crate::array::library::Library;
use crate::error::{failed, raised};
use crate::wait::interruptible;

/// The ranks of a communicator on GPUs, from the first call with an array there.
#[derive(Clone, Default)]
pub(crate) struct Gpus {
    gpu: Arc<Mutex<Option<AddressedRank>>>,
    /// Beside the lock, which a thread that loads a plan holds.
    aborter: Arc<Mutex<Option<Aborter>>>,
    is_closed: Arc<AtomicBool>,
    is_aborted: Arc<AtomicBool>,
    /// Why a call had failed when this rank left.
    failed: Arc<Mutex<Option<String>>>,
    /// Symmetric memory, which calls may use until this rank leaves.
    windows: Arc<Mutex<Vec<Arc<WindowMemory>>>>,
}

/// A call of this rank, and where its blocks begin.
#[derive(Clone)]
struct Call {
    call: AddressedCall,
    addresses: [u64; 2],
}

/// What a caller passes.
pub(crate) struct Arguments {
    pub(crate) collective: Collective,
    pub(crate) reduction: Reduction,
    /// The bytes of this rank's factor in a pre-multiplied sum.
    pub(crate) factor: Option<Vec<u8>>,
    pub(crate) buffers: RawBuffers,
    pub(crate) device: usize,
    pub(crate) stream: u64,
    pub(crate) timeout: Option<Duration>,
    /// Refuses a call that must be prepared first, for which ranks wait and load kernels.
    pub(crate) is_prepared_before: bool,
}

/// Why a call cannot be captured.
const NOT_PREPARED: &str = "a call of this kind, with this number and type of elements, has to load its plan and kernel first. Make it once \
                            before the capture";

impl Gpus {
    /// Whether this rank has joined the others.
    pub(crate) fn has_joined(&self) -> bool {
        lock(&self.aborter).is_some()
    }

    /// Joins the ranks of a group. All ranks call it.
    pub(crate) fn join(&self, group: Bootstrap, device: usize, timeout: Duration) -> Result<(), cuda::Error> {
        let gpu = AddressedRank::new(group, device, timeout)?;
        {
            let mut aborter = lock(&self.aborter);
            if self.is_aborted.load(Ordering::Acquire) {
                gpu.collectives().abort();
            }
            *aborter = Some(gpu.collectives().aborter());
            *lock(&self.gpu) = Some(gpu);
        }
        self.leave_if_closed();
        Ok(())
    }

    /// Ends the calls of all ranks that wait. Does not wait itself.
    pub(crate) fn abort(&self) {
        let aborter = lock(&self.aborter);
        // A thread that joins looks at it.
        self.is_aborted.store(true, Ordering::Release);
        if let Some(aborter) = &*aborter {
            aborter.abort();
        }
    }

    /// Why a call failed, if one has. Does not wait for a thread that loads a plan.
    pub(crate) fn failure(&self) -> Option<String> {
        let known = lock(&self.failed).clone();
        let own = || {
            let gpu = self.gpu.try_lock().ok()?;
            gpu.as_ref()?.collectives().failure()
        };
        let failure = known.or_else(own).or_else(|| lock(&self.aborter).as_ref()?.failure());
        self.leave_if_closed();
        failure
    }

    /// Leaves the ranks, after this rank's calls. A thread that still loads a plan does so when that is done. Returns why a call failed, if
    /// one has and this rank has not aborted.
    pub(crate) fn leave(&self) -> Option<String> {
        self.is_closed.store(true, Ordering::Release);
        let gpu = match self.gpu.try_lock() {
            Ok(mut gpu) => gpu.take(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().take(),
            Err(TryLockError::WouldBlock) => None,
        };
        self.finish(gpu);
        lock(&self.failed).clone().filter(|_| !self.is_aborted.load(Ordering::Acquire))
    }

    fn leave_if_closed(&self) {
        if self.is_closed.load(Ordering::Acquire)
            && let Ok(mut gpu) = self.gpu.try_lock()
        {
            let gpu = gpu.take();
            self.finish(gpu);
        }
    }

    /// Waits for the calls of this rank and keeps the error of one that failed.
    fn finish(&self, gpu: Option<AddressedRank>) {
        let Some(gpu) = gpu else { return };
        let left = gpu.collectives().leave();
        let failure = gpu.collectives().failure().or_else(|| left.err().map(|why| why.to_string()));
        // The program may use its arrays for something else now.
        gpu.collectives().await_ends();
        lock(&self.windows).clear();
        *lock(&self.failed) = failure;
    }

    /// Allocates symmetric memory. All ranks call it.
    pub(crate) fn window(&self, bytes: usize) -> Result<Arc<WindowMemory>, cuda::Error> {
        let window = self.with(|gpu| gpu.collectives_mut().communicator().window(bytes).map(Arc::new))?;
        lock(&self.windows).push(Arc::clone(&window));
        Ok(window)
    }

    /// Runs something on the joined rank, and leaves if the communicator was closed meanwhile.
    fn with<T>(
        &self,
        work: impl FnOnce(&mut AddressedRank) -> Result<T, cuda::Error>,
    ) -> Result<T, cuda::Error> {
        let closed = || cuda::Error::Failed { why: "the communicator is closed".to_owned() };
        let done = lock(&self.gpu).as_mut().ok_or_else(closed).and_then(work);
        self.leave_if_closed();
        done
    }

    /// Enqueues a call on a stream of the program. The first call of a kind loads its plan and waits for the other ranks, while signals are
    /// handled; if a handler raises, that is the outer error, and `interrupted` is called.
    ///
    /// # Safety
    /// The program keeps the arrays until the call has ended on its stream, and the stream is one of the array's GPU.
    pub(crate) unsafe fn call(
        &self,
        py: Python<'_>,
        arguments: Arguments,
        interrupted: impl FnOnce(),
    ) -> PyResult<Result<(), cuda::Error>> {
        // One turn without the interpreter, which another thread may keep afterwards.
        let enqueued = py.detach(move || {
            self.with(move |gpu| {
                let call = Call::of(gpu, &arguments)?;
                if !gpu.is_prepared(&call.call, call.addresses) {
                    return Ok(Some((call, arguments)));
                }
                // SAFETY: the caller's.
                unsafe { call.enqueue(gpu, &arguments) }.map(|()| None)
            })
        });
        let (call, arguments) = match enqueued {
            Ok(Some(unprepared)) => unprepared,
            Ok(None) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
        };
        if arguments.is_prepared_before {
            let attempt = format!("capture {}", call.call.collective);
            return Ok(Err(cuda::Error::Misuse { attempt, why: NOT_PREPARED.to_owned() }));
        }
        let (gpus, wanted, timeout) = (self.clone(), call.clone(), arguments.timeout);
        // The call itself is made by this thread, while its arrays are there.
        let prepare = move || gpus.with(|gpu| gpu.prepare(wanted.call, wanted.addresses, timeout));
        let prepared = interruptible(py, prepare).inspect_err(|_| interrupted())?;
        if let Err(error) = &prepared
            && !matches!(error, cuda::Error::Misuse { .. } | cuda::Error::Failed { .. })
        {
            // The others make the call, and would wait for this rank.
            self.abort();
        }
        if prepared.is_err() {
            return Ok(prepared);
        }
        // SAFETY: the caller's.
        let enqueue = move |gpu: &mut AddressedRank| unsafe { call.enqueue(gpu, &arguments) };
        Ok(py.detach(move || self.with(enqueue)))
    }
}

impl Call {
    /// The blocks of a call of this rank, or why it is refused.
    fn of(rank: &AddressedRank, arguments: &Arguments) -> Result<Call, cuda::Error> {
        let Arguments { collective, reduction, buffers, device, stream, .. } = arguments;
        let buffers = AddressedBuffers {
            device: *device,
            data_type: buffers.data_type,
            input: (buffers.input as u64, buffers.input_length),
            output: (buffers.output as u64, buffers.output_length),
        };
        let (call, addresses) = rank.arrange(collective, *reduction, &buffers)?;
        rank.check_stream(&call, *stream)?;
        Ok(Call { call, addresses })
    }

    /// # Safety
    /// As for [`Gpus::call`].
    unsafe fn enqueue(&self, rank: &mut AddressedRank, arguments: &Arguments) -> Result<(), cuda::Error> {
        let Arguments { stream, timeout, factor, .. } = arguments;
        let factor = factor.as_deref().and_then(Operation::premultiplied_sum);
        let operation = factor.unwrap_or(self.call.reduction.into());
        // SAFETY: the caller's.
        unsafe { rank.enqueue(&self.call, self.addresses, *stream, *timeout, operation) }
    }
}

/// The exception for an error on a GPU.
pub(crate) fn exception(py: Python<'_>, error: &cuda::Error) -> PyErr {
    match error {
        cuda::Error::Misuse { .. } => raised(py, &Error::Misuse(error.to_string()), None),
        _ => failed(py, &error.to_string()),
    }
}

/// The number of the GPU that arrays lie on, or that of an address if they do not say.
pub(crate) fn device_of(place: Place, address: *mut u8) -> Result<usize, cuda::Error> {
    if let Place::Gpu(Some(device)) = place {
        return Ok(device);
    }
    cuda::device_of(address as u64)?.ok_or_else(|| cuda::Error::Misuse {
        attempt: format!("use the array at {address:p}"),
        why: "it is not in memory of a GPU".to_owned(),
    })
}

/// The stream on which the library of an array works now: that of PyTorch or CuPy, what the array says itself, or the default stream.
pub(crate) fn stream_of(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    let py = object.py();
    match Library::of(object)? {
        Library::Torch => {
            static RAW: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
            // A tenth of the time of `torch.cuda.current_stream`.
            let find = || py.import("torch._C").and_then(|torch| torch.getattr("_cuda_getCurrentRawStream"));
            if let Some(raw) = RAW.get_or_init(py, || find().ok().map(Bound::unbind)) {
                let device = object.call_method0(intern!(py, "get_device"))?;
                return raw.bind(py).call1((device,))?.extract();
            }
            let device = object.getattr(intern!(py, "device"))?;
            let cuda = py.import("torch.cuda")?;
            cuda.call_method1("current_stream", (device,))?.getattr("cuda_stream")?.extract()
        }
        Library::Cupy => {
            py.import("cupy.cuda")?.call_method0("get_current_stream")?.getattr("ptr")?.extract()
        }
        Library::Other => {
            let Ok(interface) = object.getattr(intern!(py, "__cuda_array_interface__")) else { return Ok(0) };
            let stream = interface.call_method1("get", ("stream",))?;
            Ok(stream.extract::<Option<u64>>()?.unwrap_or(0))
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
