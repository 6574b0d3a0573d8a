use super::*;

fn owner(member: &str, number: u64) -> Owner {
    Owner { member: member.into(), epoch: 1, number }
}

fn lock(kind: Kind, first: u64, last: u64) -> Lock {
    Lock { kind, range: Range { first, last }, pid: 1 }
}

fn waiter(owner: &Owner, space: Space, lock: Lock, number: u64) -> Waiter {
    Waiter { owner: owner.clone(), space, lock, number }
}

fn numbers(woken: &[Waiter]) -> Vec<u64> {
    woken.iter().map(|waiter| waiter.number).collect()
}

use Kind::{Exclusive, Shared};
use Space::{Flock, Record};

#[test]
fn record_locks_are_split_and_merged() {
    let (mut table, a) = (Table::default(), owner("m", 1));
    let ranges = |table: &Table| {
        table
            .held(Record, &a)
            .iter()
            .map(|l| (l.range.first, l.range.last, l.kind))
            .collect::<Vec<_>>()
    };
    assert!(table.set(Record, &a, lock(Exclusive, 0, END)).0);
    table.unset(Record, &a, Range { first: 10, last: 19 });
    assert_eq!(ranges(&table), [(0, 9, Exclusive), (20, END, Exclusive)]);
    assert!(table.set(Record, &a, lock(Shared, 5, 24)).0);
    assert_eq!(ranges(&table), [(0, 4, Exclusive), (5, 24, Shared), (25, END, Exclusive)]);
    assert!(table.set(Record, &a, lock(Exclusive, 5, 24)).0);
    assert_eq!(ranges(&table), [(0, END, Exclusive)]);
    table.unset(Record, &a, Range::ALL);
    assert!(table.is_empty());
}

#[test]
fn only_what_overlaps_and_is_not_shared_is_in_the_way() {
    let (mut table, a, b) = (Table::default(), owner("m", 1), owner("n", 1));
    assert!(table.set(Record, &a, lock(Shared, 10, 19)).0);
    assert!(table.set(Record, &b, lock(Shared, 0, END)).0);
    assert!(!table.set(Record, &a, lock(Exclusive, 10, 19)).0);
    assert_eq!(table.held(Record, &a), [lock(Shared, 10, 19)], "it has what it had");
    table.unset(Record, &b, Range { first: 10, last: 19 });
    assert!(table.set(Record, &a, lock(Exclusive, 10, 19)).0);
    let (by, held) = table.test(Record, &b, &lock(Shared, 19, 19)).unwrap();
    assert_eq!((by, held), (&a, &lock(Exclusive, 10, 19)));
    assert_eq!(table.test(Record, &b, &lock(Shared, 20, 30)), None);
    assert!(table.set(Flock, &b, lock(Exclusive, 0, END)).0, "the kinds do not see each other");
}

#[test]
fn waiters_are_granted_a_lock_in_the_order_of_coming() {
    let mut table = Table::default();
    let [a, b, c, d] = [1, 2, 3, 4].map(|n| owner("m", n));
    let all = |kind| lock(kind, 0, END);
    assert!(table.set_or_wait(waiter(&a, Record, all(Exclusive), 1)).0);
    for (owner, kind, number) in [(&b, Shared, 2), (&c, Exclusive, 3), (&d, Shared, 4)] {
        assert!(!table.set_or_wait(waiter(owner, Record, all(kind), number)).0);
    }
    assert!(table.waits("m", 3) && !table.waits("n", 3));
    assert_eq!(numbers(&table.unset(Record, &a, Range::ALL)), [2, 4], "who share it go together");
    assert!(table.unset(Record, &b, Range::ALL).is_empty());
    assert_eq!(numbers(&table.unset(Record, &d, Range::ALL)), [3]);
    assert_eq!(table.held(Record, &c), [all(Exclusive)]);
}

#[test]
fn a_waiter_that_gave_up_is_granted_nothing() {
    let (mut table, a, b) = (Table::default(), owner("m", 1), owner("m", 2));
    table.set(Record, &a, lock(Exclusive, 0, 9));
    table.set_or_wait(waiter(&b, Record, lock(Shared, 0, 9), 7));
    assert!(table.cancel("m", 7) && !table.cancel("m", 7));
    assert_eq!(table.unset(Record, &a, Range::ALL), []);
    assert!(table.is_empty());
}

#[test]
fn a_member_that_ends_gives_everything_back() {
    let mut table = Table::default();
    let (gone, stays) = (owner("gone", 1), owner("stays", 1));
    table.set(Record, &gone, lock(Exclusive, 0, 9));
    table.set(Flock, &gone, lock(Exclusive, 0, END));
    table.set_or_wait(waiter(&stays, Flock, lock(Shared, 0, END), 1));
    table.set_or_wait(waiter(&stays, Record, lock(Shared, 0, 0), 2));
    table.set_or_wait(waiter(&gone, Record, lock(Exclusive, 0, END), 3));
    assert_eq!(numbers(&table.end(|owner| owner.member == "gone")), [1, 2]);
    assert_eq!(table.end(|owner| owner.member == "stays"), []);
    assert!(table.is_empty());
}

