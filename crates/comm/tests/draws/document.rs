//! The messages that `docs/faults.md` shows are those that ranks give.

use std::collections::BTreeSet;
use std::time::Duration;

use weftlink_comm::bootstrap::{Bootstrap, BootstrapError, Meeting, Place, Token};
use weftlink_comm::{Communicator, Options};

use crate::scenario;

/// Draws that give the messages of the document: what goes wrong while nobody is in a call gives the same words each time.
const DRAWS: [(&str, u64); 11] = [
    ("a rank of one host is killed", 3440),
    ("a rank of several hosts is killed", 1863),
    ("a rank is stopped", 10_029),
    ("a rank is stopped while a plan is loaded", 10_034),
    ("a host is cut off", 10_049),
    ("a count differs", 21_067),
    ("a rank leaves", 77),
    ("a sealed frame is changed", 2993),
    ("another version", 742),
    ("other settings", 81),
    ("those who are left go on", 423),
];

#[test]
fn messages_in_the_document_are_real() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/faults.md");
    let document = std::fs::read_to_string(path).unwrap();
    let mut heard: BTreeSet<String> = BTreeSet::new();
    for (what, seed) in DRAWS {
        let report = scenario::run(seed);
        assert_eq!(report.failure, None, "{what}");
        heard.extend(report.messages.iter().map(|message| general(message)));
    }
    heard.extend(of_meetings().iter().chain(&of_counts()).map(|message| general(message)));
    let blocks = document.split("```text\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let shown: Vec<&str> = blocks.flat_map(str::lines).collect();
    assert!(shown.len() > 8, "the document shows no messages");
    for message in shown {
        assert!(heard.contains(&general(message)), "{message:?} is not among {heard:#?}");
    }
}

/// What goes wrong before there are ranks.
fn of_meetings() -> Vec<String> {
    let place = Place::Abstract("weft-faults".to_owned());
    let brief = Duration::from_millis(30);
    let meeting = Meeting::new(place, Token::new("secret").unwrap(), 4, brief);
    let nobody = Bootstrap::join(&meeting, 1).unwrap_err();
    let missing = Bootstrap::listen(&meeting).unwrap_err();
    let long = Meeting { deadline: Duration::from_secs(20), size: 2, ..meeting.clone() };
    let stranger = std::thread::scope(|scope| {
        let other = Meeting { token: Token::new("guess").unwrap(), ..long.clone() };
        let zero = scope.spawn(|| Bootstrap::listen(&long).map(drop));
        let refused = Bootstrap::join(&other, 1).unwrap_err();
        let ours = Meeting { token: Token::new("secret").unwrap(), ..other };
        Bootstrap::join(&ours, 1).unwrap();
        zero.join().unwrap().unwrap();
        refused
    });
    let short = Bootstrap::threads(1).remove(0).share("all of it", 1 << 46, brief).unwrap_err();
    // Provoked in `namespaces.rs`, where networks come apart.
    let minority = BootstrapError::Minority { here: vec![2, 3], others: vec![0, 1], size: 4 };
    let excluded = BootstrapError::Excluded { rank: 2 };
    [missing, nobody, stranger, short, minority, excluded].iter().map(ToString::to_string).collect()
}

/// Two ranks that disagree about how much one sends the other.
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

/// A message without what is different each time: numbers and the names of hosts.
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
