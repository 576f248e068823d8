//! What the NVIDIA driver reports beyond the wiring: errors, clocks, power, temperatures, modes, peer access.
//!
//! Values are files below `nvml/`. A value that the GPU does not support is `not supported`; one that the driver refuses has
//! its reason in `NAME.reason`. Serial numbers and UUIDs are not read. The binding has no safe call for the state of the NVLink fabric
//! and for the margin to the slowdown temperature, so `nvidia-smi` prints them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, P2pCapabilitiesIndex, P2pStatus, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, cuda_driver_version_major, cuda_driver_version_minor};

use super::command;
use crate::cpu_ranges;
use crate::gpu_source::{GpuReport, GpuReports};
use crate::nvml::{self, NVLINKS_MAX};
use crate::tree::pci_address;

/// Words of an affinity mask: the kernel's limit of 8192 CPUs, and of 1024 NUMA nodes.
const CPU_WORDS: usize = 128;
const NODE_WORDS: usize = 16;
/// `NVML_AFFINITY_SCOPE_NODE` of nvml.h.
const SCOPE_NODE: u32 = 0;
/// The first links have a speed field of their own; later ones have the common speed only.
const SPEED_FIELDS: [u32; 12] = [84, 85, 86, 87, 88, 89, 132, 133, 134, 135, 136, 137];
/// Pairs are read up to this many GPUs.
const PEERS_MAX: usize = 64;
/// Without persistence mode, `nvidia-smi` waits until the driver has initialized the GPUs.
const SMI_LIMIT: Duration = Duration::from_secs(8);

/// The values below `nvml/`, by path.
pub(super) type Values = BTreeMap<String, String>;

/// Reads the local driver.
pub(super) fn read() -> (GpuReports, Values) {
    let mut values = Values::new();
    let library = match nvml::open() {
        Ok(library) => library,
        Err(reason) => return (nvml::without_gpus(reason), values),
    };
    let (reports, devices) = nvml::reports(&library);
    add(&mut values, "nvml/driver_version", library.sys_driver_version());
    let cuda = library.sys_cuda_driver_version();
    let cuda = cuda.map(|version| {
        format!("{}.{}", cuda_driver_version_major(version), cuda_driver_version_minor(version))
    });
    add(&mut values, "nvml/cuda_version", cuda);
    for (number, device) in devices.iter().enumerate() {
        let mut gpu = OfGpu { values: &mut values, folder: format!("nvml/{number}"), device };
        gpu.identity();
        gpu.memory();
        gpu.clocks();
        gpu.power();
        gpu.modes();
        gpu.slot();
        gpu.links();
        if devices.len() <= PEERS_MAX {
            gpu.peers(number, &devices);
        }
    }
    add_smi(&mut values, &reports.gpus);
    (reports, values)
}

fn add(values: &mut Values, path: &str, value: Result<impl Display, NvmlError>) {
    match value {
        Ok(value) => values.insert(path.to_owned(), value.to_string()),
        Err(NvmlError::NotSupported) => values.insert(path.to_owned(), "not supported".to_owned()),
        Err(NvmlError::FailedToLoadSymbol(_)) => {
            values.insert(format!("{path}.reason"), "a driver whose NVML has this call".to_owned())
        }
        Err(error) => values.insert(format!("{path}.reason"), format!("NVML: {error}")),
    };
}

/// The values of one GPU.
struct OfGpu<'a, 'nvml> {
    values: &'a mut Values,
    folder: String,
    device: &'a Device<'nvml>,
}

impl OfGpu<'_, '_> {
    fn add(&mut self, name: &str, value: Result<impl Display, NvmlError>) {
        add(self.values, &format!("{}/{name}", self.folder), value);
    }

    fn field(&self, id: u32) -> Result<u64, NvmlError> {
        let mut samples = self.device.field_values_for(&[FieldId(id)])?;
        match samples.pop().ok_or(NvmlError::NotFound)??.value? {
            SampleValue::U32(value) => Ok(u64::from(value)),
            SampleValue::U64(value) => Ok(value),
            SampleValue::I64(value) => u64::try_from(value).map_err(|_| NvmlError::NotFound),
            SampleValue::F64(_) => Err(NvmlError::NotFound),
        }
    }

    fn identity(&mut self) {
        self.add("vbios", self.device.vbios_version());
        self.add("part_number", self.device.board_part_number());
        let cpus = self.device.cpu_affinity(CPU_WORDS).map(|words| ranges(&words));
        self.add("cpu_affinity", cpus);
        let nodes = self.device.memory_affinity(NODE_WORDS, SCOPE_NODE).map(|words| ranges(&words));
        self.add("numa_affinity", nodes);
    }

