//! Opens a fabric by name: a preset, a cluster, a file, standard input, or by default the local machine.

use std::fs::File;
use std::io::{self, Read};

use thiserror::Error;
use weftlink_fabric::catalog::gpus::{self, GpuModel};
use weftlink_fabric::catalog::systems;
use weftlink_fabric::cluster::ResolveError;
use weftlink_fabric::format::{self, ReadError};
use weftlink_fabric::nearest::did_you_mean;
use weftlink_fabric::{Fabric, resolve};

use crate::{ProbeError, Recording, RecordingError, probe, this_machine};

/// A fabric cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The name is neither a system nor a cluster nor a file.
    #[error(transparent)]
    Unknown(#[from] ResolveError),
    /// No GPU model has that name.
    #[error("unknown GPU `{id}`.{} `weft topo --list gpus` prints all.", near_gpu(id))]
    UnknownGpu {
        /// The name.
        id: String,
    },
    /// A GPU model was given for a format that contains it.
    #[error(
        "a GPU model applies only to the output of `nvidia-smi topo -m`; all other inputs name their GPUs"
    )]
    UnexpectedGpu,
    /// The file cannot be opened.
    #[error("cannot read {name}: {error}.{}", near_system(name))]
    NoFile {
        /// The file.
        name: String,
        /// The cause.
        error: io::Error,
    },
    /// Reading the file failed.
    #[error("cannot read {name}: {error}")]
    Unreadable {
        /// The file.
        name: String,
        /// The cause.
        error: io::Error,
    },
    /// The file does not describe a fabric.
    #[error("{name}: {error}")]
    Content {
        /// The file.
        name: String,
        /// The cause.
        error: ReadError,
    },
    /// The file is a malformed recording.
    #[error("{name}: {error}")]
    Recording {
        /// The file.
        name: String,
        /// The cause.
        error: RecordingError,
    },
    /// The machine of a recording cannot be probed.
    #[error("{name}: {error}")]
    RecordedMachine {
        /// The file.
        name: String,
        /// The cause.
        error: ProbeError,
    },
    /// The local machine cannot be probed.
    #[error(transparent)]
    Probe(#[from] ProbeError),
}

impl TargetError {
    /// True if the arguments are wrong, such as a file that describes no fabric; otherwise a machine cannot be probed.
    pub fn is_misuse(&self) -> bool {
        !matches!(self, Self::RecordedMachine { .. } | Self::Probe(_))
    }
}

/// Opens a system (`hgx-h100`), a cluster (`2x hgx-h100 + 8x ndr`), a file, `-` for standard input, or the local machine if
/// there is no target. `gpu` is the model of the GPUs in the output of `nvidia-smi topo -m`.
pub fn open(target: Option<&str>, gpu: Option<&str>) -> Result<Fabric, TargetError> {
    let model = |id: &str| gpus::by_id(id).ok_or_else(|| TargetError::UnknownGpu { id: id.to_owned() });
    let gpu = gpu.map(model).transpose()?;
    let Some(target) = target else {
        return Ok(this_machine()?);
    };
    if target == "-" {
        return read(io::stdin().lock(), "standard input", gpu);
    }
    if systems::by_name(target).is_none() {
        match File::open(target) {
            Ok(file) => return read(file, target, gpu),
            Err(error) if looks_like_file(target) => {
                return Err(TargetError::NoFile { name: target.to_owned(), error });
            }
            Err(_) => {}
        }
    }
    if gpu.is_some() {
        return Err(TargetError::UnexpectedGpu);
    }
    Ok(resolve(target)?)
}

fn read(source: impl Read, name: &str, gpu: Option<&'static GpuModel>) -> Result<Fabric, TargetError> {
    let mut bytes = Vec::new();
    // With one byte above the limit, the reader refuses the input.
    let limit = format::INPUT_BYTES_MAX as u64 + 1;
    let name = || name.to_owned();
    source
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| TargetError::Unreadable { name: name(), error })?;
    if gpu.is_some() && format::detect(&bytes) != Some(format::Format::Smi) {
        return Err(TargetError::UnexpectedGpu);
    }
    if let Some(recording) = recording(&bytes) {
        let machine = recording.map_err(|error| TargetError::Recording { name: name(), error })?;
        return probe(&machine, &machine)
            .map_err(|error| TargetError::RecordedMachine { name: name(), error });
    }
    format::read(&bytes, &name(), gpu).map_err(|error| TargetError::Content { name: name(), error })
}

/// Parses a recording, if the bytes start like one.
fn recording(bytes: &[u8]) -> Option<Result<Recording, RecordingError>> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.starts_with(Recording::MAGIC).then(|| text.parse())
}

/// A word with a slash or a dot is the name of a file.
fn looks_like_file(target: &str) -> bool {
    !target.contains(' ') && (target.contains('/') || target.contains('.'))
}

fn near_gpu(id: &str) -> String {
    did_you_mean(id, gpus::GPUS.iter().map(|model| model.id))
}

fn near_system(name: &str) -> String {
    did_you_mean(name, systems::all().map(|system| system.name))
}
