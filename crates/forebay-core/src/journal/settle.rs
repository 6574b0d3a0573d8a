//! What has to be done to the backing store so that its names are those of the journal. Pure: the
//! caller has looked what the names mean now, and does what comes out.
//!
//! The changes fall apart into parts that share no name and no file. Of each part the store has
//! made the first so many: as many as lead to what its names mean now. The others are made again,
//! in order. Where somebody else has changed a name, that name says nothing, and nothing is done to
//! it. A file that the store has forgotten altogether takes no part; if its bytes are here it is
//! made anew at the end, under the names that it has then.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use forebay_backing::{FileKey, Timestamp};

use crate::journal::timeline::{Delta, Passage, Timeline};
use crate::journal::{Moved, NameOp, Step, Told, rebased};

/// What a name means on the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Nothing,
    File {
        key: FileKey,
        /// When its bytes were changed last, or later.
        changed: Timestamp,
        /// When anything of it was.
        ctime: Timestamp,
    },
    /// The store does not say.
    Hidden,
}

impl Found {
    pub fn key(self) -> Option<FileKey> {
        match self {
            Found::File { key, .. } => Some(key),
            Found::Nothing | Found::Hidden => None,
        }
    }
}

pub type Look = BTreeMap<PathBuf, Found>;

/// What recovery knows besides.
pub struct Known {
    /// Files whose bytes are here, each with a name that is free on the store, without its
    /// directory, under which it is made before it gets its own.
    pub worth: BTreeMap<FileKey, String>,
    /// A moment of the store's clock after the last change that is known. What was changed later was
    /// changed by somebody else.
    pub end: Option<Timestamp>,
}

/// What is to be done.
#[derive(Debug, Default)]
pub struct Plan {
    /// The changes that the store has made.
    pub made: Vec<Step>,
    /// To be done, in order.
    pub todo: Vec<NameOp>,
    /// Files to be made anew after that, empty: under these names, for these files.
    pub anew: Vec<(PathBuf, FileKey)>,
    /// To be done after that, in order.
    pub home: Vec<NameOp>,
    /// Names that files are to have and cannot: something else is there.
    pub blocked: BTreeSet<(FileKey, PathBuf)>,
    /// The names that the files of the journal are to have.
    pub wanted: BTreeMap<FileKey, Vec<PathBuf>>,
    /// Names that they had and are not to have.
    pub gone: BTreeSet<(FileKey, PathBuf)>,
}

impl Plan {
    /// The journal of what has been done once `todo` is, and of what is left. Files that are to be
    /// made anew are so at their places there.
    pub fn first_journal(&self) -> Vec<NameOp> {
        let anew: BTreeSet<&PathBuf> = self.anew.iter().map(|(path, _)| path).collect();
        let mut journal = self.todo.clone();
        for op in &self.home {
            match op {
                NameOp::Rename { from, to: path, key, over, .. } if anew.contains(from) => {
                    let over = over.map(|key| NameOp::Unlink { path: path.clone(), key });
                    journal.extend(over);
                    journal.push(NameOp::Create { path: path.clone(), key: *key });
                }
                op => journal.push(op.clone()),
            }
        }
        journal
    }

    /// The journal of what has been done once all is.
    pub fn journal(&self) -> Vec<NameOp> {
        let anew =
            |(path, key): &(PathBuf, FileKey)| NameOp::Create { path: path.clone(), key: *key };
        let anew = self.anew.iter().map(anew);
        self.todo.iter().cloned().chain(anew).chain(self.home.iter().cloned()).collect()
    }

    /// A file that was made anew has another key.
    pub fn rekey(&mut self, old: FileKey, new: FileKey) {
        let rekeyed = |op: NameOp| op.rekeyed(old, new);
        self.home = std::mem::take(&mut self.home).into_iter().map(rekeyed).collect();
        if let Some(names) = self.wanted.remove(&old) {
            self.wanted.insert(new, names);
        }
        let of_old = |(key, path): &(FileKey, PathBuf)| (*key == old).then(|| (new, path.clone()));
        let gone: Vec<_> = self.gone.iter().filter_map(of_old).collect();
        self.gone.extend(gone);
        let blocked: Vec<_> = self.blocked.iter().filter_map(of_old).collect();
        self.blocked.extend(blocked);
    }
}

