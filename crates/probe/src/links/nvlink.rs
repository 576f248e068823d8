//! NVLinks, from the values of NVIDIA's driver.

use weftlink_fabric::link::LinkKind;

use super::driver::{Devices, nominal, nvlink_spec};
use super::{Counter, Kind, Link, Links, Remote, State};
use crate::Tree;
use crate::gpu_source::{self, NvLinkUp};

pub(super) fn add(tree: &dyn Tree, devices: &Devices, links: &mut Links) {
    if let Some(reason) = tree.read("nvml/reason") {
        links.notes.push(format!("NVLinks are unknown: {reason}"));
    }
    for (number, report) in &devices.driven {
        let device = devices.name(report.bus);
        let model = devices.model(report);
        for nvlink in &report.nvlinks {
            let generation = nvlink.up.and_then(|up| up.generation);
            let spec = nvlink_spec(model, report.sm, generation);
            let mut link = Link::new(Kind::NvLink, &device, Some(nvlink.index));
            link.bus = Some(report.bus.to_string());
            link.state = if nvlink.up.is_some() { State::Up } else { State::Down };
            link.generation = generation.or(match spec.map(|spec| spec.kind) {
                Some(LinkKind::NvLink { generation }) => generation,
                _ => None,
            });
            link.nominal = spec.and_then(nominal);
            link.remote = nvlink.up.and_then(|up| remote(up, devices));
            inspected(tree, *number, &mut link);
            values(tree, &format!("nvml/{number}/links/{}", nvlink.index), &mut link);
            links.links.push(link);
        }
        if report.nvlinks.is_empty() && model.is_some_and(|model| model.gpu_links().is_some()) {
            links.notes.push(format!(
                "{device} has NVLinks by its model, but the driver reports none, as in a virtual machine with a single GPU"
            ));
        }
    }
}

fn remote(up: NvLinkUp, devices: &Devices) -> Option<Remote> {
    match up.remote {
        gpu_source::Remote::Unknown => None,
        gpu_source::Remote::Hidden => {
            Some(Remote { kind: Some("hidden switch".to_owned()), ..Remote::default() })
        }
        gpu_source::Remote::Function { bus, .. } => {
            let device = devices.known(bus).map(str::to_owned);
            let is_gpu = device.as_deref().is_some_and(|name| name.starts_with("gpu"));
            let kind = if is_gpu { "gpu" } else { "switch" };
            Some(Remote { device, bus: Some(bus.to_string()), link: None, kind: Some(kind.to_owned()) })
        }
    }
}

/// What an inspection for the doctor has of the same link: `nvlink_errors/L` is `replay=0 recovery=0 crc_flit=0 crc_data=0`, and
/// `nvlink_speed/L` the line rate in MB/s.
fn inspected(tree: &dyn Tree, gpu: u32, link: &mut Link) {
    let Some(index) = link.id.number else { return };
    let read = |name: &str| tree.read(&format!("nvml/{gpu}/{name}/{index}"));
    for (name, count) in read("nvlink_errors")
        .iter()
        .flat_map(|text| text.split_whitespace())
        .filter_map(|word| word.split_once('='))
    {
        if let Ok(count) = count.parse() {
            link.set_error(&format!("{name}_errors"), count);
        }
    }
    let speed = read("nvlink_speed").and_then(|text| text.parse::<u64>().ok());
    link.trained = speed.filter(|speed| *speed > 0).map(|speed| speed.saturating_mul(1_000_000));
}

/// The counters and capabilities of one link: see [`super::source`].
fn values(tree: &dyn Tree, folder: &str, link: &mut Link) {
    let mut measured = (None, None);
    for name in tree.list(folder) {
        let Some(text) = tree.read(&format!("{folder}/{name}")) else {
            continue;
        };
        let Ok(value) = text.parse::<u64>() else {
            link.values.push((name, text));
            continue;
        };
        match name.as_str() {
            "speed_mb_per_s" => link.trained = Some(value.saturating_mul(1_000_000)).filter(|rate| *rate > 0),
            "tx_kib" => link.sent = Some(Counter::of(value, 1024)),
            "rx_kib" => link.received = Some(Counter::of(value, 1024)),
            "tx_bytes_per_s" => measured.0 = Some(value),
            "rx_bytes_per_s" => measured.1 = Some(value),
            "remote_link" => {
                link.remote.get_or_insert_default().link = u32::try_from(value).ok();
            }
            _ => match name.strip_prefix("can_") {
                Some(capability) => link.capabilities.push((capability.to_owned(), value != 0)),
                None => link.set_error(&name, value),
            },
        }
    }
    link.measured = measured.0.zip(measured.1);
}
