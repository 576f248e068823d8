//! Communicators. `weftlink/communicator.py` has the methods that people call; here is what they come down to.

#![allow(unsafe_code)] // Calls are made on memory that is known by its address.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use weftlink::plan::Collective;
use weftlink::{Background, DataType, Error, FlightRecorder};

use crate::array::Array;
use crate::call::{Shared, Started};
use crate::error::raised;
use crate::request::{Alone, Asked, method};
use crate::vouched::{Bytes, run_here};
use crate::wait::patiently;
use crate::window::Window;

/// One rank's end of a group.
#[pyclass(frozen, module = "weftlink._native")]
pub(crate) struct Communicator {
    /// None once it is closed.
    background: Mutex<Option<Background>>,
    /// To be asked at any time, also while a call is stuck.
    recorder: FlightRecorder,
    /// How many calls are not over.
    pending: Arc<AtomicUsize>,
    #[pyo3(get)]
    rank: usize,
    #[pyo3(get)]
    size: usize,
    /// What each rank was in the communicator that this one was made of.
    #[pyo3(get)]
    origins: Vec<usize>,
}

/// What a call reads and writes.
struct Arrays {
    input: Option<Array>,
    output: Option<Array>,
}

/// A message of a group: the other rank, and an array.
type Message<'py> = (usize, Bound<'py, PyAny>);

impl Communicator {
    /// Hands a communicator to its worker.
    pub(crate) fn new(comm: weftlink::Communicator) -> Result<Self, Error> {
        let (recorder, origins) = (comm.flight_recorder(), comm.origins().to_vec());
        let (rank, size) = (comm.rank(), comm.size());
        let background = Mutex::new(Some(comm.into_background()?));
        let pending = Arc::default();
        Ok(Self { background, recorder, pending, rank, size, origins })
    }

    fn background(&self) -> Result<Background, Error> {
        let closed = || Error::Misuse("this communicator has been closed".to_owned());
        lock(&self.background).clone().ok_or_else(closed)
    }

    /// The call, on memory of these objects.
    fn made(
        &self,
        py: Python<'_>,
        collective: Collective,
        asked: Asked,
        arrays: Arrays,
        wait: bool,
    ) -> PyResult<Option<Started>> {
        let operation = method(&collective);
        let failed = |error: Error| raised(py, &error, Some(operation));
        let Arrays { input, output } = arrays;
        let alone = Alone::of(&collective, self.rank as u32, self.size as u32);
        let request = asked.request(collective, input.as_ref(), output.as_ref(), alone).map_err(failed)?;
        let background = self.background().map_err(failed)?;
        let kept: Vec<_> = [input, output].into_iter().flatten().map(|array| array.keep).collect();
        let request = match wait {
            false => request,
            // SAFETY: the arrays are kept, and it is the program's to leave them alone until the call is over.
            true => match unsafe { run_here(py, std::slice::from_ref(&background), request) }? {
                Ok(ran) => return ran.map(|()| None).map_err(failed),
                Err(request) => *request,
            },
        };
        let shared = Shared::new(operation, kept);
        let (told, pending) = (Arc::clone(&shared), Arc::clone(&self.pending));
        pending.fetch_add(1, Ordering::Relaxed);
        let done = move |result| {
            pending.fetch_sub(1, Ordering::Relaxed);
            told.end(result);
        };
        // SAFETY: as above, until `end` lets go of the arrays.
        let handle = unsafe { background.start_raw(request, done) };
        // Whoever closes the communicator meanwhile must be the last to have it.
        drop(background);
        let call = Started::new(shared, handle);
        if !wait {
            return Ok(Some(call));
        }
        call.join(py, None)?;
        Ok(None)
    }

    /// Does something with the communicator in its turn, and waits for it. An interrupt ends the communicator.
    fn with<R: Send + 'static>(
        &self,
        py: Python<'_>,
        operation: &'static str,
        work: impl FnOnce(&mut weftlink::Communicator) -> Result<R, Error> + Send + 'static,
    ) -> PyResult<R> {
        let failed = |error: Error| raised(py, &error, Some(operation));
        let background = self.background().map_err(failed)?;
        background.check_not_in_call().map_err(failed)?;
        let ender = background.clone();
        let abort = move || ender.abort(&format!("interrupted in {operation}"));
        let done = patiently(py, move || background.with(work)).inspect_err(|_| abort())?;
        done.map_err(failed)
    }
}

