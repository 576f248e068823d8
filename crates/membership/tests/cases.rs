//! Single situations in which one rank must do one thing, where few schedules come to them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use weftlink_membership::durations::INQUIRY;
use weftlink_membership::regroup::{self, Hello, Regroup, View};
use weftlink_membership::{Action, Event, Gone, Group, Input, Probe, tree};

const RANKS: u32 = 4;

/// A rank of four on one host: ranks 1 and 2 are children of rank 0, rank 3 of rank 2.
fn group(rank: u32) -> Group<u32> {
    let parents = tree::parents(&[0; RANKS as usize]);
    let mut group = Group::new(rank, parents[rank as usize], tree::children(&parents, rank));
    group.set_parents(parents);
    group
}

/// Gives a group the time until an action matches, for some seconds.
fn wait(group: &mut Group<u32>, now: &mut Instant, matches: impl Fn(&Action<u32>) -> bool) -> bool {
    let end = *now + Duration::from_secs(10);
    while let Some(when) = group.next_timeout().filter(|when| *when <= end) {
        *now = when;
        if group.handle(Input::Timeout, when).iter().any(&matches) {
            return true;
        }
    }
    false
}

fn left(from: u32) -> Input<u32> {
    Input::Heard { from, event: Event::Left { rank: from, calls: 0 } }
}

#[test]
fn a_child_that_answers_and_does_not_connect_is_probed_again() {
    let (mut group, mut now) = (group(0), Instant::now());
    group.handle(left(2), now);
    let is_probe = |action: &Action<u32>| *action == Action::Probe(3);
    assert!(wait(&mut group, &mut now, is_probe));
    group.handle(Input::Probed(3, Probe::Answered), now);
    assert!(wait(&mut group, &mut now, is_probe), "it may end before it connects");
    group.handle(Input::Probed(3, Probe::Refused), now);
    assert_eq!(group.cause(), Some(&Event::Died { rank: 3 }));
}

/// The driver of a GPU holds a killed process up after its connections have ended.
#[test]
fn a_process_that_exits_has_died_and_one_that_lives_is_lost() {
    let is_check = |action: &Action<u32>| *action == Action::CheckExit(1);
    let checked = |is_exiting| Input::ExitChecked { rank: 1, is_exiting };
    let disconnected = || Input::Disconnected { rank: 1, is_watched: true };
    let begin = Instant::now();
    let mut lives = group(0);
    assert!(lives.handle(disconnected(), begin).iter().any(is_check));
    let mut killed = lives.clone();
    killed.handle(checked(true), begin);
    assert_eq!(killed.cause(), Some(&Event::Died { rank: 1 }), "its end may take a second");
    let mut now = begin;
    while now < begin + INQUIRY {
        lives.handle(checked(false), now);
        assert!(lives.is_watching(1) && lives.cause().is_none());
        assert!(wait(&mut lives, &mut now, is_check));
    }
    let mut killed = lives.clone();
    killed.handle(Input::Exited(1), now);
    assert_eq!(killed.cause(), Some(&Event::Died { rank: 1 }));
    lives.handle(checked(false), now);
    let is_lost = |group: &Group<u32>| matches!(group.cause(), Some(Event::Lost { rank: 1, by: 0, .. }));
    assert!(is_lost(&lives) && !lives.is_watching(1));
}

#[test]
fn a_rank_that_has_ended_may_have_handed_its_departure_to_another() {
    let (mut group, mut now) = (group(1), Instant::now());
    group.handle(left(0), now);
    assert!(wait(&mut group, &mut now, |action| *action == Action::Reparent(2)));
    let refused = Input::NotReparented { rank: 2, why: Probe::Refused, gone: None };
    let actions = group.handle(refused, now);
    assert_eq!((group.cause(), &actions[..]), (None, &[Action::Reparent(3)][..]));
    group.handle(Input::Connected(3), now);
    group.handle(Input::Heard { from: 3, event: Event::Left { rank: 2, calls: 0 } }, now);
    assert_eq!(group.cause(), None);
}

#[test]
fn a_rank_that_the_others_continued_without_fails() {
    let (mut group, mut now) = (group(2), Instant::now());
    group.handle(left(0), now);
    assert!(wait(&mut group, &mut now, |action| *action == Action::Reparent(1)));
    let gone = Some(Gone::Continued { group: 7 });
    group.handle(Input::NotReparented { rank: 1, why: Probe::Answered, gone }, now);
    assert!(matches!(group.cause(), Some(Event::Lost { rank: 1, by: 2, .. })));
    assert_eq!(group.continued(), BTreeSet::from([7]));
}

