//! Files whose names come to other directories, and opens by an old name.

use super::load::Op;
use super::world::{Checked, World, dir_key, dir_of};
use crate::core::{Input, Ticket};

/// A file whose name comes to another directory, by a change with this ticket.
#[derive(Debug, Clone, Copy)]
pub struct Entering {
    pub file: usize,
    pub from: usize,
    pub to: usize,
    /// The file also keeps its old name.
    pub links: bool,
    pub change: Ticket,
    /// The ticket by which the member may make files in the directory until then.
    pub maker: Option<Ticket>,
}

impl World {
    /// Whether the file has a name in the directory now.
    pub fn is_in(&self, file: usize, dir: usize) -> bool {
        let dirs = &self.files[file].dirs;
        if dirs.is_empty() { dir == dir_of(file) } else { dirs.contains(&dir) }
    }

    pub fn enter(&mut self, e: Entering) {
        let found = &mut self.files[e.file];
        if found.dirs.is_empty() {
            found.dirs.insert(dir_of(e.file));
        }
        if !found.dirs.contains(&e.from) || e.from == e.to {
            return;
        }
        found.dirs.insert(e.to);
        if !e.links {
            found.dirs.remove(&e.from);
            found.before = Some(e.from);
        }
        self.counts.granted.moved += u64::from(!e.links);
        self.counts.granted.linked += u64::from(e.links);
        if self.trace {
            println!("{} f{} of d{} is in d{} ({e:?})", self.now, e.file, e.from, e.to);
        }
    }

    /// Mostly reads, and files that come to other directories. A writer may know an old name only. Where names are
    /// made all the time a grant seldom counts.
    pub fn among_directories(&mut self, file: usize) -> Op {
        let is_in = |world: &World, dir: &usize| world.is_in(file, *dir);
        let dirs: Vec<usize> = (0..2).filter(|dir| is_in(self, dir)).collect();
        let mut dir = dirs[self.dice.roll(dirs.len() as u64) as usize];
        let before = self.files[file].before.filter(|_| self.dice.roll(4) == 0);
        dir = before.unwrap_or(dir);
        match self.dice.roll(60) {
            0..50 => Op::Read { file, dir, floor: self.files[file].acked },
            50..54 => Op::Write { file, dir, syncs: false },
            _ if self.dice.roll(self.plan.names) > 0 => {
                Op::Read { file, dir, floor: self.files[file].acked }
            }
            54 => Op::Create { dir },
            55 => Op::Change,
            n => Op::Move { file, from: dir, links: n == 56 },
        }
    }

    /// The change of names reaches the store whatever becomes of the process.
    pub fn entered(&mut self, node: usize, life: u64, entering: Entering) -> Checked {
        self.enter(entering);
        if !self.lives(node, life) {
            return Ok(());
        }
        let Entering { to, change, maker, .. } = entering;
        if let Some(by) = maker {
            self.give(node, Input::Made(dir_key(to), by))?;
        }
        self.give(node, Input::Changed(change))
    }
}
