//! Whether ranks said what they must after a fault.

use std::collections::{BTreeMap, BTreeSet};

use super::draw::{Fault, Kind};

/// How the calls of a rank ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Succeeded,
    Failed(String),
    /// The process must restart.
    Lost(String),
}

impl Outcome {
    fn text(&self) -> Option<&str> {
        match self {
            Outcome::Succeeded => None,
            Outcome::Failed(text) | Outcome::Lost(text) => Some(text),
        }
    }
}

/// Compares what ranks said with the fault. Returns the error that names its rank, or that all is well; else what is wrong.
pub(super) fn judge(fault: &Fault, outcomes: &BTreeMap<usize, Outcome>) -> Result<String, String> {
    let all = || format!("{outcomes:#?}");
    if fault.kind == Kind::Late {
        let failed = outcomes.values().any(|outcome| *outcome != Outcome::Succeeded);
        return if failed {
            Err(format!("a call failed: {}", all()))
        } else {
            Ok("all calls succeeded".to_owned())
        };
    }
    let others = outcomes.iter().filter(|(rank, _)| **rank != fault.rank);
    let texts: BTreeMap<usize, &str> =
        others.clone().filter_map(|(rank, outcome)| Some((*rank, outcome.text()?))).collect();
    if texts.len() < others.count() {
        return Err(format!("a call succeeded: {}", all()));
    }
    let own = outcomes.get(&fault.rank);
    if fault.kind.stays() && own.is_none_or(|outcome| *outcome == Outcome::Succeeded) {
        return Err(format!("the call of rank {} succeeded: {}", fault.rank, all()));
    }
    let word = match fault.kind {
        Kind::KilledBefore | Kind::KilledIn | Kind::KilledBetween => "died",
        Kind::Stopped | Kind::OtherCollective => "timed out",
        Kind::Leaves => "left",
        Kind::OtherCount | Kind::OtherType | Kind::OtherOperation => "another call",
        Kind::Aborts | Kind::AbortsGraph => "aborted",
        Kind::Late => "",
    };
    let direct = |rank: &usize, text: &str| text.contains(word) && names(*rank, text).contains(&fault.rank);
    // A mismatch may be reported by the rank itself, which names another.
    let own_text = own.and_then(Outcome::text).filter(|text| text.contains(word));
    let first = texts.iter().find(|(rank, text)| direct(rank, text)).map(|(_, text)| *text).or(own_text);
    let Some(first) = first else {
        return Err(format!("no error says {word:?} and names rank {}: {}", fault.rank, all()));
    };
    // The others name it, or a rank whose error does.
    let mut known = BTreeSet::from([fault.rank]);
    while let Some((rank, _)) =
        texts.iter().find(|(rank, text)| !known.contains(*rank) && !names(**rank, text).is_disjoint(&known))
    {
        known.insert(*rank);
    }
    match texts.keys().find(|rank| !known.contains(*rank)) {
        Some(rank) => {
            Err(format!("the error of rank {rank} does not lead to rank {}: {}", fault.rank, all()))
        }
        None => Ok(first.to_owned()),
    }
}

/// The ranks that an error names, except its own.
fn names(own: usize, text: &str) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let words: Vec<&str> =
        text.split([' ', ',', '(', ')', ':', ';', '.']).filter(|word| !word.is_empty()).collect();
    for (at, word) in words.iter().enumerate() {
        if ["rank", "Rank", "ranks", "Ranks"].contains(word) {
            let list =
                words[at + 1..].iter().take_while(|word| **word == "and" || word.parse::<usize>().is_ok());
            found.extend(list.filter_map(|word| word.parse::<usize>().ok()));
        }
    }
    found.remove(&own);
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::gpu_tests::faults::draw::Call;

    fn fault(kind: Kind) -> Fault {
        Fault { seed: 1, kind, rank: 2, after: Duration::ZERO, call: Call::Small, calls: 1 }
    }

    fn outcomes(each: &[(usize, &str)]) -> BTreeMap<usize, Outcome> {
        let outcome = |text: &str| match text {
            "" => Outcome::Succeeded,
            text => Outcome::Failed(text.to_owned()),
        };
        each.iter().map(|(rank, text)| (*rank, outcome(text))).collect()
    }

    fn is_right(kind: Kind, each: &[(usize, &str)]) -> bool {
        judge(&fault(kind), &outcomes(each)).is_ok()
    }

    #[test]
    fn ranks_in_errors_are_read() {
        assert_eq!(names(0, "rank 2 (pid 12) died, and rank 0 waited for it"), BTreeSet::from([2]));
        assert_eq!(names(0, "ranks 1, 2 and 3 died"), BTreeSet::from([1, 2, 3]));
        assert_eq!(names(0, "timed out: rank 0 waited for rank 12, in step 3"), BTreeSet::from([12]));
    }

    #[test]
    fn errors_must_name_the_rank_or_lead_to_it() {
        let died = "rank 2 has died, and rank 0 waited for it to enter the call";
        let elsewhere = "rank 0 aborted, or its call failed; its own error says why";
        assert!(is_right(Kind::KilledIn, &[(0, died), (1, elsewhere)]));
        assert!(!is_right(Kind::KilledIn, &[(0, died), (1, "")]), "a survivor succeeded");
        assert!(
            !is_right(Kind::KilledIn, &[(0, elsewhere), (1, elsewhere)]),
            "every rank blames another one's failure, so no error has the cause"
        );
        assert!(!is_right(Kind::KilledIn, &[(0, died), (1, "rank 3 has died")]), "another rank is blamed");
        assert!(!is_right(Kind::KilledIn, &[(0, "rank 2 has left the communicator")]), "another reason");
        assert!(!is_right(Kind::KilledIn, &[(0, "cannot wait for a stream: CUDA_ERROR_ILLEGAL_ADDRESS")]));
        let waited = "timed out: rank 0 waited for rank 2 to enter the call";
        assert!(is_right(
            Kind::Stopped,
            &[(0, waited), (1, "timed out: rank 1 waited for rank 0"), (2, elsewhere)]
        ));
        assert!(!is_right(Kind::Stopped, &[(0, waited), (1, waited)]), "it has not said how its call ended");
        assert!(is_right(Kind::Leaves, &[(0, "rank 2 has left the communicator"), (2, "")]));
        let mismatch =
            "rank 1 is in another call than rank 2: counts, types, operations or offsets in windows differ";
        assert!(is_right(
            Kind::OtherType,
            &[(0, elsewhere.replace('0', "2").as_str()), (1, "rank 2 aborted, or"), (2, mismatch)]
        ));
        assert!(!is_right(Kind::OtherType, &[(0, ""), (1, ""), (2, mismatch)]));
        assert!(is_right(Kind::Late, &[(0, ""), (1, ""), (2, "")]));
        assert!(!is_right(Kind::Late, &[(0, ""), (1, waited), (2, "")]));
    }
}
