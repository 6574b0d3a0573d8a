//! The effects that a power cut may have on names.
//!
//! A journal is replayed by file, not by name: a file has the bytes written to it under all its
//! names. Each change of a name has a position in the journal, so that the possible files of a name
//! are known once some of the last changes are in doubt.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::journal::{Files, History, Op, Zeros, after_cut, apply, read_dir};

/// The machines that lost their power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The fast tier's machine: the store has seen every acknowledged name.
    Tier,
    /// The backing store: the tier has every byte and knows every name.
    Store,
    /// Both at the same moment.
    Both,
}

/// One file from its making to the end of the journal.
#[derive(Default)]
struct Life {
    /// The writes and syncs of the file, by their positions.
    ops: Vec<(usize, Op)>,
    /// The position of the last acknowledged sync.
    synced_at: Option<usize>,
    /// The names of the file with the positions from which, and up to which, it had them.
    named: Vec<(String, usize, usize)>,
}

/// A journal replayed.
struct Replay {
    lives: Vec<Life>,
    /// The files of each name, and the position from which it meant each.
    meanings: BTreeMap<String, Vec<(usize, Option<usize>)>>,
    /// The number of operations acknowledged before the cut, and of those begun by its end.
    acked: usize,
    issued: usize,
}

impl Replay {
    fn of(acked: &History, until: &History) -> Replay {
        let issued: Vec<&Op> = until.acked.iter().chain(&until.in_flight).collect();
        let mut replay = Replay {
            lives: Vec::new(),
            meanings: BTreeMap::new(),
            acked: acked.acked.len(),
            issued: issued.len(),
        };
        issued.iter().enumerate().for_each(|(at, op)| replay.step(at, op));
        replay
    }

    fn step(&mut self, at: usize, op: &Op) {
        match op {
            Op::Create(name) => {
                self.lives.push(Life::default());
                self.name(at, name, self.lives.len() - 1);
            }
            Op::Rename(from, to) => {
                let life = self.meant(from);
                self.unname(at, from);
                self.name(at, to, life);
            }
            Op::Link(from, to) => self.name(at, to, self.meant(from)),
            Op::Unlink(name) => self.unname(at, name),
            Op::Write { name, .. } => {
                let life = self.meant(name);
                self.lives[life].ops.push((at, op.clone()));
            }
            Op::Fsync(name) if at < self.acked => {
                let life = self.meant(name);
                self.lives[life].synced_at = Some(at);
            }
            Op::Fsync(_) => {}
            Op::Truncate(..) | Op::Load(..) => panic!("{op:?} is not for this judge"),
        }
    }

    fn meant(&self, name: &str) -> usize {
        let meaning = self.meanings.get(name).and_then(|all| all.last());
        meaning.and_then(|(_, life)| *life).expect("a name that is used exists")
    }

    fn name(&mut self, at: usize, name: &str, life: usize) {
        if self.meanings.contains_key(name) {
            self.unname(at, name);
        }
        self.meanings.entry(name.into()).or_default().push((at, Some(life)));
        self.lives[life].named.push((name.into(), at, usize::MAX));
    }

    fn unname(&mut self, at: usize, name: &str) {
        let all = self.meanings.get_mut(name).expect("a name that goes exists");
        if let Some((_, Some(life))) = all.last().copied() {
            all.push((at, None));
            let named = self.lives[life].named.iter_mut().rev();
            let mut held = named.filter(|(held, _, end)| held == name && *end == usize::MAX);
            held.next().expect("held until now").2 = at;
        }
    }

    /// The files that a name may mean if every operation from `from` on is in doubt.
    fn may_mean(&self, name: &str, from: usize) -> BTreeSet<Option<usize>> {
        let all = &self.meanings[name];
        let last = all.iter().rev().find(|(at, _)| *at < from).map(|(_, life)| *life);
        let later = all.iter().filter(|(at, _)| *at >= from).map(|(_, life)| *life);
        std::iter::once(last.flatten()).chain(later).collect()
    }

    /// The problem with these bytes as the contents of a file, if there is one.
    fn misfit(&self, life: usize, cut: Cut, found: &[u8]) -> Option<String> {
        let life = &self.lives[life];
        // The bytes that must be there: if only the store lost its power, all acknowledged ones.
        let sure = match cut {
            Cut::Store => self.acked,
            Cut::Tier | Cut::Both => life.synced_at.map_or(0, |at| at + 1),
        };
        let mut base = Files::from([(String::new(), Vec::new())]);
        let mut later = Vec::new();
        for (at, op) in &life.ops {
            let Op::Write { offset, len, key, .. } = *op else { continue };
            match *at < sure {
                true => apply(&mut base, &Op::Write { name: String::new(), offset, len, key }),
                false => later.push(op),
            }
        }
        after_cut(Some(&base[""]), &later, Some(found), Zeros::Never)
    }

    /// Whether the file has bytes that a power cut must not take.
    fn has_bytes(&self, life: usize) -> bool {
        self.lives[life].ops.iter().any(|(at, _)| *at < self.acked)
    }
}