    fn memory(&mut self) {
        let device = self.device;
        self.add("bar1_bytes", device.bar1_memory_info().map(|memory| memory.total));
        self.add("ecc_mode", device.is_ecc_enabled().map(|mode| on_off(mode.currently_enabled)));
        for (kind, error) in
            [("corrected", MemoryError::Corrected), ("uncorrected", MemoryError::Uncorrected)]
        {
            for (since, counter) in [("volatile", EccCounter::Volatile), ("aggregate", EccCounter::Aggregate)]
            {
                self.add(&format!("ecc_{since}_{kind}"), device.total_ecc_errors(error, counter));
            }
        }
        for (name, id) in [
            ("remapped_rows_corrected", field_id::NVML_FI_DEV_REMAPPED_COR),
            ("remapped_rows_uncorrected", field_id::NVML_FI_DEV_REMAPPED_UNC),
            ("remapped_rows_pending", field_id::NVML_FI_DEV_REMAPPED_PENDING),
            ("remapped_rows_failed", field_id::NVML_FI_DEV_REMAPPED_FAILURE),
            ("retired_pages_pending", field_id::NVML_FI_DEV_RETIRED_PENDING),
        ] {
            self.add(name, self.field(id));
        }
    }

    fn clocks(&mut self) {
        let device = self.device;
        let reasons = device.current_throttle_reasons();
        self.add(
            "clocks_event_reasons",
            reasons.map(|reasons| format!("{:#x}", ThrottleReasons::bits(&reasons))),
        );
        for (name, clock) in [("sm", Clock::SM), ("memory", Clock::Memory)] {
            self.add(&format!("clock_{name}_mhz"), device.clock_info(clock));
            self.add(&format!("clock_{name}_max_mhz"), device.max_clock_info(clock));
        }
        for (name, clock) in [("graphics", Clock::Graphics), ("memory", Clock::Memory)] {
            self.add(&format!("clock_{name}_application_mhz"), device.applications_clock(clock));
            self.add(&format!("clock_{name}_default_mhz"), device.default_applications_clock(clock));
        }
        self.add("clock_graphics_max_mhz", device.max_clock_info(Clock::Graphics));
        self.add("utilization_percent", device.utilization_rates().map(|rates| rates.gpu));
    }

    fn power(&mut self) {
        let device = self.device;
        self.add("power_draw_mw", device.power_usage());
        self.add("power_limit_mw", device.power_management_limit());
        self.add("power_limit_default_mw", device.power_management_limit_default());
        self.add("power_limit_enforced_mw", device.enforced_power_limit());
        self.add("temperature_c", device.temperature(TemperatureSensor::Gpu));
        self.add("temperature_memory_c", self.field(field_id::NVML_FI_DEV_MEMORY_TEMP));
        for (name, threshold) in [
            ("slowdown", TemperatureThreshold::Slowdown),
            ("shutdown", TemperatureThreshold::Shutdown),
            ("gpu_max", TemperatureThreshold::GpuMax),
        ] {
            self.add(&format!("temperature_{name}_c"), device.temperature_threshold(threshold));
        }
    }

    fn modes(&mut self) {
        let device = self.device;
        self.add("persistence_mode", device.is_in_persistent_mode().map(on_off));
        self.add("compute_mode", device.compute_mode().map(|mode| kebab(&format!("{mode:?}"))));
        self.add("mig_mode", device.mig_mode().map(|mode| on_off(mode.current != 0)));
    }

    fn slot(&mut self) {
        let device = self.device;
        self.add("pcie_generation", device.current_pcie_link_gen());
        self.add("pcie_generation_max", device.max_pcie_link_gen());
        self.add("pcie_width", device.current_pcie_link_width());
        self.add("pcie_width_max", device.max_pcie_link_width());
        self.add("pcie_replays", device.pcie_replay_counter());
    }

    fn links(&mut self) {
        let device = self.device;
        self.add("nvlink_speed_mbps", self.field(field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON));
        for index in 0..NVLINKS_MAX {
            let link = device.link_wrapper_for(index);
            if link.is_active().is_err() {
                break;
            }
            let counters = [
                ("replay", ErrorCounter::DlReplay),
                ("recovery", ErrorCounter::DlRecovery),
                ("crc_flit", ErrorCounter::DlCrcFlit),
                ("crc_data", ErrorCounter::DlCrcData),
            ];
            let count = |(name, counter): (&str, ErrorCounter)| {
                Some(format!("{name}={}", link.error_counter(counter).ok()?))
            };
            let errors: Vec<String> = counters.into_iter().filter_map(count).collect();
            if !errors.is_empty() {
                self.add(&format!("nvlink_errors/{index}"), Ok(errors.join(" ")));
            }
            if let Some(id) = SPEED_FIELDS.get(index as usize)
                && let Ok(speed) = self.field(*id)
            {
                self.add(&format!("nvlink_speed/{index}"), Ok(speed));
            }
        }
    }