/// Rank 4 was ready for a group of ranks 0, 2, 3 and 4 when its leader died, and follows rank 1, which is not in that group.
fn in_doubt(now: Instant) -> (Regroup, [View; 2]) {
    let first = View { epoch: 0, group: 1, ranks: (0..5).collect() };
    let second = View { epoch: 1, group: 2, ranks: vec![0, 2, 3, 4] };
    let views = vec![first.clone(), second.clone()];
    let mut regroup = Regroup::new(4, views, vec![0; 5], now + Duration::from_secs(10), 9);
    let known = regroup::Input::Known {
        dead: BTreeSet::from([0]),
        left: BTreeSet::new(),
        cut_off: BTreeSet::new(),
        continued: BTreeSet::new(),
    };
    assert!(matches!(regroup.handle(known, now)[..], [regroup::Action::Dial(1, _)]));
    (regroup, [first, second])
}

#[test]
fn a_rank_is_in_a_group_that_another_continued_in() {
    let mut now = Instant::now();
    let (mut regroup, [_, second]) = in_doubt(now);
    regroup.handle(regroup::Input::Dialed(Ok(5)), now);
    let hello =
        Hello { from: 2, dead: BTreeSet::from([0]), views: vec![second.clone()], passed: BTreeSet::new() };
    regroup.handle(regroup::Input::Arrived(6, hello), now);
    assert_eq!(regroup.views(), [second]);
    now = regroup.next_timeout().expect("a pause");
    let actions = regroup.handle(regroup::Input::Timeout, now);
    assert!(matches!(actions[..], [regroup::Action::Dial(2, _)]), "{actions:?}");
}

#[test]
fn a_group_that_stands_needs_no_quorum_in_the_one_before() {
    let now = Instant::now();
    let first = View { epoch: 0, group: 1, ranks: (0..7).collect() };
    let second = View { epoch: 1, group: 2, ranks: vec![1, 2, 3, 5, 6] };
    let mut regroup = Regroup::new(2, vec![second.clone()], vec![0; 7], now + Duration::from_secs(10), 9);
    let known = regroup::Input::Known {
        dead: BTreeSet::from([1, 3]),
        left: BTreeSet::new(),
        cut_off: BTreeSet::new(),
        continued: BTreeSet::new(),
    };
    regroup.handle(known, now);
    let mut actions = Vec::new();
    for from in [5, 6] {
        let views = vec![first.clone(), second.clone()];
        let hello = Hello { from, dead: BTreeSet::new(), views, passed: BTreeSet::new() };
        actions = regroup.handle(regroup::Input::Arrived(u64::from(from), hello), now);
    }
    let is_proposal = |action: &regroup::Action| matches!(action, regroup::Action::Send(_, regroup::Message::Propose(view)) if view.ranks == [2, 5, 6]);
    assert!(actions.iter().any(is_proposal), "{actions:?}");
}

#[test]
fn a_rank_in_doubt_remembers_the_groups_before() {
    let now = Instant::now();
    let view = |epoch, ranks| View { epoch, group: epoch + 1, ranks };
    let views = vec![view(0, (0..5).collect()), view(1, vec![1, 2, 3, 4]), view(2, vec![2, 3, 4])];
    let mut regroup = Regroup::new(4, views.clone(), vec![0; 5], now + Duration::from_secs(10), 9);
    let views = vec![views[2].clone()];
    let hello = Hello { from: 3, dead: BTreeSet::from([0, 1, 2]), views, passed: BTreeSet::new() };
    regroup.handle(regroup::Input::Arrived(6, hello), now);
    // Rank 1 continued in the second group before it died.
    let known = regroup::Input::Known {
        dead: BTreeSet::new(),
        left: BTreeSet::new(),
        cut_off: BTreeSet::new(),
        continued: BTreeSet::from([2]),
    };
    let actions = regroup.handle(known, now);
    assert!(!actions.iter().any(|action| matches!(action, regroup::Action::Done(_))), "{actions:?}");
}

