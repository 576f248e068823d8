//! The hosts of a job, and the ranks of each.

use std::ops::Range;

/// A host as given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) host: String,
    /// Its slots, if given.
    pub(super) slots: Option<usize>,
}

/// A host and its ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) host: String,
    /// Whether it is this host, which needs no remote shell.
    pub(super) is_here: bool,
    pub(super) ranks: Range<usize>,
}

const HOSTS_MAX: usize = 4096;
const SLOTS_MAX: usize = 4096;

/// `a,b` or `a:4,b:4`.
pub(super) fn from_list(list: &str) -> Result<Vec<Slot>, String> {
    let hosts = list.split(',').map(|text| host(text.trim())).collect::<Result<Vec<_>, _>>()?;
    checked(hosts)
}

/// A host per line, as in a hostfile of mpirun.
pub(super) fn from_file(text: &str) -> Result<Vec<Slot>, String> {
    let mut hosts = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let at = |error: String| format!("line {}: {error}", number + 1);
        let mut slot = host(name).map_err(at)?;
        for word in words {
            match word.split_once('=') {
                Some(("slots", count)) if slot.slots.is_none() => {
                    slot.slots = Some(slots(count).map_err(at)?)
                }
                // mpirun's limit for --oversubscribe; ignored.
                Some(("max_slots" | "max-slots", _)) => {}
                _ => {
                    return Err(at(format!(
                        "{word:?} is not understood; a host is `name`, `name:4` or `name slots=4`"
                    )));
                }
            }
        }
        hosts.push(slot);
    }
    checked(hosts)
}

fn checked(hosts: Vec<Slot>) -> Result<Vec<Slot>, String> {
    if hosts.is_empty() {
        return Err("it names no host".into());
    }
    if hosts.len() > HOSTS_MAX {
        return Err(format!("{} hosts; a job has at most {HOSTS_MAX}", hosts.len()));
    }
    let mut names: Vec<&str> = hosts.iter().map(|slot| slot.host.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("{0} is listed twice; list it once, with its slots: {0}:2", twice[0]));
    }
    if hosts.iter().any(|slot| slot.slots.is_some()) && hosts.iter().any(|slot| slot.slots.is_none()) {
        return Err("some hosts have slots and some do not; give slots to all of them or to none".into());
    }
    Ok(hosts)
}

fn host(text: &str) -> Result<Slot, String> {
    let (name, count) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, rest) =
                rest.split_once(']').ok_or_else(|| format!("{text:?} has no closing bracket"))?;
            (name, rest.strip_prefix(':'))
        }
        // An IPv6 address without brackets has no slots.
        None if text.matches(':').count() > 1 => (text, None),
        None => text.split_once(':').map_or((text, None), |(name, count)| (name, Some(count))),
    };
    // A name that begins with a dash would be an option to ssh.
    let odd = |c: char| !(c.is_alphanumeric() || "-._:%@".contains(c));
    if name.is_empty() || name.starts_with('-') || name.len() > 255 || name.contains(odd) {
        return Err(format!("{text:?} is not a host name"));
    }
    Ok(Slot { host: name.to_owned(), slots: count.map(slots).transpose()? })
}

fn slots(text: &str) -> Result<usize, String> {
    let count = text.parse::<usize>().ok().filter(|count| (1..=SLOTS_MAX).contains(count));
    count.ok_or_else(|| format!("{text:?} is not a number of slots from 1 to {SLOTS_MAX}"))
}

/// Ranks fill the slots host by host. Without slots they are divided evenly; the first hosts get the remainder.
pub(super) fn place(hosts: &[Slot], ranks: Option<usize>, own_name: &str) -> Result<Vec<Placed>, String> {
    let slots: Option<Vec<usize>> = hosts.iter().map(|slot| slot.slots).collect();
    let counts: Vec<usize> = match (slots, ranks) {
        (Some(slots), ranks) => {
            let all: usize = slots.iter().sum();
            let mut left = ranks.unwrap_or(all);
            if left > all {
                return Err(format!(
                    "{left} ranks do not fit into {all} slots; give the hosts more slots, or none"
                ));
            }
            let take = |slots: usize| {
                let count = slots.min(left);
                left -= count;
                count
            };
            slots.into_iter().map(take).collect()
        }
        (None, Some(ranks)) => {
            let share = |host| ranks / hosts.len() + usize::from(host < ranks % hosts.len());
            (0..hosts.len()).map(share).collect()
        }
        (None, None) => return Err("give the number of ranks: -n 8, or slots of the hosts, a:4,b:4".into()),
    };
    let mut first = 0;
    let place = |(slot, count): (&Slot, usize)| {
        let ranks = first..first + count;
        first = ranks.end;
        Placed { host: slot.host.clone(), is_here: is_here(&slot.host, own_name), ranks }
    };
    Ok(hosts.iter().zip(counts).map(place).filter(|placed| !placed.ranks.is_empty()).collect())
}

