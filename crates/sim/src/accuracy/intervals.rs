//! Intervals around predictions, from the errors on sites that were left out of the fit.
//!
//! For each class of machines and around each size, an interval spans quantiles of `ln(measured / predicted)`. A site counts once, however
//! many rows it has, because its rows are not independent; and rows of other classes count as a few sites more, because the quantiles of a
//! few sites are themselves uncertain. Two factors, one for each interval, then widen all of them such that they hold as often as they
//! say on sites that had no part in their quantiles.
//!
//! Sites that publish tables are alike, however: on 50 other systems, earlier predictions were off by more, above all for small calls.
//! Of these systems only the median error of each class and band is known (`ELSEWHERE`). By its definition half of them are within it,
//! so it is the inner interval. The outer one contains that of the left-out sites, and is at least twice the inner.

use super::{BANDS, Class};
use crate::quantile::weighted_quantile;

/// The sizes at which intervals are tabled, as powers of two. Between them they are interpolated, beyond them they stay the same.
pub const SIZES: [u32; 9] = [8, 11, 14, 17, 20, 23, 26, 29, 32];

/// How near a row's size must be to count in full, in powers of two.
const REACH: f64 = 2.0;

/// The sites as which the rows of other classes count.
const OTHERS: f64 = 2.0;

/// How often intervals shall hold: the inner and the outer.
const HOLD: [f64; 2] = [0.53, 0.91];

/// The lower and upper quantiles of the inner and of the outer interval.
const QUANTILES: [(f64, f64); 2] = [(0.25, 0.75), (0.05, 0.95)];

/// No interval is narrower than this on either side: what a repetition of a benchmark differs by.
const LEAST: f64 = 0.005;

/// Median errors `|predicted / measured - 1|` on 50 systems that are not in the file of measurements, by class and band.
const ELSEWHERE: [(Class, [f64; BANDS.len()]); 4] = [
    (Class::NvlinkNode, [0.25, 0.23, 0.09, 0.016]),
    (Class::Rdma, [0.57, 0.37, 0.16, 0.044]),
    (Class::Slingshot, [0.33, 0.34, 0.39, 0.32]),
    (Class::Tcp, [0.20, 0.24, 0.34, 0.35]),
];

/// The sizes, as powers of two, at which those errors count alone: the middle of each band.
const MIDDLES: [f64; BANDS.len()] = [10.0, 18.0, 23.0, 29.0];

/// The outer interval is at least this many times the inner.
const OUTER_LEAST: f64 = 2.0;

/// How much wider an interval is where the [evidence](super::evidence) does not reach: a judgement, without measurements by definition.
pub const WIDER: f64 = 1.5;

/// A prediction by constants that were fitted without the row's site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// The number of the site.
    pub site: usize,
    /// The class of the machine.
    pub class: Class,
    /// Bytes of the call.
    pub bytes: u64,
    /// `ln(measured / predicted)`.
    pub log_ratio: f64,
}

/// An interval, as logarithms of the measured time over the predicted one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The interval that holds for half of all machines.
    pub half: (f64, f64),
    /// The interval that holds for nine of ten.
    pub most: (f64, f64),
}

/// The spreads of each class, at each of [`SIZES`].
pub type Spreads = [[Spread; SIZES.len()]; Class::ALL.len()];

/// A prediction's intervals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Intervals {
    /// Half of all machines like this are expected between these times.
    pub half_us: (f64, f64),
    /// Nine of ten.
    pub most_us: (f64, f64),
}

impl Spread {
    fn bounds(&self) -> [(f64, f64); 2] {
        [self.half, self.most]
    }

    fn of(bounds: [(f64, f64); 2]) -> Self {
        let [half, most] = bounds;
        // Wider on both sides.
        Self { half, most: (most.0.min(half.0), most.1.max(half.1)) }
    }

    /// The spread wider by a factor.
    #[must_use]
    pub fn wider(self, by: f64) -> Self {
        self.scaled([by; 2])
    }

    fn scaled(self, by: [f64; 2]) -> Self {
        let bounds = self.bounds();
        Self::of([0, 1].map(|at| (bounds[at].0 * by[at], bounds[at].1 * by[at])))
    }

    /// The intervals around a time.
    pub fn around(&self, time_us: f64) -> Intervals {
        let times = |(low, high): (f64, f64)| (time_us * libm::exp(low), time_us * libm::exp(high));
        Intervals { half_us: times(self.half), most_us: times(self.most) }
    }
}

