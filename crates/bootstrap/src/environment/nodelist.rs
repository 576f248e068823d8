//! Slurm's lists of hosts, `node[01-03,7],login`, and of counts, `4(x2),3`.

/// More hosts than any cluster has: a range such as `[0-999999999]` must not fill the memory.
const HOSTS_MAX: usize = 1 << 17;
/// The longest name of a host.
const NAME_BYTES_MAX: usize = 253;

/// The hosts of a list, in its order. A name may have several brackets, `rack[1-2]n[01-16]`; the last runs fastest. None
/// if it is no such list, or one of more than 131,072 hosts.
pub fn expand(list: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    for pattern in split(list)? {
        let mut names = vec![String::new()];
        let mut rest = pattern;
        while let Some((before, bracket)) = rest.split_once('[') {
            let (inside, after) = bracket.split_once(']')?;
            let endings = numbers(inside)?;
            if names.len().checked_mul(endings.len())? > HOSTS_MAX {
                return None;
            }
            let with = |name: &String| {
                endings.iter().map(|ending| format!("{name}{before}{ending}")).collect::<Vec<_>>()
            };
            names = names.iter().flat_map(with).collect();
            rest = after;
        }
        if rest.contains(']') || hosts.len() + names.len() > HOSTS_MAX {
            return None;
        }
        hosts.extend(names.into_iter().map(|name| name + rest));
    }
    let good = |name: &String| !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(' ');
    hosts.iter().all(good).then_some(hosts)
}

/// The count of one node in a list such as `4(x2),3`, which is 4, 4, 3.
pub(super) fn count_at(list: &str, node: usize) -> Option<usize> {
    let mut first = 0_usize;
    for part in list.split(',') {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1_usize),
        };
        let count = count.parse().ok()?;
        first = first.checked_add(times)?;
        if node < first {
            return Some(count);
        }
    }
    None
}

/// A list cut at the commas outside brackets.
fn split(list: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'[' if inside => return None,
            b'[' => inside = true,
            b']' => inside = false,
            b',' if !inside => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    Some(parts)
}

/// What is inside a bracket: `01-03,7` is 01, 02, 03, 7. The first number's zeros say how wide all of a range are.
fn numbers(inside: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for part in inside.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(from) || !digits(to) {
            return None;
        }
        let (width, from, to) = (from.len(), from.parse::<u64>().ok()?, to.parse::<u64>().ok()?);
        if to < from || to - from >= (HOSTS_MAX - all.len()) as u64 {
            return None;
        }
        all.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_as_slurm_writes_them() {
        let hosts = |list| expand(list).map(|hosts| hosts.join(" "));
        assert_eq!(hosts("node[01-03,7]").as_deref(), Some("node01 node02 node03 node7"));
        assert_eq!(hosts("a").as_deref(), Some("a"));
        assert_eq!(hosts("a,b-[8-10],c").as_deref(), Some("a b-8 b-9 b-10 c"));
        assert_eq!(hosts("r[1-2]n[01-02]-ib").as_deref(), Some("r1n01-ib r1n02-ib r2n01-ib r2n02-ib"));
        for bad in ["", "a,", "a[", "a[1", "a]1", "a[]", "a[2-1]", "a[1-]", "a[x]", "a[[1]]", "a b", "a[1,]"]
        {
            assert_eq!(expand(bad), None, "{bad}");
        }
    }

    #[test]
    fn oversized_lists_are_refused() {
        assert_eq!(expand("a[0-999999999]"), None);
        assert_eq!(expand("a[0-9999]b[0-9999]"), None);
        assert_eq!(expand("a[0-18446744073709551615]"), None);
        assert_eq!(expand("a[0-99999],b[0-99999]"), None);
        assert_eq!(expand("a[0-131071]").map(|hosts| hosts.len()), Some(HOSTS_MAX));
    }

    #[test]
    fn counts_by_node() {
        let at = |node| count_at("4(x2),3", node);
        assert_eq!([at(0), at(1), at(2), at(3)], [Some(4), Some(4), Some(3), None]);
        assert_eq!(count_at("4(x18446744073709551615),3(x5)", 3), Some(4));
        for bad in ["", "x", "4(x", "4(x2", "4x2)", "(x2)"] {
            assert_eq!(count_at(bad, 0), None, "{bad}");
        }
    }

    /// A list, and the hosts it stands for, made together.
    fn lists() -> impl Strategy<Value = (String, Vec<String>)> {
        let range = (0_u64..300, 0_u64..20, 1_usize..5).prop_map(|(from, more, width)| {
            let names: Vec<String> = (from..=from + more).map(|number| format!("{number:0width$}")).collect();
            let text =
                if more == 0 { names[0].clone() } else { format!("{}-{}", names[0], names[names.len() - 1]) };
            // A first number without leading zeros has its own width.
            let width = names[0].len();
            let names = (from..=from + more).map(|number| format!("{number:0width$}")).collect::<Vec<_>>();
            (text, names)
        });
        let plain = "[a-z]{1,8}(-[a-z]{1,3})?".prop_map(|name| (name.clone(), vec![name]));
        let bracket = ("[a-z]{1,6}", proptest::collection::vec(range, 1..4), "(-ib)?").prop_map(
            |(name, ranges, ending)| {
                let inside: Vec<&str> = ranges.iter().map(|(text, _)| text.as_str()).collect();
                let hosts = ranges.iter().flat_map(|(_, names)| names);
                let hosts = hosts.map(|number| format!("{name}{number}{ending}")).collect();
                (format!("{name}[{}]{ending}", inside.join(",")), hosts)
            },
        );
        proptest::collection::vec(prop_oneof![plain, bracket], 1..5).prop_map(|parts| {
            let texts: Vec<String> = parts.iter().map(|(text, _)| text.clone()).collect();
            (texts.join(","), parts.into_iter().flat_map(|(_, hosts)| hosts).collect())
        })
    }

    proptest! {
        #[test]
        fn lists_expand_to_their_hosts((list, hosts) in lists()) {
            prop_assert_eq!(expand(&list), Some(hosts));
        }

        #[test]
        fn plain_names_expand_to_themselves(names in proptest::collection::vec("[a-z0-9.-]{1,20}", 1..9)) {
            prop_assert_eq!(expand(&names.join(",")), Some(names));
        }

        #[test]
        fn no_input_panics_or_grows_without_bound(list in "[a-c0-9,\\[\\]x()\\- é]{0,40}", node in 0_usize..9) {
            if let Some(hosts) = expand(&list) {
                prop_assert!(!hosts.is_empty() && hosts.len() <= HOSTS_MAX);
            }
            let _ = count_at(&list, node);
        }
    }
}
