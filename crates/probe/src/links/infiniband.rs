//! Ports of RDMA devices: InfiniBand, RoCE and EFA.

use super::{Counter, Kind, Link, Links, State};
use crate::interfaces::{RDMA, owner};
use crate::tree::names;
use crate::{ProbeError, Tree};

/// Ports of one device, as in the probe.
const PORTS_MAX: usize = 64;

/// Counters of traffic; the others in the same folders count errors and events.
const TRAFFIC: [&str; 8] = [
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_packets",
    "port_rcv_packets",
    "unicast_xmit_packets",
    "unicast_rcv_packets",
    "multicast_xmit_packets",
    "multicast_rcv_packets",
];

/// Counters of `hw_counters` that mean errors, retries or congestion. Drivers have hundreds of others.
const HARDWARE: [&str; 19] = [
    "out_of_buffer",
    "out_of_sequence",
    "duplicate_request",
    "packet_seq_err",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "req_cqe_error",
    "resp_cqe_error",
    "req_transport_retries_exceeded",
    "rx_icrc_encapsulated",
    "roce_slow_restart",
    "np_cnp_sent",
    "rp_cnp_handled",
    "np_ecn_marked_roce_packets",
    "rx_drops",
    "retrans_pkts",
    "retrans_timeout_events",
    "unresponsive_remote_events",
];

pub(super) fn add(tree: &dyn Tree, links: &mut Links) -> Result<(), ProbeError> {
    for device in names(tree, RDMA, "RDMA devices")? {
        let folder = format!("{RDMA}/{device}/ports");
        let bus = owner(tree, RDMA, &device).map(|bus| bus.to_string());
        let ports = names(tree, &folder, "ports")?;
        if ports.len() > PORTS_MAX {
            return Err(ProbeError::TooMany { what: "ports", path: folder, limit: PORTS_MAX });
        }
        for number in ports.iter().filter_map(|port| port.parse::<u32>().ok()) {
            let mut link = Link::new(Kind::InfiniBand, &device, Some(number));
            link.bus.clone_from(&bus);
            port(tree, &format!("{folder}/{number}"), &mut link);
            links.links.push(link);
        }
    }
    Ok(())
}

fn port(tree: &dyn Tree, folder: &str, link: &mut Link) {
    let read = |file: &str| tree.read(&format!("{folder}/{file}"));
    // `4: ACTIVE`, `2: INIT`, `1: DOWN`.
    link.state = match read("state").as_deref().and_then(|state| state.split(':').next()?.trim().parse().ok())
    {
        Some(4_u32) => State::Up,
        Some(2 | 3) => State::Initializing,
        Some(1) => State::Down,
        _ => State::Unknown,
    };
    for file in ["phys_state", "link_layer", "rate"] {
        if let Some(text) = read(file) {
            link.values.push((file.to_owned(), text));
        }
    }
    // `400 Gb/sec (4X NDR)`. The rate of a port that is down is the one at which training starts.
    if let (Some(text), State::Up) = (read("rate"), link.state) {
        link.trained = gigabits(&text);
        link.width = text.split(['(', 'X']).nth(1).and_then(|width| width.trim().parse().ok());
    }
    let count = |file: &str| read(&format!("counters/{file}")).and_then(|text| text.parse::<u64>().ok());
    // Ports with the extended counters, which are 64 bits wide, also count unicast packets.
    let is_wide = count("unicast_xmit_packets").is_some() || count("unicast_rcv_packets").is_some();
    let words = |file: &str| {
        count(file).map(|count| match is_wide || count > u64::from(u32::MAX) {
            true => Counter::of(count, 4),
            false => Counter::of_32_bits(count, 4),
        })
    };
    (link.sent, link.received) = (words("port_xmit_data"), words("port_rcv_data"));
    for name in tree.list(&format!("{folder}/counters")) {
        if let (false, Some(errors)) = (TRAFFIC.contains(&name.as_str()), count(&name)) {
            link.set_error(&name, errors);
        }
    }
    let hardware =
        |name: &str| read(&format!("hw_counters/{name}")).and_then(|text| text.parse::<u64>().ok());
    for name in HARDWARE {
        if let Some(events) = hardware(name) {
            link.set_error(name, events);
        }
    }
    // EFA has no `counters`.
    let bytes = |name: &str| hardware(name).map(|bytes| Counter::of(bytes, 1));
    link.sent = link.sent.or_else(|| bytes("tx_bytes"));
    link.received = link.received.or_else(|| bytes("rx_bytes"));
}

fn gigabits(text: &str) -> Option<u64> {
    let gigabits: f64 = text.split_whitespace().next()?.parse().ok()?;
    (gigabits > 0.0 && gigabits <= 10_000.0).then_some((gigabits * 125e6) as u64)
}
