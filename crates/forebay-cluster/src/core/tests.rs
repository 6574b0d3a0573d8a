//! Cases that a simulation meets too seldom.

mod gate;
mod gathering;
mod grants;

use std::time::Duration;

use forebay_backing::FileKey;
use forebay_registry::{Change, Entry, Event, Outcome, Revision};

use super::rules::{Rule, Rules};
use super::{
    Access, Ask, Core, Effect, Holder, Input, Peer, Reply, SETTLE, SOMEWHERE, Standing, Way, Why,
    entering, json,
};
use crate::keys;

const FILE: FileKey = FileKey { ino: 10, generation: 1 };
const DIR: FileKey = FileKey { ino: 1, generation: 1 };
const PATIENCE: Duration = Duration::from_secs(5);

fn entry(key: &str, value: Vec<u8>, revision: u64) -> Entry {
    Entry { key: format!("stores/s/{key}"), value, revision: Revision(revision), lease: None }
}

fn member(name: &str, epoch: u64) -> Vec<u8> {
    json(&keys::Member { epoch, ..keys::Member::of(name) })
}

fn claim(member: &str) -> Vec<u8> {
    json(&keys::Claim::new(member, "d/f"))
}

fn core(more: Vec<Entry>, rules: Rules) -> Core {
    let mut entries = vec![
        entry("alive/a", vec![], 1),
        entry("alive/b", vec![], 1),
        entry("members/a", member("a", 1), 1),
        entry("members/b", member("b", 1), 1),
    ];
    entries.extend(more);
    let mut core = Core::new("a".into(), 1, 0, (Revision(5), entries), PATIENCE).with_rules(rules);
    core.handle(Duration::ZERO, Input::Began);
    core
}

fn give(core: &mut Core, input: Input) -> Vec<Effect> {
    core.handle(Duration::from_millis(1), input)
}

/// Answers the barrier among the effects.
fn barrier(core: &mut Core, effects: &[Effect], revision: u64) -> Vec<Effect> {
    let ticket = effects.iter().find_map(|effect| match effect {
        Effect::Barrier(ticket) => Some(*ticket),
        _ => None,
    });
    give(core, Input::Barrier(ticket.expect("a barrier"), Ok(Revision(revision))))
}

fn open(how: Access) -> Input {
    open_in(DIR, how)
}

fn open_in(dir: FileKey, how: Access) -> Input {
    Input::Ask(1, Ask::Open { file: FILE, dir, path: "d/f".into(), how })
}

fn way(effects: &[Effect]) -> Option<Way> {
    effects.iter().find_map(|effect| match effect {
        Effect::Answer(_, way) => Some(way.clone()),
        _ => None,
    })
}

/// B gave the file back after this open's barrier, and answers only that it does not hold the file.
fn open_after_a_creator_said_no(rules: Rules) -> Option<Way> {
    let mut core = core(vec![entry("creates/1.1/b", vec![], 3)], rules);
    let effects = give(&mut core, open(Access::Read));
    let effects = barrier(&mut core, &effects, 5);
    let asked = effects.iter().find_map(|effect| match effect {
        Effect::Send { ticket, question: Peer::Holds { .. }, .. } => Some(*ticket),
        _ => None,
    });
    let effects =
        give(&mut core, Input::Answered(asked.expect("b is asked"), Ok(Reply::Holds(false))));
    if way(&effects).is_some() {
        return way(&effects); // The open was answered without a Forget.
    }
    let effects = barrier(&mut core, &effects, 6);
    assert!(way(&effects).is_none(), "the mirror has not reached the barrier");
    let given = entry("given/a.1", json(&keys::Given { by: "b".into() }), 6);
    let effects = give(&mut core, Input::Seen(Revision(6), vec![Event::Put(given)]));
    let forgets = effects
        .iter()
        .position(|e| matches!(e, Effect::Forget { file, end: Some(end) } if *file == FILE && end.at == Revision(6)));
    let answers = effects.iter().position(|e| matches!(e, Effect::Answer(..)));
    assert!(forgets.expect("it forgets") < answers.expect("it answers"));
    None
}

