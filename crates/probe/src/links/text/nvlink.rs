//! `nvidia-smi nvlink` with `-s`, `-gt d`, `-gt r`, `-e`, `-c`, `-p` and `-R`, or the output of several of them in one input.
//!
//! ```text
//! GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-...)
//!          Link 0: 26.562 GB/s                               -s; `<inactive>` if it is down
//!          Link 0: Data Tx: 104321 KiB                       -gt d; `Raw Tx` with -gt r
//!          Link 0: Replay Errors: 0                          -e; before Blackwell also Recovery Errors, CRC Errors
//!          Link 0: Effective BER: 15e-255                    -e, Blackwell
//!          Link 0, P2P is supported: true                    -c
//!          Link 0: 00000000:D5:00.0                          -p
//!          Link 0: Remote Device 00000000:D5:00.0: Link 12   -R
//! ```

use super::lines::{Line, Lines, bus, check_size, snake};
use super::{GPUS_MAX, LinesError};
use crate::links::driver::{nominal, nvlink_spec};
use crate::links::{Counter, GpuFields, Kind, Link, Links, Remote, State};
use crate::models::model_of;
use crate::{GpuReport, gpu_source};

/// NVLinks of one GPU. Rubin has 36.
const NUMBER_MAX: u32 = 256;

/// True for a line that only this tool prints.
pub(super) fn looks_like(line: &str) -> bool {
    let is_gpu =
        line.strip_prefix("GPU ").and_then(|rest| rest.split_once(": ")).is_some_and(|(number, rest)| {
            number.bytes().all(|b| b.is_ascii_digit()) && !rest.is_empty() && !number.is_empty()
        });
    let is_link =
        line.strip_prefix("Link ").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    is_gpu || is_link
}

/// Reads the output of `nvidia-smi nvlink`.
pub fn read(text: &str) -> Result<Links, LinesError> {
    let mut links = Links::default();
    let mut gpu: Option<Gpu> = None;
    for line in Lines::of(text)? {
        let content = line.text.trim();
        if let Some(named) = heading(content) {
            if links.gpus.iter().all(|other| other.gpu != named.device) {
                links.gpus.push(named.fields());
            }
            if links.gpus.len() > GPUS_MAX {
                return Err(LinesError::TooLarge { what: "GPUs", limit: GPUS_MAX });
            }
            gpu = Some(named);
        } else if let Some(rest) = content.strip_prefix("Link ") {
            // With `-i`, old drivers print no heading.
            let gpu = gpu.get_or_insert_with(|| Gpu::unnamed(0));
            let (number, rest) = number_of(&line, rest)?;
            let link = links.entry(Kind::NvLink, &gpu.device, Some(number));
            gpu.describe(link);
            fill(&line, rest, link)?;
            check_size(&links)?;
        } else if content.contains("NVLink") && content.contains("Unable") {
            links.notes.push(content.to_owned());
        }
    }
    if links.gpus.is_empty() && links.links.is_empty() {
        return Err(LinesError::Empty { tool: "nvidia-smi nvlink", what: "GPUs" });
    }
    Ok(links)
}

/// A GPU's heading.
struct Gpu {
    device: String,
    name: Option<String>,
    uuid: Option<String>,
    /// Nominal rate and generation of its links, by the model.
    spec: Option<(u64, Option<u8>)>,
}

impl Gpu {
    fn unnamed(number: u32) -> Self {
        Self { device: format!("gpu{number}"), name: None, uuid: None, spec: None }
    }

    fn fields(&self) -> GpuFields {
        let mut fields = Vec::new();
        for (key, value) in [("product_name", &self.name), ("uuid", &self.uuid)] {
            fields.extend(value.clone().map(|value| (key.to_owned(), value)));
        }
        GpuFields { gpu: self.device.clone(), bus: None, fields }
    }

    fn describe(&self, link: &mut Link) {
        if let Some((rate, generation)) = self.spec {
            link.nominal = Some(rate);
            link.generation = generation;
        }
    }
}

/// `GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-...)`; drivers before 2018 leave the UUID out.
fn heading(line: &str) -> Option<Gpu> {
    let (number, rest) = line.strip_prefix("GPU ")?.split_once(':')?;
    let mut gpu = Gpu::unnamed(number.trim().parse().ok()?);
    let (name, uuid) = match rest.split_once("(UUID:") {
        Some((name, uuid)) => (name, Some(uuid.trim().trim_end_matches(')').to_owned())),
        None => (rest, None),
    };
    let name = name.trim();
    gpu.uuid = uuid;
    if !name.is_empty() {
        gpu.spec = spec(name);
        gpu.name = Some(name.to_owned());
    }
    Some(gpu)
}

