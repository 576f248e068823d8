//! The links of the local machine: sysfs, NVML, and the two commands whose output NVML's binding cannot give.
//!
//! NVML counts the bytes of each NVLink under a field and a scope, and the binding has no scope. `nvidia-smi nvlink -gt d` prints the same
//! counters, so it is run where there are NVLinks.

use std::collections::BTreeMap;
use std::time::Duration;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::PcieUtilCounter;
use nvml_wrapper::enum_wrappers::nv_link::{Capability, ErrorCounter};
use nvml_wrapper::structs::device::FieldId;

use super::command::output;
use super::source::{Files, LinkSource, WithFiles};
use super::{GpuFields, Kind, Links, of_tree, text};
use crate::nvml::{NVLINKS_MAX, bus_of, library};
use crate::{Folder, GpuSource, Nvml, ProbeError};

/// How long `nvidia-smi` may take: it initializes each GPU if persistence mode is off.
const COMMAND_MAX: Duration = Duration::from_secs(30);

/// `NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON`, in MB/s although the name says Mb/s.
const FIELD_SPEED: FieldId = FieldId(90);
/// `NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L0` to `L11`.
const FIELDS_ECC: std::ops::RangeInclusive<u32> = 148..=159;

const ERRORS: [(ErrorCounter, &str); 4] = [
    (ErrorCounter::DlReplay, "replay_errors"),
    (ErrorCounter::DlRecovery, "recovery_errors"),
    (ErrorCounter::DlCrcFlit, "crc_flit_errors"),
    (ErrorCounter::DlCrcData, "crc_data_errors"),
];
const CAPABILITIES: [(Capability, &str); 5] = [
    (Capability::P2p, "p2p"),
    (Capability::SysMemAccess, "system_memory_access"),
    (Capability::P2pAtomics, "p2p_atomics"),
    (Capability::SysMemAtomics, "system_memory_atomics"),
    (Capability::SliBridge, "sli"),
];

/// Reads the links of the local machine.
pub fn this_machine() -> Result<Links, ProbeError> {
    let files = Nvml.files();
    let mut links = of_tree(&WithFiles { tree: &Folder::new("/"), files: &files })?;
    links.notes.extend(files.notes);
    Ok(links)
}

impl Links {
    /// Adds what `nvidia-smi -q` says of the GPUs of the local machine. Takes a second or more.
    pub fn add_gpu_fields(&mut self) {
        match output("nvidia-smi", &["-q"], COMMAND_MAX) {
            Err(reason) => self.notes.push(reason),
            Ok(printed) => match text::query::read(&printed) {
                Err(error) => self.notes.push(format!("nvidia-smi -q: {error}")),
                Ok(read) => {
                    let fields = read.gpus.into_iter().map(|fields| self.renamed(fields)).collect();
                    self.gpus = fields;
                }
            },
        }
    }

    /// The fields with the name that the GPU has here, where it is known by its address.
    fn renamed(&self, mut fields: GpuFields) -> GpuFields {
        let same = self.of_kind(Kind::Pcie).find(|link| link.bus.is_some() && link.bus == fields.bus);
        if let Some(link) = same {
            fields.gpu.clone_from(&link.id.device);
        }
        fields
    }
}

/// The driver's values of the local machine.
impl LinkSource for Nvml {
    fn files(&self) -> Files {
        let reports = self.gpus();
        let mut files = Files::default();
        files.add_gpus(&reports);
        if reports.gpus.is_empty() {
            return files;
        }
        // The number of each GPU in the files, which leaves out GPUs that could not be read.
        let mut numbers = BTreeMap::new();
        if let Ok(library) = library() {
            for index in 0..library.device_count().unwrap_or(0) {
                let Ok(device) = library.device_by_index(index) else { continue };
                let bus = device.pci_info().ok().and_then(|info| bus_of(&info));
                if let Some(number) = reports.gpus.iter().position(|report| Some(report.bus) == bus) {
                    gpu(&device, number, &mut files);
                    numbers.insert(index, number);
                }
            }
        }
        if reports.gpus.iter().any(|gpu| gpu.nvlinks.iter().any(|link| link.up.is_some())) {
            throughput(&numbers, &mut files);
        }
        files
    }
}

fn gpu(device: &Device<'_>, number: usize, files: &mut Files) {
    if let Ok(replays) = device.pcie_replay_counter() {
        files.add(format!("nvml/{number}/pcie_replays"), replays);
    }
    for (counter, name) in
        [(PcieUtilCounter::Send, "pcie_tx_kb_per_s"), (PcieUtilCounter::Receive, "pcie_rx_kb_per_s")]
    {
        if let Ok(rate) = device.pcie_throughput(counter) {
            files.add(format!("nvml/{number}/{name}"), rate);
        }
    }
    for (name, value) in [
        ("pcie_generation", device.current_pcie_link_gen()),
        ("pcie_generation_max", device.max_pcie_link_gen()),
        ("pcie_width", device.current_pcie_link_width()),
        ("pcie_width_max", device.max_pcie_link_width()),
    ] {
        if let Ok(value) = value {
            files.add(format!("nvml/{number}/{name}"), value);
        }
    }
    let speed = field(device, FIELD_SPEED);
    for index in 0..NVLINKS_MAX {
        let link = device.link_wrapper_for(index);
        let Ok(is_up) = link.is_active() else { break };
        let mut add =
            |name: &str, value: u64| files.add(format!("nvml/{number}/links/{index}/{name}"), value);
        if !is_up {
            continue;
        }
        if let Some(speed) = speed {
            add("speed_mb_per_s", speed);
        }
        for (counter, name) in ERRORS {
            if let Ok(count) = link.error_counter(counter) {
                add(name, count);
            }
        }
        let ecc = FIELDS_ECC.clone().nth(index as usize);
        if let Some(count) = ecc.and_then(|id| field(device, FieldId(id))) {
            add("ecc_data_errors", count);
        }
        for (capability, name) in CAPABILITIES {
            if let Ok(can) = link.has_capability(capability) {
                add(&format!("can_{name}"), can.into());
            }
        }
    }
}

fn field(device: &Device<'_>, id: FieldId) -> Option<u64> {
    use nvml_wrapper::enums::device::SampleValue;

    let sample = device.field_values_for(&[id]).ok()?.pop()?.ok()?;
    match sample.value.ok()? {
        SampleValue::U32(value) => Some(value.into()),
        SampleValue::U64(value) => Some(value),
        SampleValue::I64(value) => u64::try_from(value).ok(),
        SampleValue::F64(_) => None,
    }
}

/// The bytes of each NVLink, as `nvidia-smi` prints them.
fn throughput(numbers: &BTreeMap<u32, usize>, files: &mut Files) {
    let read = output("nvidia-smi", &["nvlink", "-gt", "d"], COMMAND_MAX).and_then(|printed| {
        text::nvlink::read(&printed).map_err(|error| format!("nvidia-smi nvlink -gt d: {error}"))
    });
    let links = match read {
        Ok(links) => links,
        Err(reason) => return files.notes.push(format!("the traffic of NVLinks is unknown: {reason}")),
    };
    for link in &links.links {
        let gpu = link.id.device.strip_prefix("gpu").and_then(|number| number.parse::<u32>().ok());
        let (Some(gpu), Some(index)) = (gpu.and_then(|gpu| numbers.get(&gpu)), link.id.number) else {
            continue;
        };
        for (name, counter) in [("tx_kib", link.sent), ("rx_kib", link.received)] {
            if let Some(counter) = counter {
                files.add(format!("nvml/{gpu}/links/{index}/{name}"), counter.count);
            }
        }
    }
}
