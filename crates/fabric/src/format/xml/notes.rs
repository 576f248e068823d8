//! Notes on what a file leaves out, and on what the reader ignored or assumed.

use super::read::TreeReader;
use crate::device::DeviceKind;
use crate::id::DeviceId;

impl TreeReader<'_, '_> {
    /// Adds the notes to the fabric.
    pub(super) fn notes(&mut self) {
        let (mut gpus, mut bare, mut rankless) = (0, 0, 0);
        for id in (0..self.builder.device_count() as u32).map(DeviceId) {
            if let DeviceKind::Gpu(gpu) = &self.builder.device(id).kind {
                gpus += 1;
                bare += usize::from(gpu.ranks.is_empty());
                rankless += usize::from(gpu.ranks.iter().any(|rank| rank.rank.is_none()));
            }
        }
        let complete = "for a complete file, run NCCL with NCCL_TOPO_DUMP_FILE=topo.xml";
        if gpus == 0 {
            self.builder.note(format!(
                "The file names no GPU, because NCCL adds those of the machine it runs on; {complete}."
            ));
        } else if bare > 0 {
            self.builder.note(format!(
                "{bare} of {gpus} GPUs are described as PCI functions only, so their NVLinks are unknown; {complete}."
            ));
        }
        if rankless > 0 {
            self.builder.note(format!("{rankless} of {gpus} GPUs have no rank; NCCL ignores them."));
        }
        if self.speed_assumed > 0 {
            self.builder.note(format!(
                "{} PCI functions have no link speed; as in NCCL, PCIe 3.0 is assumed.",
                self.speed_assumed
            ));
        }
        if self.repeated_ids > 0 {
            self.builder.note(format!(
                "{} PCI functions have the bus id of another; each is read as a separate device.",
                self.repeated_ids
            ));
        }
        if self.document.ignored_count > 0 {
            let names: Vec<String> =
                self.document.ignored.iter().map(|(name, line)| format!("<{name}> on line {line}")).collect();
            let more = match self.document.ignored_count - names.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            self.builder.note(format!(
                "Ignored, as in NCCL, elements that are unknown or in the wrong place: {}{more}.",
                names.join(", ")
            ));
        }
    }
}