#[test]
fn a_creators_no_is_followed_by_another_look() {
    assert_eq!(open_after_a_creator_said_no(Rules::default()), None);
    let without = open_after_a_creator_said_no(Rules::without(Rule::LookAfterCreators));
    assert_eq!(without, Some(Way::Here));
}

/// B gives the file back, loses its place and begins anew; A hears all of it at once.
#[test]
fn an_ended_claim_names_the_processes_of_that_time() {
    let mut core = core(vec![entry("claims/a.1", claim("b"), 3)], Rules::default());
    let key = "stores/s/claims/a.1".to_string();
    let events = vec![
        Event::Deleted { key, revision: Revision(6) },
        Event::Put(entry("members/b", member("b", 3), 7)),
        Event::Put(entry("given/a.1", json(&keys::Given { by: "b".into() }), 8)),
    ];
    let effects = give(&mut core, Input::Seen(Revision(8), events));
    let epochs = effects.iter().filter_map(|effect| match effect {
        Effect::Forget { end: Some(end), .. } => Some((end.at.0, end.processes["b"].epoch)),
        _ => None,
    });
    assert_eq!(epochs.collect::<Vec<_>>(), [(6, 1), (8, 3)]);
    assert_eq!(core.process("b").map(|process| process.epoch), Some(3));
}

/// B asks for a file that is on the store, and that A has just made and not noted yet.
fn says_that_it_holds_what_it_makes(rules: Rules) -> Vec<bool> {
    let mut core = core(vec![entry("creates/1.1/a", vec![], 3)], rules);
    let create = |n| Input::Ask(n, Ask::Create { dir: DIR, path: "d".into() });
    assert_eq!(way(&give(&mut core, create(1))), Some(Way::Here));
    let said = |effects: Vec<Effect>| -> Vec<bool> {
        let holds = |effect| match effect {
            Effect::Reply(_, Reply::Holds(holds)) => Some(holds),
            _ => None,
        };
        effects.into_iter().filter_map(holds).collect()
    };
    let mut all = vec![];
    for (ticket, file) in [(7, FILE), (8, OVER)] {
        all.extend(said(give(&mut core, Input::Asked(ticket, Peer::Holds { file, dir: DIR }))));
    }
    let elsewhere = Peer::Holds { file: FILE, dir: OVER };
    assert_eq!(said(give(&mut core, Input::Asked(9, elsewhere))), [false], "of another directory");
    // A creation that begins later cannot be the file that B found before.
    assert_eq!(way(&give(&mut core, create(2))), Some(Way::Here));
    let made = Input::Created { file: FILE, dir: DIR, path: "d/f".into() };
    all.extend(said(give(&mut core, made)));
    all.extend(said(give(&mut core, Input::Made(DIR, 1))));
    all
}

#[test]
fn whether_a_file_is_held_is_said_when_what_was_being_made_is_known() {
    assert_eq!(says_that_it_holds_what_it_makes(Rules::default()), [true, false]);
    let without = says_that_it_holds_what_it_makes(Rules::without(Rule::HoldsWaitsForMaking));
    assert_eq!(without, [false, false], "two homes");
}