/// The host name in the kernel.
pub(super) fn own_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

fn is_here(host: &str, own_name: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let own = !own_name.is_empty() && (host == own_name || (host == short(own_name) && !host.is_empty()));
    own || ["localhost", "127.0.0.1", "::1"].contains(&host)
}

/// Splits a command line into words; quotes keep spaces.
pub(super) fn words(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    match (quote, words.is_empty()) {
        (Some(open), _) => Err(format!("there is no closing {open}")),
        (None, true) => Err("it is empty".into()),
        (None, false) => Ok(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(list: &str, ranks: Option<usize>) -> Result<Vec<(String, usize)>, String> {
        let placed = place(&from_list(list)?, ranks, "vm.example")?;
        Ok(placed.into_iter().map(|one| (one.host, one.ranks.len())).collect())
    }

    #[test]
    fn ranks_fill_slots_or_are_divided() {
        let of =
            |list, ranks| placed(list, ranks).unwrap().iter().map(|(_, count)| *count).collect::<Vec<_>>();
        assert_eq!(of("a,b", Some(8)), [4, 4]);
        assert_eq!(of("a,b,c", Some(8)), [3, 3, 2]);
        assert_eq!(of("a,b,c", Some(2)), [1, 1]);
        assert_eq!(of("a:2,b:6", None), [2, 6]);
        assert_eq!(of("a:2,b:6", Some(3)), [2, 1]);
        assert!(placed("a:2,b:6", Some(9)).unwrap_err().contains("9 ranks do not fit into 8 slots"));
        assert!(placed("a,b", None).unwrap_err().contains("-n 8"));
        assert!(placed("a:2,b", None).unwrap_err().contains("some hosts have slots"));
        assert!(placed("a,a", Some(2)).unwrap_err().contains("a is listed twice"));
        for bad in ["", "a,,b", "-oProxyCommand=x", "a b", "a:0", "a:x", "a;b", "[::1"] {
            assert!(placed(bad, Some(2)).is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_of_ipv6() {
        assert_eq!(from_list("[fd00::1]:4").unwrap(), [Slot { host: "fd00::1".into(), slots: Some(4) }]);
        assert_eq!(from_list("fd00::1").unwrap(), [Slot { host: "fd00::1".into(), slots: None }]);
    }

    #[test]
    fn hostfiles_of_mpirun() {
        let text = "# ours\na slots=4 max_slots=8\n\nb:2 # half\n";
        let slot = |host: &str, slots| Slot { host: host.into(), slots: Some(slots) };
        assert_eq!(from_file(text).unwrap(), [slot("a", 4), slot("b", 2)]);
        assert_eq!(
            from_file("a\nb slots=x").unwrap_err(),
            "line 2: \"x\" is not a number of slots from 1 to 4096"
        );
        assert!(from_file("a cpus=4").unwrap_err().contains("line 1: \"cpus=4\" is not understood"));
        assert_eq!(from_file("# nothing\n").unwrap_err(), "it names no host");
    }

    #[test]
    fn this_host_is_known_by_its_names() {
        for (host, here) in
            [("localhost", true), ("vm", true), ("vm.example", true), ("vm2", false), ("v", false)]
        {
            assert_eq!(is_here(host, "vm.example"), here, "{host}");
        }
        assert!(!is_here("vm", ""));
    }

    #[test]
    fn commands_are_split_into_words() {
        assert_eq!(words("ssh -o 'A B'  x").unwrap(), ["ssh", "-o", "A B", "x"]);
        assert_eq!(words("sh -c \"\"").unwrap(), ["sh", "-c", ""]);
        assert!(words(" ").is_err());
        assert!(words("'a").is_err());
    }
}
