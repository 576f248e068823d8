//! `amd-smi topology` and `amd-smi xgmi`, of ROCm 6 and 7.
//!
//! ```text
//! LINK METRIC TABLE:
//!        bdf          bit_rate max_bandwidth link_type 0000:0c:00.0 0000:22:00.0
//! GPU0   0000:0c:00.0 32 Gb/s  512 Gb/s      XGMI
//!  Read                                                N/A          2 KB
//!  Write                                               N/A          1 KB
//! ```

use super::lines::{Line, Lines, bus, check_size};
use super::matrix::{Tables, Title};
use super::{GPUS_MAX, LinesError};
use crate::links::{Counter, Kind, Links, Remote, State};

/// True for a line above a table of this tool.
pub(super) fn is_title(line: &str) -> bool {
    line == METRICS || title(line).is_some()
}

const METRICS: &str = "LINK METRIC TABLE:";

fn title(line: &str) -> Option<Title> {
    Some(match line {
        "WEIGHT TABLE:" => Title::Weight,
        "HOPS TABLE:" => Title::Hops,
        "LINK TYPE TABLE:" => Title::LinkType,
        "NUMA BW TABLE:" => Title::Bandwidth,
        "ACCESS TABLE:" => Title::Access,
        "XGMI LINK STATUS:" => Title::Status,
        METRICS
        | "CACHE COHERANCY TABLE:"
        | "CACHE COHERENCY TABLE:"
        | "ATOMICS TABLE:"
        | "DMA TABLE:"
        | "BI-DIRECTIONAL TABLE:"
        | "GPU LINK PORT STATUS:"
        | "Legend:" => Title::Other,
        _ => return None,
    })
}

/// Reads the output of `amd-smi`.
pub fn read(text: &str) -> Result<Links, LinesError> {
    let tables = Tables::read(text, title)?;
    let metrics = metrics(text)?;
    let mut links = Links::default();
    // With both, the traffic goes to the links that have a state.
    tables.add_links(&mut links)?;
    add_metrics(&metrics, &mut links)?;
    if tables.is_empty() && metrics.is_empty() {
        return Err(LinesError::Empty { tool: "amd-smi", what: "tables of links" });
    }
    Ok(links)
}

/// The rows of one GPU in the table of metrics.
#[derive(Debug, Default)]
struct Metrics {
    /// `GPU0`
    name: String,
    bus: Option<String>,
    /// Bits per second of one lane, and bytes per second each way of a link.
    bit_rate: Option<String>,
    bytes_per_second: Option<u64>,
    is_xgmi: bool,
    peers: Vec<String>,
    read: Vec<Option<Counter>>,
    written: Vec<Option<Counter>>,
}

fn metrics(text: &str) -> Result<Vec<Metrics>, LinesError> {
    let mut gpus: Vec<Metrics> = Vec::new();
    let mut peers: Option<Vec<String>> = None;
    let mut is_inside = false;
    for line in Lines::of(text)? {
        let content = line.text.trim();
        if let Some(METRICS) = title(content).map(|_| content) {
            (is_inside, peers) = (true, None);
            continue;
        }
        if title(content).is_some() {
            is_inside = false;
        }
        if !is_inside || content.is_empty() {
            continue;
        }
        // Values that fill their column touch the next one: `65535 Gb/s4294967295 Gb/sN/A`.
        let spaced = content.replace("Gb/s", " Gb/s ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        match (words[0], &peers) {
            ("bdf", _) => peers = Some(heading(&line, &words)?),
            ("Read" | "Write", Some(peers)) => {
                let gpu =
                    gpus.last_mut().ok_or_else(|| line.expected("a row of a GPU before its traffic"))?;
                let counters = traffic(&line, &words[1..])?;
                if counters.len() != peers.len() {
                    return Err(
                        line.expected(format!("{} amounts, one for each GPU of the heading", peers.len()))
                    );
                }
                let which = if words[0] == "Read" { &mut gpu.read } else { &mut gpu.written };
                *which = counters;
            }
            (name, Some(peers)) if name.starts_with("GPU") => {
                gpus.push(Metrics { peers: peers.clone(), ..row(&line, &words)? });
                if gpus.len() > GPUS_MAX {
                    return Err(LinesError::TooLarge { what: "GPUs", limit: GPUS_MAX });
                }
            }
            _ => is_inside = false,
        }
    }
    Ok(gpus)
}

