//! One rank's end of a process group.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use weftlink::bootstrap::{Bootstrap, Network, Rendezvous, RendezvousAddress, Secret, Token};
use weftlink::knobs::Knobs;
use weftlink::plan::Collective;
use weftlink::{Communicator, DataType, Endpoint, Error, Options, RawBuffers, RawRequest};

use super::call::Call;
use super::lanes::{LANES_MAX, Lanes};
use super::operation;
use super::pieces::{self, Side, Staged, Way};
use super::record::{self, New};
use super::start::Start;
use super::tensor::{Tensor, usage};
use crate::error::raised;
use crate::wait::patiently;
use crate::window::Window;

/// One rank's end of a process group.
#[pyclass(module = "weftlink._native", frozen)]
pub(crate) struct Group {
    rank: usize,
    size: usize,
    /// How long a call waits unless it says otherwise.
    timeout: Mutex<Duration>,
    ends: Mutex<Option<Ends>>,
    /// In the flight record.
    number: usize,
    calls: AtomicU64,
    messages: AtomicU64,
}

/// What is there until the group is closed.
#[derive(Clone)]
pub(super) struct Ends {
    pub(super) lanes: Lanes,
    pub(super) endpoint: Endpoint,
}

/// How long a rank that leaves waits until its messages are on their way, and a program that ends until its groups are left.
const PARTING: Duration = Duration::from_secs(1);

/// A number that cannot be negative.
fn natural(py: Python<'_>, what: &str, number: i64) -> PyResult<u64> {
    u64::try_from(number).map_err(|_| usage(py, &format!("{what} is {number}, and cannot be negative")))
}

/// What programs call a collective that PyTorch's records call otherwise.
fn called(recorded: &'static str) -> &'static str {
    match recorded {
        "_all_gather_base" => "all_gather_into_tensor",
        "_reduce_scatter_base" => "reduce_scatter_tensor",
        "all_reduce_barrier" => "barrier",
        "allreduce_coalesced" => "all_reduce_coalesced",
        same => same,
    }
}

/// What a collective is called in PyTorch's records, and here.
fn collective(what: &str, root: u32, to: u32) -> Option<(&'static str, Collective)> {
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
    /// Meets the other ranks at a place that all have been told, and makes a communicator with them.
    ///
    /// `place` is the name of a meeting on one host, or `host:port` where rank 0 listens for other hosts.
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
        let meeting = meeting(place, secret, size, timeout).map_err(|error| raised(py, &error, None))?;
        let ends = patiently(py, move || meet(&meeting, rank, timeout, lanes))?
            .map_err(|error| raised(py, &error, None))?;
        Ok(Self {
            rank,
            size,
            timeout: Mutex::new(timeout),
            ends: Mutex::new(Some(ends)),
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

    /// How many collectives there were.
    #[getter]
    fn sequence(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Changes how long calls wait, in seconds.
    fn set_timeout(&self, timeout: f64) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = seconds(timeout);
    }

    /// Makes a collective call on tensors whose elements follow each other. Returns nothing if it is over, and a call if it is
    /// under way. `finish` is called when it went well, before anybody is told.
    ///
    /// With `now`, the caller waits for it: on this thread, if no other call of the group is under way.
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
            return Err(usage(py, &format!("there is no collective {what:?}")));
        };
        let name = called(recorded);
        let ([reads, writes], staged) = sides(input, output)?;
        let [reads, writes] = self.placed(py, &collective, [reads, writes])?;
        let like = like.map(Tensor::of).transpose()?;
        let tensor = reads.or(writes).or(like).unwrap_or(Tensor::NONE);
        let operation = match op {
            Some(op) => Some(operation::operation(py, op, factor, &tensor)?),
            None => None,
        };
        let deadline = self.deadline(timeout);
        let entry = record::enter(New {
            group: self.number,
            what: recorded.to_owned(),
            number: self.calls.fetch_add(1, Ordering::Relaxed) + 1,
            is_message: false,
            input: reads.as_ref(),
            output: writes.as_ref(),
            timeout_ms: deadline.as_millis() as u64,
        });
        let request = RawRequest {
            collective,
            buffers: buffers(&tensor, reads, writes),
            operation,
            counts,
            count,
            deadline: Some(deadline),
            makes_way: !now,
        };
        let Ends { lanes, .. } = self.ends(py)?;
        let kept = [input, output].into_iter().flatten().flat_map(pieces::tensors_of).collect();
        let start = Start { lanes: &lanes, name, entry, finish, kept, staged };
        let parts = lanes.cut(request);
        match now {
            false => Ok(Some(start.later(parts))),
            true => start.now(py, parts),
        }
    }

    /// Copies a tensor to another of the same type and length, with as many threads as long calls have.
    fn copy(&self, py: Python<'_>, source: &Bound<'_, PyAny>, target: &Bound<'_, PyAny>) -> PyResult<()> {
        let (source, target) = (Tensor::of(source)?, Tensor::of(target)?);
        if (source.name, source.length) != (target.name, target.length) {
            return Err(usage(py, "a copy has the type and the length of what is copied"));
        }
        let threads = self.ends(py)?.lanes.all().len();
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
        let [to, tag] = [natural(py, "the rank", to)?, natural(py, "the tag", tag)?];
        self.start_send(py, tensor, to as usize, tag, timeout)
    }

    /// Starts receiving a tensor from a rank, or from whichever sends first. `finish` is called when it has come, before anybody
    /// is told.
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
        let source = source.map(|source| natural(py, "the rank", source)).transpose()?;
        let (source, tag) = (source.map(|source| source as usize), natural(py, "the tag", tag)?);
        self.start_receive(py, tensor, source, tag, timeout, finish)
    }

    /// Symmetric memory of so many bytes, which all ranks allocate together: an object with the array interface.
    fn window(&self, py: Python<'_>, bytes: usize) -> PyResult<Window> {
        let Ends { lanes, .. } = self.ends(py)?;
        let window = patiently(py, move || lanes.window(bytes))?;
        let window = window.map_err(|error| raised(py, &error, Some("window")))?;
        Ok(Window::new(window, DataType::U8, bytes))
    }

    /// Ends the group for all ranks, at once.
    fn abort(&self, py: Python<'_>, reason: &str) {
        if let Ok(Ends { lanes, .. }) = self.ends(py) {
            py.detach(|| lanes.all().iter().for_each(|background| background.abort(reason)));
        }
    }

    /// Waits for all calls that were started, and leaves. A group that has been closed stays closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        patiently(py, self.closing())
    }

    /// Leaves as the program ends: calls that are under way have a moment.
    fn leave(&self, py: Python<'_>) {
        let (closing, (tell, told)) = (self.closing(), channel());
        let close = move || {
            closing();
            let _ = tell.send(());
        };
        // Whatever goes wrong now, there is nobody to tell.
        if std::thread::Builder::new().spawn(close).is_ok() {
            let _ = py.detach(move || told.recv_timeout(2 * PARTING));
        }
    }
}