/// The spread of a class at a size.
pub fn at(spreads: &Spreads, class: Class, bytes: u64) -> Spread {
    let of_class = &spreads[class as usize];
    let place = libm::log2(bytes.max(1) as f64);
    let sizes = SIZES.map(f64::from);
    let bound = |of: &dyn Fn(&Spread) -> f64| interpolated(&sizes, &of_class.each_ref().map(of), place);
    Spread {
        half: (bound(&|spread| spread.half.0), bound(&|spread| spread.half.1)),
        most: (bound(&|spread| spread.most.0), bound(&|spread| spread.most.1)),
    }
}

/// The spreads from residuals.
pub fn spreads(residuals: &[Residual]) -> Spreads {
    without(residuals, &[])
}

/// The spreads from the residuals of all but some sites.
fn without(residuals: &[Residual], left_out: &[usize]) -> Spreads {
    let factors = factors(&needed(residuals, left_out));
    let mut spreads = raw(residuals, left_out).map(|of_class| of_class.map(|spread| spread.scaled(factors)));
    for (at, size) in SIZES.iter().enumerate() {
        let mut widened = Vec::new();
        for (class, errors) in ELSEWHERE {
            let error = interpolated(&MIDDLES, &errors, f64::from(*size));
            // The bounds of `ln(measured / predicted)` within that error.
            let half = (-libm::log(1.0 + error), -libm::log(1.0 - error));
            let spread = &mut spreads[class as usize][at];
            widened.push(libm::log((half.1 - half.0) / (spread.half.1 - spread.half.0)));
            let most = (spread.most.0.min(OUTER_LEAST * half.0), spread.most.1.max(OUTER_LEAST * half.1));
            *spread = Spread::of([half, most]);
        }
        // A class without figures is taken to be as much wider as the others on average, but no narrower.
        let by = libm::exp(widened.iter().sum::<f64>() / widened.len() as f64).max(1.0);
        for class in Class::ALL {
            if ELSEWHERE.iter().all(|(known, _)| *known != class) {
                let spread = &mut spreads[class as usize][at];
                *spread = spread.wider(by);
            }
        }
    }
    spreads
}

/// A value at a place between others, which stays the same beyond them.
fn interpolated(places: &[f64], values: &[f64], at: f64) -> f64 {
    match places.iter().position(|place| *place >= at) {
        Some(0) => values[0],
        None => values[values.len() - 1],
        Some(after) => {
            let part = (at - places[after - 1]) / (places[after] - places[after - 1]);
            values[after - 1] + (values[after] - values[after - 1]) * part
        }
    }
}

/// How often both intervals hold for each site when neither its rows nor anything derived from them had a part in them, by class: site,
/// class, rows, and the shares of rows inside.
pub fn nested_coverage(residuals: &[Residual]) -> Vec<(usize, Class, usize, [f64; 2])> {
    let mut coverage = Vec::new();
    for site in sites(residuals) {
        let without = without(residuals, &[site]);
        for class in Class::ALL {
            let own: Vec<&Residual> =
                residuals.iter().filter(|row| (row.site, row.class) == (site, class)).collect();
            if own.is_empty() {
                continue;
            }
            let holds = |at_: usize| {
                let inside = own.iter().filter(|row| {
                    let (low, high) = at(&without, class, row.bytes).bounds()[at_];
                    (low..=high).contains(&row.log_ratio)
                });
                inside.count() as f64 / own.len() as f64
            };
            coverage.push((site, class, own.len(), [holds(0), holds(1)]));
        }
    }
    coverage
}

fn sites(residuals: &[Residual]) -> Vec<usize> {
    let mut sites: Vec<usize> = residuals.iter().map(|row| row.site).collect();
    sites.sort_unstable();
    sites.dedup();
    sites
}

