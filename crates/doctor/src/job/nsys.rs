//! Kernels of Nsight Systems: `nsys stats --report cuda_gpu_trace --format csv FILE`.
//!
//! The report has one line for each kernel and copy, with start, duration, device and name, but neither sizes nor groups. It is read instead of
//! the SQLite export because its columns are documented and their names have been the same since 2021, while a SQLite file needs a database
//! engine. Columns are found by name, in any order; times may be in any unit of `--timeunit`.
//!
//! Each device is a rank: one process for each GPU is the usual case. Unverified: written after the documentation and public examples.

use std::collections::BTreeMap;
use std::io::{BufRead, Read};

use super::collective::{self, Kernel};
use super::{BYTES_MAX, CALLS_MAX, Call, Job, JobError, RANKS_MAX, Rank, Source, Spans, counted};

/// Bytes of a line; the names of kernels with template arguments have thousands.
const LINE_MAX: u64 = 1 << 20;
/// `nsys stats` prints what it does before the header, and a few other reports may come first.
const LINES_BEFORE_MAX: usize = 100_000;

/// Adds the ranks of a report, one for each device.
pub fn add(job: &mut Job, name: &str, report: impl BufRead) -> Result<(), JobError> {
    let mut lines = Lines { rest: report.take(BYTES_MAX + 1), line: Vec::new() };
    let columns = columns(&mut lines)?;
    let mut devices: BTreeMap<String, Device> = BTreeMap::new();
    let (mut calls, mut skipped) = (0, 0);
    while let Some(line) = lines.next_line()? {
        // Another report may follow a blank line.
        if line.is_empty() {
            break;
        }
        let fields = fields(&line);
        let Some(row) = columns.row(&fields) else {
            skipped += 1;
            continue;
        };
        let known = devices.len();
        let device = match devices.contains_key(row.device) {
            false if known >= RANKS_MAX => {
                return Err(JobError::TooMany { what: "devices", limit: RANKS_MAX });
            }
            _ => devices.entry(row.device.to_owned()).or_default(),
        };
        match collective::kernel(row.name) {
            Kernel::Other => device.other_work.add(row.start_ns, row.duration_ns),
            Kernel::Communication(kind) => {
                calls += 1;
                if calls > CALLS_MAX {
                    return Err(JobError::TooMany { what: "calls", limit: CALLS_MAX });
                }
                device.calls.push(Call {
                    kind,
                    bytes: None,
                    ranks: None,
                    group: None,
                    sequence: None,
                    start_ns: row.start_ns,
                    duration_ns: Some(row.duration_ns),
                });
            }
        }
    }
    if skipped > 0 {
        job.notes.push(format!("{name}: skipped {} without a start or a duration", counted(skipped, "line")));
    }
    if devices.is_empty() {
        job.notes
            .push(format!("{name}: the report has no kernels; profile with `nsys profile --trace=cuda`"));
    }
    for (at, (label, device)) in devices.into_iter().enumerate() {
        let number = number_of(&label).unwrap_or(at as u32);
        job.add_rank(Rank {
            name: format!("GPU {number}"),
            number,
            calls: device.calls,
            other_work: device.other_work,
            ..Rank::default()
        })?;
    }
    job.add_source(Source::Nsys);
    Ok(())
}

#[derive(Default)]
struct Device {
    calls: Vec<Call>,
    other_work: Spans,
}

/// `3` of `NVIDIA H100 80GB HBM3 (3)`.
fn number_of(device: &str) -> Option<u32> {
    device.trim().strip_suffix(')')?.rsplit_once('(')?.1.parse().ok()
}

/// Where the columns are.
struct Columns {
    start: (usize, f64),
    duration: (usize, f64),
    device: usize,
    name: usize,
}

struct Row<'a> {
    start_ns: i64,
    duration_ns: u64,
    device: &'a str,
    name: &'a str,
}

impl Columns {
    fn of(header: &[String]) -> Option<Self> {
        let time = |name: &str| {
            let place = |title: &String| unit_ns(title.trim().strip_prefix(name)?);
            header.iter().enumerate().find_map(|(at, title)| Some((at, place(title)?)))
        };
        let plain = |name: &str| header.iter().position(|title| title.trim() == name);
        Some(Self {
            start: time("Start")?,
            duration: time("Duration")?,
            device: plain("Device")?,
            name: plain("Name")?,
        })
    }

    fn row<'a>(&self, fields: &'a [String]) -> Option<Row<'a>> {
        let time = |(at, unit_ns): (usize, f64)| -> Option<f64> {
            let number: f64 = fields.get(at)?.trim().parse().ok()?;
            number.is_finite().then_some((number * unit_ns).round())
        };
        Some(Row {
            start_ns: time(self.start)? as i64,
            duration_ns: time(self.duration)? as u64,
            device: fields.get(self.device)?,
            name: fields.get(self.name)?,
        })
    }
}

