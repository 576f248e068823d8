//! Parsers of settings. An error says what is wrong; the registry adds which values are valid.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A longer duration is a mistake of unit.
const DURATION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
const SECRET_BYTES_MAX: usize = 4096;

/// Text that `Debug` hides.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(hidden)")
    }
}

/// A range of TCP ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The first that may be used.
    pub first: u16,
    /// The last.
    pub last: u16,
}

/// The network interfaces that may be used; all, if there are no names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces {
    names: Vec<String>,
    excluded: bool,
    exact: bool,
}

impl Interfaces {
    /// Whether any interface may be used.
    pub fn are_all(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether an interface may be used.
    pub fn allows(&self, interface: &str) -> bool {
        let is_it =
            |name: &String| if self.exact { interface == name } else { interface.starts_with(name.as_str()) };
        self.names.is_empty() || self.names.iter().any(is_it) != self.excluded
    }
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("unknown value".to_owned()),
    }
}

pub(super) fn automatic(text: &str) -> Result<Option<bool>, String> {
    if text == "auto" { Ok(None) } else { switch(text).map(Some) }
}

pub(super) fn number(text: &str, least: u32, most: u32) -> Result<u32, String> {
    match text.parse::<u64>() {
        Err(_) => Err("it is not a whole number".to_owned()),
        Ok(number) if number < u64::from(least) => Err(format!("{number} is smaller than {least}")),
        Ok(number) if number > u64::from(most) => Err(format!("{number} is larger than {most}")),
        Ok(number) => Ok(number as u32),
    }
}

/// `300s`, `1500ms`, `5m`, `1h`; a bare number is seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit.trim() {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        other => return Err(format!("unknown unit {other:?}")),
    };
    if number.is_empty() {
        return Err("the number is missing".to_owned());
    }
    let total = number.parse::<u64>().ok().and_then(|number| number.checked_mul(milliseconds));
    match total.map(Duration::from_millis) {
        Some(Duration::ZERO) => Err("it must be longer than 0".to_owned()),
        Some(total) if total <= DURATION_MAX => Ok(total),
        _ => Err("it is too long".to_owned()),
    }
}

/// `20000-20100`, or one port.
pub(super) fn ports(text: &str) -> Result<Ports, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| match text.trim().parse::<u16>() {
        Ok(0) => Err("0 is not a port".to_owned()),
        Ok(port) => Ok(port),
        Err(_) => Err(format!("{:?} is not a port", text.trim())),
    };
    let (first, last) = (port(first)?, port(last)?);
    if last < first { Err("the range ends before it starts".to_owned()) } else { Ok(Ports { first, last }) }
}

pub(super) fn interfaces(text: &str) -> Result<Interfaces, String> {
    let (excluded, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
    let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
    let names: Vec<_> = text.split(',').map(|name| name.trim().to_owned()).collect();
    if names.iter().any(String::is_empty) {
        return Err("a name is missing".to_owned());
    }
    Ok(Interfaces { names, excluded, exact })
}

/// `host:port` or `host:port-port`; an IPv6 address is in brackets.
pub(super) fn address(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').ok_or("the port is missing")?;
    ports(port)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if bare.unwrap_or(host).is_empty() {
        return Err("the host is missing".to_owned());
    }
    if bare.is_none() && host.contains(':') {
        return Err("an IPv6 address needs brackets".to_owned());
    }
    Ok(text.to_owned())
}

pub(super) fn secret(text: &str) -> Result<Secret, String> {
    if text.len() > SECRET_BYTES_MAX || text.contains('\0') {
        return Err(format!("a secret has at most {SECRET_BYTES_MAX} bytes and no zero byte"));
    }
    Ok(Secret(text.to_owned()))
}

pub(super) fn file(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("file:") {
        None => Err("it does not start with file:".to_owned()),
        Some("") => Err("the path is missing".to_owned()),
        Some(path) => Ok(path.into()),
    }
}

/// The edit distance of two words.
pub(super) fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.bytes().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, milliseconds) in
            [("300s", 300_000), ("300", 300_000), ("1500ms", 1500), ("5m", 300_000), ("2 h", 7_200_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn interfaces_are_named_as_for_nccl() {
        for (text, interface, allowed) in [
            ("eth", "eth0", true),
            ("eth,ib", "ib3", true),
            ("eth", "lo", false),
            ("^docker,lo", "docker0", false),
            ("^docker,lo", "eth0", true),
            ("=eth0", "eth01", false),
            ("=eth0", "eth0", true),
            ("^=eth0", "eth0", false),
            ("^=eth0", "eth01", true),
        ] {
            assert_eq!(interfaces(text).unwrap().allows(interface), allowed, "{text} {interface}");
        }
        assert!(Interfaces::default().allows("lo"));
    }

    #[test]
    fn ports_and_addresses() {
        assert_eq!(ports("20000-20100"), Ok(Ports { first: 20000, last: 20100 }));
        assert_eq!(ports("7"), Ok(Ports { first: 7, last: 7 }));
        assert!(ports("1-70000").is_err());
        for (text, right) in
            [("a:1", true), ("[::1]:29500", true), ("::1:29500", false), (":5", false), ("a:b", false)]
        {
            assert_eq!(address(text).is_ok(), right, "{text}");
        }
    }

    #[test]
    fn distances() {
        for (one, other, wanted) in [("", "ab", 2), ("kitten", "sitting", 3), ("same", "same", 0)] {
            assert_eq!(distance(one, other), wanted);
        }
    }
}
