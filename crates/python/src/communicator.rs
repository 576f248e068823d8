//! Communicators. `weftlink/communicator.py` has the public methods; these are their primitives.

#![allow(unsafe_code)] // Raw calls, on memory that is known by its address.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use weftlink::plan::Collective;
use weftlink::{Background, DataType, Error, FlightRecorder, Identities, Reduction};

use crate::array::{Array, Place};
use crate::call::{Shared, Started};
use crate::cuda::{self, Arguments, Gpus};
use crate::error::raised_in;
use crate::raw::{Bytes, run_on_caller};
use crate::request::{CallOptions, SingleArray, method};
use crate::wait::interruptible;
use crate::window::Window;

/// One rank's end of a group.
#[pyclass(frozen, module = "weftlink._native")]
pub(crate) struct Communicator {
    /// None once it is closed.
    background: Mutex<Option<Background>>,
    /// Its ranks on GPUs, from the first call with an array there.
    gpus: Gpus,
    /// Readable at any time, also while a call hangs.
    recorder: FlightRecorder,
    /// Where each rank runs, for errors.
    identities: Identities,
    /// The number of unfinished calls.
    pending: Arc<AtomicUsize>,
    #[pyo3(get)]
    rank: usize,
    #[pyo3(get)]
    size: usize,
    /// The number of each rank in the communicator that this one was made from.
    #[pyo3(get)]
    origins: Vec<usize>,
}

/// The arrays of a call.
struct Arrays {
    input: Option<Array>,
    output: Option<Array>,
    /// Of arrays on a GPU: the stream that their library works on.
    stream: u64,
}

impl Arrays {
    /// An array on a GPU, if there is one. All must be.
    fn on_gpu(&self) -> Result<Option<&Array>, Error> {
        let mut both = self.input.iter().chain(&self.output);
        let is_on_gpu = |array: &&Array| array.place != Place::Host;
        match (both.clone().find(is_on_gpu), both.any(|array| array.place == Place::Host)) {
            (Some(_), true) => {
                let what = "one array is in CPU memory and the other on a GPU: move one of them";
                Err(Error::Misuse(what.to_owned()))
            }
            (found, _) => Ok(found),
        }
    }
}

/// A message of a group: the peer, and an array.
type Message<'py> = (usize, Bound<'py, PyAny>);

impl Communicator {
    /// Moves a communicator to its worker thread.
    pub(crate) fn new(comm: weftlink::Communicator) -> Result<Self, Error> {
        let (recorder, origins) = (comm.flight_recorder(), comm.origins().to_vec());
        let (rank, size, identities) = (comm.rank(), comm.size(), comm.identities());
        let background = Mutex::new(Some(comm.into_background()?));
        let pending = Arc::default();
        let gpus = Gpus::default();
        Ok(Self { background, gpus, recorder, identities, pending, rank, size, origins })
    }

    fn background(&self) -> Result<Background, Error> {
        let closed = || Error::Misuse("the communicator is closed".to_owned());
        lock(&self.background).clone().ok_or_else(closed)
    }

    fn raised(&self, py: Python<'_>, error: &Error, operation: &str) -> PyErr {
        raised_in(py, error, Some(operation), Some(&self.identities))
    }

    /// Runs or starts a call on these arrays.
    fn start_call(
        &self,
        py: Python<'_>,
        collective: Collective,
        options: CallOptions,
        arrays: Arrays,
        wait: bool,
    ) -> PyResult<Option<Started>> {
        let operation = method(&collective);
        let failed = |error: Error| self.raised(py, &error, operation);
        if arrays.on_gpu().map_err(failed)?.is_some() {
            return self.call_on_gpu(py, collective, options, &arrays, wait).map(|()| None);
        }
        let Arrays { input, output, .. } = arrays;
        let single = SingleArray::of(&collective, self.rank as u32, self.size as u32);
        let request = options.request(collective, input.as_ref(), output.as_ref(), single).map_err(failed)?;
        let background = self.background().map_err(failed)?;
        let kept: Vec<_> = [input, output].into_iter().flatten().map(|array| array.keep).collect();
        let request = match wait {
            false => request,
            // SAFETY: `kept` keeps the arrays alive; the program must not touch them until the call is done.
            true => match unsafe { run_on_caller(py, std::slice::from_ref(&background), request) }? {
                Ok(ran) => return ran.map(|()| None).map_err(failed),
                Err(request) => *request,
            },
        };
        let shared = Shared::new(operation, self.identities.clone(), kept);
        let (completes, pending) = (Arc::clone(&shared), Arc::clone(&self.pending));
        pending.fetch_add(1, Ordering::Relaxed);
        let done = move |result| {
            pending.fetch_sub(1, Ordering::Relaxed);
            completes.complete(result);
        };
        // SAFETY: as above; `complete` drops the arrays.
        let handle = unsafe { background.start_raw(request, done) };
        // `close` on another thread needs the only reference.
        drop(background);
        let call = Started::new(shared, handle);
        if !wait {
            return Ok(Some(call));
        }
        call.join(py, None)?;
        Ok(None)
    }

