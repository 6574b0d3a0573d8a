//! Members that open files under a read grant, and members that claim beside one.

use super::*;
use crate::core::Ticket;

/// A has taken a read grant, at revision 6, by three opens behind barriers.
fn granted(more: Vec<Entry>, rules: Rules) -> Core {
    let mut core = core(more, rules);
    give(&mut core, Input::Lease(Duration::from_secs(10)));
    let mut effects = Vec::new();
    for _ in 0..3 {
        let asked = give(&mut core, open(Access::Read));
        effects = barrier(&mut core, &asked, 5);
        assert_eq!(way(&effects), Some(Way::Here));
    }
    let commit = effects.iter().find_map(|effect| match effect {
        Effect::Commit(ticket, commit) => Some((*ticket, format!("{commit:?}"))),
        _ => None,
    });
    let (ticket, commit) = commit.expect("it takes a grant");
    assert!(commit.contains(r#"Absent("stores/s/grants/a")"#), "{commit}");
    give(&mut core, Input::Committed(ticket, Ok(Outcome::Committed(Revision(6)))));
    let asked = give(&mut core, open(Access::Read));
    assert_eq!(way(&asked), None, "the mirror does not have it yet");
    assert_eq!(way(&barrier(&mut core, &asked, 5)), Some(Way::Here));
    core
}

fn grant_is_seen(core: &mut Core, before: Vec<Event>) {
    let events = before.into_iter().chain([Event::Put(entry("grants/a", vec![], 6))]).collect();
    give(core, Input::Seen(Revision(6), events));
}

/// Asks the core how far its mirror is, by this ticket.
fn asks_how_far(core: &mut Core, ticket: Ticket, revision: u64) -> Vec<Effect> {
    give(core, Input::Asked(ticket, Peer::Reached { revision: Revision(revision) }))
}

fn said(effects: &[Effect]) -> Vec<Revision> {
    let said = |effect: &Effect| match effect {
        Effect::Reply(_, Reply::Reached(revision)) => Some(*revision),
        _ => None,
    };
    effects.iter().filter_map(said).collect()
}

/// The grant stays when another member claims a file: from then on the core asks about that file,
/// and about no other.
#[test]
fn under_a_grant_files_are_opened_at_once_and_a_claim_is_one_more_thing_that_is_known() {
    let mut core = granted(vec![], Rules::default());
    grant_is_seen(&mut core, vec![]);
    for dir in [DIR, OVER, SOMEWHERE] {
        assert_eq!(way(&give(&mut core, open_in(dir, Access::Read))), Some(Way::Here));
    }
    assert_eq!(said(&asks_how_far(&mut core, 7, 8)), []);
    let claimed = Event::Put(entry("claims/b.1", claim("b"), 7));
    assert_eq!(said(&give(&mut core, Input::Seen(Revision(7), vec![claimed]))), []);
    let claimed = Event::Put(entry("claims/a.1", claim("b"), 8));
    let effects = give(&mut core, Input::Seen(Revision(8), vec![claimed]));
    assert_eq!(said(&effects), [Revision(8)]);
    assert_eq!(committed(&effects), None, "the grant stays");
    let asked = give(&mut core, open(Access::Read));
    assert_eq!(way(&asked), None, "it may be given back by now");
    assert_eq!(way(&barrier(&mut core, &asked, 8)), Some(Way::There { home: "b".into() }));
    let free = Ask::Open { file: FREE, dir: DIR, path: "d/g".into(), how: Access::Read };
    assert_eq!(way(&give(&mut core, Input::Ask(2, free))), Some(Way::Here));
}

const FREE: FileKey = FileKey { ino: 12, generation: 1 };

/// An answer is not held back for longer than the asker would wait for it.
#[test]
fn a_member_that_lags_says_how_far_it_is() {
    let mut core = core(vec![], Rules::default());
    assert_eq!(said(&asks_how_far(&mut core, 7, 9)), []);
    let effects = core.handle(PATIENCE / 4 + Duration::from_millis(1), Input::Tick);
    assert_eq!(said(&effects), [Revision(5)]);
}

/// A has claimed FILE at revision 6, to write it; B has had a read grant since 3.
fn claims_beside_a_grant() -> (Core, Vec<Effect>) {
    let mut core = core(vec![entry("grants/b", vec![], 3)], Rules::default());
    let asked = give(&mut core, open(Access::Write));
    let claims = barrier(&mut core, &asked, 5);
    let ticket = commits(&claims).next().expect("it claims the file");
    give(&mut core, Input::Committed(ticket, Ok(Outcome::Committed(Revision(6)))));
    let claimed = Event::Put(entry("claims/a.1", claim("a"), 6));
    let effects = give(&mut core, Input::Seen(Revision(6), vec![claimed]));
    assert_eq!(way(&effects), None);
    (core, effects)
}

/// The questions that B is asked.
fn questions(effects: &[Effect]) -> Vec<(Ticket, Revision)> {
    let question = |effect: &Effect| match effect {
        Effect::Send { ticket, to, question: Peer::Reached { revision } } if to == "b" => {
            Some((*ticket, *revision))
        }
        _ => None,
    };
    effects.iter().filter_map(question).collect()
}

#[test]
fn a_claim_waits_until_the_grant_holder_knows_of_it() {
    let (mut core, effects) = claims_beside_a_grant();
    let [(ticket, Revision(6))] = questions(&effects)[..] else { panic!("{effects:?}") };
    let lags = Input::Answered(ticket, Ok(Reply::Reached(Revision(5))));
    let effects = give(&mut core, lags);
    assert_eq!(way(&effects), None);
    let [(ticket, Revision(6))] = questions(&effects)[..] else { panic!("{effects:?}") };
    let knows = Input::Answered(ticket, Ok(Reply::Reached(Revision(6))));
    assert_eq!(way(&give(&mut core, knows)), Some(Way::Here));
    // One answer covers everything that is older.
    let other = Event::Put(entry("creates/1.1/a", vec![], 6));
    give(&mut core, Input::Seen(Revision(6), vec![other]));
    let creates = give(&mut core, Input::Ask(2, Ask::Create { dir: DIR, path: "d".into() }));
    assert_eq!((way(&creates), questions(&creates)), (Some(Way::Here), vec![]));
}

#[test]
fn a_claim_waits_until_a_grant_is_gone() {
    let (mut core, _) = claims_beside_a_grant();
    let gone = Event::Deleted { key: "stores/s/grants/b".into(), revision: Revision(7) };
    let effects = give(&mut core, Input::Seen(Revision(7), vec![gone]));
    assert_eq!(way(&effects), Some(Way::Here));
}

#[test]
fn a_member_that_does_not_answer_is_asked_again_in_a_while() {
    let (mut core, effects) = claims_beside_a_grant();
    let [(ticket, _)] = questions(&effects)[..] else { panic!("{effects:?}") };
    let at = |core: &mut Core, ms, input| core.handle(Duration::from_millis(ms), input);
    let lost = at(&mut core, 10, Input::Answered(ticket, Err(())));
    assert_eq!(questions(&lost), []);
    assert_eq!(questions(&at(&mut core, 50, Input::Tick)), []);
    assert_eq!(questions(&at(&mut core, 110, Input::Tick)).len(), 1);
    assert_eq!(questions(&at(&mut core, 300, Input::Tick)), [], "it is being asked");
    // The answer never comes.
    assert_eq!(questions(&at(&mut core, 5200, Input::Tick)).len(), 1);
}

/// The link between A and B is cut, and both reach the registry.
#[test]
fn a_claim_without_an_answer_calls_the_holder_to_give_its_grant_up() {
    let at = |core: &mut Core, ms, input| core.handle(Duration::from_millis(ms), input);
    let calls = |effects: &[Effect]| {
        committed(effects)
            .is_some_and(|commit| commit.contains(r#"Put { key: "stores/s/called/b""#))
    };
    let (mut core, effects) = claims_beside_a_grant();
    let [(ticket, _)] = questions(&effects)[..] else { panic!("{effects:?}") };
    let mut slow = claims_beside_a_grant().0;
    assert!(!calls(&at(&mut slow, 2000, Input::Tick)), "it may lag");
    assert!(calls(&at(&mut slow, 2600, Input::Tick)));
    at(&mut core, 10, Input::Answered(ticket, Err(())));
    let effects = at(&mut core, 110, Input::Tick);
    assert!(!calls(&effects), "one answer may be lost");
    let [(ticket, _)] = questions(&effects)[..] else { panic!("{effects:?}") };
    at(&mut core, 111, Input::Answered(ticket, Err(())));
    let effects = at(&mut core, 220, Input::Tick);
    assert!(calls(&effects), "{effects:?}");
    let ticket = commits(&effects).next().expect("it calls");
    at(&mut core, 230, Input::Committed(ticket, Ok(Outcome::Committed(Revision(7)))));
    assert!(!calls(&at(&mut core, 300, Input::Tick)), "once for each grant");
    let gone = Event::Deleted { key: "stores/s/grants/b".into(), revision: Revision(8) };
    let effects = at(&mut core, 310, Input::Seen(Revision(8), vec![gone]));
    assert_eq!(way(&effects), Some(Way::Here));
}

#[test]
fn a_called_member_gives_its_grant_up_for_a_minute() {
    let at = |core: &mut Core, s, input| core.handle(Duration::from_secs(s), input);
    let mut core = granted(vec![], Rules::default());
    give(&mut core, Input::Lease(PATIENCE * 100));
    grant_is_seen(&mut core, vec![Event::Put(entry("called/a", vec![], 6))]);
    let effects = at(&mut core, 1, Input::Tick);
    let gives_up = committed(&effects).expect("it gives the grant up");
    for key in ["grants/a", "called/a"] {
        assert!(gives_up.contains(&format!("Delete {{ key: \"stores/s/{key}\"")), "{gives_up}");
    }
    assert_eq!(committed(&at(&mut core, 2, Input::Tick)), None, "it is under way");
    let ticket = commits(&effects).next().expect("it gives up");
    at(&mut core, 2, Input::Committed(ticket, Ok(Outcome::Committed(Revision(7)))));
    let gone = ["grants/a", "called/a"]
        .map(|key| Event::Deleted { key: format!("stores/s/{key}"), revision: Revision(7) });
    at(&mut core, 2, Input::Seen(Revision(7), gone.to_vec()));
    at(&mut core, 3, Input::Tick);
    assert_eq!(core.grants(), 0);
    let looks = |core: &mut Core, s| {
        for _ in 0..3 {
            let asked = at(core, s, open(Access::Read));
            let barrier = asked.iter().find_map(|effect| match effect {
                Effect::Barrier(ticket) => Some(*ticket),
                _ => None,
            });
            at(core, s, Input::Barrier(barrier.expect("it asks"), Ok(Revision(7))));
        }
        core.grants()
    };
    assert_eq!((looks(&mut core, 50), looks(&mut core, 62)), (0, 1));
}

/// While one question is under way all later puts wait for the next question, which is asked once.
#[test]
fn a_grant_holder_is_asked_once_about_all_claims_put_meanwhile() {
    let (mut core, effects) = claims_beside_a_grant();
    let [(first, Revision(6))] = questions(&effects)[..] else { panic!("{effects:?}") };
    let file = |n| FileKey { ino: 100 + n, generation: 1 };
    let mut asked = Vec::new();
    for n in 0..10 {
        let at = format!("claims/{}", keys::file(file(n)));
        let claimed = Event::Put(entry(&at, claim("a"), 7 + n));
        give(&mut core, Input::Seen(Revision(7 + n), vec![claimed]));
        let open = Ask::Open { file: file(n), dir: DIR, path: "d/f".into(), how: Access::Write };
        asked.extend(questions(&give(&mut core, Input::Ask(10 + n, open))));
    }
    assert_eq!(asked, []);
    let effects = give(&mut core, Input::Answered(first, Ok(Reply::Reached(Revision(6)))));
    assert_eq!(way(&effects), Some(Way::Here));
    let [(second, Revision(16))] = questions(&effects)[..] else { panic!("{effects:?}") };
    let effects = give(&mut core, Input::Answered(second, Ok(Reply::Reached(Revision(16)))));
    let answered = effects.iter().filter(|effect| matches!(effect, Effect::Answer(..)));
    assert_eq!(answered.count(), 10);
}

/// A member that is asked more often than it opens files does not keep the others waiting for it.
#[test]
fn a_grant_that_costs_more_than_it_saves_is_given_up_and_taken_again_after_a_rest() {
    let at = |core: &mut Core, ms, input| core.handle(Duration::from_millis(ms), input);
    let gives_up = |effects: &[Effect]| {
        committed(effects)
            .is_some_and(|commit| commit.contains("Delete { key: \"stores/s/grants/a\""))
    };
    for (opens, stays) in [(20, true), (10, false)] {
        let mut core = granted(vec![], Rules::default());
        give(&mut core, Input::Lease(PATIENCE * 100));
        grant_is_seen(&mut core, vec![]);
        (0..opens)
            .for_each(|_| assert_eq!(way(&give(&mut core, open(Access::Read))), Some(Way::Here)));
        (0..15).for_each(|n| assert_eq!(said(&asks_how_far(&mut core, 100 + n, 6)).len(), 1));
        assert!(!gives_up(&at(&mut core, 4000, Input::Tick)));
        let effects = at(&mut core, 5100, Input::Tick);
        assert_eq!(gives_up(&effects), !stays, "{effects:?}");
        if stays {
            continue;
        }
        let ticket = commits(&effects).next().expect("it gives up");
        at(&mut core, 5101, Input::Committed(ticket, Ok(Outcome::Committed(Revision(7)))));
        let gone = Event::Deleted { key: "stores/s/grants/a".into(), revision: Revision(7) };
        at(&mut core, 5102, Input::Seen(Revision(7), vec![gone]));
        at(&mut core, 5103, Input::Tick);
        let mut looks = |ms| {
            let effects = at(&mut core, ms, open(Access::Read));
            let ticket = effects.iter().find_map(|effect| match effect {
                Effect::Barrier(ticket) => Some(*ticket),
                _ => None,
            });
            let answer = Input::Barrier(ticket.expect("it asks"), Ok(Revision(7)));
            commits(&at(&mut core, ms, answer)).count()
        };
        assert_eq!((0..5).map(|n| looks(5200 + n)).sum::<usize>(), 0, "it rests");
        assert_eq!((0..3).map(|n| looks(7200 + n)).sum::<usize>(), 1);
    }
}

/// B began to make files before the grant; A hears of it only together with the grant.
fn opens_beside_a_creator(rules: Rules) -> Option<Way> {
    let mut core = granted(vec![], rules);
    grant_is_seen(&mut core, vec![Event::Put(entry("creates/1.1/b", vec![], 5))]);
    let effects = give(&mut core, open(Access::Read));
    let asked = effects.iter().find_map(|effect| match effect {
        Effect::Send { ticket, question: Peer::Holds { .. }, .. } => Some(*ticket),
        _ => None,
    })?;
    // B gave the file back a moment ago.
    way(&give(&mut core, Input::Answered(asked, Ok(Reply::Holds(false)))))
}

#[test]
fn a_grant_beside_a_creator_is_no_reason_not_to_look_again() {
    assert_eq!(opens_beside_a_creator(Rules::default()), None);
    let without = opens_beside_a_creator(Rules::without(Rule::CreatorsBeforeGrant));
    assert_eq!(without, Some(Way::Here));
}

/// The member knows the files that it makes and brings there itself, and hears of claims
/// everywhere.
#[test]
fn a_grant_counts_where_the_member_makes_files_itself() {
    let mut core = granted(vec![], Rules::default());
    grant_is_seen(&mut core, vec![Event::Put(entry("creates/1.1/a", vec![], 5))]);
    assert!(!core.needs_dir());
    assert_eq!(way(&give(&mut core, open(Access::Read))), Some(Way::Here));
    let makes = Event::Put(entry("creates/2.1/b", vec![], 7));
    give(&mut core, Input::Seen(Revision(7), vec![makes]));
    assert!(core.needs_dir(), "b is asked for a file of that directory");
    assert_eq!(way(&give(&mut core, open(Access::Read))), Some(Way::Here));
    assert_eq!(way(&give(&mut core, open_in(SOMEWHERE, Access::Read))), None);
}

#[test]
fn a_grant_ends_with_its_lease_though_there_is_another() {
    let mut core = granted(vec![], Rules::default());
    grant_is_seen(&mut core, vec![]);
    let at = |core: &mut Core, s, input| core.handle(Duration::from_secs(s), input);
    assert_eq!(way(&at(&mut core, 9, open(Access::Read))), Some(Way::Here));
    at(&mut core, 11, Input::Lease(Duration::from_secs(20)));
    assert_eq!(way(&at(&mut core, 12, open(Access::Read))), None, "its key may be gone");
}

/// The registry may have ended the lease before its time, or the member has left.
#[test]
fn a_grant_ends_with_a_lease_that_is_gone_before_its_time() {
    let mut core = granted(vec![], Rules::default());
    grant_is_seen(&mut core, vec![]);
    assert_eq!(way(&give(&mut core, open(Access::Read))), Some(Way::Here));
    give(&mut core, Input::LeaseGone);
    give(&mut core, Input::Lease(Duration::from_secs(20)));
    assert_eq!(way(&give(&mut core, open(Access::Read))), None);
}