/// Each rename into another directory announces itself there (`Vfs::entering`), and so does each file that is made.
/// Of those that come within the settling time only one costs the registry a change; together they cost one more when
/// they are over.
#[test]
fn names_that_are_brought_to_a_directory_one_after_the_other_cost_one_change() {
    let mut core = core(vec![], Rules::default());
    let create = |n| Input::Ask(n, Ask::Create { dir: DIR, path: "d".into() });
    let asks = |effects: &[Effect]| {
        let asks = |effect: &&Effect| matches!(effect, Effect::Commit(..) | Effect::Barrier(_));
        effects.iter().filter(asks).count()
    };
    let effects = give(&mut core, create(1));
    let effects = barrier(&mut core, &effects, 5);
    let puts = commits(&effects).next().expect("its directory's key");
    let put = Event::Put(entry("creates/1.1/a", vec![], 6));
    give(&mut core, Input::Seen(Revision(6), vec![put]));
    let committed = Input::Committed(puts, Ok(Outcome::Committed(Revision(6))));
    assert_eq!(way(&give(&mut core, committed)), Some(Way::Here));
    give(&mut core, Input::Made(DIR, 1));
    let mut now = Duration::from_millis(1);
    for n in 2..12 {
        now += SETTLE * 2 / 3;
        assert_eq!(asks(&core.handle(now, Input::Tick)), 0, "somebody brings names still");
        let effects = core.handle(now, create(n));
        assert_eq!((way(&effects), asks(&effects)), (Some(Way::Here), 0));
        core.handle(now, Input::Made(DIR, n));
    }
    assert_eq!(commits(&core.handle(now + SETTLE, Input::Tick)).count(), 1, "its end");
}

/// Each of a member's processes says since which of them no other member has taken its place.
#[test]
fn a_member_whose_place_was_taken_begins_a_line_of_its_own() {
    let begins = |before: &keys::Member| {
        let before = entry("members/b", json(before), 3);
        let (commit, _) = entering("stores/s/", keys::Member::of("b"), Some(&before), None);
        let put = commit.changes.iter().find_map(|change| match change {
            Change::Put { value, .. } => serde_json::from_slice::<keys::Member>(value).ok(),
            _ => None,
        });
        put.expect("its own key")
    };
    let first = begins(&keys::Member { epoch: 4, ..keys::Member::of("b") });
    assert_eq!((first.epoch, first.line()), (5, 4), "of an older release one is known");
    let second = begins(&first);
    assert_eq!((second.epoch, second.line()), (6, 4));
    let taken = keys::Member { epoch: 7, taken: Some(keys::Taken::by_nobody(6)), ..second };
    assert_eq!(taken.line(), 7, "none of its processes has it");
    let third = begins(&taken);
    assert_eq!((third.epoch, third.line()), (8, 8));
}

#[test]
fn a_creation_that_hangs_keeps_nobody_waiting_for_ever() {
    let mut core = core(vec![entry("creates/1.1/a", vec![], 3)], Rules::default());
    give(&mut core, Input::Ask(1, Ask::Create { dir: DIR, path: "d".into() }));
    give(&mut core, Input::Asked(7, Peer::Holds { file: FILE, dir: DIR }));
    core.handle(PATIENCE + Duration::from_millis(2), Input::Tick);
    assert!(core.parked.is_empty());
}

#[test]
fn a_new_file_that_another_has_claimed_is_lost_and_said_so() {
    let mut core = core(vec![entry("creates/1.1/a", vec![], 3)], Rules::default());
    give(&mut core, Input::Ask(1, Ask::Create { dir: DIR, path: "d".into() }));
    give(&mut core, Input::Created { file: FILE, dir: DIR, path: "d/f".into() });
    assert_eq!(core.holder(FILE), Holder::Here);
    let claimed = Event::Put(entry("claims/a.1", claim("b"), 6));
    let effects = give(&mut core, Input::Seen(Revision(6), vec![claimed]));
    let is_lost = |e: &Effect| matches!(e, Effect::Lost { file } if *file == FILE);
    assert!(effects.iter().any(is_lost), "{effects:?}");
    assert_eq!(core.holder(FILE), Holder::There("b".into()));
}

fn is_told_of_a_change(rules: Rules) -> bool {
    let mut core = core(vec![], rules);
    let change = Ask::Change { files: vec![FILE], dirs: vec![DIR], below: None };
    let effects = give(&mut core, Input::Ask(1, change));
    let effects = barrier(&mut core, &effects, 5);
    assert_eq!(way(&effects), Some(Way::Here));
    let claimed = Event::Put(entry("claims/a.1", claim("b"), 6));
    give(&mut core, Input::Seen(Revision(6), vec![claimed]));
    let effects = give(&mut core, Input::Changed(1));
    if effects.is_empty() {
        return false;
    }
    let effects = barrier(&mut core, &effects, 6);
    effects.iter().any(|effect| {
        matches!(effect, Effect::Send { to, question: Peer::Changed { file }, .. } if to == "b" && *file == FILE)
    })
}

