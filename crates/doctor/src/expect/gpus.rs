//! The number of GPUs, and their models.

use std::collections::BTreeMap;

use super::view::{Pair, Part, View};
use super::{GPUS, MODEL, differs};
use crate::finding::{Outcome, Severity};
use crate::job::counted;

/// The number of GPUs.
pub(super) fn count(pair: &Pair<'_>) -> Vec<Outcome> {
    let (found, expected) = (pair.found.gpus.len(), pair.expected.gpus.len());
    if found == 0 && expected == 0 {
        return Vec::new();
    }
    let (here, counts) = (pair.found.of_this(), [found as u64, expected as u64].map(|n| counted(n, "GPU")));
    if found == expected {
        return vec![Outcome::Fine(format!("{}{here}, as expected", counts[0]))];
    }
    let [was, should] = counts;
    if found > expected {
        let what = format!("{was}{here} instead of {expected}; the additional ones were not compared");
        let finding = differs(GPUS, Severity::Note, what, was, should);
        return vec![Outcome::Found(
            finding.fixed_by("name the machine as it is with --expect, to compare all of them"),
        )];
    }
    let missing: Vec<String> = pair
        .gpus
        .iter()
        .zip(&pair.expected.gpus)
        .filter(|(found, _)| found.is_none())
        .map(|(_, part)| match part.numa {
            Some(node) => format!("{} below NUMA node {node}", pair.expected.name_of(part.id)),
            None => pair.expected.name_of(part.id),
        })
        .collect();
    let finding = differs(
        GPUS,
        Severity::Critical,
        format!("{was}{here} instead of {expected}"),
        was.clone(),
        format!("{should}; missing by place in the wiring: {}", missing.join(", ")),
    );
    vec![Outcome::Found(
        finding
            .fixed_by("lspci -nn | grep -Ei '3d|vga|accelerator': a GPU that is missing there is not on the bus; check its power, \
                reseat it, and enable above-4G decoding in the BIOS")
            .fixed_by("if lspci lists it: sudo dmesg | grep -iE 'xid|nvrm|amdgpu' says why the driver left it out; in a container or \
                batch job, ask for all GPUs"),
    )]
}

/// The models of the GPUs.
pub(super) fn models(pair: &Pair<'_>) -> Vec<Outcome> {
    let mut others: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    let (mut unknown, mut fine) = (Vec::new(), BTreeMap::new());
    for (found, expected) in pair.same_gpus() {
        let [was, should] =
            [(&pair.found, found), (&pair.expected, expected)].map(|(view, part)| model(view, part));
        let name = pair.found.name_of(found.id);
        match (was, should) {
            (_, None) => {}
            (None, Some(_)) => unknown.push(name),
            (Some(was), Some(should)) if was == should => *fine.entry(was).or_insert(0) += 1,
            (Some(was), Some(should)) => others.entry((was, should)).or_default().push(name),
        }
    }
    let mut outcomes: Vec<Outcome> = others
        .into_iter()
        .map(|((was, should), names)| {
            let what = format!("{}: {was} instead of {should}", names.join(", "));
            let finding = differs(MODEL, Severity::Warning, what, was, should);
            Outcome::Found(finding.fixed_by(
                "if the machine is of another type, name it with --expect; if it should be of this type, ask who delivered it for \
                    the right cards: the slowest model sets the pace of a collective",
            ))
        })
        .collect();
    if !unknown.is_empty() {
        outcomes.push(Outcome::Unknown {
            what: format!("the model of {}", unknown.join(", ")),
            needs: "the driver of the GPUs (nvidia-smi), or a version of Weft that knows the model"
                .to_owned(),
        });
    }
    if outcomes.is_empty() {
        outcomes.extend(fine.into_iter().map(|(model, n)| Outcome::Fine(format!("{n}x {model}"))));
    }
    outcomes
}

/// The product name of a GPU, where the catalog has it.
pub(super) fn model(view: &View<'_>, part: &Part) -> Option<String> {
    view.fabric.device(part.id).kind.gpu_model().map(|model| model.name.to_owned())
}
