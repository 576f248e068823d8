//! Calibration: the constants of one machine, from its own measurements.
//!
//! The shipped constants are those of machines like it. A calibration starts there and moves them as far as the measurements ask, against a
//! prior as wide as the constants differ between machines: a constant on which no measurement depends stays where it is, and one that is
//! measured twenty times ends where the measurements are. Like the shipped fit it multiplies the closed form by the ratio of execution to
//! closed form, which is close to one.

pub mod file;
pub mod least;
pub mod log;
pub mod outliers;

use std::collections::BTreeMap;

use weftlink_fabric::Fabric;
use weftlink_plan::choose::Chooser;
use weftlink_plan::cost::Placement;

use crate::accuracy::{BANDS, band};
use crate::constants::Constants;
use crate::estimate::Machine;
use crate::execute::{ExecuteError, Runner};
use crate::host::{self, Hosts};
use crate::library::predict_on;
use crate::published::Row;
use crate::setup::{Library, Operation, Setup};
use least::{Aim, Fit, Free};

/// Rounds of fitting and execution.
const ROUNDS: usize = 2;

/// Searches along each constant where a closed form takes milliseconds, or there is none.
const SEARCHES_SLOW: usize = 2;

/// Maximum number of calls of a table and band in a fit.
const CALLS_MAX: usize = 20;

/// Where calls were measured.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// A library on the GPUs of a fabric.
    Gpus(Box<(Setup, Fabric)>),
    /// A library on cores of hosts.
    Cores(Hosts),
}

/// A measured call.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The machine and library: an index into a list of places.
    pub place: usize,
    /// The table it belongs to: calls of one table share its weight.
    pub table: usize,
    /// The operation.
    pub operation: Operation,
    /// Its size, as nccl-tests counts it.
    pub bytes: u64,
    /// The measured time.
    pub time_us: f64,
}

/// How far measurements of one machine are trusted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trust {
    /// The errors in each band of sizes, as logarithms, that are not followed: tables of one machine differ by that much from each other.
    pub slack: [f64; BANDS.len()],
    /// The scale of errors beyond that.
    pub sigma: [f64; BANDS.len()],
    /// The error, as a part of sigma, from which on a call counts less.
    pub close: f64,
    /// How much wider the constants of one machine spread than the shipped fit lets them.
    pub spread: f64,
}

impl Trust {
    /// The values that did best on the open sites, of a dozen that were tried with `examples/fit`. Between 1 and 64 MiB, where the
    /// collectives of one machine differ most, measurements say little; above, only large errors are followed.
    pub const BEST: Self =
        Self { slack: [0.02, 0.05, 0.0, 0.05], sigma: [0.035, 0.06, 0.2, 0.05], close: 2.0, spread: 1.0 };

    /// An error in units of sigma.
    fn residual(&self, error: f64, bytes: u64) -> f64 {
        let band = band(bytes);
        (error.abs() - self.slack[band]).max(0.0).copysign(error) / self.sigma[band]
    }
}

impl Place {
    /// GPUs as a row of a file of measurements describes them.
    pub fn of_row(setup: &Setup) -> Result<Self, ExecuteError> {
        let fabric = setup.fabric()?;
        let seen = Setup::of(&fabric).map_err(|error| ExecuteError::Impossible(error.to_string()))?;
        Ok(Self::Gpus(Box::new((seen.with_settings_of(setup), fabric))))
    }

    /// Executed microseconds of calls; not a number for one that cannot be executed.
    fn times(&self, constants: &Constants, calls: &[(Operation, u64)]) -> Vec<f64> {
        match self {
            Self::Gpus(on) => {
                let (setup, fabric) = on.as_ref();
                let runner = Runner::on(constants, setup.clone(), fabric.clone());
                let done = runner.execute_each(calls).into_iter();
                done.map(|done| done.map_or(f64::NAN, |execution| execution.time.0 as f64 / 1e6)).collect()
            }
            Self::Cores(hosts) => {
                let time = |(operation, bytes): &(Operation, u64)| {
                    let call = host::execute(constants, hosts, *operation, *bytes);
                    call.map_or(f64::NAN, |call| call.time.0 as f64 / 1e6)
                };
                calls.iter().map(time).collect()
            }
        }
    }

    /// Whether the closed form takes microseconds.
    fn has_fast_form(&self) -> bool {
        let library = match self {
            Self::Gpus(on) => on.0.library,
            Self::Cores(hosts) => hosts.library,
        };
        matches!(library, Library::Nccl | Library::Rccl | Library::OneCcl)
    }

    /// The same by the closed form, for libraries that have one.
    fn forms(&self, constants: &Constants, calls: &[(Operation, u64)]) -> Vec<f64> {
        match self {
            Self::Gpus(on) if self.has_fast_form() => {
                let setup = &on.0;
                let machine = Machine::new(constants, setup);
                let time = |(operation, bytes): &(Operation, u64)| {
                    let found = predict_on(constants, &machine, setup, *operation, *bytes);
                    found.map_or(f64::NAN, |found| found.estimate.total_us())
                };
                calls.iter().map(time).collect()
            }
            Self::Gpus(on) if on.0.library == Library::Weft => {
                let (setup, fabric) = on.as_ref();
                let ground = Placement::with(fabric, constants);
                let mut choosers: Vec<(Operation, Chooser<'_, '_>)> = Vec::new();
                let mut time = |operation: Operation, bytes: u64| {
                    let at = choosers.iter().position(|(of, _)| *of == operation);
                    let at = match at {
                        Some(at) => at,
                        None => {
                            let collective = host::collective(operation, setup.ranks())?;
                            choosers.push((operation, Chooser::new(&collective, false, &ground)));
                            choosers.len() - 1
                        }
                    };
                    let (_, cost) = choosers[at].1.cheapest(bytes)?;
                    Some(cost.time().0 as f64 / 1e6)
                };
                calls.iter().map(|(operation, bytes)| time(*operation, *bytes).unwrap_or(f64::NAN)).collect()
            }
            _ => self.times(constants, calls),
        }
    }
}