/// Compares a directory with the possible results of a cut: `acked` is the journal up to the cut,
/// `until` the journal of operations that may have begun during it. Returns the problems.
pub fn check_names(acked: &History, until: &History, dir: &Path, cut: Cut) -> Vec<String> {
    let replay = Replay::of(acked, until);
    let found = read_dir(dir);
    let mut wrong = Vec::new();
    // If both lost their power, a name may mean any file that it ever meant.
    let doubt_from = if cut == Cut::Both { 0 } else { replay.acked };
    for name in replay.meanings.keys() {
        let may = replay.may_mean(name, doubt_from);
        let fits = |life: &Option<usize>| match (life, found.get(name)) {
            (None, bytes) => bytes.is_none(),
            (Some(life), None) => cut != Cut::Tier && !replay.has_bytes(*life),
            (Some(life), Some(bytes)) => replay.misfit(*life, cut, bytes).is_none(),
        };
        if !may.iter().any(fits) {
            wrong.push(format!("{name}: {}", explain(&replay, &may, found.get(name), cut)));
        }
    }
    if cut == Cut::Both {
        wrong.extend((0..replay.lives.len()).filter_map(|life| lost(&replay, life, &found)));
    }
    let foreign = found.keys().filter(|name| !replay.meanings.contains_key(*name));
    wrong.extend(foreign.map(|name| format!("{name}: nobody created it")));
    wrong
}

/// A synced file must be there under one of the names it has had since.
fn lost(replay: &Replay, life: usize, found: &Files) -> Option<String> {
    let Life { synced_at, named, .. } = &replay.lives[life];
    let since = (*synced_at)?;
    let held = |at: usize| named.iter().any(|(_, from, to)| (*from..*to).contains(&at));
    if !replay.has_bytes(life) || (since..replay.issued).any(|at| !held(at)) {
        return None; // The file was empty, or removed.
    }
    let names = named.iter().filter(|(_, _, to)| *to > since).map(|(name, ..)| name);
    let mut bytes = names.clone().filter_map(|name| found.get(name));
    let there = bytes.any(|bytes| replay.misfit(life, Cut::Both, bytes).is_none());
    let names: Vec<&String> = names.collect();
    (!there).then(|| format!("{names:?}: a synced file is under none of its names"))
}

fn explain(
    replay: &Replay,
    may: &BTreeSet<Option<usize>>,
    found: Option<&Vec<u8>>,
    cut: Cut,
) -> String {
    match found {
        None => "is gone".into(),
        Some(_) if may.iter().all(Option::is_none) => "is there again after it was removed".into(),
        Some(bytes) => {
            let of = |life: &usize| replay.misfit(*life, cut, bytes).unwrap_or_default();
            may.iter().flatten().map(of).collect::<Vec<_>>().join("; or ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::written;

    fn op(line: &str) -> Op {
        let words: Vec<&str> = line.split(' ').collect();
        let name = |i: usize| words[i].to_string();
        match words[0] {
            "create" => Op::Create(name(1)),
            "link" => Op::Link(name(1), name(2)),
            "rename" => Op::Rename(name(1), name(2)),
            "unlink" => Op::Unlink(name(1)),
            "fsync" => Op::Fsync(name(1)),
            _ => Op::Write { name: name(1), offset: 0, len: 10, key: 7 },
        }
    }

    fn judge(ops: &[&str], files: &[(&str, &[u8])], cut: Cut) -> usize {
        use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("fbt-names-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        for (name, bytes) in files {
            std::fs::write(dir.join(name), bytes).unwrap();
        }
        let history =
            || History { acked: ops.iter().map(|line| op(line)).collect(), in_flight: None };
        let wrong = check_names(&history(), &history(), &dir, cut);
        std::fs::remove_dir_all(&dir).unwrap();
        wrong.len()
    }

    /// Published by a link and an unlink: the judge must notice an empty file under the final name,
    /// a return of the temporary one, and a loss; and must accept the right outcome.
    #[test]
    fn a_file_published_by_link_has_one_right_outcome_while_the_store_lives() {
        let ops = ["create t", "write t", "fsync t", "link t f", "unlink t"];
        let bytes = written(0, 10, 7);
        assert_eq!(judge(&ops, &[("f", &bytes)], Cut::Tier), 0);
        assert!(judge(&ops, &[("f", b"")], Cut::Tier) > 0);
        assert!(judge(&ops, &[("f", &bytes), ("t", &bytes)], Cut::Tier) > 0);
        assert!(judge(&ops, &[], Cut::Tier) > 0);
        for right in ["t", "f"] {
            assert_eq!(judge(&ops, &[(right, &bytes)], Cut::Both), 0);
        }
        assert!(judge(&ops, &[], Cut::Both) > 0);
    }

    /// A file that was removed after its sync may be gone, whichever machine lost its power.
    #[test]
    fn a_removed_file_need_not_be_there() {
        let ops = ["create a", "write a", "fsync a", "create b", "rename b a", "unlink a"];
        for cut in [Cut::Tier, Cut::Store, Cut::Both] {
            assert_eq!(judge(&ops, &[], cut), 0, "{cut:?}");
        }
        assert!(judge(&ops, &[("a", &written(0, 10, 7))], Cut::Store) > 0);
    }
}
