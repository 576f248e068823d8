//! The variables of this process. Other crates read them here, never through `std::env`, so that one place shows what is read.

use std::ffi::OsString;
use std::str::FromStr;

/// The value of a variable; nothing if it is not set.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The value of a variable as a number or another type; nothing if it is not set or is something else.
pub fn parsed<T: FromStr>(name: &str) -> Option<T> {
    variable(name)?.to_str()?.parse().ok()
}

/// The names of all variables that are set.
pub fn variable_names() -> impl Iterator<Item = OsString> {
    std::env::vars_os().map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read() {
        // Cargo sets it for every test.
        let package = variable("CARGO_PKG_NAME").unwrap();
        assert_eq!(package, "weftlink-knobs");
        assert!(variable_names().any(|name| name == "CARGO_PKG_NAME"));
        assert_eq!(parsed::<u32>("CARGO_PKG_VERSION_MAJOR"), Some(0));
        assert_eq!(parsed::<u32>("CARGO_PKG_NAME"), None);
        assert_eq!(variable("WEFT_TEST_NO_SUCH_VARIABLE"), None);
    }
}
