//! One rank's end of a process group.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use weftlink::bootstrap::{Bootstrap, Network, Rendezvous, RendezvousAddress, Secret, Token};
use weftlink::knobs::Knobs;
use weftlink::plan::Collective;
use weftlink::{Communicator, Counts, DataType, Endpoint, Error, Identities, Options, RawBuffers, Request};

use super::call::Call;
use super::error::Context;
use super::lanes::{LANES_MAX, Lanes};
use super::operation;
use super::pieces::{self, Access, Side, Staged};
use super::record::{self, NewEntry};
use super::start::Start;
use super::tensor::{Tensor, usage};
use crate::cuda::Gpus;
use crate::wait::interruptible;
use crate::window::Window;

/// One rank's end of a process group.
#[pyclass(module = "weftlink._native", frozen)]
pub(crate) struct Group {
    rank: usize,
    size: usize,
    /// The timeout of calls without their own.
    timeout: Mutex<Duration>,
    open: Mutex<Option<OpenGroup>>,
    /// Its ranks on GPUs, from the first call with a tensor there.
    pub(super) gpus: Gpus,
    /// Its number in the flight record.
    pub(super) number: usize,
    calls: AtomicU64,
    messages: AtomicU64,
}

/// The parts of a group that is not closed.
#[derive(Clone)]
pub(super) struct OpenGroup {
    pub(super) lanes: Lanes,
    pub(super) endpoint: Endpoint,
    pub(super) identities: Identities,
}

/// How long a rank that leaves waits for its pending messages, and a program that ends for its groups.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// A number that must not be negative.
fn non_negative(py: Python<'_>, what: &str, number: i64) -> PyResult<u64> {
    u64::try_from(number).map_err(|_| usage(py, &format!("{what} is {number}, and must not be negative")))
}

