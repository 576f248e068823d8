//! Planted defects, by which `make mutants` measures what the tests catch.
//!
//! `mutant!("name")` is `false` in every ordinary build, so the compiler drops it and what it guards. With the feature `mutants`,
//! which only that command turns on, it is true in a process whose environment has `WEFT_MUTANT=name`. All defects are
//! therefore in one build, and a test is run with one of them at a time; the processes that it starts inherit the choice.
//! `crates/comm/mutants.toml` says of each defect what it breaks and which tests should notice.

/// Whether a planted defect is switched on.
#[cfg(feature = "mutants")]
pub fn is_on(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("WEFT_MUTANT").ok()).as_deref() == Some(name)
}

/// Whether a planted defect is switched on: never in this build.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn is_on(_name: &str) -> bool {
    false
}

/// Whether this planted defect is switched on.
#[doc(hidden)]
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutants::is_on($name)
    };
}
