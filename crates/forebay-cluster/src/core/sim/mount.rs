//! The model of a mount: writes, reads, flushes, and what it finds when it begins.

use super::Neglect;
use super::keeping::{After, Why};
use super::world::{Checked, File, OUTLIVES, What, World, dir_key, dir_of, key, path};
use crate::core::{Input, Standing, line};

impl World {
    pub fn in_mount(&mut self, what: What) -> Checked {
        match what {
            What::Released(node, life, file, flush) => {
                if !self.lives(node, life) {
                    return Ok(());
                }
                match flush && self.nodes[node].dirty.contains_key(&file) {
                    true => self.flush(node, file, After::Release),
                    false => self.is_free(node, file),
                }
            }
            What::Wrote(node, life, file, syncs, reply_to) => {
                if !self.lives(node, life) {
                    return Ok(());
                }
                if !self.is_fit(node) {
                    self.served_for(node, reply_to, Err(()));
                    self.closes(node, file, 40);
                    return Ok(());
                }
                self.write(node, file, reply_to.is_none())?;
                let value = self.files[file].newest;
                if syncs {
                    self.sync(node, file, Why::Ack { value, reply_to });
                    return Ok(());
                }
                self.counts.remote_writes += u64::from(reply_to.is_some());
                self.served_for(node, reply_to, Ok(value));
                self.closes(node, file, 40);
                Ok(())
            }
            What::Read(node, file, floor, since, reply_to) => {
                if !self.is_fit(node) {
                    self.served_for(node, reply_to, Err(()));
                    return Ok(());
                }
                let value = self.sees(node, file);
                self.served_for(node, reply_to, Ok(value));
                match reply_to {
                    None => self.check_read(node, file, floor, value, since),
                    Some(_) => Ok(()),
                }
            }
            // The new file is on the store, and its mount says so a moment later.
            What::Made(node, life, dir, by) => {
                if !self.lives(node, life) {
                    return Ok(());
                }
                if !self.is_fit(node) {
                    return self.give(node, Input::Made(dir_key(dir), by));
                }
                let file = self.files.len() + (self.files.len() + dir) % 2;
                self.files.resize(file + 1, File::default());
                self.files[file].maker = Some(node);
                let delay = self.dice.roll(40);
                self.at(delay, What::Noted(node, life, file, by));
                Ok(())
            }
            What::Noted(node, life, file, by) => {
                if !self.lives(node, life) {
                    return Ok(());
                }
                let dir = dir_key(dir_of(file));
                if !self.is_fit(node) {
                    return self.give(node, Input::Made(dir, by));
                }
                let created = Input::Created { file: key(file), dir, path: path(file).into() };
                self.counts.opened_early += u64::from(self.files[file].is_opened);
                *self.nodes[node].writers.entry(file).or_default() += 1;
                self.write(node, file, true)?;
                self.give(node, created)?;
                self.give(node, Input::Made(dir, by))?;
                if self.plan.copies > 0 && self.dice.roll(3) == 0 {
                    let value = self.files[file].newest;
                    self.sync(node, file, Why::Ack { value, reply_to: None });
                } else {
                    self.closes(node, file, 200);
                }
                Ok(())
            }
            What::Renamed(node, life, ticket, dir) => {
                if dir.is_some_and(|dir| self.renaming == Some((node, dir))) {
                    self.renaming = None;
                }
                match self.lives(node, life) {
                    true => self.give(node, Input::Changed(ticket)),
                    false => Ok(()),
                }
            }
            What::Closed(node, life, file) => {
                if !self.lives(node, life) {
                    return Ok(());
                }
                if let Some(writers) = self.nodes[node].writers.get_mut(&file) {
                    *writers -= 1;
                }
                self.give(node, Input::Closed(key(file)))
            }
            What::Drain(node) => {
                let next = 100 + self.dice.roll(300);
                self.at(next, What::Drain(node));
                let n = &self.nodes[node];
                let may_begin = n.has_begun || self.neglect == Some(Neglect::LookBeforeFlush);
                if n.core.is_none()
                    || !may_begin
                    || n.is_suspended
                    || n.is_superseded
                    || n.dirty.is_empty()
                {
                    return Ok(());
                }
                let files: Vec<usize> = n.dirty.keys().copied().collect();
                let file = files[self.dice.roll(files.len() as u64) as usize];
                self.flush(node, file, After::Drain)
            }
            What::Lands(node, life, call, after) => {
                let Some((file, value)) = self.nodes[node].landing.remove(&call) else {
                    return Ok(());
                };
                self.land(node, file, value);
                if !self.lives(node, life) {
                    return Ok(());
                }
                let delay = self.dice.roll(5);
                self.at(delay, What::Flushed(node, life, file, value, after));
                self.say_stopped(node)
            }
            What::Flushed(node, life, file, value, after) => {
                if !self.lives(node, life) {
                    return Ok(());
                }
                if after == After::Settle {
                    self.nodes[node].held.remove(&file);
                }
                let n = &self.nodes[node];
                if n.dirty.get(&file) == Some(&value) && !n.held.contains(&file) {
                    self.clean(node, file);
                }
                self.end_flush(node, file, after)
            }
            _ => Ok(()),
        }
    }

