//! Sizes of calls, as the command prints them.

use weftlink_fabric::bytes::Bytes;

/// Bytes in binary units if that is a whole number.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(power, _)| bytes >> power > 0 && bytes.is_multiple_of(1 << power)) {
        Some((power, unit)) => format!("{} {unit}", bytes >> power),
        None => Bytes(bytes).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn powers_of_1024_are_whole_numbers() {
        assert_eq!([8, 65_536, 1_572_864, 8 << 30].map(size), ["8 B", "64 KiB", "1536 KiB", "8 GiB"]);
    }
}