/// What changes leave behind in the files themselves.
struct Traces<'a> {
    ctimes: HashMap<FileKey, Timestamp>,
    look: &'a Look,
}

impl Traces<'_> {
    fn of(look: &Look) -> Traces<'_> {
        let ctime = |found: &Found| match found {
            Found::File { key, ctime, .. } => Some((*key, *ctime)),
            Found::Nothing | Found::Hidden => None,
        };
        Traces { ctimes: look.values().filter_map(ctime).collect(), look }
    }

    /// Whether a change was made for certain: the file that it made is there, or was changed later.
    /// What it did to the names may have been undone since, by changes that the journal has lost.
    fn show(&self, step: &Step) -> bool {
        let is_later = |key: &FileKey| {
            self.ctimes.get(key).zip(step.at).is_some_and(|(ctime, at)| *ctime > at)
        };
        match &step.op {
            NameOp::Create { key, .. } => self.ctimes.contains_key(key),
            NameOp::Link { key, .. } | NameOp::Rename { key, .. } => is_later(key),
            NameOp::Exchange { key, with, .. } => is_later(key) || is_later(with),
            NameOp::Unlink { path, key } => {
                let other =
                    |(name, found): (&PathBuf, &Found)| name != path && found.key() == Some(*key);
                is_later(key) && self.look.iter().any(other)
            }
        }
    }
}

/// Changes that are made again, one after the other.
struct Again<'a> {
    look: &'a Look,
    known: &'a Known,
    wanted: BTreeMap<FileKey, Vec<PathBuf>>,
    meant: HashMap<&'a Path, BTreeSet<Option<FileKey>>>,
    /// What a directory that was renamed again has brought to names: it is known there as well.
    brought: BTreeSet<(PathBuf, FileKey)>,
    /// What the names are to mean at the change that is at hand.
    wanted_now: HashMap<&'a Path, Option<FileKey>>,
    /// What the names mean by now.
    now: BTreeMap<PathBuf, FileKey>,
    at: BTreeMap<FileKey, BTreeSet<PathBuf>>,
    changed: HashMap<FileKey, Timestamp>,
    todo: Vec<NameOp>,
    anew: Vec<(PathBuf, FileKey)>,
    blocked: BTreeSet<(FileKey, PathBuf)>,
}