/// The rows of a file as measured calls, with the machines they were measured on. Copies are not calls of a library.
pub fn of_rows<'r>(rows: impl Iterator<Item = &'r Row>) -> (Vec<Place>, Vec<Measured>) {
    let (mut setups, mut places, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    let mut tables: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows.filter(|row| !row.operation.is_copy()) {
        let place = setups.iter().rposition(|setup| *setup == &row.setup).or_else(|| {
            places.push(Place::of_row(&row.setup).ok()?);
            setups.push(&row.setup);
            Some(setups.len() - 1)
        });
        let Some(place) = place else { continue };
        let next = tables.len();
        let table = *tables.entry(&row.id).or_insert(next);
        calls.push(Measured {
            place,
            table,
            operation: row.operation,
            bytes: row.bytes,
            time_us: row.measured_us,
        });
    }
    (places, calls)
}

/// A time of each call, by one of the functions of places.
fn each(
    places: &[Place],
    measured: &[Measured],
    times: impl Fn(&Place, &[(Operation, u64)]) -> Vec<f64>,
) -> Vec<f64> {
    let mut all = vec![f64::NAN; measured.len()];
    for (number, place) in places.iter().enumerate() {
        let here: Vec<usize> = (0..measured.len()).filter(|index| measured[*index].place == number).collect();
        let calls: Vec<_> =
            here.iter().map(|index| (measured[*index].operation, measured[*index].bytes)).collect();
        for (index, time) in here.iter().zip(times(place, &calls)) {
            all[*index] = time;
        }
    }
    all
}

/// Predicted microseconds of calls.
pub fn predict(constants: &Constants, places: &[Place], measured: &[Measured]) -> Vec<f64> {
    each(places, measured, |place, calls| place.times(constants, calls))
}

/// The constants of the machine that calls were measured on, and those on which the calls depend; `base` are those of machines like it.
pub fn calibrate(
    base: &Constants,
    places: &[Place],
    measured: &[Measured],
    trust: &Trust,
) -> (Fit, Vec<Free>) {
    let chosen = thin(measured);
    let forms = |constants: &Constants, measured: &[Measured]| {
        each(places, measured, |place, calls| place.forms(constants, calls))
    };
    let start = forms(base, &chosen);
    let chosen: Vec<Measured> =
        chosen.into_iter().zip(&start).filter(|(_, time)| time.is_finite()).map(|(call, _)| call).collect();
    let weights = weigh(&chosen);
    let free = free(base, trust, |constants| forms(constants, &chosen));
    let is_fast = places.iter().all(Place::has_fast_form);
    let searches = if is_fast { least::ITERATIONS_MAX } else { SEARCHES_SLOW };
    let aim = Aim { weights: &weights, close: trust.close, searches };
    let mut fit = Fit { constants: base.clone(), undetermined: Vec::new() };
    for _ in 0..ROUNDS {
        let executed = predict(&fit.constants, places, &chosen);
        let ratios: Vec<f64> = executed
            .iter()
            .zip(forms(&fit.constants, &chosen))
            .map(|(executed, form)| if executed.is_finite() { executed / form } else { 1.0 })
            .collect();
        fit = least::fit(base, &free, aim, |constants| {
            let times = forms(constants, &chosen).into_iter().zip(&ratios).zip(&chosen);
            times
                .map(|((form, ratio), call)| {
                    trust.residual(libm::log(form * ratio / call.time_us), call.bytes)
                })
                .collect()
        });
    }
    (fit, free)
}

/// The constants on which the times depend.
fn free(base: &Constants, trust: &Trust, times: impl Fn(&Constants) -> Vec<f64>) -> Vec<Free> {
    let before = times(base);
    let depends = |index: usize| {
        [0.9, 1.1].iter().any(|by| {
            let mut moved = base.clone();
            *moved.at_mut(index) *= by;
            times(&moved) != before
        })
    };
    let free = least::table().into_iter().chain(least::hosts()).filter(|free| depends(free.index));
    free.map(|free| Free { start: base.at(free.index), spread: free.spread * trust.spread, ..free }).collect()
}

/// Few enough calls of each table and band.
fn thin(measured: &[Measured]) -> Vec<Measured> {
    let mut tables: BTreeMap<(usize, usize), Vec<&Measured>> = BTreeMap::new();
    for call in measured {
        tables.entry((call.table, band(call.bytes))).or_default().push(call);
    }
    tables
        .values()
        .flat_map(|calls| calls.iter().step_by(calls.len().div_ceil(CALLS_MAX)))
        .map(|call| (*call).clone())
        .collect()
}

/// The weight of each call: those of a table and band share one, and tables count as the square root of their number.
fn weigh(measured: &[Measured]) -> Vec<f64> {
    let mut calls: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for call in measured {
        *calls.entry((call.table, band(call.bytes))).or_default() += 1.0;
    }
    let mut tables = [0.0_f64; BANDS.len()];
    for (_, band) in calls.keys() {
        tables[*band] += 1.0;
    }
    let of = |call: &Measured| {
        let band = band(call.bytes);
        1.0 / calls[&(call.table, band)] / tables[band].sqrt()
    };
    measured.iter().map(of).collect()
}