#[test]
fn a_member_that_claimed_a_file_during_a_change_is_told() {
    assert!(is_told_of_a_change(Rules::default()));
    assert!(!is_told_of_a_change(Rules::without(Rule::LookAfterChange)));
}

const OVER: FileKey = FileKey { ino: 11, generation: 1 };

fn replace(core: &mut Core) -> Vec<Effect> {
    let ask = Ask::Replace { files: [FILE, OVER], dirs: [DIR, DIR], at: "d/over".into() };
    give(core, Input::Ask(1, ask))
}

#[test]
fn a_rename_over_a_file_goes_through_the_home_of_each() {
    let cases = [
        (Some("a"), Some("b"), Way::Through { home: "b".into() }),
        (Some("a"), Some("a"), Way::Here),
        (Some("b"), Some("a"), Way::There { home: "b".into() }),
        (Some("b"), Some("b"), Way::There { home: "b".into() }),
        (Some("b"), None, Way::There { home: "b".into() }),
        (None, Some("a"), Way::Here),
        (None, Some("b"), Way::There { home: "b".into() }),
    ];
    for (file, over, expected) in cases {
        let claims = [("claims/a.1", file), ("claims/b.1", over)];
        let claimed = claims.iter().filter_map(|(key, by)| Some(entry(key, claim((*by)?), 2)));
        let mut core = core(claimed.collect(), Rules::default());
        let mut effects = replace(&mut core);
        if way(&effects).is_none() {
            effects = barrier(&mut core, &effects, 5);
        }
        assert_eq!(way(&effects), Some(expected.clone()), "{file:?} over {over:?}");
        // A file that is held here is not given back meanwhile.
        let recalled = if over == Some("a") { OVER } else { FILE };
        if expected != (Way::There { home: "b".into() }) {
            let effects = give(&mut core, Input::Asked(7, Peer::Recall { file: recalled }));
            assert!(matches!(effects[..], [Effect::Reply(7, Reply::Given(false))]));
        }
    }
}

/// The result of replacing an unclaimed file: a claim of it, or the change at once.
fn replaces_what_is_nobodys(rules: Rules) -> Option<Way> {
    let mut core = core(vec![], rules);
    let effects = replace(&mut core);
    let effects = barrier(&mut core, &effects, 5);
    if way(&effects).is_some() {
        return way(&effects);
    }
    let claims = effects.iter().find_map(|effect| match effect {
        Effect::Commit(ticket, commit) => Some((*ticket, commit)),
        _ => None,
    });
    let (ticket, commit) = claims.expect("it is claimed first");
    assert!(format!("{commit:?}").contains("claims/b.1"), "{commit:?}");
    // Another member was faster, for a rename of its own.
    let refused = Ok(Outcome::Refused(Revision(6)));
    let effects = give(&mut core, Input::Committed(ticket, refused));
    let event = Event::Put(entry("claims/b.1", claim("b"), 6));
    give(&mut core, Input::Seen(Revision(6), vec![event]));
    way(&barrier(&mut core, &effects, 6))
}

#[test]
fn of_two_that_replace_what_is_nobodys_one_is_its_home() {
    let there = Some(Way::There { home: "b".into() });
    assert_eq!(replaces_what_is_nobodys(Rules::default()), there);
    let without = replaces_what_is_nobodys(Rules::without(Rule::ClaimBeforeReplace));
    assert_eq!(without, Some(Way::Here));
}

#[test]
fn a_file_of_a_dead_member_fails_and_is_named() {
    let mut entries = vec![entry("claims/a.1", claim("c"), 2)];
    entries.push(entry("members/c", member("c", 1), 1));
    let mut core = core(entries, Rules::default());
    assert_eq!(core.holder(FILE), Holder::Dead("c".into()));
    let effects = give(&mut core, open(Access::Read));
    let effects = barrier(&mut core, &effects, 5);
    assert_eq!(way(&effects), Some(Way::Fails(Why::HomeDead("c".into()))));
}

