use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use forebay_backing::FileKey;

use super::desk::*;
use super::*;

const FILE: FileKey = FileKey { ino: 7, generation: 1 };

fn of(owner: u64) -> Of {
    Of { space: Space::Record, owner }
}

fn all(kind: Kind) -> Lock {
    Lock { kind, range: Range::ALL, pid: 9 }
}

fn set(owner: u64, number: u64, waits: bool) -> LockAsk {
    LockAsk::Set { of: of(owner), lock: all(Kind::Exclusive), number, waits }
}

fn unset(owner: u64, number: u64) -> LockAsk {
    LockAsk::Unset { of: of(owner), range: Range::ALL, number }
}

/// A home with one file.
struct Home {
    desk: Desk<Rc<()>>,
    now: Instant,
    others: Vec<String>,
    /// The last guard of the file.
    holds: Weak<()>,
}

impl Home {
    fn new() -> Home {
        let others = vec!["a".into(), "b".into()];
        Home { desk: Desk::default(), now: Instant::now(), others, holds: Weak::new() }
    }

    fn is_held(&self) -> bool {
        self.holds.upgrade().is_some()
    }

    fn ask(&mut self, member: &str, ask: &LockAsk) -> (LockAnswer, Vec<u64>) {
        let guest = self.desk.arrive(member, 1);
        self.ask_as(&guest, ask)
    }

    fn ask_as(&mut self, guest: &Guest, ask: &LockAsk) -> (LockAnswer, Vec<u64>) {
        let early = self.desk.waits_for_reclaims(self.now, FILE, || self.others.clone());
        let done = self.desk.ask(self.now, guest, FILE, ask, None, early).unwrap_or_else(|| {
            let guard = Rc::new(());
            self.holds = Rc::downgrade(&guard);
            let asked = self.desk.ask(self.now, guest, FILE, ask, Some(guard), early);
            asked.expect("it has a guard now")
        });
        (done.answer, done.woken.iter().map(|waiter| waiter.number).collect())
    }
}

fn has(answer: &LockAnswer, count: usize) -> bool {
    matches!(answer, LockAnswer::Held { locks, .. } if locks.len() == count)
}

#[test]
fn a_file_is_held_while_it_has_locks() {
    let mut home = Home::new();
    assert!(!home.is_held());
    assert!(has(&home.ask("a", &set(1, 1, false)).0, 1));
    assert!(home.is_held());
    assert_eq!(home.ask("b", &set(1, 1, false)).0, LockAnswer::InTheWay);
    let by = home.ask("b", &LockAsk::Test { of: of(1), lock: all(Kind::Shared) }).0;
    let held = HeldBy { member: "a".into(), lock: all(Kind::Exclusive) };
    assert_eq!(by, LockAnswer::By(Some(held)));
    assert!(has(&home.ask("a", &unset(1, 2)).0, 0));
    assert!(!home.is_held());
    assert!(has(&home.ask("a", &unset(1, 3)).0, 0), "of what has none, too");
    let by = home.ask("b", &LockAsk::Test { of: of(1), lock: all(Kind::Shared) }).0;
    assert_eq!(by, LockAnswer::By(None));
    assert!(!home.is_held(), "neither takes a claim");
}

#[test]
fn a_waiter_is_told_that_it_waits_and_may_ask_again() {
    let mut home = Home::new();
    home.ask("a", &set(1, 1, false));
    let waits = set(1, 5, true);
    assert_eq!(home.ask("b", &waits).0, LockAnswer::Waits);
    assert_eq!(home.ask("b", &waits), (LockAnswer::Waits, vec![]), "and waits once");
    let (_, woken) = home.ask("a", &unset(1, 2));
    assert_eq!(woken, [5]);
    assert!(has(&home.ask("b", &waits).0, 1));
    // A waiter that missed the message gives up, and hears that it has the lock.
    assert!(has(&home.ask("b", &LockAsk::Cancel { of: of(1), number: 5 }).0, 1));
    home.ask("b", &unset(1, 6));
    assert!(!home.is_held());
}

#[test]
fn what_was_given_up_does_not_come_to_pass_later() {
    let mut home = Home::new();
    home.ask("a", &set(1, 1, false));
    assert_eq!(home.ask("b", &set(1, 5, true)).0, LockAnswer::Waits);
    let cancel = LockAsk::Cancel { of: of(1), number: 5 };
    assert_eq!(home.ask("b", &cancel).0, LockAnswer::Cancelled);
    assert!(home.ask("a", &unset(1, 2)).1.is_empty());
    assert_eq!(home.ask("b", &set(1, 5, true)).0, LockAnswer::Stale, "it was under way twice");
    // The same for a request that does not wait: its answer was lost, and its range given back.
    assert!(has(&home.ask("a", &unset(1, 4)).0, 0));
    assert_eq!(home.ask("a", &set(1, 3, false)).0, LockAnswer::Stale);
    assert!(has(&home.ask("a", &set(1, 5, false)).0, 1));
    assert_eq!(home.ask("a", &unset(1, 4)).0, LockAnswer::Stale, "nor the giving back");
    // The same for a member that ended while its request was under way.
    let guest = home.desk.arrive("b", 1);
    let (_, over) = home.desk.end(home.now, "b", None);
    assert!(over.is_empty());
    assert_eq!(home.ask_as(&guest, &set(2, 9, true)).0, LockAnswer::Cancelled);
    let (woken, over) = home.desk.end(home.now, "a", None);
    assert!(woken.is_empty() && over.len() == 1);
    drop(over);
    assert!(!home.is_held());
}