impl<'a> Again<'a> {
    fn new(line: &'a Timeline, look: &'a Look, known: &'a Known) -> Again<'a> {
        let mut again = Again {
            look,
            known,
            wanted: line.names(),
            meant: line.meanings(),
            brought: BTreeSet::new(),
            wanted_now: HashMap::new(),
            now: BTreeMap::new(),
            at: BTreeMap::new(),
            changed: HashMap::new(),
            todo: Vec::new(),
            anew: Vec::new(),
            blocked: BTreeSet::new(),
        };
        for (path, found) in look {
            if let Found::File { key, changed, .. } = found {
                again.set(path, Some(*key));
                again.changed.insert(*key, *changed);
            }
        }
        again
    }

    /// Goes on to a change, which is made already or made again.
    fn pass(&mut self, step: &Step, passage: &'a Passage, is_made: bool) {
        self.follow(&passage.before);
        if !is_made {
            self.op(&step.op);
        }
        self.follow(&passage.made);
    }

    fn follow(&mut self, deltas: &'a [Delta]) {
        self.wanted_now.extend(deltas.iter().map(|delta| (delta.path.as_path(), delta.to)));
    }

    fn op(&mut self, op: &NameOp) {
        match op {
            // A file that is not there is made at the end.
            NameOp::Create { .. } => {}
            NameOp::Link { from, to, key } => self.link(from, to, *key),
            NameOp::Unlink { path, key } => self.unlink(path, *key),
            NameOp::Rename { from, to, key, moved, .. } => self.rename(from, to, *key, *moved),
            NameOp::Exchange { from, to, key, with, moved } => {
                self.exchange((from, *key), (to, *with), *moved);
            }
        }
    }

    fn link(&mut self, from: &Path, to: &Path, key: FileKey) {
        if self.is(to, key) || !self.is_there(key) {
            return;
        }
        if !self.make_way(to) {
            self.blocked.insert((key, to.to_path_buf()));
            return;
        }
        let from = match self.is(from, key) {
            true => from.to_path_buf(),
            false => self.at[&key].first().expect("it is there").clone(),
        };
        self.make_parents(to);
        self.todo.push(NameOp::Link { from, to: to.to_path_buf(), key });
        self.set(to, Some(key));
    }

    /// Frees a name for a link, which replaces nothing.
    fn make_way(&mut self, path: &Path) -> bool {
        if !self.may_go(path) {
            return false;
        }
        if let Some(key) = self.now.get(path).copied() {
            self.take(path, key);
        }
        true
    }

    fn unlink(&mut self, path: &Path, key: FileKey) {
        if self.is(path, key) && self.may_go(path) {
            self.take(path, key);
        }
    }

    fn take(&mut self, path: &Path, key: FileKey) {
        self.todo.push(NameOp::Unlink { path: path.to_path_buf(), key });
        self.set(path, None);
    }

    fn rename(&mut self, from: &Path, to: &Path, key: FileKey, moved: Moved) {
        if !self.is(from, key) || from == to {
            return;
        }
        if !self.may_go(to) {
            self.blocked.insert((key, to.to_path_buf()));
            return;
        }
        self.make_parents(to);
        let over = self.now.get(to).copied();
        let (from, to) = (from.to_path_buf(), to.to_path_buf());
        let below = self.take_below(&from, moved);
        self.set(&from, None);
        self.set(&to, Some(key));
        self.put_below(below, &from, &to);
        self.todo.push(NameOp::Rename { from, to, key, over, moved });
    }

    fn exchange(&mut self, one: (&Path, FileKey), two: (&Path, FileKey), moved: Moved) {
        match (self.is(one.0, one.1), self.is(two.0, two.1)) {
            (true, true) => {}
            // Of two files of which one is forgotten the other moves.
            (true, false) if !self.is_there(two.1) => {
                return self.rename(one.0, two.0, one.1, moved);
            }
            (false, true) if !self.is_there(one.1) => {
                return self.rename(two.0, one.0, two.1, moved);
            }
            _ => return,
        }
        let below_one = self.take_below(one.0, moved);
        let below_two = self.take_below(two.0, moved);
        self.set(one.0, Some(two.1));
        self.set(two.0, Some(one.1));
        self.put_below(below_one, one.0, two.0);
        self.put_below(below_two, two.0, one.0);
        let (from, to) = (one.0.to_path_buf(), two.0.to_path_buf());
        self.todo.push(NameOp::Exchange { from, to, key: one.1, with: two.1, moved });
    }

    /// The names below a directory that moves.
    fn take_below(&mut self, dir: &Path, moved: Moved) -> Vec<(PathBuf, FileKey)> {
        if moved == Moved::File {
            return Vec::new();
        }
        let inside = self.now.iter().filter(|(path, _)| path.starts_with(dir) && *path != dir);
        let below: Vec<_> = inside.map(|(path, key)| (path.clone(), *key)).collect();
        below.iter().for_each(|(path, _)| self.set(path, None));
        below
    }

    fn put_below(&mut self, below: Vec<(PathBuf, FileKey)>, from: &Path, to: &Path) {
        for (before, key) in below {
            let path = rebased(&before, from, to).expect("it was below");
            if self.is_known(&before, key) {
                self.brought.insert((path.clone(), key));
            }
            self.set(&path, Some(key));
        }
    }

    /// A directory that the store has forgotten is made with what comes into it. It is what the
    /// journal calls so from then on.
    fn make_parents(&mut self, path: &Path) {
        let dirs: Vec<&Path> = path.ancestors().skip(1).collect();
        for dir in dirs.into_iter().rev() {
            if let Some(Some(key)) = self.wanted_now.get(dir).copied()
                && !self.now.contains_key(dir)
                && !self.is_there(key)
            {
                self.set(dir, Some(key));
            }
        }
    }

    /// A file whose bytes are here and that the store has forgotten.
    fn make_anew(&mut self, key: FileKey) {
        let (Some(beside), Some(names)) =
            (self.known.worth.get(&key), self.wanted.get(&key).cloned())
        else {
            return;
        };
        if self.is_there(key) {
            return;
        }
        let Some(first) = names.iter().find(|name| self.may_go(name)).cloned() else {
            return self.blocked.extend(names.into_iter().map(|name| (key, name)));
        };
        let beside = first.with_file_name(beside);
        self.anew.push((beside.clone(), key));
        self.set(&beside, Some(key));
        self.rename(&beside, &first, key, Moved::File);
        names.iter().filter(|name| **name != first).for_each(|name| self.link(&first, name, key));
    }

    /// What somebody else has moved aside, or what was in a directory that is forgotten: of files whose
    /// changes were to be made again one that has none of its names gets the first.
    fn bring_home(&mut self, files: BTreeSet<FileKey>) {
        for key in files {
            let Some(names) = self.wanted.get(&key).cloned() else { continue };
            let Some(at) = self.at.get(&key).and_then(|at| at.first()).cloned() else { continue };
            let is_home = names.iter().any(|name| self.is(name, key));
            let is_blocked = self.blocked.iter().any(|(blocked, _)| *blocked == key);
            if !is_home && !is_blocked {
                self.rename(&at, &names[0], key, Moved::File);
            }
        }
    }

    /// What has a name that is free in the end, and is gone: a forgotten file had replaced it. Where
    /// that file is lost with its bytes, the older one is left.
    fn tidy(&mut self) {
        let left: Vec<_> = self.now.iter().map(|(path, key)| (path.clone(), *key)).collect();
        let wanted: HashSet<PathBuf> = self.wanted.values().flatten().cloned().collect();
        for (path, key) in left {
            let meant = self.meant.get(path.as_path());
            let is_lost = |key: &FileKey| {
                let is_here = self.is_there(*key) || self.known.worth.contains_key(key);
                self.wanted.contains_key(key) && !is_here
            };
            let stands_in = !self.wanted.contains_key(&key)
                && meant.is_some_and(|meant| meant.iter().flatten().any(is_lost));
            if !wanted.contains(&path) && !stands_in && self.may_go(&path) {
                self.take(&path, key);
            }
        }
    }

    fn is(&self, path: &Path, key: FileKey) -> bool {
        self.now.get(path) == Some(&key)
    }

    fn is_known(&self, path: &Path, key: FileKey) -> bool {
        let is_meant = self.meant.get(path).is_some_and(|meant| meant.contains(&Some(key)));
        is_meant || self.brought.contains(&(path.to_path_buf(), key))
    }

    fn is_there(&self, key: FileKey) -> bool {
        self.at.get(&key).is_some_and(|at| !at.is_empty())
    }

    /// Whether what a name means may be taken from it: the journal knows it there, and it is gone in
    /// the end or has another name; and nobody has changed it since.
    fn may_go(&self, path: &Path) -> bool {
        if self.look.get(path) == Some(&Found::Hidden) {
            return false;
        }
        let Some(key) = self.now.get(path) else { return true };
        let is_known = self.is_known(path, *key);
        let is_gone = !self.wanted.contains_key(key) || self.at[key].len() > 1;
        let changed = self.changed.get(key).copied();
        let by_others = changed.zip(self.known.end).is_some_and(|(changed, end)| changed > end);
        is_known && is_gone && !by_others
    }

    fn set(&mut self, path: &Path, to: Option<FileKey>) {
        let before = match to {
            Some(key) => self.now.insert(path.to_path_buf(), key),
            None => self.now.remove(path),
        };
        if let Some(at) = before.and_then(|before| self.at.get_mut(&before)) {
            at.remove(path);
        }
        if let Some(key) = to {
            self.at.entry(key).or_default().insert(path.to_path_buf());
        }
    }
}

/// The names to look at.
pub fn paths(steps: &[Step]) -> BTreeSet<PathBuf> {
    let ops: Vec<NameOp> = steps.iter().map(|step| step.op.clone()).collect();
    let line = Timeline::of(&ops);
    let paths: BTreeSet<&Path> =
        line.paths().into_iter().chain(ops.iter().flat_map(NameOp::paths)).collect();
    paths.into_iter().map(Path::to_path_buf).collect()
}

/// Whether a change of the journal that was announced, and of which nobody knows the end, was made.
/// Nobody has been told that it failed. Where the store may have forgotten the file itself, nobody
/// can tell, and it was not.
pub fn was_made(op: &NameOp, steps: &[Step], look: &Look) -> bool {
    let key_at = |path: &PathBuf| look.get(path).and_then(|found| found.key());
    let is_created = |wanted: FileKey| {
        let creates = |step: &Step| matches!(step.op, NameOp::Create { key, .. } if key == wanted);
        steps.iter().any(creates)
    };
    let went_on = |from: &PathBuf, key: FileKey| {
        let is_hidden = look.get(from) == Some(&Found::Hidden);
        let is_there = || look.values().any(|found| found.key() == Some(key));
        !is_hidden && key_at(from) != Some(key) && (is_there() || !is_created(key))
    };
    match op {
        NameOp::Create { path, key } => key_at(path) == Some(*key),
        NameOp::Unlink { path, key } => key_at(path) != Some(*key),
        NameOp::Link { to, key, .. } => key_at(to) == Some(*key),
        NameOp::Rename { from, to, key, .. } => key_at(to) == Some(*key) || went_on(from, *key),
        NameOp::Exchange { from, to, key, with, .. } => {
            key_at(to) == Some(*key) || key_at(from) == Some(*with) || went_on(from, *key)
        }
    }
}

/// What changes that were not made would have given: some of it may be on record already.
pub fn not_made(steps: &[Step], look: &Look) -> Vec<(FileKey, PathBuf)> {
    let announced = steps.iter().filter(|step| step.told == Told::Announced);
    let mut gone = Vec::new();
    for step in announced.filter(|step| !was_made(&step.op, steps, look)) {
        match &step.op {
            NameOp::Rename { to, key, .. } => gone.push((*key, to.clone())),
            NameOp::Exchange { from, to, key, with, .. } => {
                gone.extend([(*key, to.clone()), (*with, from.clone())]);
            }
            _ => {}
        }
    }
    gone
}

/// The changes that count: those that ended well, and those that were made. A rename whose file was
/// changed after all that is known was made, if what it was to replace is not there: what it did to
/// the names has been undone since.
pub fn that_count(steps: &[Step], look: &Look, end: Option<Timestamp>) -> Vec<Step> {
    let traces = Traces::of(look);
    let counted = |step: &Step| match step.told {
        Told::Done => Some(step.clone()),
        Told::Announced => {
            let step = Step { told: Told::Done, at: end, ..step.clone() };
            let made = was_made(&step.op, steps, look);
            (made || is_undone(&step, &traces, look)).then_some(step)
        }
    };
    steps.iter().filter_map(counted).collect()
}

fn is_undone(step: &Step, traces: &Traces<'_>, look: &Look) -> bool {
    let NameOp::Rename { to, over, .. } = &step.op else { return false };
    let there = look.get(to).and_then(|found| found.key());
    (over.is_none() || there != *over) && traces.show(step)
}

/// What is to be done so that these changes have been.
pub fn settle(steps: &[Step], look: &Look, known: &Known) -> Plan {
    let ops: Vec<NameOp> = steps.iter().map(|step| step.op.clone()).collect();
    let line = Timeline::of(&ops);
    let made = made(steps, &ops, &line, look);
    let mut again = Again::new(&line, look, known);
    let mut plan = Plan { wanted: line.names(), ..Plan::default() };
    let mut left = BTreeSet::new();
    for ((step, passage), is_made) in steps.iter().zip(&line.passages).zip(made) {
        again.pass(step, passage, is_made);
        match is_made {
            true => plan.made.push(step.clone()),
            false => left.extend(step.op.keys()),
        }
    }
    again.bring_home(left);
    again.tidy();
    plan.todo = std::mem::take(&mut again.todo);
    for op in &ops {
        if let NameOp::Create { key, .. } = op {
            again.make_anew(*key);
        }
    }
    (plan.anew, plan.home, plan.blocked) = (again.anew, again.todo, again.blocked);
    for (path, keys) in line.meanings() {
        let names = |key: &FileKey| plan.wanted.get(key).into_iter().flatten();
        let had = keys.into_iter().flatten().filter(|key| names(key).all(|name| name != path));
        plan.gone.extend(had.map(|key| (key, path.to_path_buf())));
    }
    plan
}

/// Which changes the store has made.
fn made(steps: &[Step], ops: &[NameOp], line: &Timeline, look: &Look) -> Vec<bool> {
    let mut made = vec![false; ops.len()];
    let traces = Traces::of(look);
    for part in parts(ops, line) {
        let sure = part.iter().rposition(|at| traces.show(&steps[*at])).map_or(0, |at| at + 1);
        let cut = cut(&part, sure, line, look);
        part[..cut].iter().for_each(|at| made[*at] = true);
    }
    made
}

/// How many changes of a part lead to what the names mean now, `sure` of which were made: as many as
/// are possible.
fn cut(part: &[usize], sure: usize, line: &Timeline, look: &Look) -> usize {
    let agrees = |path: &Path, key: Option<FileKey>| match look.get(path) {
        None | Some(Found::Hidden) => false,
        Some(found) => found.key() == key,
    };
    let mut now: HashMap<&Path, bool> = HashMap::new();
    let passages = || part.iter().map(|at| &line.passages[*at]);
    // Names that no change has touched yet are as at first.
    for delta in passages().flat_map(|passage| passage.deltas()) {
        now.entry(&delta.path).or_insert_with(|| agrees(&delta.path, line.at_first(&delta.path)));
    }
    let mut agree = now.values().filter(|agrees| **agrees).count();
    let mut best = (0, sure);
    if sure == 0 {
        best = (agree, 0);
    }
    for (n, passage) in passages().enumerate() {
        for (deltas, cut) in [(&passage.before, n), (&passage.made, n + 1)] {
            for delta in deltas {
                let place = now.get_mut(delta.path.as_path()).expect("entered above");
                agree -= usize::from(*place);
                *place = agrees(&delta.path, delta.to);
                agree += usize::from(*place);
            }
            if cut >= sure {
                best = best.max((agree, cut));
            }
        }
    }
    best.1
}

/// Which of these changes may be forgotten, where some `stay`: those that no earlier one stays before of the same
/// names and files. What is left is settled in its order, and must make sense by itself.
pub fn before_any(steps: &[Step], stay: &HashSet<u64>) -> HashSet<u64> {
    let ops: Vec<NameOp> = steps.iter().map(|step| step.op.clone()).collect();
    let parts = parts(&ops, &Timeline::of(&ops)).into_iter();
    let first = |part: Vec<usize>| {
        let numbers = part.into_iter().map(|at| steps[at].n);
        numbers.take_while(|n| !stay.contains(n)).collect::<Vec<_>>()
    };
    parts.flat_map(first).collect()
}

/// Changes that share no name and no file, each in order.
fn parts(ops: &[NameOp], line: &Timeline) -> Vec<Vec<usize>> {
    let mut part_of: Vec<usize> = (0..ops.len()).collect();
    let (mut by_path, mut by_key) = (HashMap::new(), HashMap::new());
    for (n, op) in ops.iter().enumerate() {
        let changed = line.passages[n].deltas().map(|delta| delta.path.as_path());
        for path in op.paths().chain(changed) {
            let first = *by_path.entry(path).or_insert(n);
            join(&mut part_of, first, n);
        }
        for key in op.keys() {
            let first = *by_key.entry(key).or_insert(n);
            join(&mut part_of, first, n);
        }
    }
    let mut parts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for n in 0..ops.len() {
        parts.entry(root(&mut part_of, n)).or_default().push(n);
    }
    parts.into_values().collect()
}

fn join(part_of: &mut [usize], a: usize, b: usize) {
    let (a, b) = (root(part_of, a), root(part_of, b));
    part_of[a.max(b)] = a.min(b);
}

fn root(part_of: &mut [usize], mut n: usize) -> usize {
    while part_of[n] != n {
        part_of[n] = part_of[part_of[n]];
        n = part_of[n];
    }
    n
}

#[cfg(test)]
mod tests;