    /// Answers a program of another member.
    pub fn served_for(
        &mut self,
        node: usize,
        reply_to: Option<(usize, u64, u64)>,
        result: Result<u64, ()>,
    ) {
        if let Some((to, life, op)) = reply_to
            && !self.lost(node)
        {
            let delay = self.delay();
            self.at(delay, What::Served(to, life, op, result));
        }
    }

    pub fn closes(&mut self, node: usize, file: usize, within: u64) {
        let (delay, life) = (self.dice.roll(within), self.nodes[node].life);
        self.at(delay, What::Closed(node, life, file));
    }

    pub fn sees(&mut self, node: usize, file: usize) -> u64 {
        let n = &mut self.nodes[node];
        if let Some(dirty) = n.dirty.get(&file) {
            return *dirty;
        }
        *n.cached.entry(file).or_insert(self.files[file].store)
    }

    /// Writes on top of the bytes that the mount sees: a writer that missed newer bytes would undo
    /// them.
    fn write(&mut self, node: usize, file: usize, is_acked: bool) -> Checked {
        let sees = self.sees(node, file);
        if self.trace {
            println!("{} m{node} writes f{file} on top of {sees}", self.now);
        }
        self.check_write(node, file, sees)?;
        let version = self.files[file].version;
        let found = &mut self.files[file];
        found.last += 1;
        found.newest = found.last;
        if is_acked {
            found.acked = found.last;
        }
        let value = found.last;
        self.nodes[node].dirty.insert(file, value);
        self.nodes[node].base.entry(file).or_insert(version);
        Ok(())
    }

    /// Flushes a file. Its bytes are with all partners before the first byte goes to the store.
    pub fn flush(&mut self, node: usize, file: usize, after: After) -> Checked {
        let life = self.nodes[node].life;
        if self.nodes[node].flushing.contains(&file) {
            match after {
                After::Release => self.at(20, What::Released(node, life, file, true)),
                After::Settle => self.at(20, What::Settle(node, life, file)),
                After::Drain => {}
            }
            return Ok(());
        }
        if !self.is_fit(node) {
            return self.end_flush(node, file, after);
        }
        self.nodes[node].flushing.insert(file);
        match self.nodes[node].dirty.get(&file) {
            Some(&value) if self.neglect == Some(Neglect::CopyBeforeFlush) => {
                self.put(node, file, value, after);
            }
            _ => self.sync(node, file, Why::Flush(after)),
        }
        Ok(())
    }

    /// Begins a call to the store. The call goes on whatever becomes of the process.
    pub fn put(&mut self, node: usize, file: usize, value: u64, after: After) {
        let (call, life) = (self.ticket(), self.nodes[node].life);
        self.nodes[node].landing.insert(call, (file, value));
        let delay = match self.dice.roll(8) {
            0 if self.faulty() && self.plan.copies > 0 => 200 + self.dice.roll(OUTLIVES - 200),
            _ => 1 + self.dice.roll(30),
        };
        self.at(delay, What::Lands(node, life, call, after));
    }

    pub fn land(&mut self, node: usize, file: usize, value: u64) {
        if self.trace {
            println!("{} m{node}: the store has {value} of f{file}", self.now);
        }
        let n = &mut self.nodes[node];
        self.counts.copied.zombie_writes += u64::from(n.stale.contains(&file));
        self.files[file].version += 1;
        if n.dirty.contains_key(&file) {
            n.base.insert(file, self.files[file].version);
            n.flushed.insert(file);
        }
        self.files[file].store = value;
    }

