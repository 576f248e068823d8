//! Robust least squares: Levenberg-Marquardt steps on the logarithms of the constants, with rows weighted so that the sum approximates
//! that of absolute errors, and a prior around each constant's start.

use crate::constants::{Constants, Name, Origin, TABLE};

/// Maximum number of steps, and of searches that suffice for any fit.
pub const ITERATIONS_MAX: usize = 40;
/// Step of the logarithm for numerical derivatives.
const STEP: f64 = 0.01;
/// A typical spread of those that move together.
const SPREAD_ALL: f64 = 0.3;
/// Maximum size of a move, in spreads.
const SPREADS_MAX: f64 = 3.0;
/// How much constants of cores differ between hosts, as a fraction.
const HOSTS_SPREAD: f64 = 0.3;

/// A constant that a fit may move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Free {
    /// Its position in [`TABLE`].
    pub index: usize,
    /// Where the fit starts.
    pub start: f64,
    /// How far it may be expected from there, as a fraction.
    pub spread: f64,
    /// The part of that variance that it has in common with the others of which a part is common.
    pub common: f64,
}

/// What a fit minimises, and how long it tries.
#[derive(Clone, Copy, Debug)]
pub struct Aim<'w> {
    /// The weight of each residual.
    pub weights: &'w [f64],
    /// Errors above this, in units of sigma, count by their absolute value, and smaller ones squared.
    pub close: f64,
    /// Maximum number of searches along each constant, after the steps.
    pub searches: usize,
}

/// All fitted constants of the table, around physical values.
pub fn fitted_constants() -> Vec<Free> {
    let each = TABLE.iter().enumerate().filter_map(|(index, constant)| match constant.origin {
        Origin::Fitted { start, spread } => Some(Free { index, start, spread, common: 0.0 }),
        Origin::Nccl | Origin::Set => None,
    });
    each.collect()
}

/// Constants that the shipped fit does not move, because published measurements say nothing about them: those of cores and host memory.
pub fn host_constants() -> Vec<Free> {
    use Name::{
        ColdPart, CoreGBps, HostMemoryGBps, LineUs, MpiGBps, MpiMessageUs, SlotUs, TcpCoreGBps, TcpHopUs,
        TcpMessageUs,
    };
    let names = [
        HostMemoryGBps,
        LineUs,
        SlotUs,
        CoreGBps,
        ColdPart,
        MpiMessageUs,
        MpiGBps,
        TcpHopUs,
        TcpMessageUs,
        TcpCoreGBps,
    ];
    names
        .map(|name| {
            let (index, start) = (name as usize, TABLE[name as usize].value);
            Free { index, start, spread: HOSTS_SPREAD, common: 0.0 }
        })
        .to_vec()
}

/// The constants with the smallest loss; all but the free ones stay at their values in `base`.
pub fn fit(
    base: &Constants,
    free: &[Free],
    Aim { weights, close, searches }: Aim<'_>,
    residuals: impl Fn(&Constants) -> Vec<f64>,
) -> Constants {
    let at = |moves: &[f64]| moved(base, free, moves);
    let loss = |residuals: &[f64], moves: &[f64]| {
        let rows: f64 =
            residuals.iter().zip(weights).map(|(residual, weight)| weight * robust(*residual, close)).sum();
        rows + 0.5 * moves.iter().map(|by| by * by).sum::<f64>()
    };
    let mut moves = vec![0.0; free.len() + 1];
    let mut current = residuals(&at(&moves));
    let mut least = loss(&current, &moves);
    let mut damping = 1e-2;
    for _ in 0..ITERATIONS_MAX {
        let columns = derivatives(free, &moves, &current, |moves| residuals(&at(moves)));
        let pulls: Vec<f64> =
            current.iter().zip(weights).map(|(residual, weight)| weight * pull(*residual, close)).collect();
        let (matrix, gradient) = normal(&columns, &current, &pulls, &moves);
        let mut better = false;
        for _ in 0..8 {
            let mut damped = matrix.clone();
            for (index, row) in damped.iter_mut().enumerate() {
                row[index] *= 1.0 + damping;
            }
            let next: Vec<f64> = solve(damped, gradient.clone())
                .iter()
                .zip(&moves)
                .map(|(step, from)| (from - step).clamp(-SPREADS_MAX, SPREADS_MAX))
                .collect();
            let residuals = residuals(&at(&next));
            let sum = loss(&residuals, &next);
            if sum < least {
                better = least - sum > 1e-5 * least;
                (moves, current, least) = (next, residuals, sum);
                damping = (damping / 4.0).max(1e-6);
                break;
            }
            damping *= 4.0;
        }
        if !better {
            break;
        }
    }
    // The loss jumps where the library changes its choice, which derivatives do not show: search along each constant, too.
    let mut reach = 0.4;
    for _ in 0..searches {
        let before = least;
        for index in 0..moves.len() {
            for by in [reach, -reach] {
                let mut next = moves.clone();
                next[index] = (next[index] + by).clamp(-SPREADS_MAX, SPREADS_MAX);
                let sum = loss(&residuals(&at(&next)), &next);
                if sum < least {
                    (moves, least) = (next, sum);
                    break;
                }
            }
        }
        if before - least < 1e-4 * before {
            reach /= 2.0;
            if reach < 0.04 {
                break;
            }
        }
    }
    at(&moves)
}