#[test]
fn a_leader_calls_the_ranks_that_are_missing() {
    let now = Instant::now();
    let view = View { epoch: 0, group: 1, ranks: vec![0, 1] };
    let mut regroup = Regroup::new(0, vec![view], vec![0; 2], now + Duration::from_secs(10), 9);
    regroup.handle(regroup::Input::Timeout, now);
    let when = regroup.next_timeout().expect("a probe");
    let actions = regroup.handle(regroup::Input::Timeout, when);
    assert!(matches!(actions[..], [regroup::Action::Call(1, _)]), "another rank may lead it: {actions:?}");
}

#[test]
fn a_leader_that_was_stopped_does_not_take_unread_answers_for_silence() {
    let now = Instant::now();
    let view = View { epoch: 0, group: 1, ranks: vec![0, 1] };
    let proposes_again_after = |late: Duration| {
        let mut regroup = Regroup::new(0, vec![view.clone()], vec![0; 2], now + Duration::from_secs(10), 9);
        regroup.handle(regroup::Input::Timeout, now);
        let hello =
            || Hello { from: 1, dead: BTreeSet::new(), views: vec![view.clone()], passed: BTreeSet::new() };
        regroup.handle(regroup::Input::Arrived(6, hello()), now);
        // Its answer to the proposal is not read.
        let mut later = regroup.next_timeout().expect("the limit of the proposal") + late;
        regroup.handle(regroup::Input::Timeout, later);
        later = regroup.next_timeout().expect("a pause");
        let actions = regroup.handle(regroup::Input::Timeout, later);
        !actions.iter().any(|action| matches!(action, regroup::Action::Done(_))) && regroup.waits_for() == [1]
    };
    assert!(proposes_again_after(Duration::from_secs(3)));
    assert!(!proposes_again_after(Duration::ZERO));
}

#[test]
fn a_second_connection_to_a_neighbour_does_not_end_the_first() {
    let (mut group, now) = (group(0), Instant::now());
    group.handle(Input::Leave { calls: 0 }, now);
    let actions = group.handle(Input::Connected(1), now);
    assert!(!actions.contains(&Action::Close(1)), "{actions:?}");
    assert!(group.handle(Input::Connected(3), now).contains(&Action::Close(3)), "it takes no other in");
}

#[test]
fn a_rank_that_left_may_have_known_that_another_left() {
    let (mut group, mut now) = (group(1), Instant::now());
    group.handle(left(0), now);
    assert!(wait(&mut group, &mut now, |action| *action == Action::Reparent(2)));
    let gone = Some(Gone::Left { calls: 0 });
    group.handle(Input::NotReparented { rank: 2, why: Probe::Answered, gone }, now);
    group.handle(Input::NotReparented { rank: 3, why: Probe::Refused, gone: None }, now);
    assert!(matches!(group.cause(), Some(Event::Lost { rank: 3, by: 1, .. })), "{:?}", group.cause());
}

#[test]
fn a_rank_that_is_killed_while_it_leaves_has_died_for_all() {
    let (mut group, now) = (group(0), Instant::now());
    group.handle(left(1), now);
    group.handle(Input::Heard { from: 2, event: Event::Died { rank: 1 } }, now);
    assert_eq!(group.cause(), Some(&Event::Died { rank: 1 }), "rank 2 regroups");
}

#[test]
fn a_rank_whose_parent_leaves_too_hands_its_departure_over() {
    let (mut group, now) = (group(3), Instant::now());
    group.handle(left(2), now);
    group.handle(Input::Leave { calls: 0 }, now);
    let actions = group.handle(Input::Confirmed(2), now);
    assert_eq!(actions, [Action::Reparent(0)], "rank 2 may end before it has passed the departure on");
}

#[test]
fn a_rank_below_a_higher_one_searches_again() {
    let (mut group, mut now) = (Group::<u32>::new(2, Some(0), []), Instant::now());
    group.set_parents(tree::Shape::Star.parents(&[0; RANKS as usize]));
    group.handle(left(0), now);
    assert!(wait(&mut group, &mut now, |action| *action == Action::Reparent(1)));
    let unclear = Input::NotReparented { rank: 1, why: Probe::Unclear, gone: None };
    assert_eq!(group.handle(unclear, now), [Action::Reparent(3)]);
    group.handle(Input::Connected(3), now);
    let is_again = |action: &Action<u32>| *action == Action::Reparent(1);
    assert!(wait(&mut group, &mut now, is_again), "rank 3 may have this rank for its parent");
}
