use super::*;
use crate::journal::{Journal, NameRecord, rebased};

const NAMES: [&str; 3] = ["a", "b", "c"];

type Names = BTreeMap<PathBuf, FileKey>;

fn key(ino: u64) -> FileKey {
    FileKey { ino, generation: 1 }
}

fn path(name: &str) -> PathBuf {
    name.into()
}

fn create(name: &str, ino: u64) -> NameOp {
    NameOp::Create { path: path(name), key: key(ino) }
}

fn rename(from: &str, to: &str, ino: u64, over: Option<u64>) -> NameOp {
    let (from, to) = (path(from), path(to));
    NameOp::Rename { from, to, key: key(ino), over: over.map(key), moved: Moved::File }
}

fn unlink(name: &str, ino: u64) -> NameOp {
    NameOp::Unlink { path: path(name), key: key(ino) }
}

fn names<const N: usize>(of: [(&str, u64); N]) -> Names {
    of.into_iter().map(|(name, ino)| (path(name), key(ino))).collect()
}

/// Makes a change as a file system does.
fn act(now: &mut Names, op: &NameOp) {
    let gone = |now: &mut Names, path: &Path, key: &FileKey| {
        assert_eq!(now.remove(path), Some(*key), "{op:?} in {now:?}");
    };
    match op {
        NameOp::Create { path, key } => assert_eq!(now.insert(path.clone(), *key), None, "{op:?}"),
        NameOp::Link { from, to, key } => {
            assert_eq!(now.get(from), Some(key), "{op:?}");
            assert_eq!(now.insert(to.clone(), *key), None, "{op:?}");
        }
        NameOp::Unlink { path, key } => gone(now, path, key),
        NameOp::Rename { from, to, key, over, moved } => {
            gone(now, from, key);
            assert_eq!(now.insert(to.clone(), *key), *over, "{op:?}");
            if *moved == Moved::Dir {
                for (old, key) in now.clone() {
                    if let Some(new) = rebased(&old, from, to).filter(|_| old != *from) {
                        now.remove(&old);
                        now.insert(new, key);
                    }
                }
            }
        }
        NameOp::Exchange { from, to, key, with, .. } => {
            assert_eq!(now.insert(from.clone(), *with), Some(*key), "{op:?}");
            assert_eq!(now.insert(to.clone(), *key), Some(*with), "{op:?}");
        }
    }
}

/// Returns every change that is possible next; `new` is the next file's number.
fn possible(now: &Names, new: u64) -> Vec<NameOp> {
    let mut ops = Vec::new();
    for from in NAMES {
        let Some(key) = now.get(Path::new(from)).copied() else {
            ops.push(create(from, new));
            continue;
        };
        ops.push(NameOp::Unlink { path: path(from), key });
        for to in NAMES.into_iter().filter(|to| *to != from) {
            let (from, to) = (path(from), path(to));
            match now.get(&to).copied() {
                None => {
                    ops.push(NameOp::Link { from: from.clone(), to: to.clone(), key });
                    ops.push(NameOp::Rename { from, to, key, over: None, moved: Moved::File });
                }
                Some(over) if over != key => {
                    let (with, over) = (over, Some(over));
                    let (f, t) = (from.clone(), to.clone());
                    ops.push(NameOp::Rename { from: f, to: t, key, over, moved: Moved::File });
                    if from < to {
                        ops.push(NameOp::Exchange { from, to, key, with, moved: Moved::File });
                    }
                }
                Some(_) => {}
            }
        }
    }
    ops
}

/// The time of the last change of each file that was changed. The clock starts at 2.
type Times = BTreeMap<FileKey, i64>;

/// A time after every change of a history, and a later time, at which recovery acts.
const END: i64 = 50;
const LATER: i64 = 60;

fn at(sec: i64) -> Timestamp {
    Timestamp { sec, nsec: 0 }
}

fn look_at(now: &Names) -> Look {
    look_then(now, &Times::new())
}

fn look_then(now: &Names, times: &Times) -> Look {
    let mut look: Look = NAMES.iter().map(|name| (path(name), Found::Nothing)).collect();
    let found = |(path, key): (&PathBuf, &FileKey)| {
        let ctime = at(times.get(key).copied().unwrap_or(1));
        (path.clone(), Found::File { key: *key, changed: at(1), ctime })
    };
    look.extend(now.iter().map(found));
    look
}