#[pymethods]
impl Communicator {
    /// Makes a call of the collective that the method of this name is; waits for it, or gives what waits for it.
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
        let failed = |error: Error| raised(py, &error, Some(name));
        let array = |object: Option<Bound<'_, PyAny>>| match object {
            Some(object) => Array::of(&object, dtype.as_deref())?.map(Some).map_err(failed),
            None => Ok(None),
        };
        let arrays = Arrays { input: array(input)?, output: array(output)? };
        let asked = Asked { operation, factor, root, counts, count, messages, torus, timeout };
        let collective = asked.collective(name).map_err(failed)?;
        self.made(py, collective, asked, arrays, wait)
    }

    /// Sends and receives messages as one group.
    fn group(&self, py: Python<'_>, sends: Vec<Message<'_>>, receives: Vec<Message<'_>>) -> PyResult<()> {
        let failed = |error: Error| raised(py, &error, Some("group"));
        let mut kept = Vec::new();
        let mut sides = |messages: Vec<Message<'_>>, written: bool| {
            let side = |(peer, object): Message<'_>| {
                let array = Array::of(&object, None)?.map_err(failed)?;
                if written && array.read_only {
                    let what =
                        format!("the array for what rank {peer} sends is read-only: pass a copy of it");
                    return Err(failed(Error::Misuse(what)));
                }
                let bytes = Bytes { address: array.address, length: array.bytes() };
                kept.push(array.keep);
                Ok((peer, bytes))
            };
            messages.into_iter().map(side).collect::<PyResult<Vec<_>>>()
        };
        let (sends, receives) = (sides(sends, false)?, sides(receives, true)?);
        let shared = Shared::new("group", kept);
        let over = Arc::clone(&shared);
        let work = move |comm: &mut weftlink::Communicator| {
            let done = comm.group(|group| {
                for (peer, bytes) in sends {
                    // SAFETY: the array is kept until the group is over, and it is the program's to leave it alone so long.
                    group.send(peer, unsafe { bytes.read() })?;
                }
                for (peer, bytes) in receives {
                    // SAFETY: as above.
                    group.receive(peer, unsafe { bytes.write() })?;
                }
                Ok(())
            });
            over.end(done.clone());
            done
        };
        self.with(py, "group", work)
    }

    /// Allocates symmetric memory of so many elements per rank, zeroed.
    fn window(&self, py: Python<'_>, length: usize, dtype: &str) -> PyResult<Window> {
        let failed = |error: Error| raised(py, &error, Some("window"));
        let data_type: DataType = dtype.parse().map_err(|why| failed(Error::Misuse(why)))?;
        let bytes = length.checked_mul(data_type.bytes()).ok_or_else(|| {
            failed(Error::Misuse(format!("a window of {length} elements per rank is too large")))
        })?;
        let memory = self.with(py, "window", move |comm| comm.window::<u8>(bytes))?;
        Ok(Window::new(memory, data_type, length))
    }

    /// Ranks that say the same part get a communicator of their own.
    fn split(&self, py: Python<'_>, part: Option<u32>, key: i64) -> PyResult<Option<Self>> {
        let split =
            move |comm: &mut weftlink::Communicator| comm.split(part, key)?.map(Self::new).transpose();
        self.with(py, "split", split)
    }

    /// A communicator of those who are left; this one is closed.
    fn shrink(&self, py: Python<'_>) -> PyResult<Self> {
        let failed = |error: Error| raised(py, &error, Some("shrink"));
        self.check_not_in_call().map_err(failed)?;
        let background = self.taken().map_err(failed)?;
        let shrink = move || Self::new(background.close()?.shrink()?);
        patiently(py, shrink)?.map_err(failed)
    }

    /// Ends the communicator for all ranks.
    fn abort(&self, py: Python<'_>, reason: &str) {
        if let Ok(background) = self.background() {
            py.detach(|| background.abort(reason));
        }
    }

    /// Waits for all calls that were submitted, and leaves. Closing again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let failed = |error: Error| raised(py, &error, Some("close"));
        self.check_not_in_call().map_err(failed)?;
        let Ok(background) = self.taken() else { return Ok(()) };
        patiently(py, move || background.close().map(drop))?.map_err(failed)
    }

    /// Leaves as the program ends: closes, unless calls are under way, which nobody will wait for.
    fn leave(&self, py: Python<'_>) {
        if self.pending.load(Ordering::Relaxed) > 0 {
            self.abort(py, "its program ended while calls were under way");
        } else {
            // Whatever goes wrong now, there is nobody to tell.
            let _ = self.close(py);
        }
    }

    /// Whether it has been closed.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.background).is_none()
    }

    /// What has been counted so far: for every kind of call its name, calls, bytes, errors, waits, sleeps and nanoseconds waited.
    fn counters(&self) -> Vec<(&'static str, u64, u64, u64, u64, u64, u64)> {
        let counters = self.recorder.counters().by_collective.into_iter();
        let row = |counted: weftlink::recorder::Counted| {
            let weftlink::recorder::Counted { collective, calls, bytes, errors, waits, slept, waited_ns } =
                counted;
            (collective, calls, bytes, errors, waits, slept, waited_ns)
        };
        counters.map(row).collect()
    }

    /// The flight recorder's record, as JSON.
    fn record(&self) -> String {
        self.recorder.record().to_json()
    }

    /// Writes the flight recorder's record into a folder, and says where.
    fn dump(&self, folder: PathBuf) -> PyResult<PathBuf> {
        Ok(self.recorder.dump(&folder)?)
    }
}

impl Communicator {
    /// An error if this thread is in a call, as a signal's handler is: waiting for the end of it would never end.
    fn check_not_in_call(&self) -> Result<(), Error> {
        self.background().map_or(Ok(()), |background| background.check_not_in_call())
    }

    /// The worker's end, which nobody has from then on.
    fn taken(&self) -> Result<Background, Error> {
        let closed = || Error::Misuse("this communicator has been closed".to_owned());
        lock(&self.background).take().ok_or_else(closed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
