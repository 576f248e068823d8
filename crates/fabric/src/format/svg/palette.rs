//! Colours of technologies and kinds of device, and the width of lines.

use super::canvas::Look;
use crate::link::LinkKind;
use crate::rate::{OneWay, Rate};

pub(super) const INK: &str = "#1d2733";
pub(super) const SOFT_INK: &str = "#5b6673";
pub(super) const PAPER: &str = "#ffffff";
pub(super) const PANEL: &str = "#f8f9fb";

/// A technology's colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tone {
    NvLink,
    Xgmi,
    XeLink,
    UaLink,
    C2c,
    Pcie,
    Network,
    Socket,
}

impl Tone {
    pub(super) fn of(kind: LinkKind) -> Self {
        match kind {
            LinkKind::NvLink { .. } => Self::NvLink,
            LinkKind::Xgmi { .. } => Self::Xgmi,
            LinkKind::XeLink => Self::XeLink,
            LinkKind::UaLink => Self::UaLink,
            LinkKind::C2c => Self::C2c,
            LinkKind::Pcie { .. } => Self::Pcie,
            LinkKind::Network { .. } => Self::Network,
            LinkKind::Socket(_) => Self::Socket,
        }
    }

    pub(super) fn stroke(self) -> &'static str {
        match self {
            Self::NvLink => "#76b900",
            Self::Xgmi => "#d64550",
            Self::XeLink => "#7a5cd6",
            Self::UaLink => "#c2389a",
            Self::C2c => "#0fa3a3",
            Self::Pcie => "#3b82d6",
            Self::Network => "#f0882a",
            Self::Socket => "#8b95a1",
        }
    }

    /// Dark enough for text on white.
    pub(super) fn ink(self) -> &'static str {
        match self {
            Self::NvLink => "#467000",
            Self::Xgmi => "#a3242f",
            Self::XeLink => "#553aa8",
            Self::UaLink => "#8a1f6c",
            Self::C2c => "#08696a",
            Self::Pcie => "#1f5aa3",
            Self::Network => "#a8550a",
            Self::Socket => "#56616d",
        }
    }

    pub(super) fn tint(self) -> &'static str {
        match self {
            Self::NvLink => "#f3f9e7",
            Self::Xgmi => "#fdf0f1",
            Self::XeLink => "#f3f0fc",
            Self::UaLink => "#fcf0f8",
            Self::C2c => "#e8f6f6",
            Self::Pcie => "#eaf2fc",
            Self::Network => "#fef4e8",
            Self::Socket => "#f3f5f7",
        }
    }
}

/// Stroke width, proportional to the logarithm of the bandwidth; a hairline for unknown rates.
pub(super) fn stroke_width<S>(rate: Rate<S, OneWay>) -> f64 {
    (0.6 * libm::log2(1.0 + rate.gb())).clamp(0.8, 9.0)
}

/// The looks in painting order, GPUs last.
pub(super) const LOOKS: [Look; 8] = [
    Look::NetSwitch,
    Look::NvSwitch,
    Look::PcieSwitch,
    Look::Cpu,
    Look::Drive,
    Look::Other,
    Look::Nic,
    Look::Gpu,
];

/// Class, fill, stroke, ink and softer ink.
pub(super) fn style(look: Look) -> (&'static str, &'static str, &'static str, &'static str, &'static str) {
    match look {
        Look::Gpu => ("gpu", "#26323f", "#26323f", "#ffffff", "#c3ccd6"),
        Look::NvSwitch => ("nvswitch", "#dff0bd", "#76b900", "#2f4a00", "#467000"),
        Look::PcieSwitch => ("pcie", "#dcebfb", "#3b82d6", "#173f73", "#1f5aa3"),
        Look::Cpu => ("cpu", "#e6eaee", "#8b95a1", INK, SOFT_INK),
        Look::Nic => ("nic", "#fde6cd", "#f0882a", "#6e3600", "#a8550a"),
        Look::Drive => ("drive", "#f3f5f7", "#b9c1ca", SOFT_INK, SOFT_INK),
        Look::NetSwitch => ("netswitch", "#fbd3a8", "#f0882a", "#5c2d00", "#8a4508"),
        Look::Other => ("other", PAPER, "#b9c1ca", SOFT_INK, SOFT_INK),
    }
}
