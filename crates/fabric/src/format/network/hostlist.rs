//! Hostlists: `node[001-016,020]`, `rack[1-2]n[01-18]`, `a,b`. They are counted before any name is built.

/// Names that one list may have.
pub(crate) const NAMES_MAX: usize = 100_000;
/// Brackets in one name: Slurm has up to two dimensions.
const BRACKETS_MAX: usize = 4;

/// A mistake in a hostlist: the wrong part, and what is wrong.
pub(crate) type Mistake = String;

/// Expands a hostlist.
pub(crate) fn expand(text: &str) -> Result<Vec<String>, Mistake> {
    let patterns: Vec<Vec<Part<'_>>> = split(text)?.into_iter().map(parts).collect::<Result<_, _>>()?;
    let sizes = patterns
        .iter()
        .map(|pattern| pattern.iter().fold(1, |all: u64, part| all.saturating_mul(part.count())));
    let count = sizes.fold(0, u64::saturating_add);
    if count > NAMES_MAX as u64 {
        return Err(format!("the list has {count} names; the limit is {NAMES_MAX}"));
    }
    let mut names = Vec::with_capacity(count as usize);
    for pattern in patterns {
        let first = names.len();
        names.push(String::new());
        for part in pattern {
            let heads = names.split_off(first);
            names.extend(heads.iter().flat_map(|head| part.after(head)));
        }
    }
    Ok(names)
}

/// A piece of a name.
enum Part<'a> {
    Text(&'a str),
    /// The numbers between brackets: first, last and width, of which zeros in front fill up the rest.
    Numbers(Vec<(u64, u64, usize)>),
}

impl Part<'_> {
    fn count(&self) -> u64 {
        match self {
            Self::Text(_) => 1,
            Self::Numbers(ranges) => {
                let sizes = ranges.iter().map(|(first, last, _)| (last - first).saturating_add(1));
                sizes.fold(0, u64::saturating_add)
            }
        }
    }

    /// `head` with each value of this part behind it.
    fn after(&self, head: &str) -> Vec<String> {
        match self {
            Self::Text(text) => vec![format!("{head}{text}")],
            Self::Numbers(ranges) => {
                let numbers =
                    ranges.iter().flat_map(|(first, last, width)| (*first..=*last).map(|n| (n, *width)));
                numbers.map(|(number, width)| format!("{head}{number:0width$}")).collect()
            }
        }
    }
}

/// Splits at the commas outside brackets.
fn split(text: &str) -> Result<Vec<&str>, Mistake> {
    let (mut names, mut start, mut is_inside) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '[' if is_inside => return Err("`[` inside brackets".to_owned()),
            '[' => is_inside = true,
            ']' if !is_inside => return Err("`]` without `[` before it".to_owned()),
            ']' => is_inside = false,
            ',' if !is_inside => {
                names.push(&text[start..at]);
                start = at + 1;
                if names.len() > NAMES_MAX {
                    return Err(format!("the list has more than {NAMES_MAX} names, which is the limit"));
                }
            }
            _ => {}
        }
    }
    if is_inside {
        return Err("`[` without `]`".to_owned());
    }
    names.push(&text[start..]);
    match names.iter().any(|name| name.is_empty()) {
        true => Err("an empty name: remove a comma".to_owned()),
        false => Ok(names),
    }
}

fn parts(name: &str) -> Result<Vec<Part<'_>>, Mistake> {
    let mut parts = Vec::new();
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('[') {
        let (inside, after) = after.split_once(']').ok_or_else(|| "`[` without `]`".to_owned())?;
        if !before.is_empty() {
            parts.push(Part::Text(before));
        }
        if inside.bytes().filter(|b| *b == b',').count() >= NAMES_MAX {
            return Err(format!("the list has more than {NAMES_MAX} names, which is the limit"));
        }
        let ranges: Vec<(u64, u64, usize)> = inside.split(',').map(range).collect::<Result<_, _>>()?;
        parts.push(Part::Numbers(ranges));
        if parts.len() > 2 * BRACKETS_MAX {
            return Err(format!("a name has more than {BRACKETS_MAX} brackets"));
        }
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest));
    }
    Ok(parts)
}

/// `001-016` or `020`.
fn range(text: &str) -> Result<(u64, u64, usize), Mistake> {
    // More digits than a number has would be accepted as zeros in front.
    const DIGITS_MAX: usize = 18;
    let wrong = || format!("`{}` is not a range of numbers, such as 001-016", crate::format::excerpt(text));
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |digits: &str| match digits.bytes().all(|b| b.is_ascii_digit()) && digits.len() <= DIGITS_MAX
    {
        true => digits.parse::<u64>().map_err(|_| wrong()),
        false => Err(wrong()),
    };
    match (number(first)?, number(last)?) {
        (low, high) if low <= high => Ok((low, high, first.len())),
        _ => Err(format!(
            "the range {} counts down; write the lower number first",
            crate::format::excerpt(text)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> String {
        expand(text).unwrap_or_else(|mistake| panic!("{text}: {mistake}")).join(" ")
    }

    #[test]
    fn lists_expand_in_order() {
        assert_eq!(names("a"), "a");
        assert_eq!(names("b,a"), "b a");
        assert_eq!(names("n[1-3,7]"), "n1 n2 n3 n7");
        assert_eq!(names("node[008-011]-ib,x"), "node008-ib node009-ib node010-ib node011-ib x");
        assert_eq!(names("r[1-2]n[01-02]"), "r1n01 r1n02 r2n01 r2n02");
        assert_eq!(names("n[9-10]"), "n9 n10");
    }

    #[test]
    fn mistakes_are_refused() {
        for (text, reason) in [
            ("", "empty name"),
            ("a,,b", "empty name"),
            ("n[1-2", "without `]`"),
            ("n1]", "without `[`"),
            ("n[[1]]", "inside brackets"),
            ("n[2-1]", "counts down"),
            ("n[a-b]", "not a range"),
            ("n[]", "not a range"),
            ("n[-1]", "not a range"),
            ("n[1-2-3]", "not a range"),
            ("n[0-9999999999999999999999]", "not a range"),
            ("a[1]b[1]c[1]d[1]e[1]", "brackets"),
        ] {
            let mistake = expand(text).unwrap_err();
            assert!(mistake.contains(reason), "{text}: {mistake}");
        }
    }

    #[test]
    fn large_lists_are_counted_and_not_built() {
        for text in ["n[0-999999999]", "n[0-999999999]m[0-999999999]k[0-999999999]", "n[0-100000]"] {
            let mistake = expand(text).unwrap_err();
            assert!(mistake.contains("the limit is 100000"), "{mistake}");
        }
        assert_eq!(expand("n[1-100000]").unwrap().len(), 100_000);
    }
}
