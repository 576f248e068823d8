//! What `weft topo TARGET` means: this machine, a preset, a cluster, or a file.

use std::fs::File;
use std::io::{self, Read};

use anyhow::{Context, anyhow};
use weftlink_fabric::catalog::gpus::{self, GpuModel};
use weftlink_fabric::catalog::systems;
use weftlink_fabric::nearest::did_you_mean;
use weftlink_fabric::{Fabric, format};
use weftlink_probe::{BadRecording, Recording, probe, this_machine};

use crate::Failure;

pub(crate) fn resolve(target: Option<&str>, gpu: Option<&str>) -> Result<Fabric, Failure> {
    let gpu = gpu.map(model).transpose()?;
    let Some(target) = target else {
        return this_machine().map_err(Failure::finding);
    };
    if target == "-" {
        return read(io::stdin().lock(), "standard input", gpu);
    }
    if systems::by_name(target).is_none() {
        match File::open(target) {
            Ok(file) => return read(file, target, gpu),
            Err(error) if looks_like_file(target) => {
                let hint = did_you_mean(target, systems::all().map(|system| system.name));
                return Err(Failure::misuse(anyhow!("cannot read {target}: {error}.{hint}")));
            }
            Err(_) => {}
        }
    }
    if gpu.is_some() {
        return Err(only_for_smi());
    }
    weftlink_fabric::resolve(target).map_err(Failure::misuse)
}

fn only_for_smi() -> Failure {
    Failure::misuse(anyhow!(
        "--gpu is for the text of `nvidia-smi topo -m`; everything else says which GPUs it has"
    ))
}

fn read(source: impl Read, name: &str, gpu: Option<&'static GpuModel>) -> Result<Fabric, Failure> {
    let mut bytes = Vec::new();
    // One byte past the limit is enough for the reader to refuse it.
    let limit = format::MAX_INPUT_BYTES as u64 + 1;
    source
        .take(limit)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {name}"))
        .map_err(Failure::Finding)?;
    if gpu.is_some() && format::detect(&bytes) != Some(format::Format::Smi) {
        return Err(only_for_smi());
    }
    if let Some(recording) = recording(&bytes) {
        let probed = recording.map_err(anyhow::Error::new).and_then(|machine| Ok(probe(&machine, &machine)?));
        return probed.with_context(|| name.to_owned()).map_err(Failure::Finding);
    }
    format::read(&bytes, name, gpu).with_context(|| name.to_owned()).map_err(Failure::Finding)
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

fn model(id: &str) -> Result<&'static GpuModel, Failure> {
    gpus::by_id(id).ok_or_else(|| {
        Failure::misuse(anyhow!("no GPU is called `{id}`; `weft topo --list gpus` prints them"))
    })
}
