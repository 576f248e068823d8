//! Quantiles of measurements.

/// A quantile, interpolated between neighbours; NaN without values.
pub fn quantile(mut values: Vec<f64>, part: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    values.sort_by(f64::total_cmp);
    let place = part * (values.len() - 1) as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    values[low] + (values[high] - values[low]) * (place - place.floor())
}

/// A quantile of ascending values with weights: the value up to which that part of all weight lies. NaN without weight.
pub(crate) fn weighted_quantile(values: &[(f64, f64)], part: f64) -> f64 {
    let wanted = part * values.iter().map(|(_, weight)| weight).sum::<f64>();
    let mut below = 0.0;
    let mut last = f64::NAN;
    for (value, weight) in values.iter().filter(|(_, weight)| *weight > 0.0) {
        (below, last) = (below + weight, *value);
        if below >= wanted {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(vec![3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(quantile(vec![1.0, 2.0], 0.5), 1.5);
        assert!((quantile((0..11).map(f64::from).collect(), 0.9) - 9.0).abs() < 1e-12);
        assert!(quantile(vec![], 0.5).is_nan());
    }

    #[test]
    fn weights_move_quantiles() {
        assert_eq!(weighted_quantile(&[(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)], 0.5), 2.0);
        assert_eq!(weighted_quantile(&[(1.0, 1.0), (2.0, 1.0), (3.0, 5.0)], 0.5), 3.0);
        assert_eq!(weighted_quantile(&[(1.0, 1.0), (3.0, 0.0)], 0.9), 1.0);
        assert!(weighted_quantile(&[(1.0, 0.0)], 0.5).is_nan());
    }
}
