//! A fabric by what people name it with: a preset, a cluster, a file, standard input, or nothing for this machine.

use std::fs::File;
use std::io::{self, Read};

use thiserror::Error;
use weftlink_fabric::catalog::gpus::{self, GpuModel};
use weftlink_fabric::catalog::systems;
use weftlink_fabric::cluster::ResolveError;
use weftlink_fabric::format::{self, ReadError};
use weftlink_fabric::nearest::did_you_mean;
use weftlink_fabric::{Fabric, resolve};

use crate::{BadRecording, ProbeError, Recording, probe, this_machine};

/// A name does not lead to a fabric.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TargetError {
    /// No system, cluster or file has that name.
    #[error(transparent)]
    Unknown(#[from] ResolveError),
    /// No GPU model has that name.
    #[error("unknown GPU `{id}`.{} `weft topo --list gpus` prints all.", near_gpu(id))]
    Gpu {
        /// The name.
        id: String,
    },
    /// A GPU model was given for something that says it itself.
    #[error("--gpu applies to the text of `nvidia-smi topo -m` only; everything else says which GPUs it has")]
    OnlyForSmi,
    /// There is no such file.
    #[error("cannot read {name}: {error}.{}", near_system(name))]
    NoFile {
        /// Its name.
        name: String,
        /// Why.
        error: io::Error,
    },
    /// A file that is there cannot be read.
    #[error("cannot read {name}: {error}")]
    Unreadable {
        /// Its name.
        name: String,
        /// Why.
        error: io::Error,
    },
    /// A file describes no fabric.
    #[error("{name}: {error}")]
    Content {
        /// Its name.
        name: String,
        /// Why.
        error: ReadError,
    },
    /// A recording of a machine is damaged.
    #[error("{name}: {error}")]
    Recording {
        /// Its name.
        name: String,
        /// Why.
        error: BadRecording,
    },
    /// A recording shows no machine.
    #[error("{name}: {error}")]
    Recorded {
        /// Its name.
        name: String,
        /// Why.
        error: ProbeError,
    },
    /// This machine cannot be probed.
    #[error(transparent)]
    Probe(#[from] ProbeError),
}

impl TargetError {
    /// Whether the caller has to name something else; otherwise what was named is not in order.
    pub fn is_misuse(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Gpu { .. } | Self::OnlyForSmi | Self::NoFile { .. })
    }
}

/// The fabric that a name stands for: a system (`hgx-h100`), a cluster (`2x hgx-h100 + 8x ndr`), a file, `-` for standard
/// input; this machine if there is none. `gpu` is the model of the GPUs in the text of `nvidia-smi topo -m`.
pub fn open(target: Option<&str>, gpu: Option<&str>) -> Result<Fabric, TargetError> {
    let model = |id: &str| gpus::by_id(id).ok_or_else(|| TargetError::Gpu { id: id.to_owned() });
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
        return Err(TargetError::OnlyForSmi);
    }
    Ok(resolve(target)?)
}

fn read(source: impl Read, name: &str, gpu: Option<&'static GpuModel>) -> Result<Fabric, TargetError> {
    let mut bytes = Vec::new();
    // One byte past the limit is enough for the reader to refuse it.
    let limit = format::MAX_INPUT_BYTES as u64 + 1;
    let name = || name.to_owned();
    source
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| TargetError::Unreadable { name: name(), error })?;
    if gpu.is_some() && format::detect(&bytes) != Some(format::Format::Smi) {
        return Err(TargetError::OnlyForSmi);
    }
    if let Some(recording) = recording(&bytes) {
        let machine = recording.map_err(|error| TargetError::Recording { name: name(), error })?;
        return probe(&machine, &machine).map_err(|error| TargetError::Recorded { name: name(), error });
    }
    format::read(&bytes, &name(), gpu).map_err(|error| TargetError::Content { name: name(), error })
}

/// A recording of a machine, if that is what the bytes are.
fn recording(bytes: &[u8]) -> Option<Result<Recording, BadRecording>> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.starts_with(Recording::MARK).then(|| text.parse())
}

/// A word with a slash or a dot is meant as a file, whatever it is not.
fn looks_like_file(target: &str) -> bool {
    !target.contains(' ') && (target.contains('/') || target.contains('.'))
}

fn near_gpu(id: &str) -> String {
    did_you_mean(id, gpus::GPUS.iter().map(|model| model.id))
}

fn near_system(name: &str) -> String {
    did_you_mean(name, systems::all().map(|system| system.name))
}
