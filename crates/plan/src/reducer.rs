//! A [`Reduction`] for elements of one type, in three parts:
//!
//! - **before** changes an element of a rank's input when it is first read: a pre-multiplied sum multiplies it by the rank's
//!   factor, a logical operation turns it into 1 or 0;
//! - **combine** combines the inputs of one step, from left to right in the plan's order;
//! - **after** changes the final result: an average divides it by the number of ranks combined (in a scan, those up to the
//!   rank).

use std::fmt;

use crate::element::Element;
use crate::reduction::Reduction;

/// Combines the first element of a step with all others.
type Combine<'a, T> = Box<dyn Fn(T, &mut dyn Iterator<Item = T>) -> T + Send + Sync + 'a>;

/// A reduction of elements of one type.
pub struct Reducer<'a, T> {
    reduction: Reduction,
    /// Called with the rank whose input it is.
    before: Option<Box<dyn Fn(u32, T) -> T + Send + Sync + 'a>>,
    combine: Combine<'a, T>,
    /// Called with the number of ranks combined.
    after: Option<fn(T, u32) -> T>,
}

impl<'a, T: Element + 'a> Reducer<'a, T> {
    /// A reduction without parameters; the error says why this type has none.
    pub fn named(reduction: Reduction) -> Result<Self, String> {
        if reduction == Reduction::PremultipliedSum {
            return Err(format!("a {reduction} needs a factor for each rank; use `premultiplied_sum`"));
        }
        let truth = |_, value: T| value.truth();
        let mut reducer = Self::plain(reduction)?;
        reducer.before = reduction.changes_inputs().then(|| Box::new(truth) as _);
        reducer.after = (reduction == Reduction::Average).then_some(T::divided);
        Ok(reducer)
    }

    /// The sum of all ranks' inputs, rank r's multiplied by factor r; the error says why this type has none.
    ///
    /// # Panics
    /// In use, if there are fewer factors than ranks.
    pub fn premultiplied_sum(factors: Vec<T>) -> Result<Self, String> {
        let mut sum = Self::plain(Reduction::PremultipliedSum)?;
        let product = Self::plain(Reduction::Product)?;
        sum.before = Some(Box::new(move |rank, value| product.combine(value, [factors[rank as usize]])));
        Ok(sum)
    }

    fn plain(reduction: Reduction) -> Result<Self, String> {
        let two = T::combining(reduction);
        let two = two.ok_or_else(|| format!("{reduction} is not defined for {}", T::TYPE))?;
        let combine = move |first: T, others: &mut dyn Iterator<Item = T>| match others.next() {
            Some(second) => {
                let sum = others.fold(two(first.widen(), second.widen()), |sum, next| two(sum, next.widen()));
                T::narrow(sum).canonical()
            }
            None => first,
        };
        Ok(Self { reduction, before: None, combine: Box::new(combine), after: None })
    }
}

impl<'a, T> Reducer<'a, T> {
    /// The caller's own reduction, of any type. It must be associative: plans put brackets anywhere.
    pub fn user_defined(commutes: bool, combine: impl Fn(T, T) -> T + Send + Sync + 'a) -> Self {
        let reduction = Reduction::UserDefined { commutes };
        let fold = move |first, others: &mut dyn Iterator<Item = T>| others.fold(first, &combine);
        Self { reduction, before: None, combine: Box::new(fold), after: None }
    }

    /// The reduction.
    pub fn reduction(&self) -> Reduction {
        self.reduction
    }

    /// An element of a rank's input, ready to be combined.
    pub fn before(&self, rank: u32, value: T) -> T {
        match &self.before {
            Some(before) => before(rank, value),
            None => value,
        }
    }

    /// All inputs of a step combined, from left to right.
    pub fn combine(&self, first: T, others: impl IntoIterator<Item = T>) -> T {
        (self.combine)(first, &mut others.into_iter())
    }

    /// The final result of `combined` ranks.
    pub fn after(&self, value: T, combined: u32) -> T {
        match self.after {
            Some(after) => after(value, combined),
            None => value,
        }
    }
}

impl<T> fmt::Debug for Reducer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reducer({})", self.reduction)
    }
}
