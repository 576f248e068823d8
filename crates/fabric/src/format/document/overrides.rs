//! Overrides: corrections to the links of the `base` that a document starts from.

use super::LINK_COUNT_MAX;
use super::assemble::{Assembly, bytes_per_second};
use super::schema::OverrideEntry;
use crate::figure::{Basis, Figure, LinkRate};
use crate::format::excerpt;
use crate::id::DeviceId;
use crate::link::{LinkSpec, SpecId};
use crate::rate::Rate;

/// The change that an override makes to each link it selects.
enum Change {
    Remove,
    Set { rate: Option<LinkRate>, count: Option<u32> },
}

impl Assembly {
    /// Changes the links between two devices, in both directions unless the entry has `oneway`.
    pub(super) fn apply(&mut self, entry: &OverrideEntry) -> Result<(), String> {
        let (source, target) = self.devices_between(&entry.between)?;
        let change = change(entry)?;
        let mut selected = self.between(source, target, entry)?;
        if !entry.oneway {
            selected.extend(self.between(target, source, entry)?);
        }
        if selected.is_empty() {
            let (a, b) = &entry.between;
            return Err(format!(
                "nothing to override: there is no such link from `{}` to `{}`; add one with `[[link]]`",
                excerpt(a),
                excerpt(b)
            ));
        }
        for (from, to, spec) in selected {
            let count = self.links.remove(&(from, to, spec)).unwrap_or(1);
            if let Change::Set { rate, count: wanted } = &change {
                let count = wanted.unwrap_or(count);
                let spec = match rate {
                    Some(rate) => {
                        let measured = with_rate(&self.specs[spec.0 as usize], rate, count)?;
                        self.spec(measured)
                    }
                    None => spec,
                };
                self.link(from, to, spec, count)?;
            }
        }
        Ok(())
    }

    /// The type of link from a device to another that the entry selects, if there is one.
    fn between(
        &self,
        source: DeviceId,
        target: DeviceId,
        entry: &OverrideEntry,
    ) -> Result<Vec<(DeviceId, DeviceId, SpecId)>, String> {
        let wanted = entry.link_type.as_deref().map(|id| self.kind_of(id)).transpose()?;
        let all = (source, target, SpecId(0))..=(source, target, SpecId(u32::MAX));
        let selected: Vec<_> = (self.links.range(all).map(|(key, _)| *key))
            .filter(|key| wanted.is_none_or(|kind| self.specs[key.2.0 as usize].kind == kind))
            .collect();
        if selected.len() > 1 {
            let kinds: Vec<String> = (selected.iter())
                .map(|key| format!("`{}`", self.specs[key.2.0 as usize].kind.id()))
                .collect();
            return Err(format!(
                "{} links connect these devices: choose one with `type`",
                kinds.join(" and ")
            ));
        }
        Ok(selected)
    }
}

fn change(entry: &OverrideEntry) -> Result<Change, String> {
    match (entry.remove, entry.gb_per_s_each_way, entry.count, &entry.source) {
        (true, None, None, None) => Ok(Change::Remove),
        (true, ..) => {
            Err("`remove` cannot be combined with other settings: delete it, or delete the others".to_owned())
        }
        (false, None, None, _) => {
            Err("an override needs `gb_per_s_each_way`, `count` or `remove = true`".to_owned())
        }
        (false, None, Some(_), Some(_)) => {
            Err("`source` needs `gb_per_s_each_way`: add it, or delete `source`".to_owned())
        }
        (false, Some(_), _, None) => {
            Err("a measured rate needs a `source`: say who measured it, when and how".to_owned())
        }
        (false, _, Some(count), _) if !(1..=LINK_COUNT_MAX).contains(&count) => {
            Err(format!("`count` must be 1 to {LINK_COUNT_MAX}; to remove the links, set `remove = true`"))
        }
        (false, None, count, None) => Ok(Change::Set { rate: None, count }),
        (false, Some(gb), count, Some(source)) => {
            let value = Rate::from_bytes(bytes_per_second(gb)?);
            if value == Rate::ZERO {
                return Err("the rate must not be 0; to remove the links, set `remove = true`".to_owned());
            }
            let rate = Some(Figure { value, basis: Basis::Measured, source: source.clone(), checked: false });
            Ok(Change::Set { rate, count })
        }
    }
}

/// The type with a measured rate. A rate above the nominal one is refused: it is that of a whole bundle, or of both
/// directions.
fn with_rate(spec: &LinkSpec, rate: &LinkRate, count: u32) -> Result<LinkSpec, String> {
    if let Some(nominal) = &spec.nominal
        && rate.value > nominal.value
    {
        return Err(format!(
            "{} exceeds the nominal rate of {} ({}); give the rate of each of the {count} parallel links, each way",
            rate.value.amount(),
            spec.kind,
            nominal.value.amount(),
        ));
    }
    Ok(LinkSpec { effective: Some(rate.clone()), ..spec.clone() })
}
