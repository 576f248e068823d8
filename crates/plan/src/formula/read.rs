//! A recursive-descent parser for formulas: one function per rule of the grammar, with one character of lookahead.

use super::{FormulaError, Name, Node, Operation, Relation, Rounding};

/// Long enough for any readable formula, and short enough to bound the nesting.
const CHARACTERS_MAX: usize = 300;

/// Reads a formula from its first character to its last.
pub(super) fn read(text: &str) -> Result<Node, FormulaError> {
    let characters: Vec<char> = text.chars().collect();
    if characters.len() > CHARACTERS_MAX {
        let what = format!("a formula has {CHARACTERS_MAX} characters at most; split the row or simplify");
        return Err(FormulaError { column: CHARACTERS_MAX + 1, what });
    }
    let mut reader = Reader { characters, at: 0 };
    let root = reader.sum()?;
    match reader.peek() {
        None => Ok(root),
        Some(other) => Err(reader.error(format!("unexpected {other:?}"))),
    }
}

struct Reader {
    characters: Vec<char>,
    at: usize,
}

impl Reader {
    fn sum(&mut self) -> Result<Node, FormulaError> {
        let mut left = self.product()?;
        loop {
            let operation = match self.peek() {
                Some('+') => Operation::Add,
                Some('-') => Operation::Subtract,
                _ => return Ok(left),
            };
            self.at += 1;
            left = Node::Operation(operation, Box::new([left, self.product()?]));
        }
    }

    fn product(&mut self) -> Result<Node, FormulaError> {
        let mut left = self.factor()?;
        loop {
            let operation = match self.peek() {
                Some('*') => Operation::Multiply,
                Some('/') => Operation::Divide,
                Some('(' | '[') => Operation::Multiply,
                Some(letter) if letter.is_ascii_alphabetic() => Operation::Multiply,
                _ => return Ok(left),
            };
            self.at += usize::from(matches!(self.peek(), Some('*' | '/')));
            left = Node::Operation(operation, Box::new([left, self.factor()?]));
        }
    }

    fn factor(&mut self) -> Result<Node, FormulaError> {
        match self.peek() {
            Some('-') => {
                self.at += 1;
                Ok(Node::Operation(Operation::Subtract, Box::new([Node::Number(0), self.factor()?])))
            }
            Some('(') => {
                self.at += 1;
                let inner = self.sum()?;
                self.expect(')')?;
                Ok(inner)
            }
            Some('[') => {
                self.at += 1;
                let left = self.sum()?;
                let relation = self.relation()?;
                let right = self.sum()?;
                self.expect(']')?;
                Ok(Node::Relation(relation, Box::new([left, right])))
            }
            Some(digit) if digit.is_ascii_digit() => {
                let column = self.at;
                let digits = self.take(|character| character.is_ascii_digit());
                let number = digits.parse().map_err(|_| Self::error_at(column, "the number is too large"))?;
                Ok(Node::Number(number))
            }
            Some(letter) if letter.is_ascii_alphabetic() => self.named(),
            Some(other) => Err(self.error(format!("expected a number, name or bracket, not {other:?}"))),
            None => Err(self.error("expected a number, but the formula ends")),
        }
    }

    fn named(&mut self) -> Result<Node, FormulaError> {
        let column = self.at;
        let name = self.take(|character| character.is_ascii_alphanumeric());
        let rounding = match name.as_str() {
            "n" => return Ok(Node::Name(Name::Ranks)),
            "m" => return Ok(Node::Name(Name::Islands)),
            "g" => return Ok(Node::Name(Name::PerIsland)),
            "S" => return Ok(Node::Name(Name::Bytes)),
            "min" | "max" => {
                self.expect('(')?;
                let left = self.sum()?;
                self.expect(',')?;
                let right = self.sum()?;
                self.expect(')')?;
                let operation = if name == "min" { Operation::Min } else { Operation::Max };
                return Ok(Node::Operation(operation, Box::new([left, right])));
            }
            "floor" => Rounding::Floor,
            "ceil" => Rounding::Ceil,
            "log2" => Rounding::Log2,
            "pow2" => Rounding::Pow2,
            _ => {
                let what = format!(
                    "unknown name {name:?}; known are n m g S, log2 floor ceil min max pow2, separated by spaces"
                );
                return Err(Self::error_at(column, what));
            }
        };
        self.expect('(')?;
        let inner = self.sum()?;
        self.expect(')')?;
        Ok(Node::Rounding(rounding, Box::new(inner)))
    }

    fn relation(&mut self) -> Result<Relation, FormulaError> {
        self.peek();
        let column = self.at;
        let sign = self.take(|character| "<>=!".contains(character));
        Ok(match sign.as_str() {
            ">" => Relation::Above,
            ">=" => Relation::AtLeast,
            "<" => Relation::Below,
            "<=" => Relation::AtMost,
            "=" => Relation::Equal,
            "!=" => Relation::Unequal,
            _ => return Err(Self::error_at(column, "expected a relation in brackets: > >= < <= = !=")),
        })
    }

    /// The next character that is not a space, without consuming it.
    fn peek(&mut self) -> Option<char> {
        while self.characters.get(self.at).is_some_and(|character| character.is_whitespace()) {
            self.at += 1;
        }
        self.characters.get(self.at).copied()
    }

    fn take(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let rest = self.characters[self.at..].iter().copied();
        let taken: String = rest.take_while(|&character| wanted(character)).collect();
        self.at += taken.len();
        taken
    }

    fn expect(&mut self, wanted: char) -> Result<(), FormulaError> {
        match self.peek() {
            Some(found) if found == wanted => {
                self.at += 1;
                Ok(())
            }
            Some(found) => Err(self.error(format!("expected {wanted:?}, not {found:?}"))),
            None => Err(self.error(format!("expected {wanted:?}, but the formula ends"))),
        }
    }

    fn error(&self, what: impl Into<String>) -> FormulaError {
        Self::error_at(self.at, what)
    }

    fn error_at(at: usize, what: impl Into<String>) -> FormulaError {
        FormulaError { column: at + 1, what: what.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_column() {
        for (text, expected) in [
            ("", "column 1: expected a number, but the formula ends"),
            ("2(n-1", "column 6: expected ')', but the formula ends"),
            ("n m)", "column 4: unexpected ')'"),
            ("2 ng", "column 3: unknown name \"ng\"; known are n m g S"),
            ("[m]", "column 3: expected a relation in brackets"),
            ("min(n)", "column 6: expected ',', not ')'"),
            ("n ^ 2", "column 3: unexpected '^'"),
            ("+", "column 1: expected a number, name or bracket, not '+'"),
            ("99999999999999999999", "column 1: the number is too large"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        assert!(read(&"(".repeat(CHARACTERS_MAX + 1)).is_err());
    }
}