/// The name of a collective in `torch.distributed`, for its name in PyTorch's records.
pub(super) fn public_name(recorded: &'static str) -> &'static str {
    match recorded {
        "_all_gather_base" => "all_gather_into_tensor",
        "_reduce_scatter_base" => "reduce_scatter_tensor",
        "all_reduce_barrier" => "barrier",
        "allreduce_coalesced" => "all_reduce_coalesced",
        same => same,
    }
}

/// The name of a collective in PyTorch's records, and Weft's collective.
pub(super) fn collective(what: &str, root: u32, to: u32) -> Option<(&'static str, Collective)> {
    Some(match what {
        "all_reduce" => ("all_reduce", Collective::AllReduce),
        "broadcast" => ("broadcast", Collective::Broadcast { root }),
        "reduce" => ("reduce", Collective::Reduce { root }),
        "all_gather" => ("all_gather", Collective::AllGather),
        "_all_gather_base" => ("_all_gather_base", Collective::AllGather),
        "reduce_scatter" => ("reduce_scatter", Collective::ReduceScatter),
        "_reduce_scatter_base" => ("_reduce_scatter_base", Collective::ReduceScatter),
        "all_to_all" => ("all_to_all", Collective::AllToAll),
        "gather" => ("gather", Collective::Gather { root }),
        "scatter" => ("scatter", Collective::Scatter { root }),
        "gather_one" => ("gather", Collective::SendReceive { messages: vec![(root, to)] }),
        "scatter_one" => ("scatter", Collective::SendReceive { messages: vec![(root, to)] }),
        "barrier" => ("all_reduce_barrier", Collective::Barrier),
        "allreduce_coalesced" => ("allreduce_coalesced", Collective::AllReduce),
        _ => return None,
    })
}

#[pymethods]
impl Group {
    /// Joins the other ranks of the group.
    ///
    /// `place` is a name on one host, or `host:port` where rank 0 listens for other hosts.
    #[new]
    #[pyo3(signature = (rank, size, place, secret, timeout, name, description, ranks, lanes=1))]
    #[allow(clippy::too_many_arguments, reason = "Python's constructors have no other way")]
    fn new(
        py: Python<'_>,
        rank: usize,
        size: usize,
        place: &str,
        secret: &[u8],
        timeout: f64,
        name: String,
        description: String,
        ranks: Vec<u64>,
        lanes: usize,
    ) -> PyResult<Self> {
        let timeout = seconds(timeout);
        let context = Context { timeout, ..Context::default() };
        let failed = |error: Error| context.raised(py, &error);
        let meeting = meeting(place, secret, size, timeout).map_err(failed)?;
        let open = interruptible(py, move || join(&meeting, rank, timeout, lanes))?.map_err(failed)?;
        Ok(Self {
            rank,
            size,
            timeout: Mutex::new(timeout),
            open: Mutex::new(Some(open)),
            gpus: Gpus::default(),
            number: record::enter_group(name, description, ranks),
            calls: AtomicU64::new(0),
            messages: AtomicU64::new(0),
        })
    }

    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    /// The number of collectives so far.
    #[getter]
    fn sequence(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Sets the timeout of calls, in seconds.
    fn set_timeout(&self, timeout: f64) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = seconds(timeout);
    }

    /// Calls a collective on contiguous tensors. Returns nothing if it is done, and otherwise the call in progress. `finish` is called
    /// after success, before the call completes.
    ///
    /// With `now`, the caller waits for it, and runs it unless another call of the group is in progress.
    #[pyo3(signature = (what, input, output, *, root=0, to=0, like=None, op=None, factor=None, counts=None, count=None, timeout=None, now=false, finish=None))]
    #[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn call(
        &self,
        py: Python<'_>,
        what: &str,
        input: Option<&Bound<'_, PyAny>>,
        output: Option<&Bound<'_, PyAny>>,
        root: u32,
        to: u32,
        like: Option<&Bound<'_, PyAny>>,
        op: Option<u8>,
        factor: Option<f64>,
        counts: Option<(Vec<usize>, Vec<usize>)>,
        count: Option<usize>,
        timeout: Option<f64>,
        now: bool,
        finish: Option<Py<PyAny>>,
    ) -> PyResult<Option<Call>> {
        let Some((recorded, collective)) = collective(what, root, to) else {
            return Err(usage(py, &format!("unknown collective {what:?}")));
        };
        let name = public_name(recorded);
        let ([reads, writes], staged) = sides(input, output)?;
        let [reads, writes] = self.in_place(py, &collective, [reads, writes])?;
        let like = like.map(Tensor::of).transpose()?;
        let tensor = reads.or(writes).or(like).unwrap_or(Tensor::NONE);
        let operation = match op {
            Some(op) => Some(operation::operation(py, op, factor, &tensor)?),
            None => None,
        };
        let deadline = self.deadline(timeout);
        let entry = record::enter(NewEntry {
            group: self.number,
            what: recorded.to_owned(),
            number: self.next_call(),
            is_message: false,
            input: reads.as_ref(),
            output: writes.as_ref(),
            timeout_ms: deadline.as_millis() as u64,
        });
        let counts = counts.map(|(input, output)| Counts::new(input, output));
        let request = Request::new(collective, buffers(&tensor, reads, writes)).deadline(deadline);
        let request = Request { operation, counts, count, yields_core: !now, ..request };
        let OpenGroup { lanes, identities, .. } = self.opened(py)?;
        let context = Context { operation: Some(name), timeout: deadline, identities: Some(identities) };
        let kept = [input, output].into_iter().flatten().flat_map(pieces::tensors_of).collect();
        let start = Start { lanes: &lanes, context, entry, finish, kept, staged };
        let parts = lanes.cut(request);
        match now {
            false => Ok(Some(start.on_workers(parts))),
            true => start.on_caller(py, parts),
        }
    }

    /// Copies a tensor to another of the same type and length, with one thread per lane.
    fn copy(&self, py: Python<'_>, source: &Bound<'_, PyAny>, target: &Bound<'_, PyAny>) -> PyResult<()> {
        let (source, target) = (Tensor::of(source)?, Tensor::of(target)?);
        if (source.name, source.length) != (target.name, target.length) {
            return Err(usage(py, "source and target of a copy must have the same type and length"));
        }
        let threads = self.opened(py)?.lanes.all().len();
        py.detach(|| pieces::copy(&source, &target, threads));
        Ok(())
    }

    /// Starts sending a tensor to a rank.
    #[pyo3(signature = (tensor, to, tag, *, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        to: i64,
        tag: i64,
        timeout: Option<f64>,
    ) -> PyResult<Call> {
        let [to, tag] = [non_negative(py, "the rank", to)?, non_negative(py, "the tag", tag)?];
        self.start_send(py, tensor, to as usize, tag, timeout)
    }

    /// Starts receiving a tensor from a rank, or from any rank. `finish` is called when it has arrived, before the call completes.
    #[pyo3(signature = (tensor, source, tag, *, timeout=None, finish=None))]
    fn receive(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        source: Option<i64>,
        tag: i64,
        timeout: Option<f64>,
        finish: Option<Py<PyAny>>,
    ) -> PyResult<Call> {
        let source = source.map(|source| non_negative(py, "the rank", source)).transpose()?;
        let (source, tag) = (source.map(|source| source as usize), non_negative(py, "the tag", tag)?);
        self.start_receive(py, tensor, source, tag, timeout, finish)
    }

    /// Allocates symmetric memory, an object with the array interface. All ranks call it.
    fn window(&self, py: Python<'_>, bytes: usize) -> PyResult<Window> {
        let OpenGroup { lanes, identities, .. } = self.opened(py)?;
        let window = interruptible(py, move || lanes.window(bytes))?;
        let context =
            Context { operation: Some("window"), timeout: self.deadline(None), identities: Some(identities) };
        let window = window.map_err(|error| context.raised(py, &error))?;
        Ok(Window::new(window, DataType::U8, bytes))
    }

    /// Aborts the group on all ranks.
    pub(super) fn abort(&self, py: Python<'_>, reason: &str) {
        if let Ok(OpenGroup { lanes, .. }) = self.opened(py) {
            py.detach(|| lanes.all().iter().for_each(|background| background.abort(reason)));
        }
        self.gpus.abort();
    }

    /// Waits for all started calls, then leaves, and returns why a call on a GPU had failed. Closing again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<Option<String>> {
        interruptible(py, self.close_work())
    }

    /// Leaves when the program ends: unfinished calls have until the shutdown timeout.
    fn leave(&self, py: Python<'_>) {
        let (close, (sender, receiver)) = (self.close_work(), channel());
        let close = move || {
            close();
            let _ = sender.send(());
        };
        // The program has ended: nobody can handle an error.
        if std::thread::Builder::new().spawn(close).is_ok() {
            let _ = py.detach(move || receiver.recv_timeout(2 * SHUTDOWN_TIMEOUT));
        }
    }
}

