//! BIOS settings as PCI resources show them: decoding above 4 GB, and resizable BARs.
//!
//! Whether BAR1 as the driver uses it is large enough is another check; this one sees the BAR before any driver.

use weftlink_probe::Tree;

use super::host_reads::{self as reads, Function, Outcomes};
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) static CHECKS: &[Check] = &[Check {
    id: "bios-bars",
    finds: "GPUs whose memory window (BAR) is missing, below 4 GB, or smaller than the card allows",
    reads: "`/sys/bus/pci/devices/*/{resource,resource1_resize}`",
    run: bars,
}];

/// The kernel could not assign an address.
const UNSET: u64 = 0x2000_0000;
/// A BAR of memory, in contrast to one of I/O ports.
const MEMORY: u64 = 0x200;
/// The window into a GPU's memory is at least this large, even without a resizable BAR.
const WINDOW_MIN: u64 = 64 << 20;
/// The window whose size may change: of NVIDIA's GPUs BAR 1, of AMD's BAR 0, of Intel's BAR 2.
const WINDOWS: [usize; 3] = [1, 0, 2];

/// A BAR: its first and last address, and its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bar {
    first: u64,
    last: u64,
    flags: u64,
}

impl Bar {
    fn bytes(self) -> u64 {
        if self.last > self.first { (self.last - self.first).saturating_add(1) } else { 0 }
    }
}

/// The six BARs of `resource`.
fn bars_of(text: &str) -> Vec<Bar> {
    let hexadecimal = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let bar = |line: &str| {
        let mut words = line.split_whitespace().map(hexadecimal);
        Some(Bar { first: words.next()??, last: words.next()??, flags: words.next()?? })
    };
    text.lines().take(6).map_while(bar).collect()
}

fn bars(machine: &Machine<'_>) -> Vec<Outcome> {
    let mut outcomes = Outcomes::new();
    for gpu in reads::functions(machine, reads::is_gpu) {
        let resource = gpu.read(machine.tree, "resource").unwrap_or_default();
        let bars = bars_of(&resource);
        if bars.len() < 2 {
            outcomes.unknown.push(gpu.name);
            continue;
        }
        match missing(&gpu, &bars, &resource, machine.tree)
            .or_else(|| small(machine, &gpu, &bars))
            .or_else(|| low(&gpu, &bars))
        {
            Some(finding) => outcomes.findings.push(finding),
            None => outcomes.fine.push(gpu.name),
        }
    }
    outcomes.finish(
        |fine| {
            format!("{} with BARs above 4 GB of the size the card asks for", reads::count(fine.len(), "GPU"))
        },
        |unknown| {
            (format!("the BARs of {}", reads::some_of(unknown)), "/sys/bus/pci/devices/*/resource".to_owned())
        },
    )
}

/// No window into the GPU's memory: the BIOS left no room for it.
fn missing(gpu: &Function, bars: &[Bar], resource: &str, tree: &dyn Tree) -> Option<Finding> {
    let is_window = |bar: &Bar| bar.flags & MEMORY != 0 && bar.bytes() >= WINDOW_MIN;
    let unset = bars.iter().position(|bar| bar.flags & UNSET != 0 && bar.flags & MEMORY != 0);
    if unset.is_none() && bars.iter().any(is_window) {
        return None;
    }
    let index = unset.unwrap_or(1);
    let line = resource.lines().nth(index).unwrap_or_default();
    let what = format!(
        "BAR {index} of {} has no address: the driver cannot use the GPU, or only a part of it",
        gpu.name
    );
    let mut finding = Finding::new("bios-bars", Severity::Critical, what)
        .shown_by(format!("/{}", gpu.path("resource")), reads::shown(line));
    let log = reads::kernel_log(tree).unwrap_or_default();
    let about = |line: &&str| {
        line.contains(&gpu.address)
            && (line.contains("BAR")
                && (line.contains("no space")
                    || line.contains("failed to assign")
                    || line.contains("can't assign")))
            || line.contains("NVRM: BAR1 is 0M")
    };
    if let Some(line) = log.lines().find(about) {
        finding = finding.shown_by("kernel log", reads::shown(line));
    }
    Some(
        finding
            .fixed_by("in the BIOS, enable `Above 4G Decoding` (also `Memory Mapped I/O above 4 GB`) and disable CSM")
            .fixed_by("if the board has one, raise `MMIO High Size`; update the BIOS")
            .fixed_by("if that is not possible, boot with `pci=realloc`"),
    )
}