/// For each free constant, the part of its spread that the data leaves undetermined: 1 if the data says nothing. The residuals are in units
/// of what is not known about them.
pub fn undetermined(
    fitted: &Constants,
    free: &[Free],
    weights: &[f64],
    residuals: impl Fn(&Constants) -> Vec<f64>,
) -> Vec<f64> {
    let free: Vec<Free> = free.iter().map(|free| Free { start: fitted.at(free.index), ..*free }).collect();
    let moves = vec![0.0; free.len() + 1];
    let current = residuals(fitted);
    let columns = derivatives(&free, &moves, &current, |moves| residuals(&moved(fitted, &free, moves)));
    let (matrix, _) = normal(&columns, &current, weights, &moves);
    let variance = |index: usize| {
        let mut of = vec![0.0; moves.len()];
        (of[index], of[free.len()]) = parts(&free[index]);
        let found = solve(matrix.clone(), of.clone());
        of.iter().zip(found).map(|(of, found)| of * found).sum::<f64>()
    };
    // Not a number, or just above 1 by rounding: the data says nothing.
    let part = |index| Some(variance(index)).filter(|part| (0.0..=1.0).contains(part)).unwrap_or(1.0).sqrt();
    (0..free.len()).map(part).collect()
}

/// The constants after moves, in spreads: one for each, and at the end one for what they have in common.
fn moved(base: &Constants, free: &[Free], moves: &[f64]) -> Constants {
    let mut constants = base.clone();
    let all = moves.last().copied().unwrap_or(0.0);
    for (free, by) in free.iter().zip(moves) {
        let (own, common) = parts(free);
        *constants.at_mut(free.index) = free.start * libm::exp((own * by + common * all) * free.spread);
    }
    constants
}

/// How a constant follows its own move and the common one.
fn parts(free: &Free) -> (f64, f64) {
    ((1.0 - free.common).sqrt(), free.common.sqrt())
}

/// The derivatives of all residuals by the moves of each constant.
fn derivatives(
    free: &[Free],
    moves: &[f64],
    current: &[f64],
    residuals: impl Fn(&[f64]) -> Vec<f64>,
) -> Vec<Vec<f64>> {
    let column = |index: usize| {
        let step = STEP / free.get(index).map_or(SPREAD_ALL, |free| free.spread);
        let mut moved = moves.to_vec();
        moved[index] += step;
        residuals(&moved).iter().zip(current).map(|(after, before)| (after - before) / step).collect()
    };
    (0..moves.len()).map(column).collect()
}

/// Loss of an error: about its absolute value, quadratic near 0.
fn robust(residual: f64, close: f64) -> f64 {
    (residual * residual + close * close).sqrt() - close
}

/// Weight that makes the square of an error cost as much as [`robust`].
fn pull(residual: f64, close: f64) -> f64 {
    1.0 / (residual * residual + close * close).sqrt()
}

fn normal(
    columns: &[Vec<f64>],
    residuals: &[f64],
    pulls: &[f64],
    moves: &[f64],
) -> (Vec<Vec<f64>>, Vec<f64>) {
    let count = columns.len();
    let mut matrix = vec![vec![0.0; count]; count];
    let mut gradient = vec![0.0; count];
    for one in 0..count {
        let pulled: Vec<f64> = columns[one].iter().zip(pulls).map(|(change, pull)| change * pull).collect();
        for other in 0..=one {
            let sum: f64 = pulled.iter().zip(&columns[other]).map(|(one, other)| one * other).sum();
            matrix[one][other] = sum;
            matrix[other][one] = sum;
        }
        matrix[one][one] += 1.0;
        gradient[one] = pulled.iter().zip(residuals).map(|(pulled, residual)| pulled * residual).sum::<f64>()
            + moves[one];
    }
    (matrix, gradient)
}

/// Gaussian elimination of a positive definite matrix.
fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let count = right.len();
    for pivot in 0..count {
        let (above, below) = matrix.split_at_mut(pivot + 1);
        let row = &above[pivot];
        for (offset, other) in below.iter_mut().enumerate() {
            let part = other[pivot] / row[pivot];
            for column in pivot..count {
                other[column] -= part * row[column];
            }
            right[pivot + 1 + offset] -= part * right[pivot];
        }
    }
    for pivot in (0..count).rev() {
        let known: f64 = (pivot + 1..count).map(|column| matrix[pivot][column] * right[column]).sum();
        right[pivot] = (right[pivot] - known) / matrix[pivot][pivot];
    }
    right
}