/// `bdf bit_rate max_bandwidth link_type 0000:0c:00.0 ...`
fn heading(line: &Line, words: &[&str]) -> Result<Vec<String>, LinesError> {
    let peers = words.iter().skip_while(|word| **word != "link_type").skip(1);
    let peers: Vec<String> = peers.map(|word| (*word).to_owned()).collect();
    if peers.is_empty() || peers.len() > GPUS_MAX {
        return Err(line.expected("`bdf bit_rate max_bandwidth link_type` and the GPUs"));
    }
    Ok(peers)
}

/// `GPU0 0000:0c:00.0 32 Gb/s 512 Gb/s XGMI`, with `N/A` for what is unknown.
fn row(line: &Line, words: &[&str]) -> Result<Metrics, LinesError> {
    let wanted = || line.expected("`GPU0 BDF 32 Gb/s 512 Gb/s XGMI`");
    let address = words.get(1).and_then(|word| bus(word)).ok_or_else(wanted)?;
    let mut rest = words[2..].iter().peekable();
    let mut gigabits = || -> Option<Option<f64>> {
        let word = rest.next()?;
        if *word == "N/A" {
            return Some(None);
        }
        let value = word.parse::<f64>().ok()?;
        rest.next_if(|word| **word == "Gb/s")?;
        Some(Some(value))
    };
    let bit_rate = gigabits().ok_or_else(wanted)?;
    let bandwidth = gigabits().ok_or_else(wanted)?;
    // All bits set mean that the driver does not know.
    let known = |rate: f64| (rate > 0.0 && rate < 60_000.0).then_some(rate);
    Ok(Metrics {
        name: words[0].to_owned(),
        bus: Some(address),
        bit_rate: bit_rate.and_then(known).map(|rate| format!("{rate} Gb/s")),
        bytes_per_second: bandwidth.and_then(known).map(|rate| (rate * 125e6) as u64),
        is_xgmi: rest.next().is_some_and(|kind| *kind == "XGMI"),
        ..Metrics::default()
    })
}

/// `N/A 2 KB 1.123 PB`; an amount counts in steps of its last digit.
fn traffic(line: &Line, words: &[&str]) -> Result<Vec<Option<Counter>>, LinesError> {
    let mut counters = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if matches!(*word, "N/A" | "SELF") {
            counters.push(None);
            continue;
        }
        let unit = match words.next().copied() {
            Some("B") => 1,
            Some("KB") => 1_000,
            Some("MB") => 1_000_000,
            Some("GB") => 1_000_000_000,
            Some("TB") => 1_000_000_000_000,
            Some("PB") => 1_000_000_000_000_000_u64,
            _ => return Err(line.expected("amounts such as `2 KB` or `N/A`")),
        };
        let (whole, fraction) = word.split_once('.').unwrap_or((word, ""));
        let steps = 10_u64.checked_pow(u32::try_from(fraction.len()).unwrap_or(u32::MAX));
        let digits = format!("{whole}{fraction}").parse::<u64>().ok();
        let (Some(count), Some(steps)) = (digits, steps.filter(|steps| *steps <= unit)) else {
            return Err(line.expected("amounts such as `2 KB` or `N/A`"));
        };
        counters.push(Some(Counter::of(count, unit / steps)));
    }
    Ok(counters)
}

