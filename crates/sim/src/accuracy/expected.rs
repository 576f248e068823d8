//! What error to expect of a prediction: that of machines whose measurements were left out when the constants were fitted.

use super::{BANDS, Class, Summary};

const fn of(tables: usize, median: f64, ninetieth: f64) -> Summary {
    Summary { tables, median, ninetieth }
}

include!("table.rs");

/// The error to expect in one of [`BANDS`] on a kind of machine, or over all kinds; the last band for whatever is above. Where there are few
/// tables it is itself not known well: how many there were is told.
pub fn expected(class: Option<Class>, band: usize) -> Summary {
    let row =
        class.map_or(0, |class| 1 + Class::ALL.iter().position(|other| *other == class).unwrap_or_default());
    LEFT_OUT[row][band.min(BANDS.len() - 1)]
}
