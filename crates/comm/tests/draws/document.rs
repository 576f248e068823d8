//! The messages in `docs/faults.md` are those that ranks print, up to numbers and host names.

use std::collections::BTreeSet;
use std::time::Duration;

use weftlink_comm::bootstrap::{Bootstrap, BootstrapError, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Communicator, Options};

use crate::scenario;

/// Draws that print the messages of the document. Faults between calls give the same message each time.
const DRAWS: [(&str, u64); 11] = [
    ("a rank of one host is killed", 3440),
    ("a rank of several hosts is killed", 1863),
    ("a rank is stopped", 10_029),
    ("a rank is stopped while a plan is loaded", 10_034),
    ("a host is disconnected", 10_049),
    ("a count differs", 21_067),
    ("a rank leaves", 77),
    ("a sealed frame is changed", 2993),
    ("another version", 742),
    ("other settings", 81),
    ("survivors shrink", 423),
];

#[test]
fn messages_in_the_document_are_real() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/faults.md");
    let document = std::fs::read_to_string(path).unwrap();
    let mut printed: BTreeSet<String> = BTreeSet::new();
    for (what, seed) in DRAWS {
        let report = scenario::run(seed);
        assert_eq!(report.failure, None, "{what}");
        printed.extend(report.messages.iter().map(|message| general(message)));
    }
    printed.extend(of_rendezvous().iter().chain(&of_counts()).map(|message| general(message)));
    let blocks = document.split("```text\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let shown: Vec<&str> = blocks.flat_map(str::lines).collect();
    assert!(shown.len() > 8, "the document shows no messages");
    for message in shown {
        assert!(printed.contains(&general(message)), "{message:?} is not among {printed:#?}");
    }
}

/// Errors of the rendezvous.
fn of_rendezvous() -> Vec<String> {
    let place = RendezvousAddress::Abstract("weft-faults".to_owned());
    let timeout = Duration::from_millis(30);
    let rendezvous = Rendezvous::new(place, Token::new("secret").unwrap(), 4, timeout);
    let nobody = Bootstrap::join(&rendezvous, 1).unwrap_err();
    let missing = Bootstrap::listen(&rendezvous).unwrap_err();
    let long = Rendezvous { deadline: Duration::from_secs(20), size: 2, ..rendezvous.clone() };
    let stranger = std::thread::scope(|scope| {
        let other = Rendezvous { token: Token::new("guess").unwrap(), ..long.clone() };
        let zero = scope.spawn(|| Bootstrap::listen(&long).map(drop));
        let refused = Bootstrap::join(&other, 1).unwrap_err();
        let ours = Rendezvous { token: Token::new("secret").unwrap(), ..other };
        Bootstrap::join(&ours, 1).unwrap();
        zero.join().unwrap().unwrap();
        refused
    });
    let short = Bootstrap::threads(1).remove(0).share("all of it", 1 << 46, timeout).unwrap_err();
    // `namespaces.rs` provokes these with a real partition.
    let minority = BootstrapError::Minority { here: vec![2, 3], others: vec![0, 1], size: 4 };
    let excluded = BootstrapError::Excluded { rank: 2 };
    [missing, nobody, stranger, short, minority, excluded].iter().map(ToString::to_string).collect()
}

/// A mismatch of counts between two ranks.
fn of_counts() -> Vec<String> {
    let ranks = Communicator::threads(2, Options::default()).unwrap();
    let call = |mut comm: Communicator| {
        let (sent, received) = if comm.rank() == 0 { ([5, 10], [5, 5]) } else { ([5, 5], [20, 5]) };
        let (input, mut output) = (vec![1; sent.iter().sum()], vec![0; received.iter().sum()]);
        comm.all_to_all_v((&input[..], &mut output[..]), &sent, &received).unwrap_err().to_string()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || call(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A message without numbers and host names.
fn general(message: &str) -> String {
    let mut text = String::new();
    for word in message.split_inclusive(' ') {
        if text.ends_with("host ") && word.ends_with(", ") {
            text += "H, ";
            continue;
        }
        for letter in word.chars() {
            match letter {
                '0'..='9' | '.' if text.ends_with('N') => {}
                '0'..='9' => text.push('N'),
                other => text.push(other),
            }
        }
    }
    text
}
