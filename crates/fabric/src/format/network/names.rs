//! Names of hosts and switches from files: cleaned, so that printing them is safe, and in natural order.

use std::cmp::Ordering;

/// Characters of a name; Slurm's own limit is the same.
const CHARS_MAX: usize = 64;

/// A name without characters that terminals interpret, and without spaces around it.
pub(crate) fn clean(name: &str) -> String {
    let shown = |c: char| if c.is_ascii_graphic() || c == ' ' || c.is_alphanumeric() { c } else { '?' };
    name.trim().chars().map(shown).take(CHARS_MAX).collect()
}

/// A host's name: also without spaces and slashes, because a device is called `host/gpu0`.
pub(crate) fn clean_host(name: &str) -> String {
    clean(name).replace([' ', '/'], "_")
}

/// Compares names so that numbers in them count as such: `mlx5_2` is before `mlx5_10`.
pub(crate) fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let (text, number, rest) = head(a);
        let (other_text, other_number, other_rest) = head(b);
        let order = text.cmp(other_text).then(number.cmp(&other_number));
        if order != Ordering::Equal || (rest.is_empty() && other_rest.is_empty()) {
            return order.then(a.cmp(b));
        }
        (a, b) = (rest, other_rest);
    }
}

/// The text up to the first number, the number, and the rest. No number counts as less than any.
fn head(text: &str) -> (&str, Option<u128>, &str) {
    let start = text.find(|c: char| c.is_ascii_digit()).unwrap_or(text.len());
    let (before, from) = text.split_at(start);
    let end = from.find(|c: char| !c.is_ascii_digit()).unwrap_or(from.len());
    let (digits, rest) = from.split_at(end);
    let number = (!digits.is_empty()).then(|| digits.parse().unwrap_or(u128::MAX));
    (before, number, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_to_print() {
        assert_eq!(clean(" leaf\u{1b}[31m01\u{202e} "), "leaf?[31m01?");
        assert_eq!(clean(&"x".repeat(100)).len(), CHARS_MAX);
        assert_eq!(clean_host("rack 1/node\n1"), "rack_1_node?1");
        assert_eq!(clean("knoten-ä"), "knoten-ä");
    }

    #[test]
    fn numbers_count_as_numbers() {
        let mut names = ["mlx5_10", "mlx5_2", "mlx5", "a10b1", "a10", "a9", "a10b"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["a9", "a10", "a10b", "a10b1", "mlx5", "mlx5_2", "mlx5_10"]);
    }
}
