//! Whether GPUs can access each other's memory: a property of their model, their driver and the path between them.
//!
//! NVLink, xGMI, Xe Link and UALink always allow it. Over PCIe, NVIDIA's driver refuses it to GeForce cards; patched drivers exist. GPUs
//! without it exchange data through host memory.

use super::PathType;
use crate::fabric::Fabric;
use crate::gpu_model::GpuModel;
use crate::id::DeviceId;
use crate::peer_access::PeerAccess;

impl Fabric {
    /// Whether a GPU can access the memory of others over PCIe, and they its own. GPUs of unknown model can.
    pub fn has_peer_access(&self, gpu: DeviceId) -> bool {
        match self.peer_access() {
            PeerAccess::Always => true,
            PeerAccess::Never => false,
            PeerAccess::ByModel => self.device(gpu).kind.gpu_model().is_none_or(GpuModel::has_peer_access),
        }
    }

    /// Whether two GPUs can access each other's memory over a path of this kind.
    pub fn can_access(&self, one: DeviceId, other: DeviceId, path: PathType) -> bool {
        match path {
            PathType::Net | PathType::Dis => false,
            PathType::Loc | PathType::Nvl | PathType::Nvb | PathType::C2c => true,
            _ => self.has_peer_access(one) && self.has_peer_access(other),
        }
    }

    /// Whether a host has several GPUs, some of which cannot access each other's memory over PCIe.
    pub fn lacks_peer_access(&self) -> bool {
        let mut without: Vec<_> = self.gpus().iter().filter(|gpu| !self.has_peer_access(**gpu)).collect();
        without.sort_unstable_by_key(|gpu| self.device(**gpu).host);
        without.windows(2).any(|pair| self.device(*pair[0]).host == self.device(*pair[1]).host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Paths;
    use crate::resolve;

    fn first_two(fabric: &Fabric) -> bool {
        let (one, other) = (fabric.gpus()[0], fabric.gpus()[1]);
        fabric.can_access(one, other, Paths::of(fabric).path(one, other).kind)
    }

    #[test]
    fn geforce_cards_have_none_over_pcie() {
        for (spec, can) in [
            ("4x-rtx4090", false),
            ("2x-rtx3090-bridge", true),
            ("hgx-h100", true),
            ("4x-a100-pcie-bridge", true),
        ] {
            assert_eq!(first_two(&resolve(spec).unwrap()), can, "{spec}");
        }
        let patched = resolve("4x-rtx4090").unwrap().with_peer_access(PeerAccess::Always);
        assert!(first_two(&patched));
        let refused = resolve("4x-a100-pcie-bridge").unwrap().with_peer_access(PeerAccess::Never);
        let (one, other) = (refused.gpus()[0], refused.gpus()[2]);
        assert!(!refused.can_access(one, other, Paths::of(&refused).path(one, other).kind));
    }
}