    fn peers(&mut self, number: usize, devices: &[Device<'_>]) {
        for (other, peer) in devices.iter().enumerate().filter(|(other, _)| *other != number) {
            let statuses = [
                ("read", P2pCapabilitiesIndex::Read),
                ("write", P2pCapabilitiesIndex::Write),
                ("nvlink", P2pCapabilitiesIndex::NvLink),
                ("atomics", P2pCapabilitiesIndex::Atomics),
            ];
            let status = |(name, index): (&str, P2pCapabilitiesIndex)| {
                Some(format!("{name}={}", peer_status(self.device.p2p_status(peer, index).ok()?)))
            };
            let all: Vec<String> = statuses.into_iter().filter_map(status).collect();
            if !all.is_empty() {
                self.add(&format!("p2p/{other}"), Ok(all.join(" ")));
            }
        }
    }
}

fn peer_status(status: P2pStatus) -> &'static str {
    match status {
        P2pStatus::Ok => "ok",
        P2pStatus::ChipsetNotSupported => "chipset-not-supported",
        P2pStatus::GpuNotSupported => "gpu-not-supported",
        P2pStatus::IohTopologyNotSupported => "topology-not-supported",
        P2pStatus::DisabledByRegkey => "disabled-by-setting",
        P2pStatus::NotSupported => "not-supported",
        P2pStatus::Unknown => "unknown",
    }
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// `exclusive-process` of `ExclusiveProcess`.
fn kebab(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

/// The numbers of the bits that are set, as `0-3,8`.
fn ranges(words: &[std::ffi::c_ulong]) -> String {
    let bits = std::ffi::c_ulong::BITS as usize;
    let set = words.iter().enumerate().flat_map(|(word, mask)| {
        (0..bits).filter(move |bit| mask >> bit & 1 == 1).map(move |bit| word * bits + bit)
    });
    cpu_ranges(&set.collect::<Vec<_>>())
}

/// Adds what only `nvidia-smi` prints. An older version refuses fields that it does not know, so each query is separate.
fn add_smi(values: &mut Values, gpus: &[GpuReport]) {
    if gpus.is_empty() {
        return;
    }
    for (fields, names) in [
        ("fabric.state,fabric.status", &["fabric_state", "fabric_status"][..]),
        ("temperature.gpu.tlimit", &["temperature_margin_c"][..]),
    ] {
        let query = format!("--query-gpu=pci.bus_id,{fields}");
        let output = command::run(&["nvidia-smi", &query, "--format=csv,noheader,nounits"], SMI_LIMIT);
        if let (Some(text), None) = (&output.text, &output.reason) {
            add_rows(values, gpus, names, text);
        } else if let Some(reason) = output.reason {
            for number in 0..gpus.len() {
                for name in names {
                    values.insert(format!("nvml/{number}/{name}.reason"), reason.clone());
                }
            }
        }
    }
}

/// Adds the rows `00000000:19:00.0, Completed, Success`.
fn add_rows(values: &mut Values, gpus: &[GpuReport], names: &[&str], text: &str) {
    for line in text.lines() {
        let mut cells = line.split(',').map(str::trim);
        let bus = cells.next().and_then(pci_address);
        let Some(number) = gpus.iter().position(|gpu| Some(gpu.bus) == bus) else {
            continue;
        };
        for (name, cell) in names.iter().zip(cells) {
            let plain = cell.trim_matches(['[', ']']).to_ascii_lowercase();
            let is_absent = matches!(plain.as_str(), "" | "n/a" | "not supported");
            let value = if is_absent { "not supported".to_owned() } else { plain };
            values.insert(format!("nvml/{number}/{name}"), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use weftlink_fabric::device::BusId;

    use super::*;

    #[test]
    fn masks_and_names_are_formatted() {
        assert_eq!(ranges(&[0b1111, 0b1]), "0-3,64");
        assert_eq!(ranges(&[]), "");
        assert_eq!(kebab("ExclusiveProcess"), "exclusive-process");
    }

    #[test]
    fn rows_of_nvidia_smi_belong_to_gpus() {
        let gpu = |bus| GpuReport {
            bus: BusId::new(0, bus, 0, 0),
            name: None,
            sm: None,
            memory_bytes: None,
            c2c_links: None,
            nvlinks: Vec::new(),
        };
        let mut values = Values::new();
        let text = "00000000:1A:00.0, Completed, Success\n00000000:19:00.0, [N/A], [N/A]\n00000000:77:00.0, x, y\n\nNo devices\n";
        add_rows(&mut values, &[gpu(0x19), gpu(0x1a)], &["fabric_state", "fabric_status"], text);
        let rows: Vec<_> = values.iter().map(|(path, value)| format!("{path} = {value}")).collect();
        assert_eq!(
            rows,
            [
                "nvml/0/fabric_state = not supported",
                "nvml/0/fabric_status = not supported",
                "nvml/1/fabric_state = completed",
                "nvml/1/fabric_status = success",
            ]
        );
    }

    #[test]
    fn without_a_driver_there_is_a_reason_and_no_value() {
        let (reports, values) = read();
        assert!(!reports.gpus.is_empty() || (reports.reason.is_some() && values.len() <= 2));
    }
}
