//! An index that depends on the iterations of the loops around it.
//!
//! A ring's 2(n-1) steps are two loops, not a list, because the chunk that a rank accesses in iteration i is an affine
//! function of i, wrapped around the ring. Chunks, ranks and thresholds in a [`Plan`](crate::Plan) all have this form, so
//! that a program's length does not grow with the ranks.

use serde::{Deserialize, Serialize};

/// `offset + ((base + Σ by[k]·i[k]) mod modulo)`, where `i[k]` is the iteration of the k-th enclosing loop,
/// outermost first. A plain number is the common case and is written as one in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct Affine {
    /// Added after wrapping.
    pub offset: i64,
    /// The value in the first iteration, before wrapping.
    pub base: i64,
    /// The stride of each enclosing loop, outermost first; loops beyond the list add nothing.
    pub by: Vec<i64>,
    /// The modulus to wrap around, if any.
    pub modulo: Option<u32>,
}

impl Affine {
    /// `(base + by·i) mod modulo` in a single loop.
    pub fn ring(base: i64, by: i64, modulo: u32) -> Self {
        Self { offset: 0, base, by: vec![by], modulo: Some(modulo) }
    }

    /// `first + i` in a single loop.
    pub fn counted(first: u32) -> Self {
        Self { offset: 0, base: first.into(), by: vec![1], modulo: None }
    }

    /// The same number with `offset` added after wrapping.
    pub fn plus(self, offset: u32) -> Self {
        Self { offset: self.offset + i64::from(offset), ..self }
    }

    /// The normal form: a plain number if no loop changes it, else with the base reduced by the modulus.
    pub(crate) fn wrapped(&self) -> Self {
        let fixed = self.by.iter().all(|by| *by == 0);
        match (self.at(&[]), self.modulo) {
            (Some(number), _) if fixed => number.into(),
            (_, Some(modulo)) if modulo > 0 => {
                Self { base: self.base.rem_euclid(modulo.into()), ..self.clone() }
            }
            _ => self.clone(),
        }
    }

    /// The value in the given iterations; nothing if it is negative or does not fit.
    pub fn at(&self, iterations: &[u32]) -> Option<u32> {
        let mut value = self.base;
        for (stride, iteration) in self.by.iter().zip(iterations) {
            value = value.checked_add(stride.checked_mul(i64::from(*iteration))?)?;
        }
        if let Some(modulo) = self.modulo {
            value = value.checked_rem_euclid(i64::from(modulo))?;
        }
        u32::try_from(value.checked_add(self.offset)?).ok()
    }
}

impl From<u32> for Affine {
    fn from(value: u32) -> Self {
        Self { offset: 0, base: i64::from(value), by: Vec::new(), modulo: None }
    }
}

/// The JSON form: a number, or an object that leaves out what is zero.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "a number, or {\"base\": .., \"by\": [..], \"mod\": .., \"offset\": ..}")]
enum Written {
    Number(u32),
    Formula(Formula),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Formula {
    base: i64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    by: Vec<i64>,
    #[serde(default, rename = "mod", skip_serializing_if = "Option::is_none")]
    modulo: Option<u32>,
    #[serde(default, skip_serializing_if = "is_zero")]
    offset: i64,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl From<Written> for Affine {
    fn from(written: Written) -> Self {
        match written {
            Written::Number(number) => number.into(),
            Written::Formula(Formula { base, by, modulo, offset }) => Self { offset, base, by, modulo },
        }
    }
}

impl From<Affine> for Written {
    fn from(affine: Affine) -> Self {
        match affine.at(&[]) {
            Some(number) if affine == Affine::from(number) => Written::Number(number),
            _ => {
                let Affine { offset, base, by, modulo } = affine;
                Written::Formula(Formula { base, by, modulo, offset })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_both_ways() {
        let chunk = Affine::ring(1, -1, 4).plus(8);
        let values: Vec<_> = (0..5).map(|i| chunk.at(&[i])).collect();
        assert_eq!(values, [Some(9), Some(8), Some(11), Some(10), Some(9)]);
    }

    #[test]
    fn rejects_invalid_indices() {
        assert_eq!(Affine { offset: -1, base: 0, by: vec![], modulo: None }.at(&[]), None);
        assert_eq!(Affine { offset: 0, base: i64::MAX, by: vec![i64::MAX], modulo: None }.at(&[2]), None);
        assert_eq!(Affine { offset: 0, base: 1, by: vec![], modulo: Some(0) }.at(&[]), None);
    }

    #[test]
    fn plain_numbers_are_short_in_json() {
        let json = |affine: &Affine| serde_json::to_string(affine).unwrap();
        assert_eq!(json(&7.into()), "7");
        assert_eq!(json(&Affine::ring(3, -1, 4)), r#"{"base":3,"by":[-1],"mod":4}"#);
        let read: Affine = serde_json::from_str(r#"{"base":3,"by":[-1],"mod":4}"#).unwrap();
        assert_eq!(read, Affine::ring(3, -1, 4));
    }
}
