//! The type of the hosts in a network file: `cluster.ibnet + hgx-h100`.
//!
//! ```text
//! spec   = file "+" host [ "+" nics "x" network ] { "," option }
//! file   = a file that describes a network of hosts
//! host   = a system of the catalog with one host, or a file that describes one host
//! nics   = as in a cluster spec; only where the file does not list the NICs
//! option = "hosts" hostlist          the hosts of this type, such as node[001-016]; by default all
//!        | "oversubscribed" a ":" b  as in a cluster spec; only where the file does not list the cables
//! ```

use std::ops::Range;

use super::parse::Reader;
use super::{Nics, Oversubscription, SpecError};
use crate::nearest::did_you_mean;

const OPTIONS: [&str; 2] = ["hosts node[001-016]", "oversubscribed 2:1"];

/// The type of the hosts in a network file. Parsing does not look the host up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSpec {
    pub(crate) host: String,
    pub(crate) nics: Option<Nics>,
    pub(crate) oversubscription: Option<Oversubscription>,
    pub(crate) members: Option<String>,
}

impl HostSpec {
    /// Parses the part of `text` from byte `start`, which is behind the `+` after the file's name.
    pub fn parse(text: &str, start: usize) -> Result<Self, SpecError> {
        let mut reader = Reader { text, at: start };
        let place = reader.word();
        let host = text[place.clone()].to_owned();
        let number = host.strip_suffix('x').unwrap_or(&host);
        if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) {
            return reader.error(
                place,
                "expected the type of the hosts without a number, such as `hgx-h100`: the file lists the hosts",
            );
        }
        if host.is_empty() {
            return reader.error(place, "expected the type of the hosts, such as `hgx-h100`");
        }
        let nics = reader.nics(None)?;
        let mut spec = Self { host, nics, oversubscription: None, members: None };
        reader.host_options(&mut spec)?;
        Ok(spec)
    }

    /// The name of the system or file.
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl Reader<'_> {
    fn host_options(&mut self, spec: &mut HostSpec) -> Result<(), SpecError> {
        loop {
            self.skip_spaces();
            let rest = self.at..self.text.len();
            match self.rest().chars().next() {
                None => return Ok(()),
                Some(',') => self.at += 1,
                Some(_) => {
                    return self.error(
                        rest,
                        "unexpected text: only `+ NICSx NETWORK` and options after commas may follow the host",
                    );
                }
            }
            let name = self.word();
            let keyword = &self.text[name.clone()];
            let is_repeated = match keyword {
                "hosts" => {
                    let list = self.hostlist();
                    if list.is_empty() {
                        return self.error(list, "expected the names of hosts, as in `hosts node[001-016]`");
                    }
                    spec.members.replace(self.text[list].to_owned()).is_some()
                }
                "oversubscribed" => spec.oversubscription.replace(self.oversubscription()?).is_some(),
                "leaf-spine" | "rail-optimised" | "rail-optimized" | "leaf-ports" => {
                    return self
                        .error(name, "the file says which switch a host is cabled to: remove this option");
                }
                _ => {
                    let hint = did_you_mean(keyword, OPTIONS.into_iter());
                    let all = OPTIONS.map(|option| format!("`{option}`")).join(" and ");
                    return self.error(name, format!("unknown option.{hint} The options are {all}"));
                }
            };
            if is_repeated {
                return self.error(name.start..self.at, "this option was given before: give it once");
            }
        }
    }

    /// Up to the next comma outside brackets that an option follows: names are separated by commas, too.
    fn hostlist(&mut self) -> Range<usize> {
        self.skip_spaces();
        let start = self.at;
        let mut is_inside = false;
        let end = self.rest().char_indices().find(|(at, c)| {
            match c {
                '[' => is_inside = true,
                ']' => is_inside = false,
                _ => {}
            }
            let is_option = || self.rest()[at + 1..].trim_start().starts_with("oversubscribed");
            !is_inside && (c.is_whitespace() || (*c == ',' && is_option()))
        });
        self.at = end.map_or(self.text.len(), |(at, _)| start + at);
        start..self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> HostSpec {
        HostSpec::parse(text, text.find('+').map_or(0, |at| at + 1)).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn parts_are_found() {
        assert_eq!(parse("f + hgx-h100").host(), "hgx-h100");
        let spec = parse("f+node.xml + 8x ndr, hosts a[1-2,4],b, oversubscribed 4:2");
        assert_eq!(spec.host(), "node.xml");
        assert_eq!(spec.nics.map(|nics| nics.per_host), Some(8));
        assert_eq!(spec.members.as_deref(), Some("a[1-2,4],b"));
        assert_eq!(spec.oversubscription.map(|ratio| ratio.uplinks(4)), Some(2));
        assert_eq!(parse("f + h, oversubscribed 2:1, hosts b").members.as_deref(), Some("b"));
    }

    #[test]
    fn errors_name_the_wrong_part_and_a_fix() {
        for (text, wrong, reason) in [
            ("f +", "", "such as `hgx-h100`"),
            ("f + 16x hgx-h100", "16x", "the file lists the hosts"),
            ("f + 8x ndr", "8x", "the file lists the hosts"),
            ("f + hgx-h100 + ndr", "ndr", "the number of NICs"),
            ("f + hgx-h100 hosts a", "hosts a", "options after commas"),
            ("f + hgx-h100, leaf-spine", "leaf-spine", "remove this option"),
            ("f + hgx-h100, host a", "host", "Did you mean `hosts"),
            ("f + hgx-h100, hosts", "", "node[001-016]"),
            ("f + hgx-h100, hosts a b", "b", "options after commas"),
            ("f + h, oversubscribed 2:1, oversubscribed 2:1", "oversubscribed 2:1", "give it once"),
        ] {
            let error = HostSpec::parse(text, 3).expect_err(text);
            assert_eq!(error.wrong_part(), wrong, "{text}: {error}");
            assert!(error.reason().contains(reason), "{text}: {error}");
        }
    }
}
