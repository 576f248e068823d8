//! `nvidia-smi -q`: what it says of each GPU that matters to communication, of drivers 450 to 595.
//!
//! Lines are `name : value`, indented below the name of their section. A field is found by its name and the names of its sections, so
//! that the order does not matter and new fields are ignored.

use super::LinesError;
use super::lines::{Line, Lines, bus, check_size, snake};
use crate::links::pcie::rate;
use crate::links::{GpuFields, Kind, Links, State};

/// How a value is written.
#[derive(Clone, Copy)]
enum Value {
    Text,
    /// A number with this unit behind it, which is removed.
    Number(&'static str),
}

use Value::{Number, Text};

/// A name here, the sections and the name there, and the value. Where drivers changed a name, each has a row.
const FIELDS: &[(&str, &str, Value)] = &[
    ("product_name", "Product Name", Text),
    ("architecture", "Product Architecture", Text),
    ("uuid", "GPU UUID", Text),
    ("vbios_version", "VBIOS Version", Text),
    ("persistence_mode", "Persistence Mode", Text),
    ("addressing_mode", "Addressing Mode", Text),
    ("mig_mode", "MIG Mode/Current", Text),
    ("mig_mode_pending", "MIG Mode/Pending", Text),
    ("compute_mode", "Compute Mode", Text),
    ("c2c_mode", "GPU C2C Mode", Text),
    ("virtualization_mode", "GPU Virtualization Mode/Virtualization Mode", Text),
    ("reset_required", "GPU Reset Status/Reset Required", Text),
    ("recovery_action", "GPU Recovery Action", Text),
    ("pcie_generation_max", "PCI/GPU Link Info/PCIe Generation/Max", Number("")),
    ("pcie_generation", "PCI/GPU Link Info/PCIe Generation/Current", Number("")),
    ("pcie_generation_device_max", "PCI/GPU Link Info/PCIe Generation/Device Max", Number("")),
    ("pcie_generation_host_max", "PCI/GPU Link Info/PCIe Generation/Host Max", Number("")),
    ("pcie_width_max", "PCI/GPU Link Info/Link Width/Max", Number("x")),
    ("pcie_width", "PCI/GPU Link Info/Link Width/Current", Number("x")),
    ("pcie_replays", "PCI/Replays Since Reset", Number("")),
    ("pcie_replay_rollovers", "PCI/Replay Number Rollovers", Number("")),
    ("pcie_tx_kb_per_s", "PCI/Tx Throughput", Number("KB/s")),
    ("pcie_rx_kb_per_s", "PCI/Rx Throughput", Number("KB/s")),
    ("pcie_atomics_outbound", "PCI/Atomic Caps Outbound", Text),
    ("pcie_atomics_inbound", "PCI/Atomic Caps Inbound", Text),
    ("performance_state", "Performance State", Text),
    ("bar1_total_mib", "BAR1 Memory Usage/Total", Number("MiB")),
    ("bar1_used_mib", "BAR1 Memory Usage/Used", Number("MiB")),
    ("memory_total_mib", "FB Memory Usage/Total", Number("MiB")),
    ("ecc_mode", "ECC Mode/Current", Text),
    ("ecc_mode", "Ecc Mode/Current", Text),
    ("ecc_volatile_sram_uncorrected", "ECC Errors/Volatile/SRAM Uncorrectable", Number("")),
    ("ecc_volatile_sram_parity", "ECC Errors/Volatile/SRAM Uncorrectable Parity", Number("")),
    ("ecc_volatile_sram_sec_ded", "ECC Errors/Volatile/SRAM Uncorrectable SEC-DED", Number("")),
    ("ecc_volatile_dram_corrected", "ECC Errors/Volatile/DRAM Correctable", Number("")),
    ("ecc_volatile_dram_uncorrected", "ECC Errors/Volatile/DRAM Uncorrectable", Number("")),
    ("ecc_aggregate_sram_uncorrected", "ECC Errors/Aggregate/SRAM Uncorrectable", Number("")),
    ("ecc_aggregate_dram_corrected", "ECC Errors/Aggregate/DRAM Correctable", Number("")),
    ("ecc_aggregate_dram_uncorrected", "ECC Errors/Aggregate/DRAM Uncorrectable", Number("")),
    ("retired_pages_double_bit", "Retired Pages/Double Bit ECC", Number("")),
    ("retired_pages_pending", "Retired Pages/Pending Page Blacklist", Text),
    ("remapped_rows_correctable", "Remapped Rows/Correctable Error", Number("")),
    ("remapped_rows_uncorrectable", "Remapped Rows/Uncorrectable Error", Number("")),
    ("remapped_rows_pending", "Remapped Rows/Pending", Text),
    ("remapped_rows_failed", "Remapped Rows/Remapping Failure Occurred", Text),
    ("temperature_c", "Temperature/GPU Current Temp", Number("C")),
    ("temperature_margin_c", "Temperature/GPU T.Limit Temp", Number("C")),
    ("temperature_slowdown_c", "Temperature/GPU Slowdown Temp", Number("C")),
    ("temperature_shutdown_c", "Temperature/GPU Shutdown Temp", Number("C")),
    ("memory_temperature_c", "Temperature/Memory Current Temp", Number("C")),
    ("power_draw_w", "GPU Power Readings/Power Draw", Number("W")),
    ("power_draw_w", "GPU Power Readings/Average Power Draw", Number("W")),
    ("power_draw_w", "Power Readings/Power Draw", Number("W")),
    ("power_limit_w", "GPU Power Readings/Current Power Limit", Number("W")),
    ("power_limit_w", "Power Readings/Power Limit", Number("W")),
    ("power_limit_default_w", "GPU Power Readings/Default Power Limit", Number("W")),
    ("power_limit_default_w", "Power Readings/Default Power Limit", Number("W")),
    ("clock_sm_mhz", "Clocks/SM", Number("MHz")),
    ("clock_memory_mhz", "Clocks/Memory", Number("MHz")),
    ("clock_sm_max_mhz", "Max Clocks/SM", Number("MHz")),
    ("application_clock_mhz", "Applications Clocks/Graphics", Number("MHz")),
    ("fabric_state", "Fabric/State", Text),
    ("fabric_status", "Fabric/Status", Text),
    ("fabric_clique", "Fabric/CliqueId", Text),
    ("fabric_cluster_uuid", "Fabric/ClusterUUID", Text),
    ("fabric_health", "Fabric/Health/Summary", Text),
    ("fabric_bandwidth", "Fabric/Health/Bandwidth", Text),
];

/// Sections whose lines are `Active` or `Not Active`: the second name is that of drivers before 535.
const EVENTS: [&str; 2] = ["Clocks Event Reasons/", "Clocks Throttle Reasons/"];

/// Nested sections.
const DEPTH_MAX: usize = 16;

/// Reads the output of `nvidia-smi -q`.
pub fn read(text: &str) -> Result<Links, LinesError> {
    let mut links = Links::default();
    let mut sections: Vec<(usize, String)> = Vec::new();
    let mut header: Vec<(String, String)> = Vec::new();
    for line in Lines::of(text)? {
        let content = line.text.trim_start();
        let indent = line.text.len() - content.len();
        if content.is_empty() {
            continue;
        }
        if let Some(address) = content.strip_prefix("GPU ").filter(|_| !content.contains(" : ")).and_then(bus)
        {
            start(&address, &header, &mut links)?;
            sections.clear();
            continue;
        }
        while sections.last().is_some_and(|(outer, _)| *outer >= indent) {
            sections.pop();
        }
        let Some((name, value)) = split(content) else {
            if sections.len() < DEPTH_MAX {
                sections.push((indent, content.trim().to_owned()));
            }
            continue;
        };
        match links.gpus.last_mut() {
            Some(gpu) => {
                let path: String = sections.iter().map(|(_, name)| format!("{name}/")).collect();
                field(&line, &format!("{path}{name}"), value, gpu)?;
            }
            None if ["Driver Version", "CUDA Version"].contains(&name) => {
                header.push((snake(name), value.to_owned()));
            }
            None => {}
        }
    }
    if links.gpus.is_empty() {
        return Err(LinesError::Empty { tool: "nvidia-smi -q", what: "GPUs" });
    }
    for gpu in std::mem::take(&mut links.gpus) {
        slot(&gpu, &mut links);
        links.gpus.push(gpu);
    }
    Ok(links)
}

fn start(address: &str, header: &[(String, String)], links: &mut Links) -> Result<(), LinesError> {
    let gpu = format!("gpu{}", links.gpus.len());
    links.gpus.push(GpuFields { gpu, bus: Some(address.to_owned()), fields: header.to_vec() });
    check_size(links)
}

/// `Name    : value`
fn split(content: &str) -> Option<(&str, &str)> {
    let (name, value) = content.split_once(" :")?;
    Some((name.trim_end(), value.trim()))
}

fn field(line: &Line, path: &str, value: &str, gpu: &mut GpuFields) -> Result<(), LinesError> {
    if let Some(event) = EVENTS.iter().find_map(|section| path.strip_prefix(section)) {
        // Reasons of which others are parts are sections and fields at once.
        let event = event.rsplit('/').next().unwrap_or(event);
        match value {
            "Active" => add_event(event, gpu),
            "Not Active" => known_events(gpu),
            _ => {}
        }
        return Ok(());
    }
    let Some((name, _, kind)) = FIELDS.iter().find(|(_, other, _)| *other == path) else {
        return Ok(());
    };
    let unknown =
        ["N/A", "Unknown", "[", "ERR!", "GPU is lost", "Requested functionality has been deprecated"];
    if value.is_empty() || unknown.iter().any(|text| value.starts_with(text)) {
        return Ok(());
    }
    let value = match kind {
        Text => value.to_owned(),
        Number(unit) => {
            let number = value.strip_suffix(unit).unwrap_or(value).trim();
            let is_number = number.parse::<f64>().is_ok_and(f64::is_finite);
            match is_number {
                true => number.to_owned(),
                false if unit.is_empty() => return Err(line.expected(format!("a number for `{path}`"))),
                false => return Err(line.expected(format!("a number in {unit} for `{path}`"))),
            }
        }
    };
    if gpu.field(name).is_none() {
        gpu.fields.push(((*name).to_owned(), value));
    }
    Ok(())
}

const EVENT_FIELD: &str = "clocks_event_reasons";

/// Reasons were listed, and perhaps none is active.
fn known_events(gpu: &mut GpuFields) {
    if gpu.field(EVENT_FIELD).is_none() {
        gpu.fields.push((EVENT_FIELD.to_owned(), String::new()));
    }
}

fn add_event(event: &str, gpu: &mut GpuFields) {
    known_events(gpu);
    if let Some((_, events)) = gpu.fields.iter_mut().find(|(name, _)| name == EVENT_FIELD) {
        if !events.is_empty() {
            events.push_str(", ");
        }
        events.push_str(&snake(event));
    }
}

/// The PCIe link of a GPU.
fn slot(gpu: &GpuFields, links: &mut Links) {
    fn number<T: std::str::FromStr>(gpu: &GpuFields, name: &str) -> Option<T> {
        gpu.field(name)?.parse().ok()
    }
    let link = links.entry(Kind::Pcie, &gpu.gpu, None);
    link.bus.clone_from(&gpu.bus);
    link.generation = number(gpu, "pcie_generation");
    link.width = number(gpu, "pcie_width");
    link.generation_max = number(gpu, "pcie_generation_max");
    link.width_max = number(gpu, "pcie_width_max");
    link.state = if link.width.is_some() { State::Up } else { State::Unknown };
    link.trained = rate(link.generation, link.width);
    link.nominal = rate(link.generation_max, link.width_max);
    let kilobytes = |name: &str| number::<u64>(gpu, name).map(|kb| kb.saturating_mul(1000));
    link.measured = kilobytes("pcie_tx_kb_per_s").zip(kilobytes("pcie_rx_kb_per_s"));
    for name in ["pcie_replays", "pcie_replay_rollovers"] {
        if let Some(count) = number(gpu, name) {
            link.set_error(name, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str) -> Links {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/links");
        read(&std::fs::read_to_string(folder.join(name)).unwrap()).unwrap()
    }

    #[test]
    fn fields_of_a_new_driver_are_found() {
        let links = sample("nvidia-smi--q-h100.txt");
        assert_eq!(links.gpus.len(), 2);
        let gpu = &links.gpus[0];
        for (name, value) in [
            ("driver_version", "565.57.01"),
            ("product_name", "NVIDIA H100 80GB HBM3"),
            ("persistence_mode", "Enabled"),
            ("mig_mode", "Disabled"),
            ("pcie_replays", "7"),
            ("bar1_total_mib", "131072"),
            ("ecc_mode", "Enabled"),
            ("remapped_rows_pending", "No"),
            ("clocks_event_reasons", "sw_power_cap, hw_slowdown, hw_thermal_slowdown"),
            ("temperature_c", "78"),
            ("power_draw_w", "698.10"),
            ("power_limit_w", "700.00"),
            ("fabric_state", "Completed"),
            ("fabric_status", "Success"),
            ("fabric_bandwidth", "Full"),
        ] {
            assert_eq!(gpu.field(name), Some(value), "{name}");
        }
        let link = &links.links[0];
        assert_eq!((link.generation, link.width, link.generation_max), (Some(5), Some(16), Some(5)));
        assert_eq!(link.measured, Some((1_200_000, 800_000)));
        assert_eq!((link.bus.as_deref(), link.error("pcie_replays")), (Some("0000:18:00.0"), Some(7)));
        // N/A is no value.
        assert_eq!(links.gpus[1].field("fabric_bandwidth"), None);
        assert_eq!((links.links[1].width, links.links[1].width_max), (Some(8), Some(16)));
    }

    #[test]
    fn fields_of_an_old_driver_have_the_same_names() {
        let links = sample("nvidia-smi--q-v100-470.txt");
        let gpu = &links.gpus[0];
        for (name, value) in [
            ("driver_version", "470.57.02"),
            ("clocks_event_reasons", "idle"),
            ("power_draw_w", "43.21"),
            ("power_limit_default_w", "300.00"),
            ("ecc_mode", "Enabled"),
        ] {
            assert_eq!(gpu.field(name), Some(value), "{name}");
        }
        assert_eq!(gpu.field("fabric_state"), None);
    }

    #[test]
    fn errors_name_line_and_expectation() {
        let text = "==============NVSMI LOG==============\nGPU 00000000:18:00.0\n    PCI\n        Replays Since Reset : many\n";
        let error = read(text).unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 4: `Replays Since Reset : many`; expected a number for `PCI/Replays Since Reset`"
        );
        let text = "GPU 00000000:18:00.0\n    PCI\n        Tx Throughput : 5 MB/s\n";
        assert!(read(text).unwrap_err().to_string().contains("in KB/s"));
        assert_eq!(
            read("==============NVSMI LOG==============\n").unwrap_err().to_string(),
            "no GPUs in the output of `nvidia-smi -q`"
        );
    }
}