    /// Enqueues a call on arrays of a GPU.
    fn call_on_gpu(
        &self,
        py: Python<'_>,
        collective: Collective,
        options: CallOptions,
        arrays: &Arrays,
        wait: bool,
    ) -> PyResult<()> {
        let operation = method(&collective);
        let failed = |error: Error| self.raised(py, &error, operation);
        let misuse = |what: String| Err(failed(Error::Misuse(what)));
        if !wait {
            return misuse(format!(
                "a call on arrays of a GPU is enqueued on the current stream and does not block: call {operation}"
            ));
        }
        if options.counts.is_some() || options.torus.is_some() {
            return misuse(format!("{operation} with these arguments is not supported on GPUs yet"));
        }
        let reduction = match &options.operation {
            Some(name) => name.parse().map_err(|why| failed(Error::Misuse(why)))?,
            None => Reduction::Sum,
        };
        let Arrays { input, output, stream } = arrays;
        let mut devices = Vec::new();
        for array in input.iter().chain(output) {
            let device = cuda::device_of(array.place, array.address);
            devices.push(device.map_err(|error| cuda::exception(py, &error))?);
        }
        devices.dedup();
        let [device] = devices[..] else {
            return misuse("the arrays are on different GPUs".to_owned());
        };
        let single = SingleArray::of(&collective, self.rank as u32, self.size as u32);
        let request = options.request(collective.clone(), input.as_ref(), output.as_ref(), single);
        let request = request.map_err(failed)?;
        let (buffers, timeout) = (request.buffers, request.deadline);
        let factor = request.operation.as_ref().and_then(|operation| operation.factor().map(<[u8]>::to_vec));
        if !self.gpus.has_joined() {
            self.join_on_gpu(py, operation, device)?;
        }
        let stream = *stream;
        let is_prepared_before = false;
        let arguments =
            Arguments { collective, reduction, factor, buffers, device, stream, timeout, is_prepared_before };
        // SAFETY: the array's library says that this is its current stream. The program must not free or touch the arrays before the call has
        // ended there, as with any work that it enqueues.
        let called = unsafe {
            self.gpus.call(py, arguments, || self.abort(py, &format!("interrupted in {operation}")))
        };
        called?.map_err(|error| cuda::exception(py, &error))
    }

    /// Joins the ranks on GPUs. All ranks do it in their first call with an array there.
    fn join_on_gpu(&self, py: Python<'_>, operation: &'static str, device: usize) -> PyResult<()> {
        let duplicated =
            |comm: &mut weftlink::Communicator| Ok((comm.duplicate_group()?, comm.options().deadline));
        let (group, timeout) = self.with(py, operation, duplicated)?;
        let gpus = self.gpus.clone();
        let joined = interruptible(py, move || gpus.join(group, device, timeout));
        // The others have joined, or wait.
        let joined = joined.inspect_err(|_| self.abort(py, &format!("interrupted in {operation}")))?;
        joined.map_err(|error| cuda::exception(py, &error))
    }

    /// Runs a function on the communicator after the queued calls, and waits for it. An interrupt aborts the communicator.
    fn with<R: Send + 'static>(
        &self,
        py: Python<'_>,
        operation: &'static str,
        work: impl FnOnce(&mut weftlink::Communicator) -> Result<R, Error> + Send + 'static,
    ) -> PyResult<R> {
        let failed = |error: Error| self.raised(py, &error, operation);
        let background = self.background().map_err(failed)?;
        background.check_not_in_call().map_err(failed)?;
        let aborts = background.clone();
        let abort = move || aborts.abort(&format!("interrupted in {operation}"));
        let done = interruptible(py, move || background.with(work)).inspect_err(|_| abort())?;
        done.map_err(failed)
    }
}