fn add_metrics(gpus: &[Metrics], links: &mut Links) -> Result<(), LinesError> {
    let device = |name: &str| name.replace("GPU", "gpu");
    // The heading names the peers by number or by address, with or without the domain.
    let of_peer = |peer: &str| {
        let address = bus(peer);
        gpus.iter().find(|gpu| gpu.name == peer || (address.is_some() && gpu.bus == address))
    };
    for gpu in gpus.iter().filter(|gpu| gpu.is_xgmi) {
        let mut number = 0;
        for (column, peer) in gpu.peers.iter().enumerate() {
            let Some(peer) = of_peer(peer).filter(|peer| peer.name != gpu.name) else {
                continue;
            };
            let at = |counters: &[Option<Counter>]| counters.get(column).copied().flatten();
            let (read, written) = (at(&gpu.read), at(&gpu.written));
            if read.is_none() && written.is_none() {
                continue;
            }
            let link = links.entry(Kind::Xgmi, &device(&gpu.name), Some(number));
            number += 1;
            link.bus.clone_from(&gpu.bus);
            link.nominal = gpu.bytes_per_second;
            (link.sent, link.received) = (written, read);
            if link.state == State::Unknown && link.sent.is_some() {
                link.state = State::Up;
            }
            if let Some(rate) = &gpu.bit_rate {
                link.values.push(("bit_rate".to_owned(), rate.clone()));
            }
            link.remote = Some(Remote {
                device: Some(device(&peer.name)),
                bus: peer.bus.clone(),
                link: None,
                kind: Some("gpu".to_owned()),
            });
            check_size(links)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str) -> Links {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/links");
        read(&std::fs::read_to_string(folder.join(name)).unwrap()).unwrap()
    }

    #[test]
    fn traffic_has_the_resolution_of_its_unit() {
        let links = sample("amd-smi-xgmi-mi300x.txt");
        assert_eq!(links.links.len(), 6);
        let link = &links.links[0];
        assert_eq!((link.nominal, link.bus.as_deref()), (Some(64_000_000_000), Some("0000:0c:00.0")));
        assert_eq!(link.received, Some(Counter::of(1123, 1_000_000_000_000)));
        assert_eq!(link.sent, Some(Counter::of(2, 1000)));
        assert_eq!(link.remote.as_ref().unwrap().device.as_deref(), Some("gpu1"));
    }

    #[test]
    fn states_and_traffic_belong_to_the_same_link() {
        let links = sample("amd-smi-xgmi-status.txt");
        assert_eq!(links.links.len(), 2);
        let states: Vec<State> = links.links.iter().map(|link| link.state).collect();
        assert_eq!(states, [State::Up, State::Down]);
        assert!(links.links.iter().all(|link| link.sent.is_some()));
    }

    #[test]
    fn topology_lists_links_of_xgmi() {
        let links = sample("amd-smi-topology-mi300x.txt");
        assert_eq!(links.links.len(), 2);
        assert_eq!((links.links[0].nominal, links.links[0].width), (Some(50_000_000_000), Some(1)));
    }

    #[test]
    fn cards_without_xgmi_have_no_links() {
        let text = "LINK METRIC TABLE:\n bdf bit_rate max_bandwidth link_type GPU0 GPU1\n\
                    GPU0 0000:08:00.0 65535 Gb/s4294967295 Gb/sN/A\n Read N/A N/A\n Write N/A N/A\n";
        assert_eq!(read(text).unwrap().links, []);
    }

    #[test]
    fn errors_name_line_and_expectation() {
        let heading = "LINK METRIC TABLE:\n bdf bit_rate max_bandwidth link_type GPU0 GPU1\n";
        let row = "GPU0 0000:08:00.0 32 Gb/s 512 Gb/s XGMI\n";
        for (text, line, expected) in [
            ("LINK METRIC TABLE:\nbdf nothing\n".to_owned(), 2, "link_type"),
            (format!("{heading}GPU0 here 32 Gb/s\n"), 3, "GPU0 BDF"),
            (format!("{heading}{row} Read N/A\n"), 4, "2 amounts"),
            (format!("{heading}{row} Read N/A 3 miles\n"), 4, "amounts such as"),
            (format!("{heading} Read N/A 3 KB\n"), 3, "a row of a GPU"),
        ] {
            match read(&text).unwrap_err() {
                LinesError::Line { line: at, expected: wanted, .. } => {
                    assert_eq!(at, line, "{text}");
                    assert!(wanted.contains(expected), "{text}: {wanted}");
                }
                other => panic!("{text}: {other}"),
            }
        }
    }
}
