//! Hosts that are slower than others which ran the same.
//!
//! Logs are compared call by call: of one collective and size, on as many hosts. A log in which most calls take longer than in the median
//! log has a slow host, and so have all logs in which that host takes part; a host is only as slow as the fastest of its logs.

use std::collections::BTreeMap;

use crate::published::Call;
use crate::quantile::quantile;

/// A host is an outlier from this many times the median on.
const SLOWER: f64 = 1.1;
/// As many logs of the same calls are needed to say which is the outlier.
const LOGS_LEAST: usize = 3;

/// What one log measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Its hosts.
    pub hosts: Vec<String>,
    /// What it measured, and where: an index into a list of places.
    pub calls: Vec<(usize, Call)>,
}

/// A slow host.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlier {
    /// Its name, or those of hosts of which it is one.
    pub host: String,
    /// How many times longer calls take with it.
    pub slower: f64,
    /// The logs that it is in: indices of the runs.
    pub runs: Vec<usize>,
}

/// The slow hosts, the slowest first.
pub fn outliers(runs: &[Run]) -> Vec<Outlier> {
    // For each place, number of hosts, collective and size: the runs and their times.
    let mut alike = BTreeMap::<(usize, usize, &str, u64), BTreeMap<usize, f64>>::new();
    for (number, run) in runs.iter().enumerate() {
        for (place, (operation, bytes, time_us)) in &run.calls {
            alike
                .entry((*place, run.hosts.len(), operation.name(), *bytes))
                .or_default()
                .insert(number, *time_us);
        }
    }
    let mut ratios: Vec<Vec<f64>> = vec![Vec::new(); runs.len()];
    for calls in alike.values().filter(|calls| calls.len() >= LOGS_LEAST) {
        let median = quantile(calls.values().copied().collect(), 0.5);
        for (number, time) in calls {
            ratios[*number].push(time / median);
        }
    }
    let mut hosts: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (number, run) in runs.iter().enumerate().filter(|(number, _)| !ratios[*number].is_empty()) {
        for host in &run.hosts {
            hosts.entry(host).or_default().push(number);
        }
    }
    // Hosts that occur only together cannot be told apart.
    let mut together: BTreeMap<Vec<usize>, Vec<&str>> = BTreeMap::new();
    for (host, runs) in hosts {
        together.entry(runs).or_default().push(host);
    }
    let slower = |number: usize| quantile(ratios[number].clone(), 0.5);
    let mut found: Vec<Outlier> = together
        .into_iter()
        .map(|(runs, hosts)| {
            let slower = runs.iter().map(|number| slower(*number)).fold(f64::INFINITY, f64::min);
            Outlier { host: hosts.join(" or "), slower, runs }
        })
        .filter(|outlier| outlier.slower >= SLOWER)
        .collect();
    found.sort_by(|one, other| other.slower.total_cmp(&one.slower));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::Operation;

    fn run(hosts: &[&str], time_us: f64) -> Run {
        let calls =
            [10, 20, 30].map(|power| (0, (Operation::AllReduce, 1 << power, time_us * f64::from(power))));
        Run { hosts: hosts.iter().map(|host| (*host).to_owned()).collect(), calls: calls.to_vec() }
    }

    #[test]
    fn the_host_that_all_slow_logs_share_is_the_outlier() {
        let runs = [
            run(&["a", "b"], 1.0),
            run(&["b", "c"], 1.5),
            run(&["c", "d"], 1.5),
            run(&["d", "e"], 1.0),
            run(&["e", "a"], 1.02),
        ];
        let found = outliers(&runs);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].host.as_str(), &found[0].runs), ("c", &vec![1, 2]));
        assert!((found[0].slower - 1.5 / 1.02).abs() < 0.05 || (found[0].slower - 1.47).abs() < 0.05);
    }

    #[test]
    fn two_logs_do_not_tell_which_is_slow() {
        assert_eq!(outliers(&[run(&["a"], 1.0), run(&["b"], 3.0)]), []);
        assert_eq!(outliers(&[run(&["a"], 1.0), run(&["b"], 1.05), run(&["c"], 1.0)]), []);
        let found = outliers(&[run(&["a", "b"], 1.0), run(&["c", "d"], 1.0), run(&["e", "f"], 2.0)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].host, "e or f");
    }
}
