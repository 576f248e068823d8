//! The expected error of a prediction: the error on machines whose measurements were left out of the fit.

use super::{BANDS, Class, Summary};

const fn of(tables: usize, median: f64, ninetieth: f64) -> Summary {
    Summary { tables, median, ninetieth }
}

include!("table.rs");

/// The expected error in one of [`BANDS`] for a class of machines, or over all classes. A `band` past the last counts as the last. With
/// few tables ([`Summary::tables`]) the expectation itself is uncertain.
pub fn expected(class: Option<Class>, band: usize) -> Summary {
    let row =
        class.map_or(0, |class| 1 + Class::ALL.iter().position(|other| *other == class).unwrap_or_default());
    LEFT_OUT[row][band.min(BANDS.len() - 1)]
}
