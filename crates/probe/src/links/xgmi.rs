//! xGMI links between AMD's GPUs, from the topology of the kernel driver: one entry for each peer of a GPU.
//!
//! Deliberately absent: error counters. Reading `xgmi_error` resets it, so that other tools would miss what is read here. Traffic is in
//! a binary table of the driver; `amd-smi xgmi` prints it, and [`super::text`] reads that.

use super::driver::{Devices, nominal};
use super::{Kind, Link, Links, Remote, State};
use crate::kfd::Kfd;
use crate::xgmi::spec_of;
use crate::{ProbeError, Tree};

pub(super) fn add(tree: &dyn Tree, devices: &Devices, links: &mut Links) -> Result<(), ProbeError> {
    let kfd = Kfd::read(tree, &devices.functions)?;
    for (index, bus) in kfd.gpus.keys().enumerate() {
        let name = |bus, index| devices.known(bus).map_or_else(|| format!("gpu{index}"), str::to_owned);
        let peers = kfd.links.iter().filter_map(|((one, other), wires)| match bus {
            _ if bus == one => Some((*other, wires)),
            _ if bus == other => Some((*one, wires)),
            _ => None,
        });
        for (number, (peer, wires)) in peers.enumerate() {
            let mut link = Link::new(Kind::Xgmi, name(*bus, index), u32::try_from(number).ok());
            link.bus = Some(bus.to_string());
            link.state = State::Up;
            let spec = spec_of(&kfd.gpus[bus]);
            let one = spec.and_then(nominal);
            link.nominal = one.map(|rate| rate.saturating_mul(wires.count.into()));
            link.trained = Some(wires.mb_per_s.saturating_mul(1_000_000)).filter(|rate| *rate > 0);
            link.width = u8::try_from(wires.count).ok();
            let far = kfd.gpus.keys().position(|other| *other == peer).unwrap_or_default();
            link.remote = Some(Remote {
                device: Some(name(peer, far)),
                bus: Some(peer.to_string()),
                link: None,
                kind: Some("gpu".to_owned()),
            });
            link.values.push(("weight".to_owned(), wires.weight.to_string()));
            links.links.push(link);
        }
    }
    Ok(())
}
