//! `nvidia-smi -q`: what it says of each GPU that matters to communication, of drivers 450 to 595.
//!
//! Lines are `name : value`, indented below the name of their section. A field is found by its name and the names of its sections, so
//! that the order does not matter and new fields are ignored.

use super::LinesError;
use super::fields::Value::{Lower, Number, Scaled, Switch, Text, Truth};
use super::fields::{EVENT_BITS, FIELDS, SUMS};
use super::lines::{Line, Lines, bus, check_size, snake};
use crate::links::pcie::rate;
use crate::links::{GpuFields, Kind, Links, State};

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
    for mut gpu in std::mem::take(&mut links.gpus) {
        add_sums(&mut gpu);
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
        if let Some((_, bit)) = EVENT_BITS.iter().find(|(name, _)| *name == event) {
            match value {
                "Active" => add_event(*bit, gpu),
                "Not Active" => add_event(0, gpu),
                _ => {}
            }
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
    let number = |unit: &str| {
        let number = value.strip_suffix(unit).unwrap_or(value).trim();
        let parsed = number.parse::<f64>().ok().filter(|number| number.is_finite());
        parsed.map(|parsed| (number.to_owned(), parsed)).ok_or_else(|| match unit {
            "" => line.expected(format!("a number for `{path}`")),
            _ => line.expected(format!("a number in {unit} for `{path}`")),
        })
    };
    let value = match (kind, value) {
        (Switch, "Enabled") => "on".to_owned(),
        (Switch, "Disabled") => "off".to_owned(),
        (Truth, "Yes") => "1".to_owned(),
        (Truth, "No") => "0".to_owned(),
        (Lower, _) => value.to_ascii_lowercase(),
        (Text | Switch | Truth, _) => value.to_owned(),
        (Number(unit), _) => number(unit)?.0,
        (Scaled(unit, factor), _) => format!("{:.0}", number(unit)?.1 * factor),
    };
    if gpu.field(name).is_none() {
        gpu.fields.push(((*name).to_owned(), value));
    }
    Ok(())
}

/// Adds a reason to the mask, as NVML writes it: `0x4c`.
fn add_event(bit: u64, gpu: &mut GpuFields) {
    const MASK: &str = "clocks_event_reasons";
    let old = gpu.field(MASK).and_then(|mask| u64::from_str_radix(mask.trim_start_matches("0x"), 16).ok());
    let mask = format!("{:#x}", old.unwrap_or(0) | bit);
    match gpu.fields.iter_mut().find(|(name, _)| name == MASK) {
        Some((_, value)) => *value = mask,
        None => gpu.fields.push((MASK.to_owned(), mask)),
    }
}

/// The names of the reasons in a mask of `clocks_event_reasons`: `SW Power Cap`.
pub fn event_names(mask: u64) -> Vec<&'static str> {
    EVENT_BITS.iter().filter(|(_, bit)| mask & bit != 0).map(|(name, _)| *name).collect()
}

/// Adds `ecc_volatile_uncorrected`, the sum of `ecc_volatile_sram_uncorrected` and so on.
fn add_sums(gpu: &mut GpuFields) {
    for sum in SUMS {
        let (prefix, kind) = sum.rsplit_once('_').unwrap_or((sum, ""));
        let is_part = |name: &str| {
            let part = name
                .strip_prefix(prefix)
                .and_then(|rest| rest.strip_prefix("_sram_").or(rest.strip_prefix("_dram_")));
            part.is_some_and(|part| {
                part == kind || part.strip_prefix(kind).is_some_and(|rest| rest.starts_with('_'))
            })
        };
        let parts = gpu.fields.iter().filter(|(name, _)| is_part(name));
        let counts: Vec<u64> = parts.filter_map(|(_, value)| value.parse().ok()).collect();
        if !counts.is_empty() {
            let total = counts.iter().fold(0_u64, |total, count| total.saturating_add(*count));
            gpu.fields.push((sum.to_owned(), total.to_string()));
        }
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
            ("persistence_mode", "on"),
            ("mig_mode", "off"),
            ("pcie_replays", "7"),
            ("bar1_bytes", "137438953472"),
            ("ecc_mode", "on"),
            ("ecc_volatile_uncorrected", "3"),
            ("remapped_rows_pending", "0"),
            ("clocks_event_reasons", "0x4c"),
            ("temperature_c", "78"),
            ("power_draw_mw", "698100"),
            ("power_limit_mw", "700000"),
            ("fabric_state", "completed"),
            ("fabric_status", "success"),
            ("fabric_bandwidth", "full"),
        ] {
            assert_eq!(gpu.field(name), Some(value), "{name}");
        }
        let link = &links.links[0];
        assert_eq!((link.generation, link.width, link.generation_max), (Some(5), Some(16), Some(5)));
        assert_eq!(link.measured, Some((1_200_000, 800_000)));
        assert_eq!((link.bus.as_deref(), link.error("pcie_replays")), (Some("0000:18:00.0"), Some(7)));
        assert_eq!(event_names(0x4c), ["SW Power Cap", "HW Slowdown", "HW Thermal Slowdown"]);
        // A checker of values below nvml/ can read them.
        let files = links.files();
        assert_eq!(files.read("nvml/1/bus").as_deref(), Some("0000:2a:00.0"));
        assert_eq!(files.read("nvml/0/name").as_deref(), Some("NVIDIA H100 80GB HBM3"));
        assert_eq!(files.read("nvml/driver_version").as_deref(), Some("565.57.01"));
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
            ("clocks_event_reasons", "0x1"),
            ("power_draw_mw", "43210"),
            ("power_limit_default_mw", "300000"),
            ("ecc_mode", "on"),
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