impl Group {
    /// Takes the group out, and returns the work that leaves it.
    fn close_work(&self) -> impl FnOnce() -> Option<String> + Send + 'static {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        let gpus = self.gpus.clone();
        move || {
            let failure = gpus.leave();
            if let Some(OpenGroup { lanes, endpoint, .. }) = open {
                endpoint.flush(SHUTDOWN_TIMEOUT);
                drop(endpoint);
                lanes.close();
            }
            failure
        }
    }

    pub(super) fn opened(&self, py: Python<'_>) -> PyResult<OpenGroup> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).clone();
        open.ok_or_else(|| usage(py, "the process group was destroyed: create a new one"))
    }

    pub(super) fn deadline(&self, timeout: Option<f64>) -> Duration {
        timeout.map_or_else(|| *self.timeout.lock().unwrap_or_else(PoisonError::into_inner), seconds)
    }

    /// Adds a message to the flight record.
    pub(super) fn enter_message(
        &self,
        what: String,
        tensor: &Tensor,
        sends: bool,
        deadline: Duration,
    ) -> u64 {
        record::enter(NewEntry {
            group: self.number,
            what,
            number: self.messages.fetch_add(1, Ordering::Relaxed) + 1,
            is_message: true,
            input: sends.then_some(tensor),
            output: (!sends).then_some(tensor),
            timeout_ms: deadline.as_millis() as u64,
        })
    }

    /// Both sides of a call. If the smaller is this rank's block of the larger, the call is in place; any other overlap is an error.
    pub(super) fn in_place(
        &self,
        py: Python<'_>,
        what: &Collective,
        sides: [Option<Tensor>; 2],
    ) -> PyResult<[Option<Tensor>; 2]> {
        let [Some(reads), Some(writes)] = sides else { return Ok(sides) };
        if !reads.overlaps(&writes) || (reads.address, reads.length) == (writes.address, writes.length) {
            return Ok(sides);
        }
        let (whole, block) = match what {
            Collective::AllGather | Collective::Gather { .. } => (writes, reads),
            Collective::ReduceScatter | Collective::Scatter { .. } => (reads, writes),
            _ => {
                return Err(usage(
                    py,
                    "input and output overlap: pass one tensor, or two that do not overlap",
                ));
            }
        };
        if whole.length == self.size * block.length
            && block.address == whole.address + self.rank * block.bytes().1
        {
            return Ok([Some(whole); 2]);
        }
        Err(usage(py, "input and output overlap, but not at this rank's block"))
    }

    /// The number of a new collective.
    pub(super) fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn own_rank(&self) -> usize {
        self.rank
    }
}

