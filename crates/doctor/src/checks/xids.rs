//! Xid numbers in the kernel log: what they mean and what to do, in our words, after NVIDIA's Xid catalog
//! (docs.nvidia.com/deploy/xid-errors). The catalog marks 56, 57, 58, 65, 73 and 81 as unused on Ampere and later; older GPUs report them.

use crate::finding::Severity;

/// An Xid.
pub(super) struct Xid {
    pub(super) number: u32,
    pub(super) severity: Severity,
    /// What happened to the GPU, as the end of `gpu3 ...`.
    pub(super) what: &'static str,
    pub(super) remedy: Remedy,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// The application is at fault, or a restart of it suffices.
    Application,
    /// The GPU needs a reset.
    Reset,
    /// The machine needs a restart.
    Restart,
    /// Links to look at.
    Links,
    /// Hardware to have replaced.
    Service,
    /// Nothing: the hardware has corrected it.
    Nothing,
}

const fn xid(number: u32, severity: Severity, what: &'static str, remedy: Remedy) -> Xid {
    Xid { number, severity, what, remedy }
}

use Remedy::{Application, Links, Nothing, Reset, Restart, Service};
use Severity::{Critical, Note, Warning};

/// All that is known, ascending.
pub(super) const XIDS: &[Xid] = &[
    xid(13, Note, "raised an exception of the graphics engine, usually a fault of the program", Application),
    xid(31, Note, "had a page fault, usually an invalid address of the program", Application),
    xid(43, Note, "stopped a program after a fault of the program", Application),
    xid(
        45,
        Note,
        "ended the channels of a program, after another error or because it was killed",
        Application,
    ),
    xid(46, Warning, "stopped responding and timed out", Reset),
    xid(48, Critical, "had an uncorrectable memory error (double-bit ECC)", Reset),
    xid(54, Critical, "has no auxiliary power connected", Service),
    xid(56, Warning, "had an error of the display engine", Service),
    xid(57, Warning, "failed to train the link to its memory", Service),
    xid(58, Critical, "had an error of its memory interface", Service),
    xid(61, Warning, "stopped an internal microcontroller", Reset),
    xid(62, Critical, "halted an internal microcontroller", Reset),
    xid(63, Note, "recorded a memory row for remapping (or a page for retirement)", Nothing),
    xid(64, Critical, "failed to record a memory row for remapping (or a page for retirement)", Service),
    xid(65, Warning, "had an error of the video encoder", Application),
    xid(68, Warning, "had an error of the video decoder", Application),
    xid(69, Warning, "was given a command that its graphics engine does not have", Application),
    xid(73, Warning, "had an error of the second video encoder", Application),
    xid(74, Critical, "had an error of an NVLink", Links),
    xid(79, Critical, "has fallen off the bus", Restart),
    xid(80, Warning, "received corrupted commands", Application),
    xid(81, Warning, "had an error of the VGA subsystem", Service),
    xid(92, Warning, "had many single-bit memory errors, all corrected", Service),
    xid(94, Warning, "had an uncorrectable memory error that was contained in one program", Application),
    xid(95, Critical, "had an uncorrectable memory error that was not contained", Reset),
    xid(109, Warning, "timed out switching between programs", Reset),
    xid(119, Critical, "did not get an answer of its system processor (GSP) in time", Reset),
    xid(120, Critical, "had an error of its system processor (GSP)", Reset),
    xid(121, Warning, "had an error of the link to the CPU (C2C)", Service),
    xid(136, Critical, "failed to train an NVLink", Links),
    xid(
        137,
        Warning,
        "had a fault of an access over NVLink, usually an invalid address of the program",
        Application,
    ),
    xid(140, Critical, "had an uncorrected memory error", Reset),
    xid(143, Critical, "failed to initialize", Reset),
    xid(144, Warning, "had an error of NVLink 5 (SAW)", Links),
    xid(145, Warning, "had an error of NVLink 5 (RLW)", Links),
    xid(146, Warning, "had an error of NVLink 5 (TLW)", Links),
    xid(147, Warning, "had an error of NVLink 5 (TREX)", Links),
    xid(148, Warning, "had an error of NVLink 5 (control)", Links),
    xid(149, Warning, "had an error of NVLink 5 (NETIR)", Links),
    xid(150, Warning, "had an error of NVLink 5 (MSE)", Links),
    xid(154, Note, "changed what it needs to recover, after another error", Application),
    xid(155, Warning, "had an error of NVLink that the driver detected", Links),
    xid(158, Critical, "timed out for good", Reset),
    xid(171, Critical, "had an uncorrectable error of its memory", Reset),
    xid(172, Critical, "had an uncorrectable error of its caches", Reset),
];

/// The Xid with a number.
pub(super) fn by_number(number: u32) -> Option<&'static Xid> {
    XIDS.iter().find(|xid| xid.number == number)
}

impl Remedy {
    /// The steps, for the GPU at an address.
    pub(super) fn steps(self, bus: &str) -> Vec<String> {
        let steps: Vec<String> = match self {
            Application => vec![
                "Restart the program; if it fails again, run it under `compute-sanitizer`.".to_owned(),
                "If unrelated programs fail on this GPU, run `dcgmi diag -r 3`.".to_owned(),
            ],
            Reset => vec![
                format!("End the programs on the GPU and reset it: `nvidia-smi --gpu-reset -i {bus}`."),
                "If it comes back, run `dcgmi diag -r 3` and have the GPU replaced.".to_owned(),
            ],
            Restart => vec![
                "Restart the machine, with a power cycle if the GPU does not come back.".to_owned(),
                "Check power cables, seating and temperature; update the system firmware.".to_owned(),
            ],
            Links => vec![
                format!(
                    "Look at its links: `nvidia-smi nvlink -s -i {bus}` and `nvidia-smi nvlink -e -i {bus}`."
                ),
                format!(
                    "Reset the GPU: `nvidia-smi --gpu-reset -i {bus}`; with a bridge, reseat it with the power off."
                ),
            ],
            Service => vec![
                format!("Test the GPU without jobs: `dcgmi diag -r 3 -i {bus}`."),
                "Save `nvidia-bug-report.sh` and ask the vendor for service.".to_owned(),
            ],
            Nothing => vec![
                "Reset the GPU at the next opportunity, so that a row that waits is remapped.".to_owned(),
            ],
        };
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_and_the_known_list_is_complete() {
        assert!(XIDS.windows(2).all(|pair| pair[0].number < pair[1].number));
        for number in [48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 119, 120] {
            assert!(by_number(number).is_some(), "{number}");
        }
        assert!(XIDS.iter().all(|xid| !xid.remedy.steps("0000:01:00.0").is_empty()));
    }
}
