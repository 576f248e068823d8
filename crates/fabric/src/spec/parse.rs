//! The parser of cluster specs. Its errors say what to write instead.

use std::ops::Range;
use std::str::FromStr;

use crate::catalog::links;
use crate::catalog::systems::{self, System};
use crate::device::DeviceKind;
use crate::link::{LinkKind, LinkSpec, Network};
use crate::nearest::{did_you_mean, fold};

use super::{
    COUNT_MAX, ClusterSpec, GPUS_MAX, LEAF_PORTS_MAX, Layout, NICS_PER_HOST_MAX, Nics, OVERSUBSCRIPTION_MAX,
    Oversubscription, SpecError, slot_for,
};

const OPTIONS: [&str; 4] = ["rail-optimised", "leaf-spine", "oversubscribed 2:1", "leaf-ports 64"];

impl FromStr for ClusterSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut reader = Reader { text, at: 0 };
        let count = reader.count()?;
        let system = reader.system(count)?;
        let has_own_nics = reader.check_size(count, system)?;
        let nics = reader.nics(has_own_nics.then_some(system))?;
        let mut spec = Self {
            count,
            system,
            nics,
            layout: Layout::default(),
            oversubscription: Oversubscription::NONE,
            leaf_ports: None,
        };
        reader.options(&mut spec, has_own_nics || nics.is_some())?;
        Ok(spec)
    }
}

