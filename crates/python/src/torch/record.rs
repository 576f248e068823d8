//! The flight record of this process's groups: the last calls, in the format of PyTorch's `fr_trace`.
//!
//! Weft's own flight recorder (`weft why`) shows more; this one is for users of PyTorch's tools. One record serves all groups, as in
//! PyTorch. A call updates its entry when it starts and when it ends.

use std::collections::VecDeque;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::tensor::Tensor;

/// PyTorch's default number of entries.
const ENTRIES: usize = 2000;

static RECORD: LazyLock<Mutex<Record>> = LazyLock::new(|| Mutex::new(Record::new()));

struct Record {
    entries: VecDeque<Entry>,
    capacity: usize,
    /// The number of the next entry.
    next: u64,
    groups: Vec<GroupEntry>,
}

/// A group of the record.
struct GroupEntry {
    name: String,
    description: String,
    ranks: Vec<u64>,
    last_queued: u64,
    last_completed: u64,
}

/// One side of a call: lengths and types of its tensors.
type Side = Vec<(usize, &'static str)>;

struct Entry {
    group: usize,
    /// PyTorch's name: `all_reduce`, `send 0->1`.
    what: String,
    number: u64,
    is_message: bool,
    input: Side,
    output: Side,
    timeout_ms: u64,
    created_ns: u64,
    started_ns: Option<u64>,
    completed_ns: Option<u64>,
    failed: bool,
}

/// The facts of a new entry.
pub(super) struct NewEntry<'a> {
    pub(super) group: usize,
    pub(super) what: String,
    pub(super) number: u64,
    pub(super) is_message: bool,
    pub(super) input: Option<&'a Tensor>,
    pub(super) output: Option<&'a Tensor>,
    pub(super) timeout_ms: u64,
}

impl Record {
    fn new() -> Self {
        let capacity = ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"]
            .into_iter()
            .find_map(weftlink::knobs::parsed);
        Self { entries: VecDeque::new(), capacity: capacity.unwrap_or(ENTRIES), next: 0, groups: Vec::new() }
    }

    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        let first = self.next - self.entries.len() as u64;
        self.entries.get_mut(usize::try_from(number.checked_sub(first)?).ok()?)
    }
}

fn record() -> MutexGuard<'static, Record> {
    RECORD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Adds a group, and returns its number.
pub(super) fn enter_group(name: String, description: String, ranks: Vec<u64>) -> usize {
    let mut record = record();
    record.groups.push(GroupEntry { name, description, ranks, last_queued: 0, last_completed: 0 });
    record.groups.len() - 1
}

/// Adds an entry for a call, and returns its number.
pub(super) fn enter(new: NewEntry<'_>) -> u64 {
    let NewEntry { group, what, number, is_message, input, output, timeout_ms } = new;
    let side =
        |tensor: Option<&Tensor>| tensor.map(|tensor| (tensor.length, tensor.name)).into_iter().collect();
    let entry = Entry {
        group,
        what,
        number,
        is_message,
        input: side(input),
        output: side(output),
        timeout_ms,
        created_ns: now_ns(),
        started_ns: None,
        completed_ns: None,
        failed: false,
    };
    let mut record = record();
    if record.capacity == 0 {
        return u64::MAX;
    }
    if record.entries.len() == record.capacity {
        record.entries.pop_front();
    }
    record.entries.push_back(entry);
    if let Some(group) = record.groups.get_mut(group) {
        group.last_queued = group.last_queued.max(number);
    }
    record.next += 1;
    record.next - 1
}

/// Marks a call as started.
pub(super) fn mark_started(number: u64) {
    if let Some(entry) = record().entry(number) {
        entry.started_ns = Some(now_ns());
    }
}

/// Marks a call as completed or failed.
pub(super) fn mark_ended(number: u64, succeeded: bool) {
    let mut record = record();
    let Some(entry) = record.entry(number) else { return };
    entry.started_ns.get_or_insert(entry.created_ns);
    entry.completed_ns = succeeded.then(now_ns);
    entry.failed = !succeeded;
    let (group, number) = (entry.group, entry.number);
    if let Some(group) = record.groups.get_mut(group).filter(|_| succeeded) {
        group.last_completed = group.last_completed.max(number);
    }
}

