//! What all ranks of a group must take for granted alike, by name, beside the version of the protocol.

/// What this build of Weft brings along.
pub(super) fn of_this_build() -> impl Iterator<Item = (String, String)> {
    let order = if cfg!(target_endian = "little") { "little-endian" } else { "big-endian" };
    let terms = [("version of Weft", env!("CARGO_PKG_VERSION")), ("order of bytes", order)];
    terms.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()))
}
