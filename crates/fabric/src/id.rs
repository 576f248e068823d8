//! Indices of devices and hosts.

/// Index of a device in its fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u32);

/// Index of a host in its fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub u32);

impl DeviceId {
    /// As an index into per-device arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl HostId {
    /// As an index into per-host arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
