//! Robust least squares: Levenberg-Marquardt steps on the logarithms of the constants, with rows weighted so that the sum approximates
//! that of absolute errors, and a prior around each constant's start.

use weftlink_sim::Constants;
use weftlink_sim::constants::{Origin, TABLE};

const ITERATIONS_MAX: usize = 40;
/// Step of the logarithm for numerical derivatives.
const STEP: f64 = 0.01;
/// Errors below this, in units of sigma, count squared.
const CLOSE: f64 = 0.25;
/// Maximum distance of a constant from its start, in spreads.
const SPREADS_MAX: f64 = 3.0;

/// The constants with the smallest loss. `weights[i]` belongs to the i-th residual.
pub(crate) fn fit(weights: &[f64], residuals: impl Fn(&Constants) -> Vec<f64>) -> Constants {
    let free: Vec<(usize, f64, f64)> = TABLE
        .iter()
        .enumerate()
        .filter_map(|(index, constant)| match constant.origin {
            Origin::Fitted { start, spread } => Some((index, start, spread)),
            Origin::Nccl | Origin::Set => None,
        })
        .collect();
    let at = |moves: &[f64]| {
        let mut constants = Constants::start();
        for (&(index, start, spread), by) in free.iter().zip(moves) {
            *constants.at_mut(index) = start * libm::exp(by * spread);
        }
        constants
    };
    let loss = |residuals: &[f64], moves: &[f64]| {
        let rows: f64 =
            residuals.iter().zip(weights).map(|(residual, weight)| weight * robust(*residual)).sum();
        rows + 0.5 * moves.iter().map(|by| by * by).sum::<f64>()
    };
    let mut moves = vec![0.0; free.len()];
    let mut current = residuals(&at(&moves));
    let mut least = loss(&current, &moves);
    let mut damping = 1e-2;
    for _ in 0..ITERATIONS_MAX {
        let columns: Vec<Vec<f64>> = (0..free.len())
            .map(|index| {
                let step = STEP / free[index].2;
                let mut moved = moves.clone();
                moved[index] += step;
                residuals(&at(&moved))
                    .iter()
                    .zip(&current)
                    .map(|(after, before)| (after - before) / step)
                    .collect()
            })
            .collect();
        let pulls: Vec<f64> =
            current.iter().zip(weights).map(|(residual, weight)| weight * pull(*residual)).collect();
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
    for _ in 0..ITERATIONS_MAX {
        let before = least;
        for index in 0..free.len() {
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

/// Loss of an error: about its absolute value, quadratic near 0.
fn robust(residual: f64) -> f64 {
    (residual * residual + CLOSE * CLOSE).sqrt() - CLOSE
}

/// Weight that makes the square of an error cost as much as [`robust`].
fn pull(residual: f64) -> f64 {
    1.0 / (residual * residual + CLOSE * CLOSE).sqrt()
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