impl Group {
    /// What is done to leave.
    fn closing(&self) -> impl FnOnce() + Send + 'static {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner).take();
        || {
            if let Some(Ends { lanes, endpoint }) = ends {
                endpoint.settle(PARTING);
                drop(endpoint);
                lanes.close();
            }
        }
    }

    pub(super) fn ends(&self, py: Python<'_>) -> PyResult<Ends> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ends.ok_or_else(|| usage(py, "this process group has been destroyed: make a new one"))
    }

    pub(super) fn deadline(&self, timeout: Option<f64>) -> Duration {
        timeout.map_or_else(|| *self.timeout.lock().unwrap_or_else(PoisonError::into_inner), seconds)
    }

    /// Enters a message into the flight record.
    pub(super) fn enter_message(
        &self,
        what: String,
        tensor: &Tensor,
        sends: bool,
        deadline: Duration,
    ) -> u64 {
        record::enter(New {
            group: self.number,
            what,
            number: self.messages.fetch_add(1, Ordering::Relaxed) + 1,
            is_message: true,
            input: sends.then_some(tensor),
            output: (!sends).then_some(tensor),
            timeout_ms: deadline.as_millis() as u64,
        })
    }

    /// Both sides of a call, as one where the smaller is this rank's block of the larger. Sides that overlap otherwise are refused.
    fn placed(
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
            _ => return Err(usage(py, "input and output overlap: pass one tensor, or two that do not")),
        };
        if whole.length == self.size * block.length
            && block.address == whole.address + self.rank * block.bytes().1
        {
            return Ok([Some(whole); 2]);
        }
        Err(usage(py, "input and output overlap, and not where this rank's block is"))
    }

    pub(super) fn own_rank(&self) -> usize {
        self.rank
    }
}

/// Both sides of a call, and what is staged of them.
#[allow(clippy::type_complexity, reason = "two of each")]
fn sides(
    input: Option<&Bound<'_, PyAny>>,
    output: Option<&Bound<'_, PyAny>>,
) -> PyResult<([Option<Tensor>; 2], Vec<Staged>)> {
    if let Some((both, _)) = input.zip(output).filter(|(input, output)| input.is(*output)) {
        let Side { tensor, staged } = Side::of(both, Way::Both)?;
        return Ok(([Some(tensor); 2], staged.into_iter().collect()));
    }
    let reads = input.map(|input| Side::of(input, Way::Reads)).transpose()?;
    let writes = output.map(|output| Side::of(output, Way::Writes)).transpose()?;
    let tensors = [&reads, &writes].map(|side| side.as_ref().map(|side| side.tensor));
    let staged = [reads, writes].into_iter().flatten().filter_map(|side| side.staged).collect();
    Ok((tensors, staged))
}

fn buffers(tensor: &Tensor, reads: Option<Tensor>, writes: Option<Tensor>) -> RawBuffers {
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
    // Whoever reaches the store learns its secret; the job's own, where there is one, is not in it.
    let token = match Secret::of_this_process().map_err(|error| Error::Misuse(error.to_string()))? {
        Some(own) => token.mixed_with(&own)?,
        None => token,
    };
    Ok(Rendezvous { network, ..Rendezvous::new(place, token, size, timeout) })
}

fn meet(meeting: &Rendezvous, rank: usize, timeout: Duration, lanes: usize) -> Result<Ends, Error> {
    let bootstrap = if rank == 0 { Bootstrap::listen(meeting)? } else { Bootstrap::join(meeting, rank)? };
    let options = Options { deadline: timeout, ..Options::from_environment()? };
    let mut comm = Communicator::new(bootstrap, options)?;
    let endpoint = comm.endpoint()?;
    Ok(Ends { lanes: Lanes::new(comm, lanes.clamp(1, LANES_MAX))?, endpoint })
}