/// Returns what recovery sees of these names.
fn look_of(steps: &[Step], now: &Names) -> Look {
    let all = look_at(now);
    let found = |path: &Path| Ok::<_, Infallible>(*all.get(path).unwrap_or(&Found::Nothing));
    look(steps, found).unwrap()
}

fn known(worth: impl IntoIterator<Item = FileKey>) -> Known {
    let worth = worth.into_iter().map(|key| (key, format!("new-{}", key.ino))).collect();
    Known { worth, end: Some(at(END)), apart: BTreeSet::new() }
}

/// A store, and the journal of its names.
#[derive(Clone)]
struct Bed {
    steps: Vec<Step>,
    names: Names,
    times: Times,
}

impl Bed {
    fn plan(&self, known: &Known) -> Plan {
        settle(&self.steps, &look_then(&self.names, &self.times), known)
    }

    fn act(&mut self, op: &NameOp) {
        act(&mut self.names, op);
        self.times.extend(op.keys().map(|key| (key, LATER)));
    }

    /// Carries out the plan. Recovery may be killed before each change, up to `deaths` times: the next
    /// recovery comes to the same names.
    fn settle(mut self, known: &Known, deaths: usize) -> Names {
        let plan = self.plan(known);
        assert!(plan.blocked.is_empty(), "{:?} {:?}: {plan:?}", self.steps, self.names);
        let mut moments = Vec::new();
        self.steps = plan.steps;
        for op in &plan.todo {
            moments.push(self.clone());
            self.act(op);
        }
        for (path, key) in plan.anew {
            self.act(&NameOp::Create { path, key });
        }
        for op in &plan.home {
            moments.push(self.clone());
            self.act(op);
        }
        for moment in moments.into_iter().filter(|_| deaths > 0) {
            let what = format!("{:?} {:?}", moment.steps, moment.names);
            assert_eq!(moment.settle(known, deaths - 1), self.names, "{what}");
        }
        assert!(self.plan(known).todo.is_empty(), "{:?} {:?}", self.steps, self.names);
        self.names
    }
}

/// Returns the names and times after these changes.
fn after(first: &Names, ops: &[NameOp]) -> (Names, Times) {
    let (mut names, mut times) = (first.clone(), Times::new());
    for (op, n) in ops.iter().zip(2..) {
        act(&mut names, op);
        times.extend(op.keys().map(|key| (key, n)));
    }
    (names, times)
}

/// Returns the steps of these changes, each with its time.
fn timed(ops: &[NameOp]) -> Vec<Step> {
    let mut steps = steps(ops);
    steps.iter_mut().zip(2..).for_each(|(step, n)| step.at = Some(at(n)));
    steps
}

/// Checks recovery on a store that has made the first `cut` of the changes.
fn check(first: &Names, ops: &[NameOp], cut: usize, worth: bool, deaths: usize) {
    let (store, times) = after(first, &ops[..cut]);
    let (want, _) = after(first, ops);
    let there: BTreeSet<FileKey> = store.values().copied().collect();
    let all: BTreeSet<FileKey> = ops.iter().flat_map(NameOp::keys).collect();
    let known = known(all.into_iter().filter(|_| worth));
    let what = || format!("{ops:?} of which {cut} were made");
    let lost: Vec<FileKey> =
        want.values().filter(|key| !worth && !there.contains(key)).copied().collect();
    for steps in [steps(ops), timed(ops)] {
        let bed = Bed { steps, names: store.clone(), times: times.clone() };
        let got = bed.settle(&known, deaths);
        if lost.is_empty() {
            assert_eq!(got, want, "{}", what());
            continue;
        }
        // A file that a lost file has replaced may still have the name.
        let is_sound = |(path, key): (&PathBuf, &FileKey)| {
            let stands_in = !want.values().any(|wanted| wanted == key);
            let wanted = want.get(path);
            wanted == Some(key) || stands_in || wanted.is_some_and(|key| lost.contains(key))
        };
        assert!(got.iter().all(is_sound), "{}: {got:?}", what());
        let is_home =
            |(path, key): (&PathBuf, &FileKey)| lost.contains(key) || got.get(path) == Some(key);
        assert!(want.iter().all(is_home), "{}: {got:?}", what());
    }
}

