//! Planted defects, by which `make mutants` measures what the tests catch.
//!
//! `mutant!("name")` is `false` in every ordinary build, so the compiler drops it and what it guards. With the feature `mutants`,
//! which only that command turns on, it is true in a process whose environment has `WEFT_MUTANT=name`. All defects are
//! therefore in one build, and a test is run with one of them at a time; the processes that it starts inherit the choice.
//! `mutants.toml` says of each defect what it breaks and which tests should notice.

#[cfg(feature = "mutants")]
pub(crate) fn is_on(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("WEFT_MUTANT").ok()).as_deref() == Some(name)
}

/// Whether this planted defect is switched on.
#[cfg(feature = "mutants")]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutants::is_on($name)
    };
}

/// Whether this planted defect is switched on: never in this build.
#[cfg(not(feature = "mutants"))]
macro_rules! mutant {
    ($name:literal) => {
        false
    };
}