/// A home that gives a file back knows of the end before the others do: it names the claim by which it had the file
/// as long as it has the file, and nothing after that.
#[test]
fn a_home_vouches_for_a_file_by_its_claim_until_it_gives_that_back() {
    let mut core = core(vec![entry("claims/a.1", claim("a"), 3)], Rules::default());
    core.handle(Duration::ZERO, Input::Lease(SETTLE * 10));
    let now = SETTLE * 2;
    assert_eq!(core.vouches(now, FILE), Some(Revision(3)));
    let effects = core.handle(now, Input::Tick);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Release { .. })));
    assert_eq!(core.vouches(now, FILE), Some(Revision(3)), "it may be in use yet");
    core.handle(now, Input::Released { file: FILE, is_free: true });
    assert_eq!(core.vouches(now, FILE), None);
    assert_eq!(core.vouches(now, OVER), None, "another file");
}

#[test]
fn what_was_claimed_before_a_restart_is_held_while_the_registry_is_away() {
    let mut core = core(vec![entry("claims/a.1", claim("a"), 2)], Rules::default());
    assert_eq!(core.holder(FILE), Holder::Here);
    assert_eq!(way(&give(&mut core, open(Access::Write))), Some(Way::Here));
}

#[test]
fn an_open_that_the_registry_does_not_answer_fails_within_the_patience() {
    let mut core = core(vec![], Rules::default());
    assert_eq!(way(&give(&mut core, open(Access::Read))), None);
    let late = core.handle(PATIENCE + Duration::from_millis(1), Input::Tick);
    assert_eq!(way(&late), Some(Way::Fails(Why::NoRegistry)));
}

/// A reader may believe a barrier that is a moment old; a writer never does.
#[test]
fn a_barrier_is_believed_for_as_long_as_readers_are_told_to() {
    let at = |core: &mut Core, ms, input| core.handle(Duration::from_millis(ms), input);
    let mut core = core(vec![], Rules::default());
    give(&mut core, Input::Trust(Duration::from_millis(100)));
    let effects = give(&mut core, open(Access::Read));
    assert_eq!(way(&barrier(&mut core, &effects, 5)), Some(Way::Here));
    let effects = at(&mut core, 100, open(Access::Read));
    assert_eq!(way(&effects), Some(Way::Here), "the barrier began less than 100 ms ago");
    let effects = at(&mut core, 100, open(Access::Write));
    assert_eq!(way(&effects), None, "a writer asks");
    barrier(&mut core, &effects, 5);
    let claimed = Event::Put(entry("claims/a.1", claim("b"), 6));
    at(&mut core, 101, Input::Seen(Revision(6), vec![claimed]));
    let home = Some(Way::There { home: "b".into() });
    assert_eq!(way(&at(&mut core, 102, open(Access::Read))), home, "what is known counts at once");
    assert_eq!(way(&at(&mut core, 300, open(Access::Read))), None, "it is too long ago");
}

#[test]
fn a_process_that_sees_a_newer_epoch_of_its_member_stops() {
    let mut core = core(vec![], Rules::default());
    let anew = Event::Put(entry("members/a", member("a", 2), 6));
    let effects = give(&mut core, Input::Seen(Revision(6), vec![anew]));
    assert!(matches!(effects[..], [Effect::Superseded]));
    assert_eq!(way(&give(&mut core, open(Access::Read))), Some(Way::Fails(Why::Superseded)));
}

