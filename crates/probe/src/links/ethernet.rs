//! Network interfaces that belong to a device. Those of containers, bridges and tunnels carry no data of their own.

use super::{Counter, Kind, Link, Links, State};
use crate::interfaces::{NET, is_representor, owner};
use crate::tree::names;
use crate::{ProbeError, Tree};

/// Counters of `statistics` that mean errors or drops.
const ERRORS: [&str; 12] = [
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "rx_crc_errors",
    "rx_frame_errors",
    "rx_fifo_errors",
    "rx_missed_errors",
    "rx_over_errors",
    "tx_carrier_errors",
    "tx_fifo_errors",
    "collisions",
];

pub(super) fn add(tree: &dyn Tree, links: &mut Links) -> Result<(), ProbeError> {
    for name in names(tree, NET, "network interfaces")? {
        let read = |file: &str| tree.read(&format!("{NET}/{name}/{file}"));
        let target = tree.link(&format!("{NET}/{name}")).unwrap_or_default();
        let is_device = !target.is_empty() && !target.split('/').any(|part| part == "virtual");
        // Wi-Fi, and the switch side of another function's port.
        let is_other = read("phy80211/index").is_some()
            || read("phys_port_name").is_some_and(|port| is_representor(&port));
        if !is_device || is_other {
            continue;
        }
        let mut link = Link::new(Kind::Ethernet, &name, None);
        link.bus = owner(tree, NET, &name).map(|bus| bus.to_string());
        link.state = match (read("carrier").as_deref(), read("operstate").as_deref()) {
            (Some("1"), _) | (_, Some("up")) => State::Up,
            (Some("0"), _) | (_, Some("down")) => State::Down,
            _ => State::Unknown,
        };
        // Mb/s; -1, or that as an unsigned number, while the interface is down.
        let megabits = read("speed").and_then(|text| text.parse::<u64>().ok());
        link.trained = megabits.filter(|megabits| (1..10_000_000).contains(megabits)).map(|mb| mb * 125_000);
        for file in ["mtu", "duplex"] {
            if let Some(text) = read(file) {
                link.values.push((file.to_owned(), text));
            }
        }
        let count = |file: &str| read(file).and_then(|text| text.parse::<u64>().ok());
        let bytes = |file: &str| count(&format!("statistics/{file}")).map(|bytes| Counter::of(bytes, 1));
        (link.sent, link.received) = (bytes("tx_bytes"), bytes("rx_bytes"));
        for error in ERRORS {
            if let Some(errors) = count(&format!("statistics/{error}")) {
                link.set_error(error, errors);
            }
        }
        if let Some(changes) = count("carrier_changes") {
            link.set_error("carrier_changes", changes);
        }
        links.links.push(link);
    }
    Ok(())
}