/// Checks that recovery changes nothing where the tier has forgotten all but the first `cut` of the changes.
fn check_tier(first: &Names, ops: &[NameOp], cut: usize) {
    let (names, times) = after(first, ops);
    let bed = Bed { steps: timed(&ops[..cut]), names, times };
    let plan = bed.plan(&known([]));
    let is_idle = plan.todo.is_empty() && plan.home.is_empty();
    assert!(is_idle, "{ops:?} of which {cut} are known: {plan:?}");
}

/// Checks recovery where the last change is announced: the names are those with the change, or without it.
fn check_announced(first: &Names, ops: &[NameOp], cut: usize) {
    let Some(last) = ops.len().checked_sub(1) else { return };
    let (names, times) = after(first, &ops[..cut]);
    let mut steps = timed(ops);
    (steps[last].told, steps[last].at) = (Told::Announced, None);
    let known = known(ops.iter().flat_map(NameOp::keys));
    let got = Bed { steps, names: names.clone(), times }.settle(&known, 1);
    let what = format!("{ops:?} of which {cut} were made: {got:?}");
    let want = [last, ops.len()].map(|cut| after(first, &ops[..cut]).0);
    assert!(if cut < last { want.contains(&got) } else { got == names }, "{what}");
}

/// Checks that a file that is apart keeps its names, and that no file loses one to a file that does not get it.
fn check_apart(first: &Names, ops: &[NameOp], cut: usize) {
    let (store, times) = after(first, &ops[..cut]);
    let (want, _) = after(first, ops);
    let all: BTreeSet<FileKey> = ops.iter().flat_map(NameOp::keys).collect();
    for theirs in all.iter().copied() {
        let known = known(all.iter().copied().filter(|key| *key != theirs));
        let known = Known { apart: [theirs].into(), ..known };
        let bed = Bed { steps: timed(ops), names: store.clone(), times: times.clone() };
        let plan = bed.plan(&known);
        let mut got = store.clone();
        plan.todo.iter().for_each(|op| act(&mut got, op));
        plan.anew.iter().for_each(|(path, key)| _ = got.insert(path.clone(), *key));
        plan.home.iter().for_each(|op| act(&mut got, op));
        let what = format!("{ops:?} of which {cut} were made, without {theirs:?}: {got:?}");
        let names = |of: &Names| -> Vec<PathBuf> {
            of.iter().filter(|(_, key)| **key == theirs).map(|(path, _)| path.clone()).collect()
        };
        assert_eq!(names(&got), names(&store), "{what}");
        let is_replaced = |key: &FileKey| want.values().all(|wanted| wanted != key);
        let stays = |(path, key): (&PathBuf, &FileKey)| {
            !want.contains_key(path) || !is_replaced(key) || got.contains_key(path)
        };
        assert!(store.iter().all(stays), "{what}");
        assert!(cut < ops.len() || got == store, "{what}");
    }
}

fn check_all(first: &Names, now: &Names, ops: &mut Vec<NameOp>, depth: usize, checked: &mut u64) {
    for cut in 0..=ops.len() {
        check(first, ops, cut, true, 1);
        check(first, ops, cut, false, 1);
        check_tier(first, ops, cut);
        check_announced(first, ops, cut);
        check_apart(first, ops, cut);
        *checked += 2;
    }
    if ops.len() == depth {
        return;
    }
    for op in possible(now, 10 + ops.len() as u64) {
        let mut next = now.clone();
        act(&mut next, &op);
        ops.push(op);
        check_all(first, &next, ops, depth, checked);
        ops.pop();
    }
}

/// Every sequence of a few changes of three names, and every moment at which the store may have
/// stopped.
// S-3
#[test]
fn whatever_the_store_has_forgotten_is_made_again() {
    let mut checked = 0;
    for first in [names([]), names([("a", 1)]), names([("a", 1), ("b", 2)])] {
        check_all(&first, &first, &mut Vec::new(), 3, &mut checked);
    }
    assert!(checked > 10_000, "{checked}");
}

