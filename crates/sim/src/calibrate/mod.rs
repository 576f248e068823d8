//! Calibration: the constants of one machine, from its own measurements.
//!
//! The shipped constants are those of machines like it. A calibration starts there and moves them as far as the measurements ask, against a
//! prior as wide as the constants differ between machines: a constant on which no measurement depends stays where it is. All calls of a
//! table and band count as one observation, because the model errs in the same way on all of them. Like the shipped fit it multiplies the
//! closed form by the ratio of execution to closed form, which is close to one.

pub mod file;
pub mod least_squares;
pub mod log;
pub mod outliers;

use std::collections::BTreeMap;

use weftlink_fabric::Fabric;
use weftlink_plan::cost::Placement;

use crate::accuracy::{BANDS, band};
use crate::constants::{Constants, TABLE};
use crate::corrections::{Calibrated, Corrections};
use crate::estimate::Machine;
use crate::execute::{ExecuteError, Runner, closed_forms_of_weft};
use crate::host::{self, Hosts};
use crate::library::predict_on;
use crate::published::Row;
use crate::setup::{Library, Operation, Setup};
use least_squares::{Aim, Free, fit, fitted_constants, host_constants, undetermined};

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

/// The errors in each band of sizes, as logarithms, that are not followed: tables of one machine differ by that much from each other.
const SLACK: [f64; BANDS.len()] = [0.02, 0.05, 0.1, 0.1];

/// The scale of errors beyond that. Above 64 KiB the collectives of one machine err differently, so measurements of one say little about
/// another. These values did best of two dozen by `fit -- calibrate`, on the open sites.
const SIGMA: [f64; BANDS.len()] = [0.03, 0.4, 0.4, 0.2];

/// The part of their variance that latencies have in common: a machine whose calls take longer to launch has slower hops, too.
const LATENCIES_COMMON: f64 = 0.9;

/// Errors above this, in units of their scale, count by their absolute value.
const CLOSE: f64 = 2.0;

/// A calibrated machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// All constants.
    pub constants: Constants,
    /// Those on which the measurements depend, as they were before.
    pub free: Vec<Free>,
    /// For each of them, the part of its spread that the measurements leave undetermined: 1 if they say nothing.
    pub undetermined: Vec<f64>,
    /// What the constants leave of the errors, by collective.
    pub corrections: Corrections,
}

impl Fitted {
    /// What predictions of the machine rest on.
    pub fn calibrated(&self) -> Calibrated {
        Calibrated { constants: self.constants.clone(), corrections: self.corrections.clone() }
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
                done.map(|done| done.map_or(f64::NAN, |execution| execution.time.us())).collect()
            }
            Self::Cores(hosts) => {
                let time = |(operation, bytes): &(Operation, u64)| {
                    let call = host::execute(constants, hosts, *operation, *bytes);
                    call.map_or(f64::NAN, |call| call.time.us())
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
                closed_forms_of_weft(&Placement::with(&on.1, constants), calls)
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

/// The constants of the machine that calls were measured on; `base` are those of machines like it.
pub fn calibrate(base: &Constants, places: &[Place], measured: &[Measured]) -> Fitted {
    let chosen = thin(measured);
    let forms = |constants: &Constants, measured: &[Measured]| {
        each(places, measured, |place, calls| place.forms(constants, calls))
    };
    let start = forms(base, &chosen);
    let chosen: Vec<Measured> =
        chosen.into_iter().zip(&start).filter(|(_, time)| time.is_finite()).map(|(call, _)| call).collect();
    let weights = weigh(&chosen);
    let free = free(base, |constants| forms(constants, &chosen));
    let is_fast = places.iter().all(Place::has_fast_form);
    let searches = if is_fast { least_squares::ITERATIONS_MAX } else { SEARCHES_SLOW };
    let aim = Aim { weights: &weights, close: CLOSE, searches };
    let ratios = |constants: &Constants| -> Vec<f64> {
        let executed = predict(constants, places, &chosen);
        let times = executed.into_iter().zip(forms(constants, &chosen));
        times.map(|(executed, form)| if executed.is_finite() { executed / form } else { 1.0 }).collect()
    };
    let errors = |constants: &Constants, ratios: &[f64]| -> Vec<(f64, usize)> {
        let times = forms(constants, &chosen).into_iter().zip(ratios).zip(&chosen);
        times
            .map(|((form, ratio), call)| (libm::log(form * ratio / call.time_us), band(call.bytes)))
            .collect()
    };
    let mut constants = base.clone();
    for _ in 0..ROUNDS {
        let ratios = ratios(&constants);
        constants = fit(base, &free, aim, |constants| {
            let beyond = |(error, band): (f64, usize)| {
                (error.abs() - SLACK[band]).max(0.0).copysign(error) / SIGMA[band]
            };
            errors(constants, &ratios).into_iter().map(beyond).collect()
        });
    }
    // An error within the slack moves nothing, but that it is small says something.
    let ratios = ratios(&constants);
    let undetermined = undetermined(&constants, &free, &weights, |constants| {
        let known = |(error, band): (f64, usize)| error / libm::hypot(SLACK[band], SIGMA[band]);
        errors(constants, &ratios).into_iter().map(known).collect()
    });
    let after = predict(&constants, places, measured);
    let ratios = measured.iter().zip(after).filter_map(|(call, time_us)| match &places[call.place] {
        Place::Gpus(on) => Some((&on.0, call.operation, call.bytes, call.time_us / time_us)),
        Place::Cores(_) => None,
    });
    let corrections = Corrections::of(base, ratios);
    Fitted { constants, free, undetermined, corrections }
}

/// The constants on which the times depend.
fn free(base: &Constants, times: impl Fn(&Constants) -> Vec<f64>) -> Vec<Free> {
    let before = times(base);
    let depends = |index: usize| {
        [0.9, 1.1].iter().any(|by| {
            let mut moved = base.clone();
            *moved.at_mut(index) *= by;
            times(&moved) != before
        })
    };
    let free = fitted_constants().into_iter().chain(host_constants()).filter(|free| depends(free.index));
    let common = |free: &Free| if TABLE[free.index].unit == "us" { LATENCIES_COMMON } else { 0.0 };
    free.map(|free| Free { start: base.at(free.index), common: common(&free), ..free }).collect()
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
