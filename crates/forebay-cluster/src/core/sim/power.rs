//! Power cuts: of one member's machine, or of all at once.
//!
//! The cut machine's process is gone, and so is what was written to its tier and not synced; its calls to the store
//! get there or do not, before the machine is back. Synced bytes are in the tier when the machine is back: a newer
//! boot of the same member, before or after another has taken its place. Power cuts of the registry's machines are in
//! [`leader`](super::leader).

use std::collections::{BTreeMap, BTreeSet};

use super::keeping::{Copy, Keep};
use super::world::{Checked, What, World};
use super::{More, Neglect};

/// What is durable in a tier, beside [`Node::synced`](super::world::Node::synced).
#[derive(Default)]
pub struct Disk {
    pub boot: u64,
    /// The machine has lost power since the member last began.
    was_cut: bool,
    /// Copies by home and file. The removal of a copy is written down lazily.
    copies: BTreeMap<(usize, usize), Copy>,
    /// Files that were copies of a home's, and are not yet durable as this member's own.
    pub adopted_of: BTreeMap<usize, usize>,
    /// Homes of which a fill has begun here, and whose copies were not dropped since: a message of an earlier fill
    /// that reaches the next process finds nothing to build upon.
    filled_by: BTreeSet<usize>,
}

impl Disk {
    /// A file is durably this member's own, and no longer a copy.
    pub fn adopts(&mut self, file: usize) {
        if let Some(home) = self.adopted_of.remove(&file) {
            self.copies.remove(&(home, file));
        }
    }
}

impl World {
    fn has_power_cuts(&self) -> bool {
        self.plan.has(More::Power)
    }

    pub fn fill_begins(&mut self, node: usize, home: usize) {
        self.nodes[node].disk.filled_by.insert(home);
    }

    pub fn lacks_fill_of(&self, node: usize, home: usize) -> bool {
        self.has_power_cuts() && !self.nodes[node].disk.filled_by.contains(&home)
    }

    pub fn sync_copy(&mut self, keep: &Keep) {
        if !self.has_power_cuts() || keep.value.is_none() {
            return;
        }
        let (life, copy) = (self.nodes[keep.to].life, (keep.from, keep.file));
        match self.neglect {
            Some(Neglect::KeepDurably) => {
                let delay = 100 + self.dice.roll(400);
                self.at(delay, What::OnDisk(keep.to, life, copy));
            }
            _ => self.reaches_disk(keep.to, life, copy),
        }
    }

    /// A copy becomes durable. The tier has one log: everything written before is durable, too.
    pub fn reaches_disk(&mut self, node: usize, life: u64, copy: (usize, usize)) {
        if !self.lives(node, life) {
            return;
        }
        let n = &mut self.nodes[node];
        let is_forgotten =
            |of: &(usize, usize)| n.copies.get(of).is_some_and(|it| it.value.is_none());
        n.disk.copies.retain(|of, _| of.0 != copy.0 || !is_forgotten(of));
        if let Some(kept) = n.copies.get(&copy).filter(|kept| kept.value.is_some()) {
            n.disk.copies.insert(copy, *kept);
        }
    }

    pub fn drop_copies(&mut self, node: usize, home: usize, is_durable: bool) {
        let n = &mut self.nodes[node];
        n.copies.retain(|(of, _), _| *of != home);
        n.disk.filled_by.remove(&home);
        if is_durable {
            n.disk.copies.retain(|(of, _), _| *of != home);
        }
    }

    /// The tier durably no longer has the copy.
    pub fn lose_copy(&mut self, node: usize, copy: (usize, usize)) {
        let n = &mut self.nodes[node];
        n.copies.remove(&copy);
        n.disk.copies.remove(&copy);
    }

    pub fn cut_power(&mut self, node: usize) -> Checked {
        if self.nodes[node].is_dead {
            return Ok(());
        }
        if self.nodes[node].core.is_some() {
            self.kill(node);
        }
        self.counts.more.cuts += 1;
        let disk = &mut self.nodes[node].disk;
        (disk.boot, disk.was_cut) = (disk.boot + 1, true);
        self.nodes[node].sorted = None;
        let calls: Vec<u64> = self.nodes[node].landing.keys().copied().collect();
        for call in calls {
            if self.dice.roll(2) == 0 {
                self.nodes[node].landing.remove(&call);
                self.counts.more.never_sent += 1;
            }
        }
        self.lose_copies(node);
        self.lose_unsynced(node)?;
        let back = 20 + self.dice.roll(1200);
        self.at(back, What::Start(node));
        Ok(())
    }

    pub fn is_back(&mut self, node: usize, was_taken: bool) {
        if std::mem::take(&mut self.nodes[node].disk.was_cut) {
            self.counts.more.back_superseded += u64::from(was_taken);
            self.counts.more.back_itself += u64::from(!was_taken);
        }
    }

    fn lose_copies(&mut self, node: usize) {
        let on_disk = self.nodes[node].disk.copies.clone();
        let had = std::mem::replace(&mut self.nodes[node].copies, on_disk);
        for (of, _) in had.iter().filter(|(_, copy)| copy.value.is_none()) {
            if !self.nodes[node].copies.contains_key(of) {
                continue;
            }
            match self.dice.roll(2) {
                0 => self.lose_copy(node, *of),
                _ => self.counts.more.came_again += 1,
            }
        }
        let n = &mut self.nodes[node];
        for (file, _) in std::mem::take(&mut n.disk.adopted_of) {
            self.counts.more.not_adopted += 1;
            // Until an adoption is durable, the member's other bytes of the file are another file in its tier.
            if n.adopted.remove(&file).is_none() {
                n.synced.remove(&file);
            }
        }
    }

    fn lose_unsynced(&mut self, node: usize) -> Checked {
        for (file, value) in self.nodes[node].dirty.clone() {
            let n = &mut self.nodes[node];
            let synced = n.synced.get(&file).copied();
            if synced == Some(value) {
                self.counts.more.lasted += 1;
                continue;
            }
            match synced {
                Some(synced) => _ = n.dirty.insert(file, synced),
                None => {
                    n.dirty.remove(&file);
                    n.base.remove(&file);
                }
            }
            // Files that another member took over no longer concern this one.
            if !n.stale.contains(&file) {
                self.counts.more.unsynced += 1;
                let store = self.files[file].store;
                self.becomes(file, node, synced.unwrap_or_default().max(store))?;
            }
        }
        Ok(())
    }

    pub fn cut_all_power(&mut self) -> Checked {
        self.counts.more.cuts_of_all += 1;
        (0..self.plan.members).try_for_each(|node| self.cut_power(node))
    }
}
