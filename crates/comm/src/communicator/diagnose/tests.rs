//! The table of causes: how a call stops, why the first rank aborted and what else is known, and the error of each.

use super::*;

/// How a call stops, in the order of the columns below. Rank 0 waits for a message from rank 1.
fn stops() -> [(Stop, Vec<(u32, Fault)>); 7] {
    let waited = Duration::from_secs(1);
    let aborted = Stop::Aborted { code: code(2, Reason::GaveUp), waited };
    let ended = vec![(1, Fault::Ended), (3, Fault::Ended)];
    let corrupt = vec![(1, Fault::Corrupt("a frame".to_owned())), (3, Fault::Ended)];
    [
        (aborted, Vec::new()),
        (Stop::Deadline { waited }, Vec::new()),
        (Stop::Left { rank: 1 }, Vec::new()),
        (Stop::Unreadable { rank: 1, error: libc::ESRCH }, Vec::new()),
        (Stop::Broken, ended),
        (Stop::Broken, corrupt),
        (Stop::Mismatch { found: 7 }, Vec::new()),
    ]
}

fn code(rank: u32, reason: Reason) -> AbortCode {
    AbortCode { rank, reason: reason.code() }
}

/// The evidence of rank 0 about a call that stopped, with or without an abort by another rank.
fn evidence((stop, faults): (Stop, Vec<(u32, Fault)>), reason: Reason, by: u32) -> Evidence {
    let waiting = Waiting::Message { from: 1 };
    let is_ours = by == 0;
    let mine = if is_ours { code(0, reason) } else { code(0, own_reason(stop, &faults, None, None)) };
    let is_on_purpose = matches!(reason, Reason::Cancelled | Reason::Ended);
    Evidence {
        rank: 0,
        call: 41,
        what: "all-reduce".to_owned(),
        stop,
        step: None,
        waiting,
        mine,
        first: code(by, reason),
        ended: is_on_purpose.then(|| (by, "aborted".to_owned())),
        mismatch: None,
        left: None,
        departed: None,
        faults,
        lost: None,
        roots: Vec::new(),
        cause: None,
        names: (0..5).map(|rank| format!("rank {rank} (pid 10{rank})")).collect(),
        identities: (0..5).map(|rank| Blame::of(rank, BlameKind::Failed, "", 100 + rank as u32)).collect(),
    }
}

/// An error as a letter of the tables and the ranks that it blames.
fn kind(error: &Error) -> (char, Vec<u32>) {
    let letter = match error {
        Error::Aborted { .. } => 'A',
        Error::Broken { .. } => 'B',
        Error::Cancelled { .. } => 'C',
        Error::Deadline { .. } => 'D',
        Error::Left { .. } => 'L',
        Error::Mismatch { .. } => 'M',
        Error::Unreadable { .. } => 'U',
        Error::Died { .. } => 'X',
        other => panic!("no call stops with {other}"),
    };
    let blamed = error.blamed();
    let is_identified = |blame: &Blame| blame.pid == Some(100 + blame.rank);
    assert!(letter == 'A' || blamed.iter().all(is_identified), "{error}: {blamed:?}");
    (letter, blamed.into_iter().map(|blame| blame.rank).collect())
}

