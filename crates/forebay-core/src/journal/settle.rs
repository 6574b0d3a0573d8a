//! Plans the changes that give the backing store the names of the journal. Pure: the caller looks up
//! the present names ([`look`]) and carries out the [`Plan`].
//!
//! The journal tells which file each name means in the end, and every name that each of its files ever had. A
//! file that is found at one of its old names is moved to its last names. A file that is found elsewhere, or
//! was changed after all that the journal knows of it, has gone on: the plan leaves its names alone, and also
//! the names of files that other programs have made. A file that the store has forgotten is made anew if its
//! bytes are in the tier.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};

use forebay_backing::{FileKey, Timestamp};

use crate::journal::past::{Entry, Node, Past, ROOT, World};
use crate::journal::{Moved, NameOp, Step, Told};

/// The prefix of the temporary names that files have until they get their own.
pub const ANEW: &str = ".forebay-anew-";

/// The object that a name means on the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Nothing,
    File {
        key: FileKey,
        /// The time of the last change of its bytes: the mtime, but not after the ctime.
        changed: Timestamp,
        /// The time of the last change of anything in the file.
        ctime: Timestamp,
    },
    /// The store refuses to tell.
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

/// The knowledge of recovery beside the journal.
pub struct Known {
    /// Files whose bytes are in the tier, each with a temporary name, without its directory, that is
    /// free on the store: the file is made under it before it gets its own name.
    pub worth: BTreeMap<FileKey, String>,
    /// A time on the store's clock, not before the last known change. A file that was changed later has
    /// gone on.
    pub end: Option<Timestamp>,
    /// Files and directories that keep the names that they have on the store, whatever the journal tells of them.
    pub apart: BTreeSet<FileKey>,
}

/// The changes to make on the store, and their result.
#[derive(Debug, Default)]
pub struct Plan {
    /// The journal to record before `todo`, and before `home`: the changes that were made, and one for each
    /// file that recovery moves, with its temporary name.
    pub steps: Vec<Step>,
    /// The changes to make first, in order.
    pub todo: Vec<NameOp>,
    /// The temporary names of empty files to make after `todo`, and the keys of the files that they replace.
    pub anew: Vec<(PathBuf, FileKey)>,
    /// The changes to make after that, in order.
    pub home: Vec<NameOp>,
    /// Last names that files cannot get, because something else has them.
    pub blocked: BTreeSet<(FileKey, PathBuf)>,
    /// The names of the journal's files: the names that a file has on the store, or its last names in the journal,
    /// if it is not on the store, or has none of its last names and one of these is blocked.
    pub wanted: BTreeMap<FileKey, Vec<PathBuf>>,
    /// All names in the journal.
    pub names: BTreeSet<PathBuf>,
}

/// The journal's names as they are on the store.
#[derive(Default)]
struct Seen {
    world: World,
    /// The times of the last change of a file's bytes, and of the last change of anything in it.
    times: BTreeMap<Node, (Timestamp, Timestamp)>,
    hidden: Vec<Entry>,
    /// The number of objects that the journal does not know. Their nodes are numbered after the journal's.
    strangers: usize,
}

impl Seen {
    fn of<E>(past: &Past, mut stat: impl FnMut(&Path) -> Result<Found, E>) -> Result<Seen, E> {
        let mut seen = Seen::default();
        let mut dirs = vec![ROOT];
        while let Some(dir) = dirs.pop().or_else(|| seen.stand_in(past)) {
            for entry in past.below(dir).collect::<BTreeSet<_>>() {
                // A directory that is found at two places may be inside itself.
                let Some(path) = seen.world.path(entry) else { continue };
                match stat(&path)? {
                    Found::Nothing => {}
                    Found::Hidden => seen.hidden.push(entry.clone()),
                    Found::File { key, changed, ctime } => {
                        let node = seen.node(past, key, entry);
                        dirs.extend((!seen.world.has(node)).then_some(node));
                        seen.world.set(entry, Some(node));
                        seen.times.insert(node, (changed, ctime));
                    }
                }
            }
        }
        Ok(seen)
    }

    /// Returns the node of a key that was found at a name. If the journal has a directory there without a key, the
    /// found object is that directory.
    fn node(&mut self, past: &Past, key: FileKey, entry: &Entry) -> Node {
        let nameless = past.last.get(entry).filter(|node| past.key(*node).is_none());
        past.node(key).or(nameless).unwrap_or_else(|| {
            self.strangers += 1;
            past.len() + self.strangers
        })
    }