/// The quantiles of the residuals of all but some sites.
fn raw(residuals: &[Residual], left_out: &[usize]) -> Spreads {
    let mut kept: Vec<&Residual> = residuals.iter().filter(|row| !left_out.contains(&row.site)).collect();
    kept.sort_by(|one, other| one.log_ratio.total_cmp(&other.log_ratio));
    let most = kept.iter().map(|row| row.site + 1).max().unwrap_or(0);
    let places: Vec<f64> = kept.iter().map(|row| libm::log2(row.bytes.max(1) as f64)).collect();
    let mut spreads = [[Spread { half: (0.0, 0.0), most: (0.0, 0.0) }; SIZES.len()]; Class::ALL.len()];
    for (at, size) in SIZES.iter().enumerate() {
        let near: Vec<f64> = places
            .iter()
            .map(|place| {
                let away = (place - f64::from(*size)) / REACH;
                libm::exp(-0.5 * away * away)
            })
            .collect();
        for class in Class::ALL {
            // Each site counts once, with its rows of the class; those of other classes share a few sites' weight.
            let mut sums = vec![[0.0_f64; 2]; most];
            for (row, near) in kept.iter().zip(&near) {
                sums[row.site][usize::from(row.class == class)] += near;
            }
            let others: f64 = sums.iter().map(|sum| sum[0].min(1.0)).sum();
            let shared = if others > 0.0 { OTHERS / others } else { 0.0 };
            let weighted: Vec<(f64, f64)> = kept
                .iter()
                .zip(&near)
                .map(|(row, near)| {
                    let is_own = row.class == class;
                    let weight = near / sums[row.site][usize::from(is_own)].max(1.0);
                    (row.log_ratio, if is_own { weight } else { shared * weight })
                })
                .collect();
            spreads[class as usize][at] = Spread::of(QUANTILES.map(|(low, high)| {
                (weighted_quantile(&weighted, low).min(-LEAST), weighted_quantile(&weighted, high).max(LEAST))
            }));
        }
    }
    spreads
}

/// For each row of all but some sites, its weight and by which factors the intervals of the other sites would have to be wider to contain it.
fn needed(residuals: &[Residual], without: &[usize]) -> Vec<(f64, [f64; 2])> {
    let mut needed = Vec::new();
    for site in sites(residuals).into_iter().filter(|site| !without.contains(site)) {
        let others: Vec<usize> = without.iter().copied().chain([site]).collect();
        let spreads = raw(residuals, &others);
        let own: Vec<&Residual> = residuals.iter().filter(|row| row.site == site).collect();
        for row in &own {
            let bounds = at(&spreads, row.class, row.bytes).bounds();
            let by = bounds.map(
                |(low, high)| {
                    if row.log_ratio < 0.0 { row.log_ratio / low } else { row.log_ratio / high }
                },
            );
            // A site with many rows counts more than one with a few, but not as many times.
            needed.push((1.0 / (own.len() as f64).sqrt(), by));
        }
    }
    needed
}

fn factors(needed: &[(f64, [f64; 2])]) -> [f64; 2] {
    [0, 1].map(|at| {
        let mut all: Vec<(f64, f64)> = needed.iter().map(|(weight, by)| (by[at], *weight)).collect();
        all.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        weighted_quantile(&all, HOLD[at])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator of numbers between -1 and 1, the same on every machine.
    fn draws(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
        }
    }

    /// Sites with an offset each, and rows that scatter less.
    fn drawn(sites: usize, seed: u64) -> Vec<Residual> {
        let mut draw = draws(seed);
        let mut all = Vec::new();
        for site in 0..sites {
            let offset = 0.3 * (draw() + draw() + draw());
            for power in (3..33).step_by(2) {
                let class = Class::ALL[site % 2];
                let log_ratio = offset + 0.05 * draw();
                all.push(Residual { site, class, bytes: 1 << power, log_ratio });
            }
        }
        all
    }

    #[test]
    fn intervals_hold_on_sites_like_the_known() {
        let known = drawn(60, 1);
        let factors = factors(&needed(&known, &[]));
        let table = raw(&known, &[]).map(|of_class| of_class.map(|spread| spread.scaled(factors)));
        let new = drawn(400, 2);
        let held = |at_: usize| {
            let inside = new.iter().filter(|row| {
                let (low, high) = at(&table, row.class, row.bytes).bounds()[at_];
                (low..=high).contains(&row.log_ratio)
            });
            inside.count() as f64 / new.len() as f64
        };
        assert!((0.43..0.63).contains(&held(0)), "{}", held(0));
        assert!((0.84..0.97).contains(&held(1)), "{}", held(1));
    }

    #[test]
    fn few_sites_give_no_narrow_intervals() {
        let mut few = drawn(40, 3);
        few.extend((3..30).map(|power| Residual {
            site: 40,
            class: Class::Tcp,
            bytes: 1 << power,
            log_ratio: 0.01,
        }));
        let of = at(&raw(&few, &[]), Class::Tcp, 1 << 20);
        assert!(of.most.1 - of.most.0 > 0.4, "{of:?}");
    }

    #[test]
    fn the_outer_interval_contains_the_inner_and_both_the_prediction() {
        let table = spreads(&drawn(20, 4));
        for class in Class::ALL {
            for power in 0..40 {
                let of = at(&table, class, 1 << power).around(100.0);
                assert!(of.most_us.0 <= of.half_us.0 && of.half_us.0 < 100.0, "{of:?}");
                assert!(of.half_us.1 > 100.0 && of.half_us.1 <= of.most_us.1, "{of:?}");
            }
        }
    }
}
