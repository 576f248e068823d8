//! Connected components of a fabric over a subset of its links, ignoring their direction.

use crate::fabric::Fabric;
use crate::id::DeviceId;
use crate::link::Link;

/// The components over the links that `wanted` accepts, sorted by first device, each sorted by device. A device
/// without such links is a component of its own.
pub(crate) fn components(fabric: &Fabric, wanted: impl Fn(&Link) -> bool) -> Vec<Vec<DeviceId>> {
    let all: Vec<DeviceId> = fabric.device_ids().collect();
    components_of(fabric, &all, wanted)
}

/// The components among `members`, which must be sorted.
pub(crate) fn components_of(
    fabric: &Fabric,
    members: &[DeviceId],
    wanted: impl Fn(&Link) -> bool,
) -> Vec<Vec<DeviceId>> {
    let count = members.len();
    let number = |id: DeviceId| match members.get(id.index()) {
        Some(at) if *at == id => Some(id.0),
        _ => members.binary_search(&id).ok().map(|index| index as u32),
    };
    let mut parent: Vec<u32> = (0..count as u32).collect();
    for (source, member) in members.iter().enumerate() {
        for link in fabric.links_from(*member).iter().filter(|link| wanted(link)) {
            let Some(target) = number(link.target) else { continue };
            let (a, b) = (root(&mut parent, source as u32), root(&mut parent, target));
            // The lower number is the root, so that a component's root is its first device.
            parent[a.max(b) as usize] = a.min(b);
        }
    }
    let mut number_of_root: Vec<u32> = vec![u32::MAX; count];
    let mut components: Vec<Vec<DeviceId>> = Vec::new();
    for device in 0..count as u32 {
        let root = root(&mut parent, device) as usize;
        if number_of_root[root] == u32::MAX {
            number_of_root[root] = components.len() as u32;
            components.push(Vec::new());
        }
        components[number_of_root[root] as usize].push(members[device as usize]);
    }
    components
}

fn root(parent: &mut [u32], mut device: u32) -> u32 {
    while parent[device as usize] != device {
        // Path halving keeps later lookups short.
        let above = parent[device as usize];
        parent[device as usize] = parent[above as usize];
        device = above;
    }
    device
}