#[pymethods]
impl Communicator {
    /// Calls the collective of this name, and waits for it or returns the started call.
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    #[pyo3(signature = (name, input, output, wait, *, operation=None, factor=None, root=0, counts=None, count=None,
        messages=None, torus=None, dtype=None, timeout=None))]
    fn call(
        &self,
        py: Python<'_>,
        name: &str,
        input: Option<Bound<'_, PyAny>>,
        output: Option<Bound<'_, PyAny>>,
        wait: bool,
        operation: Option<String>,
        factor: Option<f64>,
        root: usize,
        counts: Option<(Vec<usize>, Vec<usize>)>,
        count: Option<usize>,
        messages: Option<Vec<(u32, u32)>>,
        torus: Option<[u32; 3]>,
        dtype: Option<String>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Started>> {
        let failed = |error: Error| self.raised(py, &error, name);
        let array = |object: Option<Bound<'_, PyAny>>| match object {
            Some(object) => Array::of(&object, dtype.as_deref())?.map(Some).map_err(failed),
            None => Ok(None),
        };
        let stream = input.clone().or_else(|| output.clone());
        let mut arrays = Arrays { input: array(input)?, output: array(output)?, stream: 0 };
        if let (Some(object), Some(_)) = (stream, arrays.on_gpu().map_err(failed)?) {
            arrays.stream = cuda::stream_of(&object)?;
        }
        let options = CallOptions { operation, factor, root, counts, count, messages, torus, timeout };
        let collective = options.collective(name).map_err(failed)?;
        self.start_call(py, collective, options, arrays, wait)
    }

    /// Sends and receives messages as one group.
    fn group(&self, py: Python<'_>, sends: Vec<Message<'_>>, receives: Vec<Message<'_>>) -> PyResult<()> {
        let failed = |error: Error| self.raised(py, &error, "group");
        let mut kept = Vec::new();
        let mut sides = |messages: Vec<Message<'_>>, written: bool| {
            let side = |(peer, object): Message<'_>| {
                let array = Array::of(&object, None)?.map_err(failed)?;
                if array.place != Place::Host {
                    let what = "groups of messages are not supported on GPUs yet: pass arrays in CPU memory";
                    return Err(failed(Error::Misuse(what.to_owned())));
                }
                if written && array.read_only {
                    let what =
                        format!("the array for the message from rank {peer} is read-only: pass a copy");
                    return Err(failed(Error::Misuse(what)));
                }
                let bytes = Bytes { address: array.address, length: array.bytes() };
                kept.push(array.keep);
                Ok((peer, bytes))
            };
            messages.into_iter().map(side).collect::<PyResult<Vec<_>>>()
        };
        let (sends, receives) = (sides(sends, false)?, sides(receives, true)?);
        let shared = Shared::new("group", self.identities.clone(), kept);
        let completes = Arc::clone(&shared);
        let work = move |comm: &mut weftlink::Communicator| {
            let done = comm.group(|group| {
                for (peer, bytes) in sends {
                    // SAFETY: `kept` keeps the array alive until the group is done; the program must not touch it until then.
                    group.send(peer, unsafe { bytes.read() })?;
                }
                for (peer, bytes) in receives {
                    // SAFETY: as above.
                    group.receive(peer, unsafe { bytes.write() })?;
                }
                Ok(())
            });
            completes.complete(done.clone());
            done
        };
        self.with(py, "group", work)
    }

    /// Allocates symmetric memory of `length` elements per rank, zeroed.
    fn window(&self, py: Python<'_>, length: usize, dtype: &str) -> PyResult<Window> {
        let failed = |error: Error| self.raised(py, &error, "window");
        let data_type: DataType = dtype.parse().map_err(|why| failed(Error::Misuse(why)))?;
        let bytes = length.checked_mul(data_type.bytes()).ok_or_else(|| {
            failed(Error::Misuse(format!("a window of {length} elements per rank is too large")))
        })?;
        let memory = self.with(py, "window", move |comm| comm.window::<u8>(bytes))?;
        Ok(Window::new(memory, data_type, length))
    }

    /// Ranks with the same part form a communicator of their own.
    fn split(&self, py: Python<'_>, part: Option<u32>, key: i64) -> PyResult<Option<Self>> {
        let split =
            move |comm: &mut weftlink::Communicator| comm.split(part, key)?.map(Self::new).transpose();
        self.with(py, "split", split)
    }

    /// Makes a communicator of the surviving ranks; this one is closed.
    fn shrink(&self, py: Python<'_>) -> PyResult<Self> {
        let failed = |error: Error| self.raised(py, &error, "shrink");
        self.check_not_in_call().map_err(failed)?;
        let background = self.take_background().map_err(failed)?;
        let gpus = self.gpus.clone();
        let shrink = move || {
            // The error of a call is why the program shrinks.
            let _ = gpus.leave();
            Self::new(background.close()?.shrink()?)
        };
        interruptible(py, shrink)?.map_err(failed)
    }

    /// Aborts the communicator on all ranks.
    fn abort(&self, py: Python<'_>, reason: &str) {
        if let Ok(background) = self.background() {
            py.detach(|| background.abort(reason));
        }
        self.gpus.abort();
    }

    /// Waits for all started calls, then leaves. Closing again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let failed = |error: Error| self.raised(py, &error, "close");
        self.check_not_in_call().map_err(failed)?;
        let Ok(background) = self.take_background() else { return Ok(()) };
        let gpus = self.gpus.clone();
        let (failure, closed) = interruptible(py, move || (gpus.leave(), background.close().map(drop)))?;
        closed.map_err(failed)?;
        failure.map_or(Ok(()), |why| Err(crate::error::failed(py, &why)))
    }

    /// Raises the error of a call on arrays of a GPU that has failed.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let failure = py.detach(|| self.gpus.failure());
        failure.map_or(Ok(()), |why| Err(crate::error::failed(py, &why)))
    }

    /// Leaves when the program ends: closes, or aborts if calls are unfinished, because nobody will wait for them.
    fn leave(&self, py: Python<'_>) {
        if self.pending.load(Ordering::Relaxed) > 0 {
            self.abort(py, "its program ended with unfinished calls");
        } else {
            // The program has ended: nobody can handle an error.
            let _ = self.close(py);
        }
    }

    /// Whether it has been closed.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.background).is_none()
    }

    /// The counters of every collective: name, calls, bytes, errors, waits, sleeps and nanoseconds waited.
    fn counters(&self) -> Vec<(&'static str, u64, u64, u64, u64, u64, u64)> {
        let counters = self.recorder.counters().by_collective.into_iter();
        let row = |counted: weftlink::recorder::CollectiveCounters| {
            let weftlink::recorder::CollectiveCounters {
                collective,
                calls,
                bytes,
                errors,
                waits,
                slept,
                waited_ns,
            } = counted;
            (collective, calls, bytes, errors, waits, slept, waited_ns)
        };
        counters.map(row).collect()
    }

    /// The flight recorder's record, as JSON.
    fn record(&self) -> String {
        self.recorder.record().to_json()
    }

    /// Writes the flight recorder's record into a folder, and returns the path.
    fn dump(&self, folder: PathBuf) -> PyResult<PathBuf> {
        Ok(self.recorder.dump(&folder)?)
    }
}

impl Drop for Communicator {
    /// Leaving waits for calls on the GPU, which may wait for threads that need the interpreter.
    fn drop(&mut self) {
        let left = Python::try_attach(|py| py.detach(|| self.gpus.leave()));
        if left.is_none() {
            self.gpus.leave();
        }
    }
}

impl Communicator {
    /// An error if this thread is in a call, as in a signal handler: waiting for that call would deadlock.
    fn check_not_in_call(&self) -> Result<(), Error> {
        self.background().map_or(Ok(()), |background| background.check_not_in_call())
    }

    /// Takes the worker out; later calls fail as on a closed communicator.
    fn take_background(&self) -> Result<Background, Error> {
        let closed = || Error::Misuse("the communicator is closed".to_owned());
        lock(&self.background).take().ok_or_else(closed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
