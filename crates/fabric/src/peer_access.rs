//! The setting that decides whether GPUs can access each other's memory over PCIe. `paths/access.rs` applies it.

/// Whether GPUs can access each other's memory over PCIe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum PeerAccess {
    /// As the usual driver of each GPU's model allows it.
    #[default]
    ByModel,
    /// All can.
    Always,
    /// None can: as set by the user, by a container or by a virtual machine.
    Never,
}

impl PeerAccess {
    /// From a setting that may be absent.
    pub fn from_setting(setting: Option<bool>) -> Self {
        match setting {
            None => Self::ByModel,
            Some(true) => Self::Always,
            Some(false) => Self::Never,
        }
    }

    /// The setting; nothing where the model decides.
    pub fn setting(self) -> Option<bool> {
        match self {
            Self::ByModel => None,
            Self::Always => Some(true),
            Self::Never => Some(false),
        }
    }
}