/// A position in the text.
pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn error<T>(&self, place: Range<usize>, reason: impl Into<String>) -> Result<T, SpecError> {
        Err(SpecError {
            text: self.text.to_owned(),
            place: (self.text[..place.start].chars().count(), self.text[place].chars().count()),
            reason: reason.into(),
        })
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Skips the characters that `wanted` accepts and returns their range.
    fn take(&mut self, wanted: impl Fn(char) -> bool) -> Range<usize> {
        let rest = self.rest();
        let length = rest.find(|c| !wanted(c)).unwrap_or(rest.len());
        self.at += length;
        self.at - length..self.at
    }

    pub(super) fn skip_spaces(&mut self) -> bool {
        !self.take(char::is_whitespace).is_empty()
    }

    pub(super) fn word(&mut self) -> Range<usize> {
        self.skip_spaces();
        self.take(|c| !c.is_whitespace() && c != ',' && c != '+')
    }

    /// A number and the `x` after it.
    fn multiplier(&mut self, what: &str, limit: u32, example: &str) -> Result<u32, SpecError> {
        self.skip_spaces();
        let digits = self.take(|c| c.is_ascii_digit());
        if digits.is_empty() {
            let place = self.word();
            let rest = self.text[place.start..].trim_end();
            let example = match systems::by_name(&self.text[place.clone()]) {
                Some(_) => format!("1x {rest}"),
                None => example.to_owned(),
            };
            return self.error(place, format!("expected the number of {what}, as in `{example}`"));
        }
        let number = self.number(digits.clone(), 1, limit, &format!("the number of {what}"))?;
        self.skip_spaces();
        if !self.rest().starts_with('x') {
            return self.error(digits, format!("expected an `x` after the number, as in `{example}`"));
        }
        self.at += 1;
        Ok(number)
    }

    fn number(&self, digits: Range<usize>, least: u32, most: u32, what: &str) -> Result<u32, SpecError> {
        match self.text[digits.clone()].parse() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => self.error(digits, format!("{what} must be {least} to {most}")),
        }
    }

    fn count(&mut self) -> Result<u32, SpecError> {
        let count = self.multiplier("systems", COUNT_MAX, "2x hgx-h100 + 8x ndr")?;
        let x = self.at;
        if !self.skip_spaces() {
            let system = self.word();
            let name = match &self.text[system.clone()] {
                "" => "hgx-h100",
                name => name,
            };
            return self
                .error(x..system.end, format!("expected a space after the `x`, as in `{count}x {name}`"));
        }
        Ok(count)
    }

    fn system(&mut self, count: u32) -> Result<&'static System, SpecError> {
        let place = self.word();
        let name = &self.text[place.clone()];
        if let Some(system) = systems::by_name(name) {
            return Ok(system);
        }
        let all = || systems::all().map(|system| system.name);
        let hint = match systems::by_name(&format!("{count}x-{name}")) {
            Some(preset) => format!(
                " `{}` is a preset, spelled with a hyphen; for one of it, write `1x {}`.",
                preset.name, preset.name
            ),
            None => did_you_mean(name, all()),
        };
        let reason = match name {
            "" => "expected a system, such as `hgx-h100`.".to_owned(),
            _ => format!("no system is called `{}`.{hint}", shorten(name)),
        };
        self.error(place, format!("{reason} `weft topo --list` prints all"))
    }

    /// Checks the limit on GPUs, and returns whether the system has its own NICs.
    fn check_size(&self, count: u32, system: &'static System) -> Result<bool, SpecError> {
        let fabric = system.fabric();
        let gpus = u64::from(count) * fabric.gpus().len() as u64;
        if gpus > GPUS_MAX {
            let most = GPUS_MAX / fabric.gpus().len() as u64;
            return self.error(
                0..self.at,
                format!(
                    "this cluster has {gpus} GPUs; the limit is {GPUS_MAX}, which is `{most}x {}`",
                    system.name
                ),
            );
        }
        let has_nics = fabric.devices().iter().any(|device| matches!(device.kind, DeviceKind::Nic(_)));
        Ok(has_nics)
    }

    pub(super) fn nics(&mut self, own_nics_of: Option<&System>) -> Result<Option<Nics>, SpecError> {
        self.skip_spaces();
        let plus = self.at;
        if !self.rest().starts_with('+') {
            return Ok(None);
        }
        self.at += 1;
        let per_host = self.multiplier("NICs per host", NICS_PER_HOST_MAX, "+ 8x ndr")?;
        let place = self.word();
        let id = &self.text[place.clone()];
        if let Some(system) = own_nics_of {
            return self.error(
                plus..place.end,
                format!(
                    "{} has its own NICs: remove this part, or describe a different machine in a file",
                    system.name
                ),
            );
        }
        match id.to_ascii_lowercase().parse() {
            Ok(LinkKind::Network { network, gbit }) if network != Network::Unknown => {
                if slot_for(gbit).is_none() {
                    return self
                        .error(place, format!("no PCIe slot is fast enough for a port of {gbit} Gb/s"));
                }
                Ok(Some(Nics { per_host, network, gbit }))
            }
            Ok(kind) if !matches!(kind, LinkKind::Network { .. }) => self.error(
                place,
                format!("{kind} does not connect hosts; name a network, such as `ndr` or `eth100`"),
            ),
            _ => {
                let ids: Vec<String> = links::all().iter().filter_map(network_id).collect();
                let known = OTHER_NAMES.iter().find(|(name, _)| *name == fold(id));
                let hint = match known {
                    Some((_, names)) => format!(" Write {names}."),
                    None => did_you_mean(id, ids.iter().map(String::as_str)),
                };
                let reason = match id {
                    "" => "expected a network, such as `ndr` or `eth100`.".to_owned(),
                    _ => format!("no network is called `{}`.{hint}", shorten(id)),
                };
                self.error(place, format!("{reason} `weft topo --list links` prints the networks"))
            }
        }
    }

    fn options(&mut self, spec: &mut ClusterSpec, has_network: bool) -> Result<(), SpecError> {
        let mut seen: Vec<&str> = Vec::new();
        loop {
            self.skip_spaces();
            let comma = self.at;
            match self.rest().chars().next() {
                None => return Ok(()),
                Some(',') => self.at += 1,
                Some('+') if spec.nics.is_some() => {
                    return self
                        .error(comma..self.text.len(), "a spec has one network; describe several in a file");
                }
                Some(_) => {
                    let place = comma..self.text.len();
                    return self.error(
                        place,
                        "unexpected text: only `+ NICSx NETWORK` and options after commas may follow the system",
                    );
                }
            }
            let name = self.word();
            let start = name.start;
            let keyword = &self.text[name.clone()];
            match keyword.to_ascii_lowercase().as_str() {
                "rail-optimised" | "rail-optimized" => spec.layout = Layout::RailOptimised,
                "leaf-spine" => spec.layout = Layout::LeafSpine,
                "oversubscribed" => spec.oversubscription = self.oversubscription()?,
                "leaf-ports" => {
                    let ports = self.word();
                    spec.leaf_ports =
                        Some(self.number(ports, 2, LEAF_PORTS_MAX, "the number of leaf ports")?);
                }
                _ => {
                    let hint = did_you_mean(keyword, OPTIONS.into_iter());
                    let all = OPTIONS.map(|option| format!("`{option}`")).join(", ");
                    return self.error(name, format!("unknown option.{hint} The options are {all}"));
                }
            }
            let place = start..self.at;
            // The two layouts are one option.
            let group = if keyword.starts_with("rail") { "leaf-spine" } else { keyword };
            if seen.contains(&group) {
                return self.error(place, "this option was given before: give it once");
            }
            seen.push(group);
            if !has_network {
                return self
                    .error(place, "this option needs a network: add one before it, such as `+ 8x ndr`");
            }
        }
    }

    pub(super) fn oversubscription(&mut self) -> Result<Oversubscription, SpecError> {
        let place = self.word();
        let Some((down, up)) = self.text[place.clone()].split_once(':') else {
            return self.error(
                place,
                "expected the ratio of bandwidth down to bandwidth up, as in `oversubscribed 2:1`",
            );
        };
        let middle = place.start + down.len();
        let down = self.number(place.start..middle, 1, OVERSUBSCRIPTION_MAX, "bandwidth down")?;
        let up_place = middle + 1..middle + 1 + up.len();
        let up = self.number(up_place, 1, OVERSUBSCRIPTION_MAX, "bandwidth up")?;
        if down < up {
            return self.error(
                place,
                format!("bandwidth down comes first and must be the larger: `oversubscribed {up}:{down}`"),
            );
        }
        let divisor = greatest_common_divisor(down, up);
        Ok(Oversubscription { down: down / divisor, up: up / divisor })
    }
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

