//! The checks of what must be true, whatever happens.

use forebay_registry::{Change, Commit};

use super::world::{Checked, World, dir_of, name, node_of, number_of};
use crate::keys;

/// What a commit would take from a member.
pub enum Move {
    Claim {
        file: usize,
        from: usize,
        to: usize,
        owners: usize,
    },
    Member {
        member: usize,
        is_alive: bool,
        again: bool,
    },
    /// The claim was given back in the name of a dead member, with no copy of the file anywhere.
    Left {
        file: usize,
        from: usize,
    },
}

impl World {
    fn found<T: serde::de::DeserializeOwned>(&self, key: &str) -> Option<T> {
        self.registry.keys.get(&format!("stores/s/{key}")).and_then(super::parse)
    }

    fn is_alive(&self, node: usize) -> bool {
        self.registry.keys.contains_key(&format!("stores/s/alive/m{node}"))
    }

    fn claim_key(file: usize) -> String {
        format!("claims/{}", keys::file(super::world::key(file)))
    }

    pub fn claimant(&self, file: usize) -> Option<usize> {
        self.found::<keys::Claim>(&World::claim_key(file)).map(|claim| node_of(&claim.member))
    }

    fn heirs(&self, member: usize) -> Vec<usize> {
        let living = self.found::<keys::Member>(&format!("members/m{member}")).map(|m| m.living());
        let partners = self.found::<keys::Partners>(&format!("partners/m{member}"));
        let partners = partners.filter(|partners| Some(partners.epoch) == living);
        partners.map_or(vec![], |p| p.in_sync.iter().map(|name| node_of(name)).collect())
    }

    /// The heirs that have not found that they lack some of the member's copies.
    fn heirs_left(&self, member: usize) -> Vec<usize> {
        let taken = self.taken(member);
        let is_left = |heir: &usize| taken.as_ref().is_none_or(|it| !it.is_short(&name(*heir)));
        self.heirs(member).into_iter().filter(is_left).collect()
    }

    fn taken(&self, member: usize) -> Option<keys::Taken> {
        self.found::<keys::Member>(&format!("members/m{member}"))?.taken
    }

    /// Whether a dead member has a living heir that will get its files.
    pub fn is_inherited(&self, member: usize) -> bool {
        !self.is_alive(member)
            && match self.taken(member) {
                Some(taken) if taken.done => false,
                Some(taken) if self.is_alive(node_of(&taken.by)) && !taken.is_short(&taken.by) => {
                    true
                }
                _ => self.heirs_left(member).iter().any(|heir| self.is_alive(*heir)),
            }
    }

    /// What a taker gives back in the name of the dead member: claimed files, and unclaimed files that the
    /// dead member made.
    fn left_of(&self, by: usize, key: &str, left: &mut Vec<Move>) {
        let rest = key.strip_prefix("stores/s/").unwrap_or_default();
        if let Some(file) = rest.strip_prefix("claims/").and_then(keys::parse_file) {
            let (file, from) = (number_of(file), self.claimant(number_of(file)));
            left.extend(from.filter(|from| *from != by).map(|from| Move::Left { file, from }));
        }
        if let Some((dir, from)) = rest
            .strip_prefix("creates/")
            .and_then(|dir| dir.split_once('/'))
            .map(|(d, m)| (d, node_of(m)))
            && from != by
        {
            let dir = keys::parse_file(dir).map(|dir| dir.ino as usize - 1);
            let files = self.nodes[from].dirty.keys().copied();
            let unclaimed =
                files.filter(|f| Some(dir_of(*f)) == dir && self.claimant(*f).is_none());
            left.extend(unclaimed.map(|file| Move::Left { file, from }));
        }
    }

    pub fn moves_of(&self, by: usize, commit: &Commit) -> Vec<Move> {
        if self.plan.copies == 0 {
            return Vec::new();
        }
        let mut moves = Vec::new();
        for change in &commit.changes {
            let (key, value) = match change {
                Change::Put { key, value, .. } => (key, value),
                Change::Delete { key } => {
                    self.left_of(by, key, &mut moves);
                    continue;
                }
                Change::DeletePrefix { .. } => continue,
            };
            let rest = key.strip_prefix("stores/s/").unwrap_or_default();
            if let Some(file) = rest.strip_prefix("claims/").and_then(keys::parse_file)
                && let (Ok(anew), Some(was)) =
                    (serde_json::from_slice::<keys::Claim>(value), self.found::<keys::Claim>(rest))
                && was.member != anew.member
            {
                let owners = anew.taken_from.len();
                let (from, to) = (node_of(&was.member), node_of(&anew.member));
                moves.push(Move::Claim { file: number_of(file), from, to, owners });
            }
            if let Some(member) = rest.strip_prefix("members/")
                && let Ok(anew) = serde_json::from_slice::<keys::Member>(value)
                && anew.taken.is_some_and(|taken| !taken.done)
            {
                let member = node_of(member);
                let (is_alive, again) = (self.is_alive(member), self.taken(member).is_some());
                moves.push(Move::Member { member, is_alive, again });
            }
        }
        moves
    }