// S-3
#[test]
fn whatever_long_history_the_store_has_forgotten_is_made_again() {
    let mut random = 7u64;
    let mut below = |n: usize| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (random >> 33) as usize % n
    };
    for _ in 0..400 {
        let first = names([("a", 1), ("b", 2)]);
        let (mut now, mut ops) = (first.clone(), Vec::new());
        for n in 0..10 {
            let mut can = possible(&now, 10 + n);
            let op = can.swap_remove(below(can.len()));
            act(&mut now, &op);
            ops.push(op);
        }
        for cut in 0..=ops.len() {
            check(&first, &ops, cut, below(2) == 0, 2);
            check_tier(&first, &ops, cut);
        }
    }
}

/// Flushes of single files take changes out of the journal, which are durable with all before them.
// S-3
#[test]
fn a_journal_of_which_flushes_took_changes_says_nothing_wrong() {
    let mut random = 11u64;
    let mut below = |n: usize| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (random >> 33) as usize % n
    };
    let mut taken = 0;
    for _ in 0..3000 {
        let first = names([("a", 1), ("b", 2)]);
        let (mut now, mut ops, mut journal) = (first.clone(), Vec::new(), Journal::default());
        let mut durable = 0;
        for n in 0..8 {
            let mut can = possible(&now, 10 + n);
            let op = can.swap_remove(below(can.len()));
            act(&mut now, &op);
            let step = journal.step(op.clone(), Told::Done, Some(at(n as i64 + 2)));
            journal.apply(NameRecord::Step(step));
            ops.push(op);
            let flushed = now.values().nth(below(6)).copied();
            if let Some(flushed) = flushed {
                let ns = journal.of(&[flushed].into());
                taken += ns.len();
                journal.apply(NameRecord::Retired { ns });
                durable = ops.len();
            }
        }
        let known = known(ops.iter().flat_map(NameOp::keys));
        for cut in durable..=ops.len() {
            let (names, times) = after(&first, &ops[..cut]);
            let got = Bed { steps: journal.steps(), names, times }.settle(&known, 1);
            assert_eq!(got, now, "{ops:?} of which {cut} were made, as {:?}", journal.steps());
        }
    }
    assert!(taken > 5000, "{taken}");
}

/// A directory in which a file was made is renamed: the names below go with it.
// S-3
#[test]
fn names_below_a_directory_go_with_it() {
    let first = names([("d", 1), ("d/f", 2)]);
    let (from, to) = (path("d"), path("e"));
    let ops = [
        create("d/tmp", 3),
        NameOp::Rename { from, to, key: key(1), over: None, moved: Moved::Dir },
        rename("e/tmp", "e/f", 3, Some(2)),
    ];
    for cut in 0..=ops.len() {
        let mut store = first.clone();
        ops[..cut].iter().for_each(|op| act(&mut store, op));
        let look = look_of(&steps(&ops), &store);
        let plan = settle(&steps(&ops), &look, &known([key(3)]));
        assert!(plan.blocked.is_empty(), "{cut}: {plan:?}");
        plan.todo.iter().for_each(|op| act(&mut store, op));
        plan.anew.iter().for_each(|(path, key)| _ = store.insert(path.clone(), *key));
        plan.home.iter().for_each(|op| act(&mut store, op));
        assert_eq!(store, names([("e", 1), ("e/f", 3)]), "{cut}: {plan:?}");
    }
}

fn steps_of_one(op: NameOp) -> Step {
    Step { n: 0, op, told: Told::Done, at: None }
}

fn steps(ops: &[NameOp]) -> Vec<Step> {
    let step = |(n, op): (usize, &NameOp)| Step {
        n: n as u64,
        op: op.clone(),
        told: Told::Done,
        at: None,
    };
    ops.iter().enumerate().map(step).collect()
}