/// Two owners that share a lock and both want it alone would wait for each other.
#[test]
fn flock_gives_back_what_it_changes() {
    let (mut table, a, b) = (Table::default(), owner("m", 1), owner("m", 2));
    let all = |kind| lock(kind, 0, END);
    assert!(table.set(Flock, &a, all(Shared)).0 && table.set(Flock, &b, all(Shared)).0);
    assert!(!table.set_or_wait(waiter(&a, Flock, all(Exclusive), 1)).0);
    assert_eq!(table.held(Flock, &a), []);
    let (granted, woken) = table.set_or_wait(waiter(&b, Flock, all(Exclusive), 2));
    assert!(granted && woken.is_empty());
    assert_eq!(numbers(&table.unset(Flock, &b, Range::ALL)), [1]);
    // An owner that only tries loses its lock, too.
    assert!(table.set(Flock, &a, all(Shared)).0 && table.set(Flock, &b, all(Shared)).0);
    assert!(!table.set(Flock, &a, all(Exclusive)).0);
    assert_eq!(table.held(Flock, &a), []);
}

/// The same rules, byte by byte.
#[derive(Default)]
struct Naive {
    held: BTreeMap<(u64, usize), Kind>,
    waiters: Vec<(u64, Kind, usize, usize, u64)>,
}

const BYTES: usize = 12;

impl Naive {
    fn is_free(&self, owner: u64, kind: Kind, first: usize, last: usize) -> bool {
        (first..=last).all(|byte| {
            self.held.iter().all(|(&(other, at), &held)| {
                other == owner || at != byte || (held == Shared && kind == Shared)
            })
        })
    }

    fn set(&mut self, owner: u64, kind: Kind, first: usize, last: usize) {
        (first..=last).for_each(|byte| _ = self.held.insert((owner, byte), kind));
    }

    fn grant(&mut self) -> Vec<u64> {
        let mut granted = Vec::new();
        while let Some(at) = self.waiters.iter().position(|w| self.is_free(w.0, w.1, w.2, w.3)) {
            let (owner, kind, first, last, number) = self.waiters.remove(at);
            self.set(owner, kind, first, last);
            granted.push(number);
        }
        granted
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[test]
fn random_record_locks_are_as_a_naive_table_has_them() {
    let (mut granted_later, mut refused, mut pieces) = (0, 0, 0);
    for seed in 1..=300u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (mut table, mut naive) = (Table::default(), Naive::default());
        for number in 0..200 {
            let by = random.below(5);
            let me = owner(["a", "b"][by as usize % 2], by);
            let (x, y) = (random.below(BYTES as u64), random.below(BYTES as u64));
            let (first, last) = (x.min(y) as usize, x.max(y) as usize);
            let range = Range { first: first as u64, last: last as u64 };
            let kind = if random.below(2) == 0 { Shared } else { Exclusive };
            let lock = Lock { kind, range, pid: 1 };
            let (woken, expected) = match random.below(8) {
                0..=2 => {
                    (first..=last).for_each(|byte| _ = naive.held.remove(&(by, byte)));
                    (table.unset(Record, &me, range), naive.grant())
                }
                3 => {
                    let at = random.below(200);
                    let waited = naive.waiters.iter().any(|w| w.4 == at);
                    let cancelled = table.cancel("a", at) || table.cancel("b", at);
                    naive.waiters.retain(|w| w.4 != at);
                    assert_eq!(cancelled, waited);
                    (Vec::new(), Vec::new())
                }
                4 if random.below(8) == 0 => {
                    let is_of_a = |by: u64| by.is_multiple_of(2);
                    naive.held.retain(|(by, _), _| !is_of_a(*by));
                    naive.waiters.retain(|w| !is_of_a(w.0));
                    (table.end(|owner| owner.member == "a"), naive.grant())
                }
                how => {
                    let (granted, woken) = match how % 2 == 0 {
                        true => table.set(Record, &me, lock),
                        false => table.set_or_wait(waiter(&me, Record, lock, number)),
                    };
                    let free = naive.is_free(by, kind, first, last);
                    assert_eq!(granted, free, "seed {seed}, step {number}");
                    match free {
                        true => naive.set(by, kind, first, last),
                        false if how % 2 == 1 => {
                            naive.waiters.push((by, kind, first, last, number))
                        }
                        false => refused += 1,
                    }
                    (woken, naive.grant())
                }
            };
            granted_later += expected.len();
            assert_eq!(numbers(&woken), expected, "seed {seed}, step {number}");
            for by in 0..5 {
                let me = owner(["a", "b"][by as usize % 2], by);
                let held = table.held(Record, &me);
                pieces = pieces.max(held.len());
                let by_byte = held.iter().flat_map(|l| {
                    (l.range.first..=l.range.last).map(|byte| ((by, byte as usize), l.kind))
                });
                let mine = naive.held.iter().filter(|((of, _), _)| *of == by);
                assert!(by_byte.eq(mine.map(|(at, kind)| (*at, *kind))), "seed {seed}");
                let touch =
                    |w: &[Lock]| w[0].kind == w[1].kind && w[0].range.is_followed_by(w[1].range);
                assert!(!held.windows(2).any(touch), "what touches and is alike is one");
            }
        }
    }
    assert!(
        granted_later > 1000 && refused > 1000 && pieces > 3,
        "{granted_later} {refused} {pieces}"
    );
}
