//! Traces of torch.profiler: the Chrome JSON of `export_chrome_trace` and `tensorboard_trace_handler`.
//!
//! Kernels of NCCL and RCCL are calls. Since 2024 their `args` have the collective, the elements and the group; before that, the host's
//! `record_param_comms` with the same `External id` has them. All other kernels and copies are other work. The file is read as a stream, event
//! by event, and only what is needed of an event is kept.

mod event;
mod stream;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::sync::Arc;

use weftlink_plan::Kind;

use super::collective::{self, Kernel};
use super::{CALLS_MAX, Call, Job, JobError, RANKS_MAX, Rank, Source, Spans};
use event::{Args, Event};
use stream::Head;

/// Functions that `nn.DataParallel` calls on the host, and PyTorch's names for their backward.
const DATA_PARALLEL: [&str; 8] = [
    "DataParallel.forward",
    "Broadcast",
    "BroadcastBackward",
    "ReduceAddCoalesced",
    "Scatter",
    "ScatterBackward",
    "Gather",
    "GatherBackward",
];

/// Adds the rank of a trace; of a process that uses several devices, one for each.
pub fn add(job: &mut Job, name: &str, trace: impl Read) -> Result<(), JobError> {
    let mut events = Events::default();
    let head = stream::read(trace, &mut |event| events.take(event))?;
    events.finish(job, name, &head)?;
    job.add_source(Source::Torch);
    Ok(())
}

/// What is kept of a trace.
#[derive(Default)]
struct Events {
    devices: BTreeMap<u32, Device>,
    /// What the host recorded of calls, by external id, in the order of the trace.
    recorded: Vec<(Option<i64>, Call)>,
    steps_ns: Vec<u64>,
    data_parallel: BTreeMap<&'static str, u64>,
    sees_host: bool,
    calls: usize,
    /// The names of groups, once each.
    groups: BTreeSet<Arc<str>>,
}

#[derive(Default)]
struct Device {
    /// Calls, with the external ids of their kernels.
    calls: Vec<(Option<i64>, Call)>,
    other_work: Spans,
}