/// The flight record of this process; `fr_trace` reads it pickled.
#[pyfunction]
pub(crate) fn flight_record(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let record = record();
    let dump = PyDict::new(py);
    // The version of the format, which fr_trace checks.
    dump.set_item("version", "2.10")?;
    dump.set_item("comm_lib_version", env!("CARGO_PKG_VERSION"))?;
    let (config, status) = (PyDict::new(py), PyDict::new(py));
    for (number, group) in record.groups.iter().enumerate() {
        let about = PyDict::new(py);
        about.set_item("name", &group.name)?;
        about.set_item("desc", &group.description)?;
        about.set_item("ranks", format!("{:?}", group.ranks))?;
        config.set_item(&group.name, about)?;
        let about = PyDict::new(py);
        about.set_item("last_enqueued_collective", group.last_queued)?;
        about.set_item("last_started_collective", group.last_queued)?;
        about.set_item("last_completed_collective", group.last_completed)?;
        status.set_item(number.to_string(), about)?;
    }
    dump.set_item("pg_config", config)?;
    dump.set_item("pg_status", status)?;
    let entries = PyList::empty(py);
    let first = record.next - record.entries.len() as u64;
    for (number, entry) in (first..).zip(&record.entries) {
        entries.append(entry.to_dict(py, number, &record.groups)?)?;
    }
    dump.set_item("entries", entries)?;
    Ok(dump)
}

/// Clears the record.
#[pyfunction]
pub(crate) fn forget_flight_record() {
    record().entries.clear();
}

impl Entry {
    fn to_dict<'py>(
        &self,
        py: Python<'py>,
        number: u64,
        groups: &[GroupEntry],
    ) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let group = groups.get(self.group).map_or(("", ""), |group| (&group.name, &group.description));
        let (collective, message) = if self.is_message { (0, self.number) } else { (self.number, 0) };
        let sizes = |side: &Side| side.iter().map(|(length, _)| vec![*length]).collect::<Vec<_>>();
        let types = |side: &Side| side.iter().map(|(_, name)| torch_name(name)).collect::<Vec<_>>();
        let state = match (self.completed_ns, self.started_ns) {
            (Some(_), _) => "completed",
            (None, Some(_)) => "started",
            (None, None) => "scheduled",
        };
        dict.set_item("record_id", number)?;
        dict.set_item("pg_id", self.group)?;
        dict.set_item("process_group", group)?;
        dict.set_item("collective_seq_id", collective)?;
        dict.set_item("p2p_seq_id", message)?;
        dict.set_item("op_id", number)?;
        dict.set_item("is_p2p", self.is_message)?;
        dict.set_item("profiling_name", format!("weft:{}", self.what))?;
        dict.set_item("input_sizes", sizes(&self.input))?;
        dict.set_item("input_dtypes", types(&self.input))?;
        dict.set_item("output_sizes", sizes(&self.output))?;
        dict.set_item("output_dtypes", types(&self.output))?;
        dict.set_item("time_created_ns", self.created_ns)?;
        dict.set_item("time_discovered_started_ns", self.started_ns)?;
        dict.set_item("time_discovered_completed_ns", self.completed_ns)?;
        let took = self.started_ns.zip(self.completed_ns);
        dict.set_item("duration_ms", took.map(|(start, end)| end.saturating_sub(start) as f64 / 1e6))?;
        dict.set_item("timeout_ms", self.timeout_ms)?;
        dict.set_item("state", state)?;
        dict.set_item("retired", self.completed_ns.is_some() || self.failed)?;
        dict.set_item("frames", PyList::empty(py))?;
        Ok(dict)
    }
}

/// The name of a type in PyTorch's own records.
fn torch_name(name: &str) -> &str {
    match name {
        "float32" => "Float",
        "float64" => "Double",
        "float16" => "Half",
        "bfloat16" => "BFloat16",
        "int64" => "Long",
        "int32" => "Int",
        "int16" => "Short",
        "int8" => "Char",
        "uint8" => "Byte",
        "bool" => "Bool",
        other => other,
    }
}