/// A file that the journal does not know keeps its name, and so does a file that was changed since.
// S-8
#[test]
fn what_somebody_else_made_is_left() {
    let ops = [create("a", 3), rename("a", "b", 3, Some(2))];
    let plan = settle(&steps(&ops), &look_at(&names([("b", 9)])), &known([key(3)]));
    assert!(plan.todo.is_empty() && plan.anew.is_empty() && plan.home.is_empty(), "{plan:?}");
    assert!(plan.blocked.contains(&(key(3), path("b"))));
    let mut look = look_at(&names([("b", 2)]));
    let changed = at(END + 1);
    look.insert(path("b"), Found::File { key: key(2), changed, ctime: changed });
    let plan = settle(&steps(&ops), &look, &known([key(3)]));
    assert!(plan.todo.is_empty() && plan.anew.is_empty() && plan.home.is_empty(), "{plan:?}");
    look.insert(path("b"), Found::Hidden);
    let plan = settle(&steps(&ops), &look, &known([key(3)]));
    assert!(plan.todo.is_empty() && plan.anew.is_empty() && plan.home.is_empty(), "{plan:?}");
    assert!(plan.blocked.contains(&(key(3), path("b"))));
}

/// The tier has forgotten the last changes: the name is another file's by now.
// S-3
#[test]
fn a_name_that_went_on_does_not_bring_back_what_had_it() {
    let ops = [create("a", 3), unlink("a", 3)];
    for store in [names([]), names([("a", 9)])] {
        let plan = settle(&steps(&ops), &look_at(&store), &known([key(3)]));
        assert!(
            plan.todo.is_empty()
                && plan.anew.is_empty()
                && plan.home.is_empty()
                && plan.blocked.is_empty()
        );
        assert!(!plan.wanted.contains_key(&key(3)), "{plan:?}");
    }
}

/// The tier has forgotten that the file was renamed back to its first name.
// S-3
#[test]
fn a_file_that_was_changed_since_has_been_renamed() {
    let mut steps = steps(&[rename("a", "b", 1, None)]);
    let mut look = look_at(&names([("a", 1)]));
    let mut todo = |ctime, made| {
        look.insert(path("a"), Found::File { key: key(1), changed: at(1), ctime });
        steps[0].at = made;
        settle(&steps, &look, &known([])).todo.len()
    };
    assert_eq!(todo(at(1), Some(at(2))), 1, "it is as it was before");
    assert_eq!(todo(at(2), Some(at(2))), 1, "of the same tick");
    assert_eq!(todo(at(3), Some(at(2))), 0);
    assert_eq!(todo(at(3), None), 1, "nobody knows");
}

// S-2
#[test]
fn what_was_announced_counts_if_it_was_made() {
    let mut steps = steps(&[rename("a", "b", 1, None), unlink("c", 4)]);
    steps.iter_mut().for_each(|step| step.told = Told::Announced);
    let counted = |store: Names| settle(&steps, &look_at(&store), &known([])).steps.len();
    assert_eq!(counted(names([("a", 1), ("c", 4)])), 0);
    assert_eq!(counted(names([("b", 1), ("c", 4)])), 1);
    assert_eq!(counted(names([("b", 1)])), 2);
    assert_eq!(counted(names([("a", 1), ("c", 9)])), 1);
    assert_eq!(counted(names([("b", 7), ("c", 4)])), 1, "another has the name by now");
    steps.insert(0, steps_of_one(create("a", 1)));
    let counted = |store: Names| settle(&steps, &look_at(&store), &known([])).steps.len();
    assert_eq!(counted(names([("b", 7), ("c", 4)])), 1, "its creation may be forgotten");
}

/// The first number of a directory, and the number after which those are counted that are made as
/// parents.
const DIRS: u64 = 100;
const PARENTS: u64 = 1_000;

/// Names of directories and of files in them, on a store that makes missing parents as recovery
/// does.
#[derive(Clone, Debug)]
struct Shelf {
    names: Names,
    parents: u64,
}

impl Shelf {
    fn below(&self, dir: &Path) -> Vec<(PathBuf, FileKey)> {
        let inside = self.names.iter().filter(|(path, _)| path.starts_with(dir) && *path != dir);
        inside.map(|(path, key)| (path.clone(), *key)).collect()
    }