/// The card supports a larger window than it has.
fn small(machine: &Machine<'_>, gpu: &Function, bars: &[Bar]) -> Option<Finding> {
    let (index, sizes) = WINDOWS.into_iter().find_map(|index| {
        // Hexadecimal digits without `0x`.
        let text = gpu.read(machine.tree, &format!("resource{index}_resize"))?;
        Some((index, u64::from_str_radix(text.trim(), 16).ok()?))
    })?;
    // Bit n stands for 2^n MiB.
    let largest_mib = 1_u64.checked_shl(sizes.checked_ilog2()?)?;
    let mib = bars.get(index)?.bytes() >> 20;
    if largest_mib <= mib {
        return None;
    }
    let has_access = machine.fabric.has_peer_access(gpu.id);
    let severity = if has_access { Severity::Warning } else { Severity::Note };
    let what = format!(
        "resizable BAR is off: {} shows {mib} MiB of its memory, and the card supports {largest_mib} MiB{}",
        gpu.name,
        if has_access { "; peer access and GPUDirect over PCIe may fail for large buffers" } else { "" }
    );
    Some(
        Finding::new("bios-bars", severity, what)
            .shown_by(format!("/{}", gpu.path(&format!("resource{index}_resize"))), format!("{sizes:#x}"))
            .shown_by(format!("/{}", gpu.path("resource")), format!("BAR {index}: {mib} MiB"))
            .fixed_by("in the BIOS, enable `Above 4G Decoding`, then `Re-Size BAR Support`; disable CSM")
            .fixed_by("if the BIOS has no such setting, update it; some cards also need a newer vBIOS"),
    )
}

/// A window below 4 GB, where several GPUs do not fit.
fn low(gpu: &Function, bars: &[Bar]) -> Option<Finding> {
    let window = bars.iter().filter(|bar| bar.flags & MEMORY != 0).max_by_key(|bar| bar.bytes())?;
    if window.last >= 1 << 32 {
        return None;
    }
    let what = format!(
        "the memory window of {} lies below 4 GB: decoding above 4 GB is off, and few more cards fit",
        gpu.name
    );
    Some(
        Finding::new("bios-bars", Severity::Note, what)
            .shown_by(
                format!("/{}", gpu.path("resource")),
                format!("{:#x} to {:#x}", window.first, window.last),
            )
            .fixed_by("in the BIOS, enable `Above 4G Decoding`"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::host_tests::{bare, healthy, is_fine, is_unknown};
    use super::*;

    const GPU0: &str = "sys/bus/pci/devices/0000:19:00.0";

    fn resource(bar1: &str) -> String {
        format!("{GPU0}/resource = 0x00000000e0000000 0x00000000e0ffffff 0x0000000000040200\\n{bar1}")
    }

    #[test]
    fn a_missing_window_is_critical() {
        let none = "0x0000000000000000 0x0000000000000000 0x0000000000000000";
        let log = "log/kernel = [ 1.2] pci 0000:19:00.0: BAR 1 [mem size 0x2000000000 64bit pref]: can't assign; no space";
        let found = healthy(&[&resource(none), log]).finding(&CHECKS[0]);
        assert_eq!((found.severity, found.evidence.len()), (Severity::Critical, 2));
        let unset = "0x0000000000000000 0x0000001fffffffff 0x000000002014220c";
        assert_eq!(healthy(&[&resource(unset)]).finding(&CHECKS[0]).severity, Severity::Critical);
    }

    #[test]
    fn a_small_window_is_found_if_the_card_supports_more() {
        let small = resource("0x000020a000000000 0x000020a00fffffff 0x000000000014220c");
        let sizes = |sizes: &str| format!("{GPU0}/resource1_resize = {sizes}");
        let found = healthy(&[&small, &sizes("0000000000037fc0")]).finding(&CHECKS[0]);
        assert!(
            found.what.contains("shows 256 MiB of its memory, and the card supports 131072 MiB"),
            "{}",
            found.what
        );
        assert_eq!(found.severity, Severity::Warning);
        assert!(is_fine(&healthy(&[&small, &sizes("0000000000000100")]).run(&CHECKS[0])));
        let low = resource("0x00000000c0000000 0x00000000cfffffff 0x000000000014220c");
        assert_eq!(healthy(&[&low]).finding(&CHECKS[0]).severity, Severity::Note);
        assert!(is_unknown(&bare(&[]).run(&CHECKS[0])));
    }
}