fn spec(name: &str) -> Option<(u64, Option<u8>)> {
    use weftlink_fabric::device::BusId;
    use weftlink_fabric::link::LinkKind;

    let report = GpuReport {
        bus: BusId::new(0, 0, 0, 0),
        name: Some(name.to_owned()),
        sm: None,
        memory_bytes: None,
        c2c_links: None,
        nvlinks: Vec::<gpu_source::NvLinkReport>::new(),
    };
    let spec = nvlink_spec(model_of(None, Some(&report)), None, None)?;
    let generation = match spec.kind {
        LinkKind::NvLink { generation } => generation,
        _ => None,
    };
    Some((nominal(spec)?, generation))
}

/// The number of a link, and what follows it: `0: 26.562 GB/s`, `0, P2P is supported: true`.
fn number_of<'l>(line: &Line, rest: &'l str) -> Result<(u32, &'l str), LinesError> {
    let end = rest.find([':', ',']).unwrap_or(rest.len());
    let number = rest[..end].trim().parse().ok().filter(|number| *number < NUMBER_MAX);
    let number = number.ok_or_else(|| line.expected("the number of an NVLink after `Link`, below 256"))?;
    Ok((number, rest.get(end..).unwrap_or_default()))
}

fn fill(line: &Line, rest: &str, link: &mut Link) -> Result<(), LinesError> {
    let capability = rest.strip_prefix(',').map(str::trim);
    if let Some((name, value)) = capability.and_then(|rest| rest.rsplit_once(':')) {
        let value = match value.trim() {
            "true" => true,
            "false" => false,
            _ => return Err(line.expected("`true` or `false` after a capability")),
        };
        let name = name.trim().trim_end_matches("supported").trim().trim_end_matches(" is");
        link.capabilities.retain(|(other, _)| *other != capability_of(name));
        link.capabilities.push((capability_of(name), value));
        return Ok(());
    }
    let Some(rest) = rest.strip_prefix(':').map(str::trim) else {
        return Err(line.expected("`:` or `,` after the number of an NVLink"));
    };
    if let Some(far) = rest.strip_prefix("Remote Device") {
        return remote(line, far, link);
    }
    if let Some(bus) = bus(rest) {
        let known = link.remote.take().unwrap_or_default();
        link.remote = Some(Remote { bus: Some(bus), ..known });
        return Ok(());
    }
    match rest.rsplit_once(':') {
        Some((name, value)) => counter(line, name.trim(), value.trim(), link),
        None => state(line, rest, link),
    }
}

/// `26.562 GB/s` or `<inactive>`.
fn state(line: &Line, text: &str, link: &mut Link) -> Result<(), LinesError> {
    let word = text.trim_matches(['<', '>']).to_ascii_lowercase();
    if word == "inactive" {
        (link.state, link.trained) = (State::Down, None);
        return Ok(());
    }
    let rate = text.strip_suffix("GB/s").and_then(|rate| rate.trim().parse::<f64>().ok());
    let rate = rate.filter(|rate| (0.0..10_000.0).contains(rate));
    let rate = rate.ok_or_else(|| line.expected("a rate such as `26.562 GB/s`, or `<inactive>`"))?;
    link.state = if rate > 0.0 { State::Up } else { State::Down };
    link.trained = Some((rate * 1e9) as u64).filter(|rate| *rate > 0);
    Ok(())
}

/// `Remote Device 00000000:D5:00.0: Link 12`
fn remote(line: &Line, text: &str, link: &mut Link) -> Result<(), LinesError> {
    let (address, number) = match text.rsplit_once(": Link") {
        Some((address, number)) => (address, number.trim().parse().ok()),
        None => (text.trim_end_matches(':'), None),
    };
    let bus = bus(address).ok_or_else(|| line.expected("a PCI address after `Remote Device`"))?;
    link.remote = Some(Remote { device: None, bus: Some(bus), link: number, kind: None });
    Ok(())
}

/// `Data Tx: 104321 KiB`, `Replay Errors: 0`, `Effective BER: 15e-255`, `FEC Errors - 0: 12`.
fn counter(line: &Line, name: &str, value: &str, link: &mut Link) -> Result<(), LinesError> {
    let is_unknown =
        value.eq_ignore_ascii_case("n/a") || value.to_ascii_lowercase().contains("not supported");
    if is_unknown {
        return Ok(());
    }
    let mut words = value.split_whitespace();
    let count = words.next().and_then(|word| word.parse::<u64>().ok());
    let unit = words.next();
    let key = snake(name);
    if matches!(key.as_str(), "data_tx" | "data_rx" | "raw_tx" | "raw_rx" | "tx_bytes" | "rx_bytes") {
        let unit_bytes = match unit {
            Some("KiB") => 1024,
            None | Some("bytes" | "Bytes") if key.ends_with("bytes") => 1,
            _ => return Err(line.expected("a number of KiB")),
        };
        let count = count.ok_or_else(|| line.expected("a number of KiB"))?;
        let counter = Some(Counter::of(count, unit_bytes));
        // The payload is what compares with rates; the raw count includes what the protocol adds.
        match key.as_str() {
            "data_tx" => link.sent = counter,
            "data_rx" => link.received = counter,
            "raw_tx" | "tx_bytes" => link.sent = link.sent.or(counter),
            _ => link.received = link.received.or(counter),
        }
        return Ok(());
    }
    match count {
        Some(_) if ["tx_packets", "rx_packets"].contains(&key.as_str()) => {
            link.values.push((key, value.to_owned()));
        }
        Some(count) => link.set_error(&key, count),
        // A bit error rate such as 15e-255.
        None if value.parse::<f64>().is_ok() => {
            link.values.retain(|(other, _)| *other != key);
            link.values.push((key, value.to_owned()));
        }
        None => return Err(line.expected("a number after the name of a counter")),
    }
    Ok(())
}

