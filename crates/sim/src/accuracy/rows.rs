//! Executes rows of measurements.

use rustc_hash::FxHashMap;

use crate::corrections::Calibrated;
use crate::execute::{ExecuteError, Runner};
use crate::library::predict;
use crate::published::Row;
use crate::setup::{Operation, Setup};

/// Executes every row. Rows of one setup share its fabric, and a repeated call is executed once. Calls `progress` with the number of
/// finished rows.
pub fn execute_rows(
    by: &Calibrated,
    rows: &[Row],
    progress: &mut dyn FnMut(usize),
) -> Vec<Result<f64, ExecuteError>> {
    let mut times: Vec<Option<Result<f64, ExecuteError>>> = vec![None; rows.len()];
    let mut done = 0;
    for group in by_setup(rows) {
        for (index, time) in group.iter().zip(execute(by, rows, &group)) {
            times[*index] = Some(time);
        }
        done += group.len();
        progress(done);
    }
    times.into_iter().flatten().collect()
}

/// Predicted microseconds of every row. A row that cannot be executed gets the time of the closed form; a row whose forced algorithm is
/// impossible gets the time of the library's own choice.
pub fn predict_rows(by: &Calibrated, rows: &[Row], progress: &mut dyn FnMut(usize)) -> Vec<f64> {
    let executed = execute_rows(by, rows, progress);
    let predicted = executed.into_iter().zip(rows).map(|(time, row)| {
        let closed = |setup: &Setup| {
            let found = predict(&by.constants, setup, row.operation, row.bytes)?;
            Some(found.estimate.total_us()).filter(|time| time.is_finite())
        };
        let free = || closed(&Setup { algorithm: None, protocol: None, ..row.setup.clone() });
        let executed = time.ok().filter(|time| time.is_finite());
        executed.or_else(|| closed(&row.setup)).or_else(free).unwrap_or(f64::NAN)
    });
    predicted.collect()
}

/// Indices of rows grouped by setup, in order of first appearance: units of work for threads.
pub fn by_setup(rows: &[Row]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        // Rows of a table are adjacent: search from the last group.
        match groups.iter_mut().rev().find(|group| rows[group[0]].setup == row.setup) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

/// Executes the rows of one setup.
fn execute(by: &Calibrated, rows: &[Row], group: &[usize]) -> Vec<Result<f64, ExecuteError>> {
    let Some(first) = group.first() else { return Vec::new() };
    let runner = match Runner::new(&by.constants, &rows[*first].setup) {
        Ok(runner) => runner.corrected_by(&by.corrections),
        Err(error) => return vec![Err(error); group.len()],
    };
    let mut calls: Vec<(Operation, u64)> = Vec::new();
    let mut known: FxHashMap<(Operation, u64), usize> = FxHashMap::default();
    let places: Vec<usize> = group
        .iter()
        .map(|index| {
            let call = (rows[*index].operation, rows[*index].bytes);
            *known.entry(call).or_insert_with(|| {
                calls.push(call);
                calls.len() - 1
            })
        })
        .collect();
    let done: Vec<Result<f64, ExecuteError>> = runner
        .execute_each(&calls)
        .into_iter()
        .map(|done| done.map(|execution| execution.time.us()))
        .collect();
    places.into_iter().map(|place| done[place].clone()).collect()
}
