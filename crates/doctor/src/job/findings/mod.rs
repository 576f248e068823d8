//! The findings of a job.

mod data_parallel;
mod exposed;
mod imbalance;
mod prediction;
mod slow_group;
mod small_calls;

use super::matching::Matching;
use super::{Job, Summary};
use crate::finding::Outcome;

/// What findings look at.
pub(super) struct Case<'a> {
    pub(super) job: &'a Job,
    pub(super) matched: &'a Matching,
    pub(super) summary: &'a Summary,
}

/// One finding.
pub(super) struct JobFinding {
    /// Its name in reports.
    pub(super) id: &'static str,
    /// Looks for it. Nothing is returned where it does not apply.
    pub(super) run: fn(&Case<'_>) -> Vec<Outcome>,
}

/// All findings.
pub(super) const ALL: [JobFinding; 6] = [
    JobFinding { id: data_parallel::ID, run: data_parallel::run },
    JobFinding { id: imbalance::ID, run: imbalance::run },
    JobFinding { id: small_calls::ID, run: small_calls::run },
    JobFinding { id: exposed::ID, run: exposed::run },
    JobFinding { id: slow_group::ID, run: slow_group::run },
    JobFinding { id: prediction::ID, run: prediction::run },
];

/// A share as a percentage.
fn percent(share: f64) -> String {
    match share * 100.0 {
        small if small > 0.0 && small < 1.0 => "less than 1 %".to_owned(),
        percent => format!("{percent:.0} %"),
    }
}

/// Microseconds with a unit that keeps three digits readable.
fn time(us: f64) -> String {
    match us {
        _ if us < 999.5 => format!("{us:.0} us"),
        _ if us < 999_500.0 => format!("{:.1} ms", us / 1e3),
        _ => format!("{:.1} s", us / 1e6),
    }
}