#[test]
fn after_a_restart_locks_are_reclaimed_before_others_are_granted() {
    let mut home = Home::new();
    home.desk.begin(home.now, vec![FILE]);
    assert_eq!(home.ask("b", &set(1, 1, false)).0, LockAnswer::Early);
    assert!(!home.is_held());
    home.desk.reclaimed("b");
    assert_eq!(home.ask("b", &set(1, 1, true)).0, LockAnswer::Early, "a has not");
    let reclaim = LockAsk::Reclaim { held: vec![(of(1), vec![all(Kind::Exclusive)])] };
    assert_eq!(home.ask("a", &reclaim).0, LockAnswer::Lost(vec![]));
    assert!(home.is_held());
    let theirs = LockAsk::Reclaim { held: vec![(of(3), vec![all(Kind::Shared)])] };
    assert_eq!(home.ask("b", &theirs).0, LockAnswer::Lost(vec![of(3)]), "both cannot have it");
    home.desk.reclaimed("a");
    assert_eq!(home.ask("b", &set(1, 1, true)).0, LockAnswer::Waits);
    assert_eq!(home.ask("a", &reclaim).0, LockAnswer::Lost(vec![]), "what it has is confirmed");
    assert_eq!(home.ask("a", &unset(1, 9)).1, [1]);
    assert_eq!(home.ask("a", &reclaim).0, LockAnswer::Lost(vec![of(1)]), "it came too late");
}

#[test]
fn nobody_is_waited_for_who_is_dead_or_never_comes() {
    for how in ["ended", "dead", "late", "other file"] {
        let mut home = Home::new();
        let file = FileKey { ino: if how == "other file" { 8 } else { 7 }, generation: 1 };
        home.desk.begin(home.now, vec![file]);
        home.desk.reclaimed("a");
        match how {
            "ended" => drop(home.desk.end(home.now, "b", None)),
            "dead" => _ = home.others.pop(),
            "late" => {
                home.now += RECLAIM - Duration::from_millis(1);
                assert_eq!(home.ask("a", &set(1, 1, false)).0, LockAnswer::Early);
                home.now += Duration::from_millis(1);
            }
            _ => {}
        }
        assert!(has(&home.ask("a", &set(1, 1, false)).0, 1), "{how}");
    }
}

#[test]
fn what_is_remembered_of_requests_has_an_end() {
    let mut home = Home::new();
    for round in 0..5 {
        for number in 0..2000u64 {
            let at = round * 10_000 + number;
            home.ask("a", &set(at, at, false));
            home.ask("b", &set(1, at, true));
            assert_eq!(home.ask("a", &unset(at, at)).1, [at]);
            home.ask("b", &unset(1, at));
        }
        home.now += Duration::from_secs(300);
    }
    assert!(home.desk.remembered() < 8000, "{}", home.desk.remembered());
}

/// The desk hears late of a member that has begun anew, when the member's programs have locks
/// already.
#[test]
fn what_a_member_takes_after_it_has_begun_anew_stays() {
    let mut home = Home::new();
    home.ask("a", &set(1, 1, false));
    let second = LockAsk::Set {
        of: Of { space: Space::Flock, owner: 1 },
        lock: all(Kind::Exclusive),
        number: 1,
        waits: false,
    };
    let anew = home.desk.arrive("a", 2);
    assert!(has(&home.ask_as(&anew, &second).0, 1));
    assert_eq!(home.ask("b", &set(1, 7, true)).0, LockAnswer::Waits);
    let before = home.desk.arrive("a", 1);
    let (woken, over) = home.desk.end(home.now, "a", Some(2));
    assert_eq!((woken.len(), over.len()), (1, 0));
    let anew = home.desk.arrive("a", 2);
    let reclaim = LockAsk::Reclaim {
        held: vec![(Of { space: Space::Flock, owner: 1 }, vec![all(Kind::Exclusive)])],
    };
    assert_eq!(home.ask_as(&anew, &reclaim).0, LockAnswer::Lost(vec![]), "it has it still");
    // Requests that the earlier process had sent are not carried out, whenever they come.
    let late = home.desk.arrive("a", 1);
    for guest in [before, late] {
        assert_eq!(home.ask_as(&guest, &set(5, 90, true)).0, LockAnswer::Cancelled);
    }
}