/// The name of a capability: `P2P is supported` is `p2p`.
fn capability_of(name: &str) -> String {
    match snake(name).as_str() {
        "access_to_system_memory" => "system_memory_access".to_owned(),
        other => other.to_owned(),
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
    fn status_has_rates_and_inactive_links() {
        let links = sample("nvidia-smi-nvlink-s-h100.txt");
        assert_eq!((links.links.len(), links.gpus.len()), (8, 2));
        let up = &links.links[0];
        assert_eq!(
            (up.state, up.trained, up.nominal),
            (State::Up, Some(26_562_000_000), Some(25_000_000_000))
        );
        assert_eq!((up.generation, up.id.to_string()), (Some(4), "gpu0 link 0".to_owned()));
        assert_eq!(links.of_kind(Kind::NvLink).filter(|link| link.state == State::Down).count(), 1);
        assert_eq!(links.gpus[1].field("product_name"), Some("NVIDIA H100 80GB HBM3"));
    }

    #[test]
    fn traffic_is_payload() {
        let links = sample("nvidia-smi-nvlink-gt-v100.txt");
        let link = &links.links[1];
        // The raw counts after it do not replace the payload.
        assert_eq!(link.sent, Some(Counter::of(5_000_200, 1024)));
        assert_eq!(link.received, Some(Counter::of(4_000_200, 1024)));
    }

    #[test]
    fn errors_of_all_generations_have_names() {
        let hopper = sample("nvidia-smi-nvlink-e-h100.txt");
        assert_eq!(hopper.links[1].error("replay_errors"), Some(12));
        assert_eq!(hopper.links[1].error("crc_errors"), Some(3));
        assert!(hopper.links[1].has_errors() && !hopper.links[0].has_errors());
        let blackwell = sample("nvidia-smi-nvlink-e-b200.txt");
        let link = &blackwell.links[0];
        assert_eq!(link.error("malformed_packet_errors"), Some(0));
        assert_eq!(link.error("link_recovery_failed_events"), Some(1));
        assert_eq!(link.error("fec_errors_0"), Some(36_000_000_000));
        assert!(
            link.values.contains(&("effective_ber".to_owned(), "15e-255".to_owned())),
            "{:?}",
            link.values
        );
        // Corrected code words are no errors; the failed recovery is one.
        assert!(link.has_errors() && !blackwell.links[1].has_errors());
    }

    #[test]
    fn several_outputs_in_one_input_describe_the_same_links() {
        let links = sample("nvidia-smi-nvlink-all-rtx3090.txt");
        assert_eq!(links.links.len(), 4);
        let link = &links.links[0];
        assert_eq!((link.state, link.error("crc_flit_errors")), (State::Up, Some(0)));
        assert_eq!(link.capabilities.len(), 6);
        assert!(
            link.capabilities.contains(&("system_memory_access".to_owned(), true)),
            "{:?}",
            link.capabilities
        );
        let remote = link.remote.as_ref().unwrap();
        assert_eq!((remote.bus.as_deref(), remote.link), (Some("0000:21:00.0"), Some(2)));
        assert_eq!(link.nominal, Some(14_062_500_000));
    }

    #[test]
    fn errors_name_line_and_expectation() {
        for (text, line, expected) in [
            ("GPU 0: X\n Link 0: 26.5 furlongs\n", 2, "a rate such as"),
            ("GPU 0: X\n Link x: 1 GB/s\n", 2, "the number of an NVLink"),
            ("GPU 0: X\n\n Link 0: Data Tx: many KiB\n", 3, "a number of KiB"),
            ("GPU 0: X\n Link 0, P2P is supported: maybe\n", 2, "`true` or `false`"),
            ("GPU 0: X\n Link 0: Replay Errors: none\n", 2, "a number after"),
            ("GPU 0: X\n Link 0: Remote Device here: Link 1\n", 2, "a PCI address"),
        ] {
            match read(text).unwrap_err() {
                LinesError::Line { line: at, expected: wanted, .. } => {
                    assert_eq!(at, line, "{text}");
                    assert!(wanted.contains(expected), "{text}: {wanted}");
                }
                other => panic!("{text}: {other}"),
            }
        }
    }
}