/// A has taken over B, which is dead and had these claims.
fn takes_over(claims: Vec<Entry>, rules: Rules) -> Core {
    let mut entries = vec![
        entry("alive/a", vec![], 1),
        entry("members/a", member("a", 1), 1),
        entry("members/b", member("b", 1), 1),
    ];
    entries.extend(claims);
    let partners = keys::Partners { epoch: 1, in_sync: vec!["a".into()] };
    entries.push(entry("partners/b", json(&partners), 3));
    let mut core = Core::new("a".into(), 1, 0, (Revision(5), entries), PATIENCE).with_rules(rules);
    let asks = give(&mut core, Input::Began);
    let ticket = commits(&asks).next().expect("it takes b over");
    give(&mut core, Input::Committed(ticket, Ok(Outcome::Committed(Revision(6)))));
    let mut b: keys::Member = serde_json::from_slice(&member("b", 2)).expect("a member");
    b.taken = Some(keys::Taken { by: "a".into(), epoch: 1, done: false, short: vec![] });
    let taken = Event::Put(entry("members/b", json(&b), 6));
    let effects = give(&mut core, Input::Seen(Revision(6), vec![taken]));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::ListCopies { .. })));
    core
}

fn commits(effects: &[Effect]) -> impl Iterator<Item = super::Ticket> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Commit(ticket, _) => Some(*ticket),
        _ => None,
    })
}

/// A has a copy that was made under an earlier claim of the file.
fn adopts_a_copy_of(number: u64, rules: Rules) -> bool {
    let mut core = takes_over(vec![entry("claims/a.1", claim("b"), 4)], rules);
    let copies = Input::Copies { member: "b".into(), files: vec![(FILE, number)], is_whole: true };
    let effects = give(&mut core, copies);
    effects.iter().any(|effect| matches!(effect, Effect::Adopt { file, .. } if *file == FILE))
}

#[test]
fn a_copy_of_an_earlier_claim_is_not_adopted() {
    assert!(adopts_a_copy_of(4, Rules::default()));
    assert!(!adopts_a_copy_of(2, Rules::default()));
    assert!(adopts_a_copy_of(2, Rules::without(Rule::CopyHasClaimsNumber)));
}

/// Bytes that A had adopted under the claim with this number stay behind in its tier while A claims the file anew.
#[test]
fn what_was_adopted_under_an_earlier_claim_is_not_the_files_at_a_start() {
    let stands = |number, rules| {
        let core = core(vec![entry("claims/a.1", claim("a"), 4)], rules);
        core.standing(FILE, DIR, (Some(number), None))
    };
    assert_eq!(stands(4, Rules::default()), Standing::Own);
    assert_eq!(stands(2, Rules::default()), Standing::Superseded);
    assert_eq!(stands(2, Rules::without(Rule::CopyHasClaimsNumber)), Standing::Own);
}

#[test]
fn a_new_file_is_its_makers_as_long_as_nobody_can_take_the_makers_place() {
    let stands = |copies, dir, sorted| {
        let me = keys::Member { epoch: 2, copies, ..keys::Member::of("a") };
        let entries = vec![entry("members/a", json(&me), 2), entry("creates/1.1/a", vec![], 3)];
        let mut core = core(entries, Rules::default());
        core.epoch = 2;
        core.standing(FILE, dir, (None, sorted))
    };
    assert_eq!(stands(0, DIR, Some(2)), Standing::Own);
    assert_eq!(stands(0, DIR, Some(1)), Standing::New, "another member had its place since");
    assert_eq!(stands(0, DIR, None), Standing::New);
    assert_eq!(stands(1, DIR, Some(2)), Standing::New, "others have copies");
    let elsewhere = FileKey { ino: 99, generation: 1 };
    assert_eq!(stands(0, elsewhere, Some(2)), Standing::Superseded, "it makes no files there");
}

/// The commit among the effects, as text.
fn committed(effects: &[Effect]) -> Option<String> {
    effects.iter().find_map(|effect| match effect {
        Effect::Commit(_, commit) => Some(format!("{commit:?}")),
        _ => None,
    })
}