fn network_id(spec: &LinkSpec) -> Option<String> {
    matches!(spec.kind, LinkKind::Network { .. }).then(|| spec.kind.id())
}

/// What people call networks and NICs, with the names to write.
const OTHER_NAMES: [(&str, &str); 12] = [
    ("infiniband", "its rate: `edr`, `hdr`, `ndr` or `xdr`"),
    ("ib", "its rate, too: `ib100`, `ib200`, `ib400`"),
    ("roce", "its rate, too: `roce100`, `roce400`"),
    ("ethernet", "its rate, too: `eth100`; or `roce100` for RDMA"),
    ("eth", "its rate, too: `eth100`; or `roce100` for RDMA"),
    ("cx5", "the port of the ConnectX-5: `edr`, `roce100`"),
    ("cx6", "the port of the ConnectX-6: `hdr`, `roce200`"),
    ("cx7", "the port of the ConnectX-7: `ndr`, `roce400`"),
    ("cx8", "the port of the ConnectX-8: `xdr`, `roce800`"),
    ("cx9", "the port of the ConnectX-9: `xdr`, `roce800`"),
    ("spectrumx", "its rate as RoCE: `roce400`, `roce800`"),
    ("omnipath", "its rate: `opa100`, `opa400`"),
];

/// At most 40 characters of a name.
fn shorten(name: &str) -> String {
    name.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> ClusterSpec {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn canonical_specs_round_trip() {
        for canonical in [
            "1x hgx-h100",
            "2x hgx-h100 + 8x ndr",
            "128x gb200-nvl72 + 4x ndr, oversubscribed 2:1",
            "16x hgx-h100 + 8x hdr, leaf-spine",
            "4x 2x-rtx4090 + 1x eth25",
            "4x dgx-1-v100 + 4x edr, leaf-spine, oversubscribed 5:3, leaf-ports 36",
            "8x hgx-h100 + 1x slingshot",
            "8x hgx-h100 + 4x roce400, leaf-ports 128",
        ] {
            assert_eq!(parse(canonical).to_string(), canonical);
        }
    }

    #[test]
    fn printing_normalizes() {
        for (typed, canonical) in [
            ("  2x   hgx-h100+8xndr ", "2x hgx-h100 + 8x ndr"),
            ("002x hgx-h100 + 8x ndr , rail-optimised", "2x hgx-h100 + 8x ndr"),
            ("2 x hgx-h100 + 8 x ib400,rail-optimized", "2x hgx-h100 + 8x ndr"),
            ("2x hgx-h100 + 8x ndr, oversubscribed 1:1", "2x hgx-h100 + 8x ndr"),
            (
                "2x hgx-h100 + 8x ndr, leaf-ports 40, oversubscribed 6:4, leaf-spine",
                "2x hgx-h100 + 8x ndr, leaf-spine, oversubscribed 3:2, leaf-ports 40",
            ),
        ] {
            let spec = parse(typed);
            assert_eq!(spec.to_string(), canonical);
            assert_eq!(parse(canonical), spec);
        }
    }

    #[test]
    fn presets_and_specs_are_distinct() {
        for system in systems::all() {
            assert!(!system.name.contains(char::is_whitespace), "{}", system.name);
            assert!(system.name.parse::<ClusterSpec>().is_err(), "{}", system.name);
            let spec = parse(&format!("1x {}", system.name));
            assert_eq!(spec.system().name, system.name);
            assert!(systems::by_name(&spec.to_string()).is_none());
        }
    }

    #[test]
    fn errors_name_the_wrong_part_and_a_fix() {
        for (text, wrong, reason) in [
            ("", "", "`2x hgx-h100 + 8x ndr`"),
            ("hgx-h100", "hgx-h100", "the number of systems"),
            ("2 hgx-h100", "2", "an `x` after the number"),
            ("2xhgx-h100", "hgx-h100", "`2x hgx-h100`"),
            ("2x", "", "a space after the `x`"),
            ("2x ", "", "expected a system"),
            ("0x hgx-h100", "0", "1 to 100000"),
            ("100001x hgx-h100", "100001", "1 to 100000"),
            ("99999999999999999999x hgx-h100", "99999999999999999999", "1 to 100000"),
            ("100000x hgx-h100", "100000x hgx-h100", "which is `25000x hgx-h100`"),
            ("2x hgx-h10", "hgx-h10", "Did you mean `hgx-h100`"),
            ("2x rtx4090", "rtx4090", "`2x-rtx4090` is a preset"),
            ("2x toaster", "toaster", "weft topo --list"),
            ("2x hgx-h100 +", "", "the number of NICs per host"),
            ("2x hgx-h100 + ndr", "ndr", "`+ 8x ndr`"),
            ("hgx-h100 + 8x ndr", "hgx-h100", "`1x hgx-h100 + 8x ndr`"),
            ("2x hgx-h100 + 8x infiniband", "infiniband", "`ndr`"),
            ("2x hgx-h100 + 8x CX7", "CX7", "ConnectX-7"),
            ("2x hgx-h100 + 0x ndr", "0", "1 to 64"),
            ("2x hgx-h100 + 8x", "", "expected a network"),
            ("2x hgx-h100 + 8x ndrr", "ndrr", "Did you mean `ndr`"),
            ("2x hgx-h100 + 8x nvlink4", "nvlink4", "does not connect hosts"),
            ("2x hgx-h100 + 8x eth3200", "eth3200", "no PCIe slot"),
            ("2x hgx-h100 + 8x ndr + 1x eth25", "+ 1x eth25", "describe several in a file"),
            ("2x hgx-h100 8x ndr", "8x ndr", "may follow the system"),
            ("2x hgx-h100, leaf-spine", "leaf-spine", "add one before it"),
            ("2x hgx-h100 + 8x ndr,", "", "unknown option"),
            ("2x hgx-h100 + 8x ndr, leaf-spin", "leaf-spin", "Did you mean `leaf-spine`"),
            ("2x hgx-h100 + 8x ndr, leaf-spine, rail-optimised", "rail-optimised", "before"),
            ("2x hgx-h100 + 8x ndr, oversubscribed", "", "`oversubscribed 2:1`"),
            ("2x hgx-h100 + 8x ndr, oversubscribed 1:2", "1:2", "`oversubscribed 2:1`"),
            ("2x hgx-h100 + 8x ndr, oversubscribed 2:0", "0", "1 to 1000"),
            ("2x hgx-h100 + 8x ndr, leaf-ports 1", "1", "2 to 1024"),
            ("2x hgx-h100 + 8x ndr, leaf-ports many", "many", "2 to 1024"),
            ("2x hgx-h100 + 8x ndr, leaf-ports 64 96", "96", "options after commas"),
        ] {
            let error = text.parse::<ClusterSpec>().expect_err(text);
            assert_eq!(error.wrong_part(), wrong, "{text}: {error}");
            assert!(error.reason().contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn the_mistake_is_underlined() {
        let error = "2x hgx-h10 + 8x ndr".parse::<ClusterSpec>().unwrap_err().to_string();
        assert!(error.ends_with("\n  2x hgx-h10 + 8x ndr\n     ^^^^^^^"), "{error}");
        let far = format!("2x hgx-h100 + 8x ndr,{}wrong\n", " ".repeat(500));
        let error = far.parse::<ClusterSpec>().unwrap_err().to_string();
        assert!(error.ends_with("\n  wrong \n  ^^^^^"), "{error}");
    }
}