    fn move_below(&mut self, below: Vec<(PathBuf, FileKey)>, from: &Path, to: &Path) {
        let moved = |(path, key): (PathBuf, FileKey)| (rebased(&path, from, to).unwrap(), key);
        self.names.extend(below.into_iter().map(moved));
    }

    fn take_below(&mut self, dir: &Path) -> Vec<(PathBuf, FileKey)> {
        let below = self.below(dir);
        below.iter().for_each(|(path, _)| _ = self.names.remove(path));
        below
    }

    fn make_parents(&mut self, path: &Path) {
        for dir in path.ancestors().skip(1).filter(|dir| *dir != Path::new("")) {
            if !self.names.contains_key(dir) {
                self.parents += 1;
                self.names.insert(dir.into(), key(PARENTS + self.parents));
            }
        }
    }

    fn act(&mut self, op: &NameOp) -> std::result::Result<(), &'static str> {
        match op {
            NameOp::Create { path, .. } | NameOp::Link { to: path, .. } => self.make_parents(path),
            NameOp::Rename { to, .. } => self.make_parents(to),
            NameOp::Unlink { .. } | NameOp::Exchange { .. } => {}
        }
        let has = |it: &Shelf, path: &PathBuf| it.names.get(path).copied();
        match op {
            NameOp::Create { path, key } | NameOp::Link { to: path, key, .. } => {
                has(self, path).map_or(Ok(()), |_| Err("it is there"))?;
                self.names.insert(path.clone(), *key);
            }
            NameOp::Unlink { path, .. } => {
                has(self, path).ok_or("it is gone")?;
                self.below(path).is_empty().then_some(()).ok_or("it is not empty")?;
                self.names.remove(path);
            }
            NameOp::Rename { from, to, over, .. } => {
                let key = has(self, from).ok_or("it is gone")?;
                let is_free = over.is_some() || has(self, to).is_none();
                is_free.then_some(()).ok_or("something is there")?;
                self.below(to).is_empty().then_some(()).ok_or("what is there is not empty")?;
                let below = self.take_below(from);
                self.names.remove(from);
                self.names.insert(to.clone(), key);
                self.move_below(below, from, to);
            }
            NameOp::Exchange { from, to, .. } => {
                let one = has(self, from).ok_or("it is gone")?;
                let two = has(self, to).ok_or("it is gone")?;
                let (below_one, below_two) = (self.take_below(from), self.take_below(to));
                self.names.extend([(from.clone(), two), (to.clone(), one)]);
                self.move_below(below_one, from, to);
                self.move_below(below_two, to, from);
            }
        }
        Ok(())
    }

    /// Carries out at most `life` changes of the plan. Returns the store, its journal and the changes made.
    fn settle(
        mut self,
        known: &Known,
        steps: &[Step],
        life: usize,
    ) -> (Shelf, Vec<Step>, Vec<NameOp>) {
        let plan = settle(steps, &look_of(steps, &self.names), known);
        let mut did = Vec::new();
        for (anew, todo) in [(Vec::new(), plan.todo), (plan.anew, plan.home)] {
            for (path, key) in anew.into_iter().filter(|_| did.len() < life) {
                self.act(&NameOp::Create { path, key }).unwrap();
            }
            for op in todo.into_iter().take(life - did.len()) {
                self.act(&op).unwrap_or_else(|why| panic!("{op}: {why}: {did:#?}"));
                did.push(op);
            }
        }
        (self, plan.steps, did)
    }

    fn files(&self) -> Names {
        let files = self.names.iter().filter(|(_, key)| key.ino < DIRS);
        files.map(|(path, key)| (path.clone(), *key)).collect()
    }

    /// Returns every change that is possible next; `new` is the next number.
    fn possible(&self, new: u64) -> Vec<NameOp> {
        const PLACES: [&str; 5] = ["a", "b", "c", "a/d", "b/e"];
        let has = |path: &Path| self.names.get(path).copied();
        let is_ready = |path: &Path| {
            path.parent().is_some_and(|dir| dir == Path::new("") || has(dir).is_some())
        };
        let mut ops = Vec::new();
        for (n, one) in PLACES.iter().map(Path::new).enumerate() {
            let Some(dir) = has(one) else {
                let key = key(DIRS + new);
                ops.extend(is_ready(one).then(|| NameOp::Create { path: one.into(), key }));
                continue;
            };
            let moved = Moved::Dir;
            for two in PLACES.iter().map(Path::new).filter(|two| !two.starts_with(one)) {
                let (from, to) = (one.to_path_buf(), two.to_path_buf());
                match has(two) {
                    None if is_ready(two) => {
                        ops.push(NameOp::Rename { from, to, key: dir, over: None, moved });
                    }
                    Some(with) if !one.starts_with(two) => {
                        ops.push(NameOp::Exchange { from, to, key: dir, with, moved });
                    }
                    _ => {}
                }
            }
            let file = one.join("x");
            let Some(is) = has(&file) else {
                ops.push(NameOp::Create { path: file, key: key(10 + new) });
                continue;
            };
            let to = Path::new(PLACES[(n + new as usize) % PLACES.len()]).join("x");
            if to != file && is_ready(&to) {
                let over = has(&to);
                let from = file.clone();
                ops.push(NameOp::Rename { from, to, key: is, over, moved: Moved::File });
            }
            ops.push(NameOp::Unlink { path: file, key: is });
        }
        ops
    }
}