/// B is dead, A has taken it over and lists no copies. Returns what A then does with B's claim, which was taken from
/// C.
fn ends_a_take_over(is_whole: bool, fenced: bool, rules: Rules) -> Vec<Effect> {
    let mut b: keys::Member = serde_json::from_slice(&member("b", 2)).expect("a member");
    b.taken = Some(keys::Taken { by: "a".into(), epoch: 1, done: false, short: vec![] });
    let mut held = keys::Claim::new("b", "d/f");
    held.taken_from.push(keys::TakenFrom { member: "c".into(), epoch: 3 });
    let partners = keys::Partners { epoch: 1, in_sync: vec!["a".into()] };
    let mut entries = vec![
        entry("alive/a", vec![], 1),
        entry("members/a", member("a", 1), 1),
        entry("members/b", json(&b), 4),
        entry("members/c", member("c", 3), 1),
        entry("claims/a.1", json(&held), 2),
        entry("partners/b", json(&partners), 3),
    ];
    if fenced {
        entries.push(entry("fenced/c", json(&keys::Fenced { epoch: 3 }), 3));
    }
    let mut core = Core::new("a".into(), 1, 0, (Revision(5), entries), PATIENCE).with_rules(rules);
    let effects = give(&mut core, Input::Began);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::ListCopies { .. })));
    give(&mut core, Input::Copies { member: "b".into(), files: vec![], is_whole })
}

#[test]
fn a_taker_gives_up_claims_without_copies_only_if_it_lost_no_copy() {
    let all = Rules::default();
    let given_up = committed(&ends_a_take_over(true, true, all)).expect("the claim is given up");
    assert!(given_up.contains("Delete") && given_up.contains("claims/a.1"), "{given_up}");
    let held = ends_a_take_over(true, false, all);
    assert_eq!(committed(&held), None, "c may still write over what b has flushed");
    let left = committed(&ends_a_take_over(false, true, all)).expect("it says that it lacks some");
    assert!(left.contains("members/b") && !left.contains("claims/a.1"), "{left}");
    let careless = Rules::without(Rule::OnlyWholeGivesUp);
    let given_up = committed(&ends_a_take_over(false, true, careless)).expect("it is given up");
    assert!(given_up.contains("claims/a.1"), "{given_up}");
}

/// A taker that lacks some copies is followed by another partner. Without another partner no task waits.
#[test]
fn what_a_taker_lacks_is_left_to_the_next_heir() {
    for (in_sync, takes) in [(["c", "a"], true), (["c", "c"], false)] {
        let mut b: keys::Member = serde_json::from_slice(&member("b", 2)).expect("a member");
        let short = vec!["c".to_string()];
        b.taken = Some(keys::Taken { by: "c".into(), epoch: 1, done: false, short });
        let partners = keys::Partners { epoch: 1, in_sync: in_sync.map(String::from).to_vec() };
        let entries = vec![
            entry("alive/a", vec![], 1),
            entry("alive/c", vec![], 1),
            entry("members/a", member("a", 1), 1),
            entry("members/b", json(&b), 4),
            entry("members/c", member("c", 1), 1),
            entry("claims/a.1", claim("b"), 2),
            entry("partners/b", json(&partners), 3),
        ];
        let snapshot = (Revision(5), entries);
        let mut core = Core::new("a".into(), 1, 0, snapshot, PATIENCE);
        let taken = committed(&give(&mut core, Input::Began));
        assert_eq!(taken.is_some_and(|commit| commit.contains("members/b")), takes);
        assert_eq!(core.has_heirs_of("b"), takes);
        let effects = give(&mut core, open(Access::Read));
        let way = way(&barrier(&mut core, &effects, 5));
        let fails = Some(Way::Fails(Why::HomeDead("b".into())));
        assert_eq!(way, if takes { None } else { fails });
    }
}