    /// Takes an unknown object at the place of a directory that the store has forgotten for that directory.
    fn stand_in(&mut self, past: &Past) -> Option<Node> {
        let is_other = |entry| self.world.get(entry).is_some_and(|node| node >= past.len());
        let forgotten = |node| past.is_dir(node) && !self.world.has(node);
        let mut names = past.last.names();
        let (entry, dir) = names.find(|(entry, node)| is_other(entry) && forgotten(*node))?;
        self.world.set(entry, Some(dir));
        Some(dir)
    }

    /// Whether a found file is unknown to the journal, is apart from it, or was changed after all that the journal
    /// knows of it.
    fn has_gone_on(&self, past: &Past, known: &Known, node: Node) -> bool {
        let Some((changed, ctime)) = self.times.get(&node).copied() else { return false };
        let is_apart = past.key(node).is_some_and(|key| known.apart.contains(&key));
        let is_later = |ctime, at: Option<Timestamp>| at.is_some_and(|at| ctime > at);
        let is_new = |entry: &Entry| !past.ever.contains(&(entry.clone(), node));
        node >= past.len()
            || is_apart
            || self.world.at(node).any(is_new)
            // The ctime of a removed directory says nothing: names in it come and go.
            || ((past.last.has(node) || !past.is_dir(node)) && is_later(ctime, past.at(node)))
            || (!past.is_dir(node) && is_later(changed, known.end))
    }
}

/// Returns the names as they are to be: those of the journal, except that a file keeps its present names if the
/// journal does not know it, if it has gone on, or if it could get none of its last names.
fn goal(past: &Past, known: &Known, seen: &Seen) -> World {
    let mut goal = past.last.clone();
    let there: BTreeSet<Node> = seen.world.names().map(|(_, node)| node).collect();
    let gone_on = |node: &Node| seen.has_gone_on(past, known, *node);
    let mut stays: BTreeSet<Node> = there.iter().copied().filter(gone_on).collect();
    let old = stays.iter().flat_map(|node| past.last.at(*node));
    old.chain(&seen.hidden).for_each(|entry| goal.set(entry, None));
    loop {
        let names = seen.world.names().filter(|(_, node)| stays.contains(node));
        names.for_each(|(entry, node)| goal.set(entry, Some(node)));
        let is_homeless = |node: &Node| {
            past.last.has(*node) && goal.at(*node).all(|entry| goal.path(entry).is_none())
        };
        let more: Vec<Node> = there.difference(&stays).copied().filter(is_homeless).collect();
        if more.is_empty() {
            return goal;
        }
        stays.extend(more);
    }
}

/// The names as they are to be (`goal`), and as they are after the changes planned so far (`now`).
struct Settling<'a> {
    past: &'a Past,
    known: &'a Known,
    goal: World,
    now: World,
    /// Names to which a file is being brought.
    busy: BTreeSet<Entry>,
    todo: Vec<NameOp>,
    /// The temporary names of files.
    asides: BTreeMap<FileKey, Entry>,
}

