//! Connected components: which devices hang together over some of a fabric's links, whichever way those point.

use crate::device::DeviceId;
use crate::fabric::Fabric;
use crate::link::Link;

/// The components over the links that `wanted` picks, each with its devices in order; components in the order of
/// their first devices. A device without such links is a component of its own.
pub(crate) fn components(fabric: &Fabric, wanted: impl Fn(&Link) -> bool) -> Vec<Vec<DeviceId>> {
    let count = fabric.devices().len();
    let mut parent: Vec<u32> = (0..count as u32).collect();
    for link in fabric.links().iter().filter(|link| wanted(link)) {
        let (a, b) = (root(&mut parent, link.source.0), root(&mut parent, link.target.0));
        // The lower number is the root, so that a component's root is its first device.
        parent[a.max(b) as usize] = a.min(b);
    }
    let mut number_of_root: Vec<u32> = vec![u32::MAX; count];
    let mut found: Vec<Vec<DeviceId>> = Vec::new();
    for device in 0..count as u32 {
        let root = root(&mut parent, device) as usize;
        if number_of_root[root] == u32::MAX {
            number_of_root[root] = found.len() as u32;
            found.push(Vec::new());
        }
        found[number_of_root[root] as usize].push(DeviceId(device));
    }
    found
}

fn root(parent: &mut [u32], mut device: u32) -> u32 {
    while parent[device as usize] != device {
        // Halving the way up keeps it short for whoever comes next.
        let above = parent[device as usize];
        parent[device as usize] = parent[above as usize];
        device = above;
    }
    device
}