    pub fn moved(&mut self, by: usize, moves: Vec<Move>) -> Checked {
        for one in moves {
            match one {
                Move::Member { member, is_alive: true, .. } => {
                    return Err(format!("m{by} takes m{member} over, which is alive"));
                }
                Move::Member { again, .. } => {
                    self.counts.copied.taken += 1;
                    self.counts.copied.taken_again += u64::from(again);
                }
                Move::Claim { file, from, to, owners } => {
                    self.counts.copied.claims_taken += 1;
                    self.counts.copied.claims_taken_again += u64::from(owners > 1);
                    self.took(file, from, to)?;
                }
                Move::Left { file, from } => {
                    self.counts.copied.left += 1;
                    self.falls_back(file, from, self.files[file].store)?;
                }
            }
        }
        Ok(())
    }

    /// Sets the value of a file that was taken over. Bytes that its home had acknowledged and not synced went
    /// with the home.
    fn took(&mut self, file: usize, from: usize, to: usize) -> Checked {
        let n = &self.nodes[to];
        let copy = || n.copies.get(&(from, file)).and_then(|copy| copy.value);
        let Some(value) = n.adopted.get(&file).copied().or_else(copy) else {
            return Err(format!(
                "m{to} takes f{file} over from m{from}, and has none of its bytes"
            ));
        };
        if self.trace {
            println!("{} m{to} takes f{file} over from m{from}: {value}", self.now);
        }
        self.files[file].moved = self.now;
        self.falls_back(file, from, value)
    }

    fn falls_back(&mut self, file: usize, from: usize, value: u64) -> Checked {
        self.nodes[from].stale.insert(file);
        self.counts.copied.rolled_back += u64::from(value < self.files[file].newest);
        self.becomes(file, from, value)
    }

    /// Sets a file's value; all newer values are void.
    pub fn becomes(&mut self, file: usize, from: usize, value: u64) -> Checked {
        let now = self.now;
        let found = &mut self.files[file];
        if value < found.synced || value < found.store || value > found.newest {
            return Err(format!(
                "f{file} of m{from} is {value} from now on: {} was synced, the store has {}, the newest is {}",
                found.synced, found.store, found.newest
            ));
        }
        if value < found.newest {
            found.void.push((value, found.last, now));
            found.newest = value;
            found.acked = found.acked.min(value);
        }
        Ok(())
    }

    /// Notes a write that others did, or that is synced.
    pub fn acknowledged(&mut self, file: usize, value: u64, syncs: bool) -> Checked {
        let found = &mut self.files[file];
        if found.void.iter().any(|(above, upto, _)| value > *above && value <= *upto) {
            return match syncs {
                true => Err(format!("{value} of f{file} is acknowledged as synced, and is lost")),
                false => Ok(()),
            };
        }
        found.acked = found.acked.max(value);
        if syncs {
            found.synced = found.synced.max(value);
        }
        Ok(())
    }

    pub fn check_read(
        &mut self,
        node: usize,
        file: usize,
        mut floor: u64,
        value: u64,
        since: u64,
    ) -> Checked {
        self.counts.reads += 1;
        for (above, upto, when) in self.files[file].void.iter().rev() {
            if floor > *above && floor <= *upto {
                floor = *above;
            }
            if value > *above && value <= *upto && since > *when {
                return Err(format!("m{node} reads {value} of f{file}, which was lost before"));
            }
        }
        match value < floor {
            true => {
                Err(format!("m{node} reads {value} of f{file}, {floor} was acknowledged before"))
            }
            false => Ok(()),
        }
    }

    /// A member that writes for a program of another member has the claim under which the write is owed.
    pub fn check_served(
        &self,
        node: usize,
        file: usize,
        reply_to: Option<(usize, u64, u64)>,
    ) -> Checked {
        let core = self.nodes[node].core.as_ref();
        let has_claim = core.is_some_and(|core| core.has_claim(super::world::key(file)));
        match reply_to.is_none() || has_claim {
            true => Ok(()),
            false => Err(format!("m{node} writes f{file} for another member without a claim")),
        }
    }

