//! Suggestions for misspelled names.

/// Up to three of `names` within a few edits of `typed`, nearest first; ties keep the order of `names`.
pub fn nearest<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    // Edits to more than a third of the word make it another word. Names are short, so a long text is a typo of none
    // of them.
    const TYPED_MAX: usize = 64;
    let typed: Vec<char> = typed.chars().take(TYPED_MAX + 1).collect();
    if typed.is_empty() || typed.len() > TYPED_MAX {
        return Vec::new();
    }
    let allowed = (typed.len() / 3).clamp(1, 4);
    // A part of a name, or a text that starts with a name, counts as an exact match.
    let text: String = typed.iter().collect::<String>().to_ascii_lowercase();
    let is_piece = |name: &str| text.len() > 1 && (name.contains(&text) || text.starts_with(name));
    let distance = |name: &str| if is_piece(name) { 0 } else { edits(&typed, name) };
    let mut close: Vec<(usize, &str)> =
        names.map(|name| (distance(name), name)).filter(|(edits, _)| *edits <= allowed).collect();
    close.sort_by_key(|(edits, _)| *edits);
    close.into_iter().take(3).map(|(_, name)| name).collect()
}

/// ` Did you mean a, b or c?`, or an empty string where no name is near.
pub fn did_you_mean<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = nearest(typed, names).iter().map(|name| format!("`{name}`")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [only] => format!(" Did you mean {only}?"),
        [first @ .., last] => format!(" Did you mean {} or {last}?", first.join(", ")),
    }
}

/// A name in lower case without separators: `all_reduce`, `AllReduce` and `all-reduce` become the same.
pub fn fold(name: &str) -> String {
    let is_separator = |c: &char| matches!(c, '-' | '_' | ' ' | '.');
    name.trim().chars().filter(|c| !is_separator(c)).map(|c| c.to_ascii_lowercase()).collect()
}

/// The edit distance of two words, ignoring case: insertions, deletions, replacements and swaps of neighbours.
fn edits(typed: &[char], name: &str) -> usize {
    let name: Vec<char> = name.chars().collect();
    let same = |column: usize, row: usize| typed[column].eq_ignore_ascii_case(&name[row]);
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=typed.len()).collect();
    for row in 0..name.len() {
        let mut current = vec![row + 1];
        for column in 0..typed.len() {
            let replaced = above[column] + usize::from(!same(column, row));
            let mut least = replaced.min(above[column + 1] + 1).min(current[column] + 1);
            if column > 0 && row > 0 && same(column, row - 1) && same(column - 1, row) {
                least = least.min(before[column - 1] + 1);
            }
            current.push(least);
        }
        before = std::mem::replace(&mut above, current);
    }
    above[typed.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = ["hgx-a100", "hgx-h100", "hgx-h200", "dgx-2"];

    #[test]
    fn edits_are_counted_both_ways() {
        let edits = |a: &str, b: &str| edits(&a.chars().collect::<Vec<_>>(), b);
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("sitting", "kitten"), 3);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("HGX", "hgx"), 0);
        assert_eq!((edits("rign", "ring"), edits("smu", "sum"), edits("ab", "ba")), (1, 1, 1));
    }

    #[test]
    fn suggestions_are_ordered_by_distance() {
        assert_eq!(nearest("hgx-h10", NAMES.into_iter())[0], "hgx-h100");
        assert_eq!(nearest("DGX2", NAMES.into_iter()), ["dgx-2"]);
        assert_eq!(nearest("h200", NAMES.into_iter()), ["hgx-h200"]);
        assert_eq!(nearest("dgx-2.large", NAMES.into_iter()), ["dgx-2"]);
        assert!(nearest("toaster", NAMES.into_iter()).is_empty());
        assert!(nearest(&"hgx-h100".repeat(10_000), NAMES.into_iter()).is_empty());
    }

    #[test]
    fn did_you_mean_is_a_sentence() {
        assert_eq!(did_you_mean("dgx-3", NAMES.into_iter()), " Did you mean `dgx-2`?");
        assert_eq!(did_you_mean("toaster", NAMES.into_iter()), "");
    }
}