/// Directories are made, renamed and exchanged, and files in them are made and renamed: whichever of
/// these changes the store has forgotten, the files get their names.
// S-3
#[test]
fn whatever_the_store_has_forgotten_of_directories_files_come_to_their_names() {
    let mut random = 11u64;
    let mut below = |n: usize| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (random >> 33) as usize % n
    };
    let first = names([("a", 100), ("a/x", 1), ("b", 101), ("b/e", 102), ("b/e/x", 2)]);
    let first = Shelf { names: first, parents: 0 };
    let mut made_again = 0;
    for history in 0..2_000 {
        let (mut now, mut ops) = (first.clone(), Vec::new());
        for n in 0..7 {
            let mut can = now.possible(10 + n);
            let op = can.swap_remove(below(can.len()));
            now.act(&op).unwrap();
            ops.push(op);
        }
        for cut in 0..=ops.len() {
            let mut store = first.clone();
            ops[..cut].iter().for_each(|op| store.act(op).unwrap());
            let files = ops.iter().flat_map(NameOp::keys).filter(|key| key.ino < DIRS);
            let known = known(files);
            let what = |did: Vec<NameOp>| {
                let told = |ops: &[NameOp]| ops.iter().map(NameOp::to_string).collect::<Vec<_>>();
                let (ops, did) = (told(&ops), told(&did));
                format!("{history}: {ops:#?}, {cut} of them made, and then {did:#?}")
            };
            let begun = |life| store.clone().settle(&known, &steps(&ops), life);
            let (whole, _, did) = begun(usize::MAX);
            let acts = did.len();
            assert_eq!(whole.files(), now.files(), "{}", what(did));
            if acts > 0 {
                let (half, steps, mut did) = begun(history % acts);
                let (whole, _, more) = half.settle(&known, &steps, usize::MAX);
                did.extend(more);
                assert_eq!(whole.files(), now.files(), "killed: {}", what(did));
            }
            made_again += acts;
        }
    }
    assert!(made_again > 10_000, "{made_again}");
}

/// A removed or replaced file had one more name, which the journal does not know, and another program has given the
/// file its old name back.
// S-3 S-8
#[test]
fn a_file_that_somebody_has_brought_back_stays() {
    for ops in [vec![unlink("a", 1)], vec![create("b", 2), rename("b", "a", 2, Some(1))]] {
        let mut steps = steps(&ops);
        steps.iter_mut().for_each(|step| step.at = Some(at(5)));
        let mut look = look_at(&names([("a", 1)]));
        let mut plan = |ctime| {
            let found = Found::File { key: key(1), changed: at(1), ctime: at(ctime) };
            look.insert(path("a"), found);
            settle(&steps, &look, &known([key(2)]))
        };
        let changes = |plan: &Plan| plan.todo.len() + plan.home.len();
        assert!(changes(&plan(5)) > 0, "the store has forgotten the change: {ops:?}");
        assert_eq!(changes(&plan(6)), 0, "somebody has changed it since: {ops:?}");
    }
}