impl Drop for Group {
    /// Leaving waits for calls on the GPU, which may wait for threads that need the interpreter.
    fn drop(&mut self) {
        if Python::try_attach(|py| py.detach(|| self.gpus.leave())).is_none() {
            self.gpus.leave();
        }
    }
}

/// Both sides of a call, and their staging copies.
#[allow(clippy::type_complexity, reason = "two of each")]
fn sides(
    input: Option<&Bound<'_, PyAny>>,
    output: Option<&Bound<'_, PyAny>>,
) -> PyResult<([Option<Tensor>; 2], Vec<Staged>)> {
    if let Some((both, _)) = input.zip(output).filter(|(input, output)| input.is(*output)) {
        let Side { tensor, staged } = Side::of(both, Access::ReadWrite)?;
        return Ok(([Some(tensor); 2], staged.into_iter().collect()));
    }
    let reads = input.map(|input| Side::of(input, Access::Read)).transpose()?;
    let writes = output.map(|output| Side::of(output, Access::Write)).transpose()?;
    let tensors = [&reads, &writes].map(|side| side.as_ref().map(|side| side.tensor));
    let staged = [reads, writes].into_iter().flatten().filter_map(|side| side.staged).collect();
    Ok((tensors, staged))
}

pub(super) fn buffers(tensor: &Tensor, reads: Option<Tensor>, writes: Option<Tensor>) -> RawBuffers {
    let (reads, writes) = (reads.unwrap_or(Tensor::NONE), writes.unwrap_or(Tensor::NONE));
    RawBuffers {
        data_type: tensor.data_type,
        input: reads.address as *const u8,
        input_length: reads.length,
        output: writes.address as *mut u8,
        output_length: writes.length,
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

fn meeting(place: &str, secret: &[u8], size: usize, timeout: Duration) -> Result<Rendezvous, Error> {
    let place = match place.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>())) {
        Some((host, Ok(port))) => RendezvousAddress::Tcp { host: host.to_owned(), ports: port..=port },
        _ => RendezvousAddress::Abstract(place.to_owned()),
    };
    let network = Network::of(&Knobs::from_environment()?);
    let token = Token::new(secret)?;
    // Any process that reaches the store can read its secret; the job's own secret is not in the store.
    let token = match Secret::of_this_process().map_err(|error| Error::Misuse(error.to_string()))? {
        Some(own) => token.mixed_with(&own)?,
        None => token,
    };
    Ok(Rendezvous { network, ..Rendezvous::new(place, token, size, timeout) })
}

fn join(meeting: &Rendezvous, rank: usize, timeout: Duration, lanes: usize) -> Result<OpenGroup, Error> {
    let bootstrap = if rank == 0 { Bootstrap::listen(meeting)? } else { Bootstrap::join(meeting, rank)? };
    let options = Options { deadline: timeout, ..Options::from_environment()? };
    let mut comm = Communicator::new(bootstrap, options)?;
    let endpoint = comm.endpoint()?;
    let identities = comm.identities();
    Ok(OpenGroup { lanes: Lanes::new(comm, lanes.clamp(1, LANES_MAX))?, endpoint, identities })
}
