//! The version, the driver, interfaces, NICs, plugins, and the network that was chosen.

use super::words::{interface, interfaces, number_after};
use super::{Reader, seen};
use crate::log::line::{self, Message};

/// Lines about plugins that are kept of a process.
const PLUGINS_MAX: usize = 64;
const REFUSED_MAX: usize = 256;
const NICS_MAX: usize = 256;

impl Reader {
    /// Reads a line about the network and the driver.
    pub(super) fn network(&mut self, process: usize, message: &Message<'_>) -> bool {
        let text = message.text.trim_start();
        if text.contains("CCL version") {
            return self.version(Some(process), message.number, message.whole);
        }
        self.choice(process, message, text)
            || self.interfaces(process, message, text)
            || self.gpudirect(process, message, text)
            || self.refused(process, message, text)
            || self.plugin(process, message, text)
    }

    fn choice(&mut self, process: usize, message: &Message<'_>, text: &str) -> bool {
        let state = &mut self.log.processes[process];
        if let Some(version) = number_after(text, "cudaDriverVersion") {
            state.cuda_driver = Some(version);
        } else if let Some(name) = text.strip_prefix("Using network ") {
            state.network = Some((line::shortened(name.trim(), 80).to_owned(), seen(message)));
        } else if let Some(name) = text.strip_prefix("Assigned NET plugin ") {
            let name = name.split(" to comm").next().unwrap_or(name);
            state.network.get_or_insert((line::shortened(name.trim(), 80).to_owned(), seen(message)));
        } else if text.starts_with("NVLS multicast support is ") {
            let device = number_after(text, "dev").or(message.device).unwrap_or_default();
            state.multicast.insert(device, !text.contains("not available"));
        } else if text.starts_with("Call to connect returned ") && text.ends_with("retrying") {
            state.retries.get_or_insert((0, seen(message))).0 += 1;
        } else {
            return false;
        }
        true
    }

    fn interfaces(&mut self, process: usize, message: &Message<'_>, text: &str) -> bool {
        let Some((before, list)) = text.split_once(": Using") else { return false };
        let state = &mut self.log.processes[process];
        match before.trim() {
            "Bootstrap" => {
                let first = interfaces(list).into_iter().next();
                state.bootstrap =
                    first.map(|interface| (interface, seen(message))).or(state.bootstrap.take());
            }
            "NET/Socket" => {
                let found = interfaces(list);
                if !found.is_empty() {
                    (state.sockets, state.sockets_seen) = (found, Some(seen(message)));
                }
            }
            "NET/IB" => {
                let (nics, oob) = list.split_once("; OOB").unwrap_or((list, ""));
                let nics = nics.split_whitespace().filter(|word| word.contains(':')).take(NICS_MAX);
                let plain = |word: &str| {
                    let name = word.trim_end_matches('}');
                    let name = name.rsplit(['{', ']']).next().unwrap_or(name);
                    line::shortened(name, 64).to_owned()
                };
                state.nics = nics.map(plain).collect();
                let oob = oob.split_whitespace().find_map(interface);
                state.out_of_band =
                    oob.map(|interface| (interface, seen(message))).or(state.out_of_band.take());
            }
            _ => return false,
        }
        true
    }

    fn gpudirect(&mut self, process: usize, message: &Message<'_>, text: &str) -> bool {
        let Some((_, rest)) = text.split_once("GPU Direct RDMA ") else { return false };
        let is_on = rest.starts_with("Enabled");
        if !is_on && !rest.starts_with("Disabled") {
            return false;
        }
        // `HCA 0 'mlx5_0'` of a NIC, or `GPU b000 / HCA 0` of a pair.
        let nic = rest.split_once("HCA ").map_or("", |(_, nic)| nic);
        let name = nic.split_once('\'').and_then(|(_, name)| name.split_once('\'')).map(|(name, _)| name);
        let name = name.unwrap_or_else(|| nic.split([' ', '(']).next().unwrap_or(""));
        let state = &mut self.log.processes[process].gpudirect;
        if state.len() < NICS_MAX && !name.is_empty() {
            // A NIC that one GPU cannot use directly counts as off.
            let entry = state.entry(line::shortened(name, 64).to_owned()).or_insert((is_on, seen(message)));
            if entry.0 && !is_on {
                *entry = (false, seen(message));
            }
        }
        true
    }

    fn refused(&mut self, process: usize, message: &Message<'_>, text: &str) -> bool {
        let is_refused = text.starts_with("P2P is disabled between")
            || text.starts_with("Could not enable P2P between")
            || text.starts_with("peer query failed between");
        if is_refused {
            let refused = &mut self.log.processes[process].refused;
            if refused.len() < REFUSED_MAX {
                refused.push(seen(message));
            }
        }
        is_refused
    }

    fn plugin(&mut self, process: usize, message: &Message<'_>, text: &str) -> bool {
        let state = &mut self.log.processes[process];
        if text.starts_with("NET/IB : No device found") || text.contains("Failed to open libibverbs") {
            state.no_nics.get_or_insert(seen(message));
            return true;
        }
        let is_plugin =
            text.starts_with("NET/Plugin") || text.starts_with("NET/OFI") || text.contains("network plugin");
        if is_plugin && state.plugins.len() < PLUGINS_MAX {
            state.plugins.push(seen(message));
        }
        is_plugin
    }
}
