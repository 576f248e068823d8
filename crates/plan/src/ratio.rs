//! Exact fractions: shares of a buffer, and the values of formulas. Operations return nothing on overflow.

use std::cmp::Ordering;
use std::fmt;

/// A fraction in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ratio {
    numerator: i128,
    /// Above zero.
    denominator: i128,
}

impl Ratio {
    /// Nothing.
    pub const ZERO: Ratio = Ratio { numerator: 0, denominator: 1 };
    /// One whole.
    pub const ONE: Ratio = Ratio { numerator: 1, denominator: 1 };

    /// The fraction of two numbers; none for a denominator of zero.
    pub fn new(numerator: i128, denominator: i128) -> Option<Self> {
        let divisor = gcd(numerator.unsigned_abs(), denominator.unsigned_abs());
        let divisor = i128::try_from(divisor).ok().filter(|_| denominator != 0)?;
        let (numerator, denominator) = (numerator / divisor, denominator / divisor);
        if denominator > 0 {
            return Some(Self { numerator, denominator });
        }
        Some(Self { numerator: numerator.checked_neg()?, denominator: denominator.checked_neg()? })
    }

    /// The sum, if it fits.
    pub fn plus(self, other: Self) -> Option<Self> {
        let left = self.numerator.checked_mul(other.denominator)?;
        let right = other.numerator.checked_mul(self.denominator)?;
        Self::new(left.checked_add(right)?, self.denominator.checked_mul(other.denominator)?)
    }

    /// The difference, if it fits.
    pub fn minus(self, other: Self) -> Option<Self> {
        self.plus(Self { numerator: other.numerator.checked_neg()?, ..other })
    }

    /// The product, if it fits.
    pub fn times(self, other: Self) -> Option<Self> {
        // Cancels common factors first, so that a product that fits does not overflow on the way.
        let one = Self::new(self.numerator, other.denominator)?;
        let two = Self::new(other.numerator, self.denominator)?;
        Self::new(one.numerator.checked_mul(two.numerator)?, one.denominator.checked_mul(two.denominator)?)
    }

    /// The quotient, if it fits; none by zero.
    pub fn over(self, other: Self) -> Option<Self> {
        self.times(Self::new(other.denominator, other.numerator)?)
    }

    /// The largest whole number that is not above it.
    pub fn floor(self) -> i128 {
        self.numerator.div_euclid(self.denominator)
    }

    /// The smallest whole number that is not below it.
    pub fn ceil(self) -> i128 {
        self.floor() + i128::from(self.denominator != 1)
    }

    /// Rounded up to a count; none if it is negative or does not fit.
    pub fn count(self) -> Option<u64> {
        u64::try_from(self.ceil()).ok()
    }
}

impl From<u64> for Ratio {
    fn from(number: u64) -> Self {
        Self { numerator: number.into(), denominator: 1 }
    }
}

impl From<u32> for Ratio {
    fn from(number: u32) -> Self {
        Self::from(u64::from(number))
    }
}

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> Ordering {
        // Compares continued fractions, which needs no multiplication.
        let whole = self.floor().cmp(&other.floor());
        whole.then_with(|| {
            let rest = |ratio: &Self| ratio.numerator.rem_euclid(ratio.denominator);
            match (rest(self), rest(other)) {
                (0, 0) => Ordering::Equal,
                (0, _) => Ordering::Less,
                (_, 0) => Ordering::Greater,
                (one, two) => {
                    let (one, two) = ((self.denominator, one), (other.denominator, two));
                    let turned = |(numerator, denominator)| Self { numerator, denominator };
                    turned(two).cmp(&turned(one))
                }
            }
        })
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.denominator {
            1 => write!(f, "{}", self.numerator),
            denominator => write!(f, "{}/{denominator}", self.numerator),
        }
    }
}

fn gcd(mut one: u128, mut two: u128) -> u128 {
    while two != 0 {
        (one, two) = (two, one % two);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(numerator: i128, denominator: i128) -> Ratio {
        Ratio::new(numerator, denominator).unwrap()
    }

    #[test]
    fn arithmetic_is_exact() {
        assert_eq!(ratio(6, -4), ratio(-3, 2));
        assert_eq!(ratio(1, 3).plus(ratio(1, 6)), Some(ratio(1, 2)));
        assert_eq!(ratio(1, 3).minus(ratio(1, 2)), Some(ratio(-1, 6)));
        assert_eq!(ratio(2, 3).times(ratio(3, 4)), Some(ratio(1, 2)));
        assert_eq!(ratio(2, 3).over(ratio(4, 3)), Some(ratio(1, 2)));
        assert_eq!((ratio(-3, 2).floor(), ratio(-3, 2).ceil()), (-2, -1));
        assert_eq!((ratio(7, 2).count(), ratio(-7, 2).count()), (Some(4), None));
        let mut sorted = [ratio(7, 3), ratio(2, 1), ratio(-1, 2), ratio(9, 4), ratio(-1, 3)];
        sorted.sort();
        assert_eq!(sorted.map(|ratio| ratio.to_string()), ["-1/2", "-1/3", "2", "9/4", "7/3"]);
    }

    #[test]
    fn overflow_returns_none() {
        assert_eq!(Ratio::new(1, 0), None);
        assert_eq!(Ratio::ONE.over(Ratio::ZERO), None);
        let large = ratio(i128::MAX, 1);
        assert_eq!(large.plus(Ratio::ONE), None);
        assert_eq!(large.times(ratio(1, 2)).and_then(|half| half.times(ratio(2, 1))), Some(large));
        assert_eq!(large.times(large), None);
        assert_eq!(Ratio::new(i128::MIN, -1), None);
        assert!(ratio(1, i128::MAX) < ratio(1, i128::MAX - 1));
    }
}
