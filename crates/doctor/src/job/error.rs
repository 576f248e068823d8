//! Why a trace cannot be read.

use thiserror::Error;

use super::BYTES_MAX;

/// A trace cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JobError {
    /// The operating system failed to read it.
    #[error("cannot read the trace: {0}")]
    Unreadable(String),
    /// It has no content.
    #[error("the trace is empty")]
    Empty,
    /// It is compressed. Decompress it.
    #[error("the trace is compressed; run `gunzip FILE` first")]
    Compressed,
    /// A database of Nsight Systems. Export its kernels.
    #[error(
        "this is a SQLite database; if Nsight Systems wrote it, run \
         `nsys stats --report cuda_gpu_trace --format csv --output kernels FILE` and name kernels_cuda_gpu_trace.csv"
    )]
    Sqlite,
    /// Neither format.
    #[error(
        "neither a trace of torch.profiler (JSON from export_chrome_trace) nor `nsys stats --report cuda_gpu_trace --format csv`; \
         it begins with {0:?}. For a file *.nsys-rep, run that command on it first"
    )]
    Unknown(String),
    /// JSON that breaks off or is malformed.
    #[error(
        "the trace is not valid JSON: {0}; if the job was killed while it wrote the trace, record it again"
    )]
    Json(String),
    /// JSON without events.
    #[error("the JSON has no `traceEvents`; write the trace with torch.profiler's export_chrome_trace")]
    NoEvents,
    /// A trace above a limit.
    #[error(
        "the trace has more than {limit} {what}, which is the limit; record fewer steps (torch.profiler.schedule)"
    )]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A trace above the limit on bytes.
    #[error("the trace has more than {} GiB, which is the limit; record fewer steps (torch.profiler.schedule)", BYTES_MAX >> 30)]
    TooLarge,
}