impl Settling<'_> {
    /// Brings the files on the store to their names, the last names of the journal first.
    fn bring_all(&mut self) {
        let mut done = usize::MAX;
        while done != self.todo.len() {
            done = self.todo.len();
            for (entry, node) in self.past.told.iter().rev() {
                if self.goal.get(entry) == Some(*node) {
                    self.bring(entry, *node);
                }
            }
        }
    }

    fn bring(&mut self, to: &Entry, node: Node) {
        let is_done = self.now.get(to) == Some(node) || !self.now.has(node);
        if is_done || !self.busy.insert(to.clone()) {
            return;
        }
        self.place(to.0);
        if self.way(node, to).is_some() {
            self.clear(to);
        }
        if let Some(at) = self.way(node, to) {
            self.go(&at, to);
        }
        self.busy.remove(to);
    }

    /// Returns the name from which a file can be brought to `to`: a name that the file is to lose, if there is one.
    /// A directory cannot be moved into itself.
    fn way(&self, node: Node, to: &Entry) -> Option<Entry> {
        let spare = self.now.at(node).find(|at| self.goal.get(at) != Some(node));
        let other = || self.now.at(node).next().filter(|_| self.past.linked.contains(&node));
        let at = spare.or_else(other)?;
        let is_inside = self.now.path(to)?.starts_with(self.now.path(at)?);
        (!is_inside).then(|| at.clone())
    }

    /// Brings a directory to its place. A directory that the store has forgotten is made as the parent of the
    /// first name that is made in it.
    fn place(&mut self, dir: Node) {
        let Some(own) = self.goal.at(dir).find(|own| self.goal.path(own).is_some()).cloned() else {
            return;
        };
        self.bring(&own, dir);
        if !self.now.has(dir) {
            self.place(own.0);
            self.clear(&own);
        }
        // If the object in the way was moved into this directory, the directory is in its place by now.
        if !self.now.has(dir) {
            self.take(&own);
            self.now.set(&own, Some(dir));
        }
    }

    /// Frees a name for another file: brings the file that has the name to its own names, or to a temporary name,
    /// unless it may be replaced.
    fn clear(&mut self, entry: &Entry) {
        let Some(node) = self.now.get(entry) else { return };
        let names: Vec<Entry> = self.goal.at(node).cloned().collect();
        for name in names {
            if self.now.get(entry) == Some(node) {
                self.bring(&name, node);
            }
        }
        if let Some((still, key, _)) = self.file(entry)
            && still == node
            && !self.may_go(node)
        {
            let aside = (entry.0, aside(key).into());
            self.asides.insert(key, aside.clone());
            self.go(entry, &aside);
        }
    }

    /// Whether a file may lose a name: it has no name in the end, or more than one now.
    fn may_go(&self, node: Node) -> bool {
        let is_spare = !self.past.last.has(node) || self.now.at(node).count() > 1;
        is_spare && !self.now.has_below(node)
    }

    /// Removes names that are to be free, except those of a file whose successor there is lost or stays elsewhere.
    fn tidy(&mut self) {
        let left = self.now.names().filter(|(entry, _)| self.goal.get(entry).is_none());
        let left =
            left.filter_map(|(entry, node)| Some((self.now.path(entry)?, (entry.clone(), node))));
        let left: BTreeMap<PathBuf, (Entry, Node)> = left.collect();
        for (entry, node) in left.into_values().rev() {
            if !self.stands_in(&entry, node) {
                self.take(&entry);
            }
        }
    }

    fn stands_in(&self, entry: &Entry, node: Node) -> bool {
        let is_lost = |node: Node| {
            let is_here =
                self.past.key(node).is_some_and(|key| self.known.worth.contains_key(&key));
            self.past.last.has(node) && !self.now.has(node) && !is_here
        };
        let mut meant = self.past.ever.range((entry.clone(), 0)..=(entry.clone(), Node::MAX));
        let stays_away = self.past.last.get(entry).is_some();
        !self.past.last.has(node) && (stays_away || meant.any(|(_, node)| is_lost(*node)))
    }

    /// Returns the files that the store has forgotten and whose bytes are in the tier, each with its temporary name.
    fn forgotten(&self) -> Vec<(Node, Entry)> {
        let beside = |node: &Node| {
            let beside = self.known.worth.get(&self.past.key(*node)?)?;
            let mut names = self.goal.at(*node);
            let first = names.find(|name| self.goal.path(name).is_some())?;
            (!self.now.has(*node)).then(|| (*node, (first.0, beside.into())))
        };
        self.past.created.iter().filter_map(beside).collect()
    }

    fn make_anew(&mut self) -> Vec<(PathBuf, FileKey)> {
        let mut anew = Vec::new();
        for (node, beside) in self.forgotten() {
            if let (Some(path), Some(key)) = (self.now.path(&beside), self.past.key(node)) {
                self.now.set(&beside, Some(node));
                self.asides.insert(key, beside);
                anew.push((path, key));
            }
        }
        anew
    }

    /// Gives the file at `at` the name `to`: by a link if the file is to keep `at`, or else by a rename.
    fn go(&mut self, at: &Entry, to: &Entry) {
        let (Some((node, key, from)), Some(path)) = (self.file(at), self.now.path(to)) else {
            return;
        };
        if self.now.get(to).is_some_and(|over| !self.may_go(over)) {
            return;
        }
        if self.goal.get(at) == Some(node) {
            self.take(to);
            self.todo.push(NameOp::Link { from, to: path, key });
        } else {
            let over = self.file(to).map(|(_, over, _)| over);
            let moved = if self.past.is_dir(node) { Moved::Dir } else { Moved::File };
            self.todo.push(NameOp::Rename { from, to: path, key, over, moved });
            self.now.set(at, None);
        }
        self.now.set(to, Some(node));
    }

    fn take(&mut self, entry: &Entry) {
        if let Some((node, key, path)) = self.file(entry)
            && self.may_go(node)
        {
            self.todo.push(NameOp::Unlink { path, key });
            self.now.set(entry, None);
        }
    }

    /// Returns the file that has a name now, with its key and path.
    fn file(&self, entry: &Entry) -> Option<(Node, FileKey, PathBuf)> {
        let node = self.now.get(entry)?;
        Some((node, self.past.key(node)?, self.now.path(entry)?))
    }
}

