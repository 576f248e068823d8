//! Opens a fabric by name: a preset, a cluster, a file, standard input, or by default the local machine.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use thiserror::Error;
use weftlink_fabric::catalog::gpus::{self, GpuModel};
use weftlink_fabric::catalog::systems;
use weftlink_fabric::cluster::ResolveError;
use weftlink_fabric::format::network::{self, AttachError, HostNetwork};
use weftlink_fabric::format::{self, ReadError};
use weftlink_fabric::nearest::did_you_mean;
use weftlink_fabric::spec::{HostSpec, SpecError};
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
        "a GPU model applies only to the output of `nvidia-smi topo -m` and `rocm-smi --showtopo`; all other inputs name their GPUs"
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
    /// What follows the file of a network is malformed.
    #[error(transparent)]
    HostSpec(#[from] SpecError),
    /// The host type is neither a system nor a file.
    #[error(
        "no system or file is called `{name}`.{} `weft topo --list` prints the systems",
        near_system(name)
    )]
    UnknownHost {
        /// The name.
        name: String,
    },
    /// A host type was given for a file that describes more than a network.
    #[error(
        "{name} describes a whole fabric, not a network of hosts; `+` follows the output of ibnetdiscover or Slurm's \
         topology.conf"
    )]
    NoNetwork {
        /// The file.
        name: String,
    },
    /// The host type does not fit the network.
    #[error("{name}: {error}")]
    Attach {
        /// The file of the network.
        name: String,
        /// The cause.
        error: AttachError,
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

/// Opens a system (`hgx-h100`), a cluster (`2x hgx-h100 + 8x ndr`), a file, a file of a network with the type of its hosts
/// (`cluster.ibnet + hgx-h100`), `-` for standard input, or the local machine if there is no target. `gpu` is the model of the GPUs in the output of `nvidia-smi topo -m`.
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
        let error = match File::open(target) {
            Ok(file) => return read(file, target, gpu),
            Err(error) => error,
        };
        if let Some((file, rest)) = network_file(target) {
            if gpu.is_some() {
                return Err(TargetError::UnexpectedGpu);
            }
            return with_host(target, file, rest);
        }
        if looks_like_file(target) {
            return Err(TargetError::NoFile { name: target.to_owned(), error });
        }
    }
    if gpu.is_some() {
        return Err(TargetError::UnexpectedGpu);
    }
    Ok(resolve(target)?)
}

/// The file before the first `+` of `cluster.ibnet + hgx-h100`, and where the rest starts. A cluster such as
/// `2x hgx-h100 + 8x ndr` has no file there.
fn network_file(target: &str) -> Option<(&str, usize)> {
    let mut pluses = target.match_indices('+').map(|(at, _)| (target[..at].trim(), at + 1));
    // The name of the file may have a plus, too.
    let exists = |name: &str| !name.is_empty() && Path::new(name).exists();
    pluses.clone().find(|(name, _)| exists(name)).or_else(|| pluses.find(|(name, _)| looks_like_file(name)))
}

/// The cluster of a network file and the type of its hosts.
fn with_host(target: &str, file: &str, rest: usize) -> Result<Fabric, TargetError> {
    let spec = HostSpec::parse(target, rest)?;
    let opened = File::open(file).map_err(|error| TargetError::NoFile { name: file.to_owned(), error })?;
    let network = network(opened, file)?;
    let host = match systems::by_name(spec.host()) {
        Some(system) => system.fabric(),
        None => match File::open(spec.host()) {
            Ok(file) => read(file, spec.host(), None)?,
            Err(error) if looks_like_file(spec.host()) => {
                return Err(TargetError::NoFile { name: spec.host().to_owned(), error });
            }
            Err(_) => return Err(TargetError::UnknownHost { name: spec.host().to_owned() }),
        },
    };
    let joined = network.with_host(target, &host, &spec);
    joined.map_err(|error| TargetError::Attach { name: file.to_owned(), error })
}

fn network(source: impl Read, name: &str) -> Result<HostNetwork, TargetError> {
    let name = || name.to_owned();
    let bytes = bytes(source, &name())?;
    match network::read(&bytes) {
        Some(read) => read.map_err(|error| TargetError::Content { name: name(), error }),
        None if format::detect(&bytes).is_some() => Err(TargetError::NoNetwork { name: name() }),
        None => Err(TargetError::Content { name: name(), error: ReadError::UnknownFormat }),
    }
}

fn bytes(source: impl Read, name: &str) -> Result<Vec<u8>, TargetError> {
    let mut bytes = Vec::new();
    // With one byte above the limit, the reader refuses the input.
    let limit = format::INPUT_BYTES_MAX as u64 + 1;
    let read = source.take(limit).read_to_end(&mut bytes);
    read.map_err(|error| TargetError::Unreadable { name: name.to_owned(), error })?;
    Ok(bytes)
}

fn read(source: impl Read, name: &str, gpu: Option<&'static GpuModel>) -> Result<Fabric, TargetError> {
    let name = || name.to_owned();
    let bytes = bytes(source, &name())?;
    let has_no_model = matches!(format::detect(&bytes), Some(format::Format::Smi | format::Format::Rocm));
    if gpu.is_some() && !has_no_model {
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