/// Nanoseconds of the unit in a title: ` (ns)`.
fn unit_ns(title: &str) -> Option<f64> {
    match title.trim() {
        "(ns)" | "(nsec)" => Some(1.0),
        "(us)" | "(μs)" | "(usec)" => Some(1e3),
        "(ms)" | "(msec)" => Some(1e6),
        "(s)" | "(sec)" => Some(1e9),
        _ => None,
    }
}

fn columns<R: BufRead>(lines: &mut Lines<R>) -> Result<Columns, JobError> {
    let mut first = None;
    for _ in 0..LINES_BEFORE_MAX {
        let Some(line) = lines.next_line()? else { break };
        if let Some(columns) = Columns::of(&fields(&line)) {
            return Ok(columns);
        }
        first.get_or_insert_with(|| line.chars().take(64).collect::<String>());
    }
    Err(JobError::Unknown(first.unwrap_or_default()))
}

/// The fields of a line of CSV: separated by commas, with quotes around those that contain one.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut is_quoted = false;
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, fields.last_mut()) {
            ('"', Some(field)) if is_quoted && rest.peek() == Some(&'"') => {
                rest.next();
                field.push('"');
            }
            ('"', _) => is_quoted = !is_quoted,
            (',', _) if !is_quoted => fields.push(String::new()),
            (c, Some(field)) => field.push(c),
            (_, None) => {}
        }
    }
    fields
}

struct Lines<R> {
    rest: std::io::Take<R>,
    line: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// The next line, without its end.
    fn next_line(&mut self) -> Result<Option<String>, JobError> {
        self.line.clear();
        let read = (&mut self.rest).take(LINE_MAX).read_until(b'\n', &mut self.line);
        let read = read.map_err(|error| JobError::Unreadable(error.to_string()))?;
        if self.rest.limit() == 0 {
            return Err(JobError::TooLarge);
        }
        if read as u64 == LINE_MAX && self.line.last() != Some(&b'\n') {
            return Err(JobError::TooMany { what: "bytes in a line", limit: LINE_MAX as usize });
        }
        Ok((read > 0).then(|| {
            String::from_utf8_lossy(&self.line).trim_end().trim_start_matches('\u{feff}').to_owned()
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weftlink_plan::Kind;

    use super::*;

    fn read(text: &str) -> Result<Job, JobError> {
        let mut job = Job::default();
        add(&mut job, "report.csv", text.as_bytes()).map(|()| job)
    }

    const HEADER: &str = "Start (ns),Duration (ns),CorrId,GrdX,Bytes (MB),Device,Ctx,GreenCtx,Strm,Name\n";

    #[test]
    fn kernels_of_nccl_are_calls_and_the_rest_is_other_work() {
        let job = read(&format!(
            "Processing [a.sqlite] with [cuda_gpu_trace.py]...\n\n{HEADER}\
             100,50,1,1,,NVIDIA H100 80GB HBM3 (1),1,,7,\"void gemm<float, 4>(float, \"\"x\"\")\"\n\
             120,80,2,1,,NVIDIA H100 80GB HBM3 (1),1,,20,ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)\n\
             130,20,3,1,,NVIDIA H100 80GB HBM3 (0),1,,20,ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)\n\
             140,10,4,,0.5,NVIDIA H100 80GB HBM3 (0),1,,7,[CUDA memcpy Host-to-Device]\n\n another report\n"
        ))
        .unwrap();
        let names: Vec<&str> = job.ranks.iter().map(|rank| rank.name.as_str()).collect();
        assert_eq!(names, ["GPU 0", "GPU 1"]);
        let call = &job.ranks[1].calls[0];
        assert_eq!((call.kind, call.start_ns, call.duration_ns), (Some(Kind::AllReduce), 120, Some(80)));
        assert_eq!(call.bytes, None);
        assert_eq!(job.ranks[0].calls[0].kind, Some(Kind::SendReceive));
        assert_eq!(job.ranks[0].other_work.total_ns(), 10);
        assert_eq!(job.data_parallel, None);
    }

    #[test]
    fn columns_are_found_by_name_and_unit() {
        let job = read(
            "Name,Device,Duration (us),Start (ms)\nncclKernel_Broadcast_RING_LL_Sum_int8_t(x),A30,2.5,1.5\n",
        );
        let job = job.unwrap();
        let call = &job.ranks[0].calls[0];
        assert_eq!((call.start_ns, call.duration_ns), (1_500_000, Some(2_500)));
    }

    #[test]
    fn other_text_is_refused() {
        for text in
            ["", "hello\nworld\n", "Start (ns),Name\n1,2\n", "Start (parsecs),Duration (ns),Device,Name\n"]
        {
            assert!(matches!(read(text), Err(JobError::Unknown(_))), "{text}");
        }
        let empty = read(HEADER).unwrap();
        assert_eq!((empty.ranks.len(), empty.notes.len()), (0, 1));
    }

    proptest! {
        #[test]
        fn no_text_panics(rows in prop::collection::vec("[0-9,.\"()a-zé -]{0,40}", 0..8)) {
            let _ = read(&format!("{HEADER}{}", rows.join("\n")));
            let _ = read(&rows.join("\n"));
        }
    }
}