/// What else is known, and the errors that follow: a row for each reason of rank 2, which aborted first, and a column for each of
/// [`stops`]. The last row is for all other reasons.
type Table = (&'static str, fn(&mut Evidence), [(&'static [Reason], &'static str); 6]);

fn differs(evidence: &mut Evidence) {
    let [mine, theirs] = ["all-reduce", "barrier"].map(str::to_owned);
    evidence.mismatch = Some(Difference { call: 40, mine, other: 4, theirs });
}

const OTHERS: &[Reason] = &[
    Reason::Mismatch,
    Reason::Memory,
    Reason::Panicked,
    Reason::Unreadable,
    Reason::Unfit,
    Reason::LeftOpen,
    Reason::Broken,
    Reason::Counts,
    Reason::GaveUp,
    Reason::Protocol,
    Reason::Setup,
    Reason::System,
];
const ON_PURPOSE: &[Reason] = &[Reason::Cancelled, Reason::Ended];

/// Stops are: aborted, deadline, left, unreadable, connection ended, connection corrupt, mismatch.
const TABLES: [Table; 7] = [
    (
        "nothing",
        |_| (),
        [
            (ON_PURPOSE, "CCCCCCC"),
            (&[Reason::Lost], "ADAUABA"),
            (&[Reason::Died], "XDXXXXA"),
            (&[Reason::Deadline], "DDDUDBA"),
            (&[Reason::Left], "ADAUABA"),
            (OTHERS, "ADAUABA"),
        ],
    ),
    (
        "a call that differs",
        differs,
        [
            (ON_PURPOSE, "CCCCCCC"),
            (&[Reason::Lost], "MDMUMBM"),
            (&[Reason::Died], "MDMMMMM"),
            (&[Reason::Deadline], "DDDUDBM"),
            (&[Reason::Left], "MDMUMBM"),
            (OTHERS, "MDMUMBM"),
        ],
    ),
    (
        "a rank that left before the call",
        |it| (it.left, it.departed) = (Some(3), Some(3)),
        [
            (ON_PURPOSE, "CCCCCCC"),
            (&[Reason::Lost], "ADAUABA"),
            (&[Reason::Died], "XDXXXXA"),
            (&[Reason::Deadline], "DDDUDBA"),
            (&[Reason::Left], "LDLULBA"),
            (OTHERS, "ADAUABA"),
        ],
    ),
    (
        "the connection that was lost",
        |it| it.lost = Some((2, 4, "ended".to_owned())),
        [
            (ON_PURPOSE, "CCCCCCC"),
            (&[Reason::Lost], "BDBBBBA"),
            (&[Reason::Died], "XDXXXXA"),
            (&[Reason::Deadline], "DDDUDBA"),
            (&[Reason::Left], "ADAUABA"),
            (OTHERS, "ADAUABA"),
        ],
    ),
    (
        "the rank that all wait for",
        |it| it.roots = vec![3],
        [
            (ON_PURPOSE, "CCCCCCC"),
            (&[Reason::Lost], "ADAUABA"),
            (&[Reason::Died], "XDXXXXA"),
            (&[Reason::Deadline], "DDDUDBA"),
            (&[Reason::Left], "ADAUABA"),
            (OTHERS, "ADAUABA"),
        ],
    ),
    (
        "not the awaited rank",
        |it| it.waiting = Waiting::Anything,
        [
            (ON_PURPOSE, "CCCCCCC"),
            (&[Reason::Lost], "ADAUABA"),
            (&[Reason::Died], "XDXXXXA"),
            (&[Reason::Deadline], "ADAUABA"),
            (&[Reason::Left], "ADAUABA"),
            (OTHERS, "ADAUABA"),
        ],
    ),
    (
        "what the first rank said",
        |it| it.cause = Some(("no memory".to_owned(), Vec::new())),
        [
            (ON_PURPOSE, "CCCCCCC"),
            (&[Reason::Lost], "ADAUABA"),
            (&[Reason::Died], "XDXXXXA"),
            (&[Reason::Deadline], "DDDUDBA"),
            (&[Reason::Left], "ADAUABA"),
            (OTHERS, "ADAUABA"),
        ],
    ),
];

/// Whom each error blames in the tables: the rank that aborted, the one that is waited for, the one that differs.
fn blamed(letter: char, known: &str, stop: Stop, reason: Reason) -> Vec<u32> {
    let is_late = matches!(reason, Reason::Deadline);
    match letter {
        'A' if known == "what the first rank said" => Vec::new(),
        'A' if known == "a rank that left before the call" && matches!(reason, Reason::Left) => vec![3],
        'A' | 'C' | 'X' => vec![2],
        'B' if known == "the connection that was lost" && !matches!(stop, Stop::Broken) => vec![4, 2],
        'D' if known == "the rank that all wait for" && is_late => vec![3],
        'D' if known == "not the awaited rank" => Vec::new(),
        'L' => vec![3],
        'M' => vec![4],
        _ => vec![1],
    }
}

#[test]
fn every_stop_and_reason_has_its_error() {
    let mut seen = 0;
    for (known, add, rows) in TABLES {
        for (&reason, letters) in
            rows.iter().flat_map(|(reasons, row)| reasons.iter().map(move |it| (it, row)))
        {
            for (column, (stop, letter)) in stops().into_iter().zip(letters.chars()).enumerate() {
                let mut evidence = evidence(stop.clone(), reason, 2);
                add(&mut evidence);
                let error = diagnose(&evidence);
                let (found, ranks) = kind(&error);
                let name = Reason::name(reason.code());
                let place = format!("{known}, {:?}, {name}: {error}", stop.0);
                assert_eq!(found, letter, "{place}");
                // A connection that ended and was lost is reported by both ends, one with wrong bytes by this rank.
                let lost = evidence.lost.is_some() && letter == 'B' && column == 4;
                let expected = if lost { vec![4, 2] } else { blamed(letter, known, stop.0, reason) };
                assert_eq!(ranks, expected, "{place}");
                assert_eq!(evidence.asks_for_cause(), letter == 'A', "{place}");
                seen += 1;
            }
        }
    }
    assert_eq!(seen, TABLES.len() * 7 * 18, "a reason is missing");
}

#[test]
fn the_first_abort_carries_its_evidence() {
    let [_, deadline, left, unreadable, ended, corrupt, mismatch] = stops();
    let gone: fn(&mut Evidence) = |it| it.left = Some(3);
    let nothing: fn(&mut Evidence) = |_| ();
    for (stop, reason, add, letter, rank) in [
        (deadline, Reason::Deadline, nothing, 'D', 1),
        (left.clone(), Reason::Left, nothing, 'L', 1),
        (left, Reason::Left, differs, 'M', 4),
        (unreadable, Reason::Unreadable, nothing, 'U', 1),
        (ended.clone(), Reason::Broken, nothing, 'B', 1),
        (ended.clone(), Reason::Broken, gone, 'B', 1),
        (ended.clone(), Reason::Left, gone, 'L', 3),
        (ended, Reason::Left, nothing, 'B', 1),
        (corrupt, Reason::Broken, gone, 'B', 1),
        (mismatch.clone(), Reason::Mismatch, differs, 'M', 4),
        // No rank shows a differing call: the evidence is from an earlier one.
        (mismatch, Reason::Mismatch, nothing, 'A', 0),
    ] {
        let mut evidence = evidence(stop, reason, 0);
        add(&mut evidence);
        let error = diagnose(&evidence);
        assert_eq!(kind(&error), (letter, vec![rank]), "{:?}: {error}", evidence.stop);
    }
}

#[test]
fn diagnosis_asks_only_relevant_ranks() {
    let every = TABLES[0].2.iter().flat_map(|(reasons, _)| *reasons);
    for (reason, (column, stop)) in
        every.flat_map(|reason| stops().into_iter().enumerate().map(move |stop| (*reason, stop)))
    {
        let evidence = evidence(stop, reason, 2);
        let is = |wanted: Reason| reason.code() == wanted.code();
        // Of a death, a departure and the end of a connection another rank's abort is the cause; wrong bytes are a cause themselves.
        let follows = [0, 2, 4].contains(&column);
        assert_eq!(evidence.asks_for_calls(), is(Reason::Mismatch));
        assert_eq!(evidence.asks_for_lost(), is(Reason::Lost) && (follows || column == 3));
        assert_eq!(evidence.asks_for_roots(), is(Reason::Deadline) && (follows || column == 1));
    }
}

#[test]
fn aborts_carry_the_observed_reason() {
    let [aborted, deadline, left, unreadable, ended, corrupt, mismatch] = stops();
    for ((stop, faults), confirmed, gone, reason) in [
        (aborted, None, None, Reason::Deadline),
        (deadline, None, None, Reason::Deadline),
        (left, None, None, Reason::Left),
        (unreadable.clone(), None, None, Reason::Unreadable),
        (unreadable, Some(Reason::Died), None, Reason::Died),
        (ended.clone(), None, None, Reason::Broken),
        (ended.clone(), Some(Reason::Lost), Some(3), Reason::Lost),
        (ended, None, Some(3), Reason::Left),
        (corrupt, Some(Reason::Died), Some(3), Reason::Broken),
        (mismatch, None, None, Reason::Mismatch),
    ] {
        let found = own_reason(stop, &faults, confirmed, gone);
        assert_eq!(Reason::name(found.code()), Reason::name(reason.code()), "{stop:?}");
    }
}

#[test]
fn messages_name_what_was_waited_for() {
    let text = |add: fn(&mut Evidence), reason| {
        let mut evidence = evidence(stops()[0].clone(), reason, 2);
        add(&mut evidence);
        diagnose(&evidence).to_string()
    };
    assert_eq!(
        text(|_| (), Reason::Deadline),
        "call #41 timed out after 1.0 s: rank 0 was waiting for a message from rank 1 (pid 101) (no lane could continue)"
    );
    assert_eq!(
        text(|it| it.roots = vec![3], Reason::Deadline),
        "call #41 timed out after 1.0 s: rank 0 was waiting for rank 3 (pid 103), which rank 1 is waiting for (no lane could continue)"
    );
    assert_eq!(
        text(|_| (), Reason::Died),
        "rank 2 (pid 102) died during call #41, all-reduce; rank 0 had waited 1.0 s. To continue without it, call shrink()"
    );
    assert_eq!(
        text(|it| it.departed = Some(3), Reason::Left),
        "call #41 aborted by rank 2 (a rank has left): rank 3 has left"
    );
}