/// Returns the time of the last change of each file's names; [`Timestamp::MAX`] if it is not known.
pub fn changed_at(steps: &[Step]) -> BTreeMap<FileKey, Timestamp> {
    let past = Past::of(steps);
    past.keyed().map(|(node, key)| (key, past.at(node).unwrap_or(Timestamp::MAX))).collect()
}

/// Asks the store which objects the journal's names mean.
pub fn look<E>(steps: &[Step], mut stat: impl FnMut(&Path) -> Result<Found, E>) -> Result<Look, E> {
    let mut look = Look::new();
    let ask = |path: &Path| stat(path).inspect(|found| _ = look.insert(path.to_path_buf(), *found));
    Seen::of(&Past::of(steps), ask)?;
    Ok(look)
}

/// Whether an announced change, whose result is not on record, was made. No program was told that it
/// failed. If the store may have forgotten the file itself, the names do not tell, and the change
/// counts as not made.
pub fn was_made(op: &NameOp, steps: &[Step], look: &Look) -> bool {
    let key_at = |path: &Path| look.get(path).and_then(|found| found.key());
    let is_there = |key: FileKey| look.values().any(|found| found.key() == Some(key));
    let is_created = |wanted: FileKey| {
        let creates = |step: &Step| matches!(step.op, NameOp::Create { key, .. } if key == wanted);
        steps.iter().any(creates)
    };
    let is_given = |(path, key): (&Path, Option<FileKey>)| key.is_some() && key_at(path) == key;
    op.gives().into_iter().any(is_given)
        || match op {
            NameOp::Create { .. } | NameOp::Link { .. } => false,
            NameOp::Unlink { path, key } => key_at(path) != Some(*key),
            NameOp::Rename { from, key, .. } | NameOp::Exchange { from, key, .. } => {
                let is_hidden = look.get(from) == Some(&Found::Hidden);
                let has_left = !is_hidden && key_at(from) != Some(*key);
                has_left && (is_there(*key) || !is_created(*key))
            }
        }
}

/// Returns the steps, with the announced ones that were made turned into done ones. A rename also counts as made
/// if its file was changed after the last known change, and the file that it was to replace does not have the
/// name: a later change has undone the rename.
fn judged(steps: &[Step], look: &Look, end: Option<Timestamp>) -> Vec<Step> {
    let is_undone = |op: &NameOp| {
        let NameOp::Rename { to, key: moved, over, .. } = op else { return false };
        let is_changed = |found: &Found| match found {
            Found::File { key, ctime, .. } => key == moved && end.is_some_and(|end| *ctime > end),
            Found::Nothing | Found::Hidden => false,
        };
        let there = look.get(to).and_then(|found| found.key());
        (over.is_none() || there != *over) && look.values().any(is_changed)
    };
    let is_made = |step: &Step| was_made(&step.op, steps, look) || is_undone(&step.op);
    let judged = |step: &Step| match step.told == Told::Announced && is_made(step) {
        true => Step { told: Told::Done, at: end, ..step.clone() },
        false => step.clone(),
    };
    steps.iter().map(judged).collect()
}

