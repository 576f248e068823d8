//! Sizes as people write them.

use weftlink_fabric::bytes::Bytes;

/// Bytes in binary units if that is a whole number.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(power, _)| bytes >> power > 0 && bytes.is_multiple_of(1 << power)) {
        Some((power, unit)) => format!("{} {unit}", bytes >> power),
        None => Bytes(bytes).to_string(),
    }
}
