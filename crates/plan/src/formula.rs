//! Formulas in the headers of algorithms: the cost of a plan on m equal islands of g ranks, for S bytes.
//!
//! ```text
//! sum     = product { ("+" | "-") product }
//! product = factor { ("*" | "/" | nothing) factor }      nothing multiplies: 2(n-1), S n
//! factor  = "-" factor | number | name | name "(" sum { "," sum } ")" | "(" sum ")" | "[" sum relation sum "]"
//! ```
//!
//! Products go from left to right, so `S/2 n` is half of S n. A relation (`>` `>=` `<` `<=` `=` `!=`) in brackets is 1 if it
//! holds and 0 if not. Values are exact fractions. Deliberately absent: powers, decimals and implicit rounding.

mod read;

use crate::ratio::Ratio;

/// A parsed formula.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Formula {
    text: String,
    root: Node,
}

/// The values of the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values {
    /// m: the number of islands.
    pub islands: u32,
    /// g: the ranks of each island.
    pub per_island: u32,
    /// S: bytes, as nccl-tests counts the size of the collective.
    pub bytes: u64,
}

/// Why a formula cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {what}")]
pub struct FormulaError {
    /// The place, in characters from 1.
    pub column: usize,
    /// What is wrong there.
    pub what: String,
}

/// Why a formula has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// A division by zero.
    #[error("the formula divides by zero")]
    DividesByZero,
    /// A number is too large.
    #[error("a number in the formula is too large")]
    TooLarge,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Number(u64),
    Name(Name),
    Operation(Operation, Box<[Node; 2]>),
    Relation(Relation, Box<[Node; 2]>),
    Rounding(Rounding, Box<Node>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Ranks,
    Islands,
    PerIsland,
    Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
    Min,
    Max,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Above,
    AtLeast,
    Below,
    AtMost,
    Equal,
    Unequal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounding {
    Floor,
    Ceil,
    Log2,
    Pow2,
}

impl Formula {
    /// Reads a formula.
    pub fn parse(text: &str) -> Result<Self, FormulaError> {
        let text = text.trim();
        Ok(Self { text: text.to_owned(), root: read::read(text)? })
    }

    /// The formula as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its value.
    pub fn value(&self, values: Values) -> Result<Ratio, ValueError> {
        self.root.value(values)
    }
}

impl Node {
    fn value(&self, values: Values) -> Result<Ratio, ValueError> {
        let both = |nodes: &[Node; 2]| Ok((nodes[0].value(values)?, nodes[1].value(values)?));
        match self {
            Node::Number(number) => Ok((*number).into()),
            Node::Name(name) => Ok(name.value(values)),
            Node::Operation(operation, nodes) => {
                let (left, right) = both(nodes)?;
                operation.of(left, right)
            }
            Node::Relation(relation, nodes) => {
                let (left, right) = both(nodes)?;
                Ok(if relation.holds(left, right) { Ratio::ONE } else { Ratio::ZERO })
            }
            Node::Rounding(rounding, node) => rounding.of(node.value(values)?),
        }
    }
}

impl Name {
    fn value(self, values: Values) -> Ratio {
        match self {
            Name::Ranks => (u64::from(values.islands) * u64::from(values.per_island)).into(),
            Name::Islands => values.islands.into(),
            Name::PerIsland => values.per_island.into(),
            Name::Bytes => values.bytes.into(),
        }
    }
}

impl Operation {
    fn of(self, left: Ratio, right: Ratio) -> Result<Ratio, ValueError> {
        let result = match self {
            Operation::Add => left.plus(right),
            Operation::Subtract => left.minus(right),
            Operation::Multiply => left.times(right),
            Operation::Divide if right == Ratio::ZERO => return Err(ValueError::DividesByZero),
            Operation::Divide => left.over(right),
            Operation::Min => Some(left.min(right)),
            Operation::Max => Some(left.max(right)),
        };
        result.ok_or(ValueError::TooLarge)
    }
}

impl Relation {
    fn holds(self, left: Ratio, right: Ratio) -> bool {
        match self {
            Relation::Above => left > right,
            Relation::AtLeast => left >= right,
            Relation::Below => left < right,
            Relation::AtMost => left <= right,
            Relation::Equal => left == right,
            Relation::Unequal => left != right,
        }
    }
}

impl Rounding {
    /// The logarithm of a number up to one is zero, and so is the largest power of two below one: formulas are also evaluated
    /// where a bracket multiplies them by zero.
    fn of(self, value: Ratio) -> Result<Ratio, ValueError> {
        let whole = match self {
            Rounding::Floor => value.floor(),
            Rounding::Ceil => value.ceil(),
            Rounding::Log2 => i128::from((value.ceil().max(1) - 1).checked_ilog2().map_or(0, |log| log + 1)),
            Rounding::Pow2 => value.floor().max(0).checked_ilog2().map_or(0, |log| 1_i128 << log),
        };
        Ratio::new(whole, 1).ok_or(ValueError::TooLarge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On 3 islands of 4 ranks, 24 bytes.
    fn value(text: &str) -> String {
        let values = Values { islands: 3, per_island: 4, bytes: 24 };
        match Formula::parse(text).unwrap().value(values) {
            Ok(value) => value.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn formulas_have_exact_values() {
        for (text, expected) in [
            ("2(n-1) - 2m[m>1]", "16"),
            ("2 S (n-1)/n", "44"),
            ("S/2 n", "144"),
            ("S/(7n)", "2/7"),
            ("-n + m g", "0"),
            ("log2(n) + log2(8) + log2(1) + log2(9/8)", "8"),
            ("pow2(n) + pow2(8) + pow2(1/2)", "16"),
            ("floor(n/5) + ceil(n/5)", "5"),
            ("min(n, 2 m) max(m, g)", "24"),
            ("[n>=12] + [n != 12] + [m = 3] + [m < 3] + [m <= 3]", "3"),
            ("2[m>1](n-1)", "22"),
            ("S/(m-3)", "the formula divides by zero"),
            (
                "S * 99999999999999999 * 99999999999999999 * 99999999999999999",
                "a number in the formula is too large",
            ),
        ] {
            assert_eq!(value(text), expected, "{text}");
        }
    }
}