    pub fn check_write(&self, node: usize, file: usize, sees: u64) -> Checked {
        let newest = self.files[file].newest;
        if sees != newest {
            return Err(format!("m{node} writes f{file} on top of {sees}, the newest is {newest}"));
        }
        if let Some((by, dir)) = self.renaming
            && by != node
            && dir == dir_of(file)
        {
            return Err(format!("m{node} writes f{file} while m{by} renames d{dir}"));
        }
        let is_dirty = |o: &usize| {
            *o != node
                && self.nodes[*o].dirty.contains_key(&file)
                && !self.nodes[*o].stale.contains(&file)
        };
        match (0..self.nodes.len()).find(is_dirty) {
            Some(other) => Err(format!("f{file} is dirty at m{node} and at m{other}")),
            None => Ok(()),
        }
    }

    pub fn check_rename(&self, node: usize, dir: usize) -> Checked {
        for (other, n) in self.nodes.iter().enumerate() {
            let is_below = |file: &usize| dir_of(*file) == dir && !n.stale.contains(file);
            if other != node && n.dirty.keys().any(is_below) {
                return Err(format!("m{node} renames d{dir}, m{other} has dirty files there"));
            }
        }
        Ok(())
    }

    /// All is idle, and all members that will live do: every file is flushed, and no claim is left but dead
    /// members' claims of files that no other member has.
    pub fn quiet(&self) -> Checked {
        for (file, found) in self.files.iter().enumerate() {
            let maker = found.maker.filter(|maker| self.makes(*maker, file));
            let home = self.claimant(file).or(maker).filter(|home| self.nodes[*home].is_dead);
            match home {
                Some(home) => self.check_left(file, home)?,
                None if found.store == found.newest => {}
                None => {
                    let (has, newest) = (found.store, found.newest);
                    return Err(format!("f{file}: the store has {has} of {newest}"));
                }
            }
        }
        for (number, node) in self.nodes.iter().enumerate() {
            if let Some(asked) = node.asked.values().next() {
                return Err(format!("m{number}: {:?} of {} ms hangs", asked.op, asked.since));
            }
            self.check_partners(number)?;
        }
        let is_dead = |name: &str| self.nodes[node_of(name)].is_dead;
        for key in self.registry.keys.keys() {
            let rest = key.strip_prefix("stores/s/").unwrap_or_default();
            let is_left = match rest.split_once('/') {
                Some(("claims", _)) => {
                    let claim = self.found::<keys::Claim>(rest);
                    claim.is_none_or(|claim| !is_dead(&claim.member))
                }
                Some(("creates", name)) => {
                    name.rsplit_once('/').is_none_or(|(_, member)| !is_dead(member))
                }
                _ => rest == "gate",
            };
            if is_left {
                return Err(format!("{key} was not given back"));
            }
        }
        Ok(())
    }

    fn makes(&self, member: usize, file: usize) -> bool {
        let dir = keys::file(super::world::dir_key(dir_of(file)));
        self.registry.keys.contains_key(&format!("stores/s/creates/{dir}/m{member}"))
    }

    /// Checks a file that stays with a dead member: the heirs of its home must be dead too.
    fn check_left(&self, file: usize, home: usize) -> Checked {
        if self.taken(home).is_some_and(|taken| taken.done) {
            return Err(format!("m{home} was taken over, and f{file} is left with it"));
        }
        match self.heirs_left(home).iter().any(|heir| !self.nodes[*heir].is_dead) {
            true => Err(format!("m{home} is dead, and nobody has taken it over: f{file}")),
            false => Ok(()),
        }
    }

    fn check_partners(&self, node: usize) -> Checked {
        let others = (0..self.nodes.len()).filter(|o| *o != node && !self.nodes[*o].is_dead);
        let wanted = usize::from(self.plan.copies).min(others.count());
        // Dead partners keep their places while there is no replacement.
        let has: Vec<usize> =
            self.heirs(node).into_iter().filter(|heir| !self.nodes[*heir].is_dead).collect();
        if !self.nodes[node].is_dead && has.len() != wanted {
            return Err(format!("m{node} has {has:?} as partners in sync, wants {wanted}"));
        }
        let is_over = |home: usize| match self.nodes[home].is_dead {
            true => self.taken(home).is_some_and(|taken| taken.done),
            false => !self.heirs(home).contains(&node),
        };
        let mut copies = self.nodes[node].copies.iter();
        let left = copies.find(|((home, _), copy)| copy.value.is_some() && is_over(*home));
        match left {
            Some(((home, file), _)) if !self.nodes[node].is_dead => {
                Err(format!("m{node} has a copy of f{file} of {}", name(*home)))
            }
            _ => Ok(()),
        }
    }
}