    pub fn clean(&mut self, node: usize, file: usize) {
        let n = &mut self.nodes[node];
        if let Some(value) = n.dirty.remove(&file) {
            n.cached.insert(file, value);
        }
        n.base.remove(&file);
        n.synced.remove(&file);
        self.forget_copies(node, file);
    }

    /// Ends a flush, whatever its result.
    pub fn end_flush(&mut self, node: usize, file: usize, after: After) -> Checked {
        let n = &mut self.nodes[node];
        n.flushing.remove(&file);
        match after {
            After::Drain => Ok(()),
            After::Release => self.is_free(node, file),
            After::Settle => {
                let ok = !n.held.contains(&file);
                self.counts.copied.settled += u64::from(ok);
                self.give(node, Input::Settled { file: key(file), ok })
            }
        }
    }

    fn is_free(&mut self, node: usize, file: usize) -> Checked {
        let n = &self.nodes[node];
        let is_written = n.writers.get(&file).is_some_and(|writers| *writers > 0);
        let is_free = !is_written && !n.dirty.contains_key(&file);
        self.give(node, Input::Released { file: key(file), is_free })
    }

    pub fn began(&mut self, node: usize, life: u64) -> Checked {
        if !self.lives(node, life) {
            return Ok(());
        }
        let Some(core) = &self.nodes[node].core else { return Ok(()) };
        let under = |file| self.nodes[node].adopted_under.get(&file).copied();
        let under = |file| under(file).filter(|_| self.nodes[node].adopted.contains_key(&file));
        let sorted = self.nodes[node].sorted;
        let stands =
            |file: usize| core.standing(key(file), dir_key(dir_of(file)), (under(file), sorted));
        let found = |(file, value): (&usize, &u64)| (*file, *value, stands(*file));
        // A dirty file beside an adopted one is another file of the tier.
        let own = |file: usize| core.standing(key(file), dir_key(dir_of(file)), (None, sorted));
        let dirty = self.nodes[node].dirty.iter().map(|(file, value)| (*file, *value, own(*file)));
        let dirty: Vec<_> = dirty.collect();
        let adopted: Vec<_> = self.nodes[node].adopted.iter().map(found).collect();
        let homes =
            (0..self.plan.members).filter(|home| core.keeps_for(&super::world::name(*home)));
        let homes: Vec<usize> = homes.collect();
        let line = line(core);
        let n = &mut self.nodes[node];
        n.copies.retain(|(home, _), _| homes.contains(home));
        n.damaged.retain(|home| homes.contains(home));
        n.stale.clear();
        for (file, value, standing) in adopted {
            match standing {
                Standing::Own | Standing::Taken => self.takes(node, file, value),
                Standing::Adopted => self.give(node, Input::FoundAdopted { file: key(file) })?,
                Standing::New | Standing::Superseded => {
                    _ = self.nodes[node].adopted.remove(&file);
                }
            }
            if matches!(standing, Standing::Own | Standing::Taken) {
                self.begins_with(node, file)?;
            }
        }
        for (file, _, standing) in dirty {
            let is_changed = self.nodes[node].base.get(&file) != Some(&self.files[file].version);
            match standing {
                Standing::Own | Standing::Taken => {}
                Standing::New if !is_changed => {}
                _ if self.plan.copies == 0 => {
                    return Err(format!("m{node} began anew, and its f{file} is {standing:?}"));
                }
                _ => {
                    self.counts.copied.superseded_files += 1;
                    let n = &mut self.nodes[node];
                    n.dirty.remove(&file);
                    n.synced.remove(&file);
                    n.base.remove(&file);
                    continue;
                }
            }
            if standing == Standing::Taken {
                self.nodes[node].held.insert(file);
            }
            self.begins_with(node, file)?;
        }
        let n = &mut self.nodes[node];
        (n.has_begun, n.sorted) = (true, Some(line));
        self.give(node, Input::Began)
    }

    fn begins_with(&mut self, node: usize, file: usize) -> Checked {
        let (dir, path) = (dir_key(dir_of(file)), path(file).into());
        self.give(node, Input::Created { file: key(file), dir, path })?;
        self.give(node, Input::Closed(key(file)))
    }
}