/// Plans the changes after which the store has made all steps that are done, and the announced steps that had been
/// made.
pub fn settle(steps: &[Step], look: &Look, known: &Known) -> Plan {
    let mut steps = judged(steps, look, known.end);
    let past = Past::of(&steps);
    steps.retain(|step| step.told == Told::Done);
    let stat = |path: &Path| Ok::<_, Infallible>(*look.get(path).unwrap_or(&Found::Nothing));
    let Ok(seen) = Seen::of(&past, stat);
    let (goal, now) = (goal(&past, known, &seen), seen.world.clone());
    let (busy, todo, asides) = (BTreeSet::new(), Vec::new(), BTreeMap::new());
    let mut settling = Settling { past: &past, known, goal, now, busy, todo, asides };
    settling.bring_all();
    settling.forgotten().iter().for_each(|(_, beside)| settling.place(beside.0));
    settling.tidy();
    let todo = std::mem::take(&mut settling.todo);
    let anew = settling.make_anew();
    settling.bring_all();
    settling.tidy();
    let Settling { goal, todo: home, asides, .. } = settling;
    let acts: Vec<&NameOp> = todo.iter().chain(&home).collect();
    let keys: BTreeSet<FileKey> = acts.iter().flat_map(|op| op.keys()).collect();
    let next = steps.last().map_or(0, |step| step.n + 1);
    let ways: Vec<NameOp> =
        keys.into_iter().filter_map(|key| on_its_way(&past, key, &asides, &acts)).collect();
    let step = |(op, n)| Step { n, op, told: Told::Done, at: None };
    steps.extend(ways.into_iter().zip(next..).map(step));
    let mut plan = Plan { steps, todo, anew, home, ..Plan::default() };
    plan.name(&past, known, &seen, &goal);
    plan
}

/// Returns the change that recovery itself makes to a file's names. It is recorded before, and without a time: the
/// ctime of a file that a killed recovery has changed says nothing.
fn on_its_way(
    past: &Past,
    key: FileKey,
    asides: &BTreeMap<FileKey, Entry>,
    acts: &[&NameOp],
) -> Option<NameOp> {
    let node = past.node(key)?;
    let at = asides.get(&key).and_then(|entry| past.last.path(entry));
    let Some(to) = past.last.at(node).find_map(|entry| past.last.path(entry)) else {
        // Not a name that the file loses: that name may be another file's in the end.
        let act = || acts.iter().find(|op| op.keys().any(|other| other == key));
        let path = at.or_else(|| Some(act()?.paths().last()?.with_file_name(aside(key))))?;
        return Some(NameOp::Unlink { path, key });
    };
    let from = at.unwrap_or_else(|| to.with_file_name(aside(key)));
    let moved = if past.is_dir(node) { Moved::Dir } else { Moved::File };
    Some(NameOp::Rename { from, to, key, over: None, moved })
}

fn aside(key: FileKey) -> String {
    format!("{ANEW}{:x}-{:x}", key.ino, key.generation)
}

impl Plan {
    fn name(&mut self, past: &Past, known: &Known, seen: &Seen, goal: &World) {
        let paths = |world: &World, node| -> Vec<PathBuf> {
            world.at(node).filter_map(|entry| world.path(entry)).collect()
        };
        for (node, key) in past.keyed() {
            let is_there = seen.world.has(node);
            let may_be = known.worth.contains_key(&key) && past.created.contains(&node);
            let has_not =
                |entry: &&Entry| goal.get(entry) != Some(node) || goal.path(entry).is_none();
            let mut blocked = Vec::new();
            if (is_there || may_be) && !seen.has_gone_on(past, known, node) {
                let names = past.last.at(node).filter(has_not);
                blocked.extend(names.filter_map(|entry| past.last.path(entry)));
            }
            let is_home = seen.world.at(node).any(|entry| past.last.get(entry) == Some(node));
            let is_found = is_there && (is_home || blocked.is_empty());
            let wanted = paths(if is_found { &seen.world } else { &past.last }, node);
            self.blocked.extend(blocked.into_iter().map(|path| (key, path)));
            self.wanted.extend((!wanted.is_empty()).then_some((key, wanted)));
        }
        let places = |(entry, _): &(Entry, Node)| [past.last.path(entry), seen.world.path(entry)];
        self.names.extend(past.ever.iter().flat_map(places).flatten());
    }
}

/// Returns the changes that may be forgotten if others stay: those that come before every change that stays and
/// has names or files in common with them. The rest of the journal must make sense by itself.
pub fn before_any<'a>(
    steps: impl IntoIterator<Item = &'a Step>,
    stays: impl Fn(u64) -> bool,
) -> HashSet<u64> {
    let (mut keys, mut names) = (HashSet::new(), HashSet::new());
    let mut before = HashSet::new();
    for Step { n, op, .. } in steps {
        let is_below = |path: &Path| names.iter().any(|name: &&Path| name.starts_with(path));
        let meets = |path: &Path| match op.way() {
            Some(_) => is_below(path),
            None => names.contains(path),
        };
        if stays(*n) || op.keys().any(|key| keys.contains(&key)) || op.paths().any(meets) {
            keys.extend(op.keys());
            names.extend(op.paths());
        } else {
            before.insert(*n);
        }
    }
    before
}

#[cfg(test)]
mod tests;