/// C has everything; B may have copies from when it was a partner, and was away when it was struck off.
#[test]
fn a_former_partner_is_told_so_until_it_has_dropped_its_copies() {
    let partners = keys::Partners { epoch: 1, in_sync: vec!["c".into()] };
    let mut entries = vec![entry("partners/a", json(&partners), 3)];
    for name in ["a", "b", "c"] {
        entries.push(entry(&format!("alive/{name}"), vec![], 1));
        entries.push(entry(&format!("members/{name}"), member(name, 1), 1));
    }
    let mut core = Core::new("a".into(), 1, 1, (Revision(5), entries), PATIENCE);
    core.handle(Duration::ZERO, Input::Lease(PATIENCE * 100));
    let told = |effects: Vec<Effect>| -> Vec<(String, u64)> {
        let told = |effect| match effect {
            Effect::Unfilled { partner, fill } => Some((partner, fill)),
            _ => None,
        };
        effects.into_iter().filter_map(told).collect()
    };
    let tick = |core: &mut Core, patiences| told(core.handle(PATIENCE * patiences, Input::Tick));
    core.handle(Duration::ZERO, Input::Began);
    let first = tick(&mut core, 0);
    assert_eq!(first.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["b"]);
    assert_eq!(tick(&mut core, 1), []);
    let again = tick(&mut core, 5);
    assert_eq!(again.len(), 1, "it has not answered");
    let dismissed = |fill| Input::Dismissed { partner: "b".into(), fill };
    core.handle(PATIENCE * 6, dismissed(first[0].1));
    let last = tick(&mut core, 10);
    assert_eq!(last.len(), 1, "that was said before it was asked again");
    core.handle(PATIENCE * 11, dismissed(last[0].1));
    assert_eq!(tick(&mut core, 20), [], "it has nothing any more");
}

/// A partner that is to drop its old copies takes nothing before it has confirmed that.
#[test]
fn a_partner_is_told_of_what_is_synced_once_its_fill_has_begun() {
    let entries = vec![
        entry("alive/a", vec![], 1),
        entry("alive/b", vec![], 1),
        entry("members/a", member("a", 1), 1),
        entry("members/b", member("b", 1), 1),
    ];
    let mut core = Core::new("a".into(), 1, 1, (Revision(5), entries), PATIENCE);
    let effects = give(&mut core, Input::Began);
    let fill = effects.iter().find_map(|effect| match effect {
        Effect::Fill { fill, .. } => Some(*fill),
        _ => None,
    });
    let fill = fill.expect("b is chosen");
    assert_eq!(core.keepers().filling, []);
    give(&mut core, Input::FillBegun { partner: "b".into(), fill: fill + 1 });
    assert_eq!(core.keepers().filling, [], "that is another fill");
    give(&mut core, Input::FillBegun { partner: "b".into(), fill });
    assert_eq!(core.keepers_of(core.joined()).filling.len(), 1);
    assert_eq!(core.keepers_of(0).filling, [], "the round began before");
    give(&mut core, Input::Filled { partner: "b".into(), fill, ok: true });
    assert_eq!(core.keepers().required.len(), 1);
}

/// Files are adopted while commits are under way, and claimed by several commits at once.
#[test]
fn a_take_over_adopts_and_claims_without_waiting_for_each_commit() {
    const FILES: u64 = 400;
    let file = |ino| FileKey { ino, generation: 1 };
    let key = |ino| format!("claims/{}", keys::file(file(ino)));
    let claims = (0..FILES).map(|ino| entry(&key(ino), claim("b"), 4)).collect();
    let mut core = takes_over(claims, Rules::default());
    let files = (0..FILES).map(|ino| (file(ino), 4)).collect();
    let mut effects = give(&mut core, Input::Copies { member: "b".into(), files, is_whole: true });
    let (mut adopted, mut sent) = (0, 0);
    loop {
        let adopts: Vec<FileKey> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Adopt { file, .. } => Some(*file),
                _ => None,
            })
            .collect();
        if adopts.is_empty() {
            break;
        }
        adopted += adopts.len() as u64;
        let inputs = adopts.into_iter().map(|file| Input::Adopted { file, ok: true });
        effects = inputs.flat_map(|input| give(&mut core, input)).collect();
        sent += commits(&effects).count();
    }
    assert_eq!(adopted, FILES, "though no commit has returned");
    assert_eq!(sent, 4, "one with the first, and those that are full");
}
