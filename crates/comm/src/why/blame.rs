//! Whom an error blames.
//!
//! Every error of a communicator names the ranks it is about, the one that has it among them; the others are whom it blames.
//! What another said counts for more than that it said so.

/// Ranks that an error's text blames, where `own` is the rank that has it; in the order in which they are named.
pub fn blamed(error: &str, own: u32) -> Vec<u32> {
    // Others were let in: it is this rank that differs.
    if error.starts_with(&format!("rank {own} was refused")) {
        return Vec::new();
    }
    for cause in [". It said: ", " has given up: "] {
        if let Some((speaker, said)) = error.split_once(cause) {
            let speaker = named(speaker, own);
            let ranks: Vec<u32> =
                blamed(said, own).into_iter().filter(|rank| !speaker.contains(rank)).collect();
            return if ranks.is_empty() { speaker } else { ranks };
        }
    }
    named(error, own)
}

/// Ranks that a text names, but for one.
fn named(error: &str, own: u32) -> Vec<u32> {
    let mut ranks = Vec::new();
    for after in error.split("rank ").skip(1) {
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        if let Ok(rank) = after[..digits].parse()
            && rank != own
            && !ranks.contains(&rank)
        {
            ranks.push(rank);
        }
    }
    ranks
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::Error;

    #[test]
    fn errors_blame_who_they_are_about() {
        let (call, rank, step) = (5, 1, "lane 0, step 1".to_owned());
        let aborted = |cause: &str| Error::Aborted {
            call,
            rank,
            by: 3,
            reason: "a rank has left",
            cause: cause.to_owned(),
        };
        let waited = Duration::from_secs(2);
        let late =
            |what: &str| Error::Deadline { call, rank, what: what.to_owned(), step: step.clone(), waited };
        let name = "rank 2 (host b, pid 7)".to_owned();
        let what = "all-reduce of 8 f32 (sum) in place".to_owned();
        for (error, wanted) in [
            (Error::Left { call, rank, left: 2 }, vec![2]),
            (Error::Died { call, what: what.clone(), rank, died: 2, name: name.clone(), waited }, vec![2]),
            (late("a message from rank 2 (pid 7)"), vec![2]),
            (late("rank 0 (pid 6) and rank 2 (pid 7), of whom nothing is heard"), vec![0, 2]),
            (Error::Broken { call, rank, peer: name, what: "it has ended".to_owned() }, vec![2]),
            (aborted(""), vec![3]),
            (aborted("call #5: rank 2 left before it was over, so rank 3 cannot finish it"), vec![2]),
            (aborted("rank 1 has left"), vec![3]),
            (Error::Panicked { call, rank, what: "no".to_owned() }, vec![]),
            (Error::Unfit { call, rank, what: "its 3 ranks do not fit".to_owned() }, vec![]),
        ] {
            assert_eq!(blamed(&error.to_string(), rank), wanted, "{error}");
        }
        let refused =
            "rank 1 was refused at a:1: WEFT_ENCRYPT: it has on, rank 0 has off. Give all ranks the same";
        assert_eq!(blamed(refused, 1), [0; 0]);
    }
}