impl Events {
    /// Keeps what is needed of an event.
    fn take(&mut self, event: &Event) -> Result<(), JobError> {
        let (Some(name), Some(start_ns)) = (event.name.as_deref(), event.start_ns) else { return Ok(()) };
        let duration_ns = event.duration_ns.unwrap_or(0);
        match event.category.as_deref().unwrap_or("").to_ascii_lowercase().as_str() {
            "kernel" => match collective::kernel(name) {
                Kernel::Communication(kind) => self.kernel(event, kind, start_ns, duration_ns)?,
                Kernel::Other if event.args.collective.is_some() => {
                    self.kernel(event, None, start_ns, duration_ns)?;
                }
                Kernel::Other => self.device(event)?.other_work.add(start_ns, duration_ns),
            },
            "gpu_memcpy" | "gpu_memset" | "memcpy" | "memset" => {
                self.device(event)?.other_work.add(start_ns, duration_ns);
            }
            "cpu_op" | "user_annotation" | "operator" => {
                self.sees_host = true;
                self.host(event, name, start_ns, duration_ns)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn kernel(
        &mut self,
        event: &Event,
        kind: Option<Kind>,
        start_ns: i64,
        duration_ns: u64,
    ) -> Result<(), JobError> {
        self.count_call()?;
        let call = Call { duration_ns: Some(duration_ns), ..self.call_of(&event.args, kind, start_ns) };
        self.device(event)?.calls.push((event.args.external_id, call));
        Ok(())
    }

    fn host(&mut self, event: &Event, name: &str, start_ns: i64, duration_ns: u64) -> Result<(), JobError> {
        if name.starts_with("ProfilerStep#") {
            self.steps_ns.push(duration_ns);
        } else if name == "record_param_comms" {
            let call = self.call_of(&event.args, None, start_ns);
            // Other records are no communication: `wait`, `init`.
            if call.kind.is_some() {
                self.count_call()?;
                self.recorded.push((event.args.external_id, call));
            }
        } else if let Some(function) = DATA_PARALLEL.into_iter().find(|function| *function == name) {
            *self.data_parallel.entry(function).or_default() += 1;
        }
        Ok(())
    }

    fn count_call(&mut self) -> Result<(), JobError> {
        self.calls += 1;
        match self.calls > CALLS_MAX {
            true => Err(JobError::TooMany { what: "calls", limit: CALLS_MAX }),
            false => Ok(()),
        }
    }

    fn device(&mut self, event: &Event) -> Result<&mut Device, JobError> {
        let number = event.args.device.or(event.process).and_then(|number| u32::try_from(number).ok());
        let is_full = self.devices.len() >= RANKS_MAX;
        match self.devices.entry(number.unwrap_or(0)) {
            std::collections::btree_map::Entry::Occupied(device) => Ok(device.into_mut()),
            std::collections::btree_map::Entry::Vacant(_) if is_full => {
                Err(JobError::TooMany { what: "devices", limit: RANKS_MAX })
            }
            std::collections::btree_map::Entry::Vacant(device) => Ok(device.insert(Device::default())),
        }
    }

    fn finish(mut self, job: &mut Job, file: &str, head: &Head) -> Result<(), JobError> {
        let host = host_of(file);
        let number = head.rank.or_else(|| rank_of(file));
        let name =
            number.map_or_else(|| "rank of an unknown number".to_owned(), |rank| format!("rank {rank}"));
        if self.devices.values().all(|device| device.calls.is_empty()) && !self.recorded.is_empty() {
            job.notes.push(format!(
                "{name}: the trace has calls of the host, but no kernels of NCCL, so that times are unknown; profile with \
                 activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
            ));
            let calls: Vec<_> = std::mem::take(&mut self.recorded);
            self.devices.entry(0).or_default().calls = calls;
        }
        let recorded: HashMap<i64, Call> =
            self.recorded.into_iter().filter_map(|(id, call)| Some((id?, call))).collect();
        // A process may copy from devices that are not its own.
        if self.devices.values().any(|device| !device.calls.is_empty()) {
            self.devices.retain(|_, device| !device.calls.is_empty());
        }
        let devices = self.devices.len();
        for (device, Device { calls, mut other_work }) in self.devices {
            other_work.shift(head.base_ns);
            let calls = calls.into_iter().map(|(id, call)| {
                let recorded = id.and_then(|id| recorded.get(&id)).filter(|_| call.bytes.is_none());
                let call =
                    recorded.map_or_else(|| call.clone(), |recorded| completed(call.clone(), recorded));
                Call { start_ns: call.start_ns.saturating_add(head.base_ns), ..call }
            });
            let (name, number) = match (devices, number) {
                (1, number) => (name.clone(), number.unwrap_or(0)),
                (_, Some(rank)) => (format!("{name}, GPU {device}"), rank),
                (_, None) => (format!("GPU {device}"), device),
            };
            job.add_rank(Rank {
                name,
                number,
                host: host.clone(),
                calls: calls.collect(),
                other_work,
                steps_ns: self.steps_ns.clone(),
                shares_clock: false,
            })?;
        }
        if self.sees_host {
            let counts = job.data_parallel.get_or_insert_default();
            for (function, count) in self.data_parallel {
                *counts.entry(function).or_default() += count;
            }
        }
        Ok(())
    }
}

impl Events {
    fn call_of(&mut self, args: &Args, kind: Option<Kind>, start_ns: i64) -> Call {
        let named = args.collective.as_deref().and_then(collective::named);
        let element = args.data_type.as_deref().and_then(collective::element_bytes);
        let elements = args.elements_in.into_iter().chain(args.elements_out).max();
        let group = match (&args.group, &args.group_ranks) {
            (Some(name), Some(ranks)) => Some(format!("{name} {ranks}")),
            (name, ranks) => name.clone().or_else(|| ranks.clone()),
        };
        let group = group.map(|group| self.group(group));
        Call {
            kind: named.or(kind),
            bytes: elements.zip(element).and_then(|(elements, bytes)| elements.checked_mul(bytes)),
            ranks: args.group_size.and_then(|size| u32::try_from(size).ok()),
            group,
            sequence: args.sequence,
            start_ns,
            duration_ns: None,
        }
    }

    fn group(&mut self, name: String) -> Arc<str> {
        if let Some(known) = self.groups.get(name.as_str()) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        self.groups.insert(name.clone());
        name
    }
}

/// A kernel's call, with what the host recorded of it.
fn completed(call: Call, recorded: &Call) -> Call {
    Call {
        kind: recorded.kind.or(call.kind),
        bytes: recorded.bytes,
        ranks: call.ranks.or(recorded.ranks),
        group: call.group.or_else(|| recorded.group.clone()),
        sequence: call.sequence.or(recorded.sequence),
        ..call
    }
}

/// The rank in the name of a file: `rank3.json`, `trace_rank_3.json`, `rank-3_step_5.json`.
fn rank_of(file: &str) -> Option<u32> {
    let file = file.rsplit('/').next()?.to_ascii_lowercase();
    let (_, rest) = file.split_once("rank")?;
    let rest = rest.trim_start_matches(['_', '-', '.']);
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    rest[..digits].parse().ok()
}

/// The host in the name of a file of `tensorboard_trace_handler`: `HOST_PID.TIME.pt.trace.json`.
fn host_of(file: &str) -> Option<String> {
    let worker = file.rsplit('/').next()?.strip_suffix(".pt.trace.json")?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let worker =
        worker.rsplit_once('.').filter(|(_, time)| is_number(time)).map_or(worker, |(worker, _)| worker);
    let (host, pid) = worker.rsplit_once('_')?;
    (is_number(pid) && !host.is_empty()).then(|| host.to_owned())
}

#[cfg(test)]
mod tests;
