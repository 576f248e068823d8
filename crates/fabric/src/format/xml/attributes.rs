//! Attribute values by NCCL's rules: numbers end where the digits do, and only a bus id can be malformed.

use super::assumed_pcie;
use super::elements::Element;
use crate::catalog::links;
use crate::device::{Attributes, PciClass};
use crate::link::{LinkKind, LinkSpec};

impl<'a> Element<'a> {
    /// The text of an attribute.
    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        self.attributes.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    /// An attribute as a number.
    pub(super) fn number(&self, name: &str) -> Option<i64> {
        self.text(name).map(leading_number)
    }

    /// An attribute as a number, clamped to 32 bits.
    pub(super) fn small_number(&self, name: &str) -> Option<i32> {
        self.number(name).map(|n| n.clamp(i32::MIN.into(), i32::MAX.into()) as i32)
    }

    /// The attributes that `known` does not accept, in the file's order.
    pub(super) fn others(&self, known: impl Fn(&str) -> bool) -> Attributes {
        self.attributes
            .iter()
            .filter(|(key, _)| !known(key))
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect()
    }
}

/// The number at the start of a text, as C's `strtol` reads it with base 0: `0x1f`, `010` (octal), `-1`; otherwise 0.
pub(super) fn leading_number(text: &str) -> i64 {
    let text = text.trim_ascii_start();
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.get(..2).map(str::to_ascii_lowercase);
    let (radix, digits) = if lower.as_deref() == Some("0x") {
        (16, &digits[2..])
    } else if digits.starts_with('0') {
        (8, digits)
    } else {
        (10, digits)
    };
    let value = digits
        .chars()
        .map_while(|c| c.to_digit(radix))
        .fold(0_i64, |sum, digit| sum.saturating_mul(radix.into()).saturating_add(digit.into()));
    if negative { -value } else { value }
}

/// The hash of a host: hexadecimal, with or without `0x`.
pub(super) fn hash(text: &str) -> u64 {
    let text = text.trim_ascii_start();
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    digits
        .chars()
        .map_while(|c| c.to_digit(16))
        .fold(0_u64, |sum, digit| sum.saturating_mul(16).saturating_add(digit.into()))
}

/// A class code. NCCL compares leading digits only, so `0x03` is a valid class too.
pub(super) fn class(text: &str) -> Option<PciClass> {
    let digits = text.strip_prefix("0x")?;
    if digits.is_empty() || digits.len() > 6 || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
        return None;
    }
    let value = u32::from_str_radix(digits, 16).ok()?;
    Some(PciClass(value << (4 * (6 - digits.len()))))
}

/// The link above a PCI function.
pub(super) fn pci_link(element: &Element<'_>) -> LinkSpec {
    let width =
        element.number("link_width").filter(|n| [1, 2, 4, 8, 12, 16, 32].contains(n)).map_or(16, |n| n as u8);
    match element.text("link_speed").and_then(generation) {
        Some(generation) => links::pcie(generation, width),
        None => assumed_pcie(width),
    }
}

/// True if writing the link reproduces this attribute, so that its text need not be kept.
pub(super) fn follows_from_link(name: &str, value: &str, link: &LinkSpec) -> bool {
    let LinkKind::Pcie { generation, width } = link.kind else {
        return false;
    };
    match name {
        "link_speed" => link.nominal.is_some() && value == speed_text(generation),
        "link_width" => value.parse() == Ok(width),
        _ => false,
    }
}

/// The transfer rate of a PCIe generation, as the kernel writes it.
pub(super) fn speed_text(generation: u8) -> &'static str {
    match generation {
        1 => "2.5 GT/s PCIe",
        2 => "5.0 GT/s PCIe",
        3 => "8.0 GT/s PCIe",
        4 => "16.0 GT/s PCIe",
        5 => "32.0 GT/s PCIe",
        _ => "64.0 GT/s PCIe",
    }
}

/// The generation with a transfer rate: `32.0 GT/s PCIe` and `32 GT/s` are both 5.
fn generation(speed: &str) -> Option<u8> {
    let end = speed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(speed.len());
    let (number, unit) = speed.split_at(end);
    if !unit.trim_ascii_start().starts_with("GT/s") {
        return None;
    }
    let number = match number.split_once('.') {
        Some((whole, fraction)) if fraction.chars().all(|c| c == '0') => whole,
        _ => number,
    };
    match number {
        "2.5" => Some(1),
        "5" => Some(2),
        "8" => Some(3),
        "16" => Some(4),
        "32" => Some(5),
        "64" => Some(6),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_parse_as_in_c() {
        for (text, number) in [
            ("0x1f", 31),
            ("010", 8),
            ("-1", -1),
            ("1.5x", 1),
            ("", 0),
            ("abc", 0),
            (" 7", 7),
            ("99999999999999999999", i64::MAX),
            ("-99999999999999999999", -i64::MAX),
        ] {
            assert_eq!(leading_number(text), number, "{text}");
        }
        assert_eq!(hash("0xff"), 255);
        assert_eq!(hash("ff"), 255);
    }

    #[test]
    fn speeds_read_in_every_spelling() {
        for (text, expected) in [
            ("2.5 GT/s PCIe", Some(1)),
            ("5 GT/s", Some(2)),
            ("8.0 GT/s PCIe", Some(3)),
            ("16.0 GT/s", Some(4)),
            ("32 GT/s PCIe/s", Some(5)),
            ("64.0 GT/s PCIe", Some(6)),
            ("128.0 GT/s PCIe", None),
            ("Unknown", None),
            ("", None),
            ("8", None),
        ] {
            assert_eq!(generation(text), expected, "{text}");
        }
        for known in 1..=6 {
            assert_eq!(generation(speed_text(known)), Some(known));
        }
    }

    #[test]
    fn classes_read_by_their_leading_digits() {
        assert_eq!(class("0x030200"), Some(PciClass::GPU));
        assert_eq!(class("0x03"), Some(PciClass(0x03_00_00)));
        for text in ["", "0x", "030200", "0x0302000", "0xzz"] {
            assert_eq!(class(text), None, "{text}");
        }
    }
}
