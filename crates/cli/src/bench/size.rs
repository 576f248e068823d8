//! Sizes as nccl-tests takes them: `64K`, `128M` and `1G` are powers of 1024. All that [`Bytes`] reads is a size too.

use weftlink_fabric::bytes::Bytes;

/// Reads a size.
pub(super) fn size(text: &str) -> Result<Bytes, String> {
    let binary = text.ends_with(['K', 'M', 'G', 'k', 'm', 'g']);
    let text = if binary { format!("{text}iB") } else { text.to_owned() };
    text.parse().map_err(|_| match is_number_of_bytes(&text) {
        true => "this is too large".to_owned(),
        false => "this is not a size; write 8, 64K, 64KiB, 25MB or 1G".to_owned(),
    })
}

/// Whether there is a number before a unit. One that is no size all the same is too large.
fn is_number_of_bytes(text: &str) -> bool {
    let text = text.trim();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = &text[..text.len() - unit.len()];
    number.parse::<f64>().is_ok() && format!("1{unit}").parse::<Bytes>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_of_nccl_tests_are_binary() {
        for (text, bytes) in [
            ("8", 8),
            ("64K", 64 << 10),
            ("128M", 128 << 20),
            ("1G", 1 << 30),
            ("1.5g", 3 << 29),
            ("64KiB", 64 << 10),
            ("25MB", 25_000_000),
        ] {
            assert_eq!(size(text), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn too_large_is_told_from_nonsense() {
        for text in ["99999999TB", "99999999999999999999", "99999999999999G", "9999999999.5 TB"] {
            assert_eq!(size(text), Err("this is too large".to_owned()), "{text}");
        }
        for text in ["", "lots", "G", "1Gb", "1KG", "1.2.3", "-1", "-1G", "1 parsec", "."] {
            assert!(size(text).is_err_and(|told| told.starts_with("this is not a size")), "{text}");
        }
    }
}
