//! Copies, as the carriers of effects handle them: fsync, fill, adoption, settling.

use std::collections::BTreeSet;

use super::Neglect;
use super::world::{Checked, PATIENCE, What, World, key, name, node_of, number_of};
use crate::core::{Core, Effect, Input, Keeper};

#[derive(Clone, Copy)]
pub struct Copy {
    pub number: u64,
    /// `None`: the store has the bytes.
    pub value: Option<u64>,
    seq: u64,
}

#[derive(Clone)]
pub struct Keep {
    pub from: usize,
    life: u64,
    pub to: usize,
    epoch: u64,
    fill: u64,
    pub file: usize,
    number: u64,
    pub value: Option<u64>,
    seq: u64,
    waiter: Waiter,
}

/// The waiter for a copy.
#[derive(Debug, Clone, Copy)]
pub enum Waiter {
    Sync(u64),
    Fill(u64),
    Nobody,
}

/// The purpose of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    Release,
    Drain,
    Settle,
}

/// The purpose for which bytes are made durable, here and with partners.
#[derive(Debug, Clone, Copy)]
pub enum Why {
    Ack { value: u64, reply_to: Option<(usize, u64, u64)> },
    Flush(After),
    Adopt,
}

pub struct Sync {
    file: usize,
    value: u64,
    why: Why,
    unanswered: BTreeSet<usize>,
    /// Partners that have not answered, or are to be struck off.
    open: BTreeSet<usize>,
}

pub struct Fill {
    partner: usize,
    since: u64,
    /// The partner has dropped its old copies.
    has_begun: bool,
    is_sent: bool,
    waits: BTreeSet<u64>,
}

/// The time within which a partner has confirmed a copy, or has failed.
const ANSWER: u64 = 250;

impl World {
    pub fn effect_on_copies(&mut self, node: usize, effect: Effect) -> Checked {
        let (life, epoch) = (self.nodes[node].life, self.nodes[node].epoch);
        match effect {
            Effect::Fill { partner, fill } => {
                let to = node_of(&partner);
                let (since, waits) = (self.now, BTreeSet::new());
                let anew = Fill { partner: to, since, has_begun: false, is_sent: false, waits };
                self.nodes[node].fills.insert(fill, anew);
                self.at(ANSWER, What::FillBegun(node, life, fill, false));
                self.send(
                    node,
                    What::FillBegins { from: node, life, epoch, to, fill, answers: true },
                );
            }
            Effect::Unfilled { partner, fill } => {
                let to = node_of(&partner);
                self.nodes[node].fills.retain(|_, fill| fill.partner != to);
                self.send(
                    node,
                    What::FillBegins { from: node, life, epoch, to, fill, answers: false },
                );
            }
            Effect::Struck { ticket, ok } => {
                if let Some((id, partner)) = self.nodes[node].strikes.remove(&ticket) {
                    self.counts.copied.struck += u64::from(ok);
                    return self.kept_by(node, id, partner, ok);
                }
            }
            Effect::ListCopies { member } => {
                let delay = self.dice.roll(20);
                self.at(delay, What::Listed(node, life, node_of(&member)));
            }
            Effect::Adopt { member, file } => {
                let delay = self.dice.roll(40);
                self.at(delay, What::Adopt(node, life, node_of(&member), number_of(file)));
            }
            Effect::Taken { file, .. } => {
                let file = number_of(file);
                match self.nodes[node].adopted.get(&file).copied() {
                    Some(value) => self.takes(node, file, value),
                    None => _ = self.nodes[node].claimed_early.insert(file),
                }
            }
            Effect::Disown { file } => {
                self.counts.copied.disowned += 1;
                self.nodes[node].adopted.remove(&number_of(file));
            }
            Effect::DropCopies { member } => {
                let home = node_of(&member);
                self.drop_copies(node, home, true);
                self.nodes[node].damaged.remove(&home);
                let delay = self.dice.roll(20);
                self.at(delay, What::Give(node, life, Input::Dropped { member }));
            }
            Effect::Settle { file } => {
                let delay = self.dice.roll(20);
                self.at(delay, What::Settle(node, life, number_of(file)));
            }
            Effect::Suspend => {
                self.counts.copied.cut_off += 1;
                self.nodes[node].is_suspended = true;
            }
            Effect::Resume => self.nodes[node].is_suspended = false,
            Effect::Superseded => {
                self.counts.copied.superseded += 1;
                self.nodes[node].is_superseded = true;
                let stops = 300 + self.dice.roll(1000);
                self.at(stops, What::Stop(node, life));
                return self.say_stopped(node);
            }
            _ => {}
        }
        Ok(())
    }

    fn send(&mut self, node: usize, what: What) {
        if !self.lost(node) {
            let delay = self.delay();
            self.at(delay, what);
        }
    }

    /// A superseded process says that it has stopped once none of its calls to the store is under way.
    pub fn say_stopped(&mut self, node: usize) -> Checked {
        let n = &self.nodes[node];
        let has_stopped = n.landing.is_empty() || self.neglect == Some(Neglect::StopBeforeFenced);
        match n.is_superseded && has_stopped {
            true => self.give(node, Input::Fenced),
            false => Ok(()),
        }
    }

    pub fn takes(&mut self, node: usize, file: usize, value: u64) {
        let version = self.files[file].version;
        let n = &mut self.nodes[node];
        n.flushed.remove(&file);
        n.adopted.remove(&file);
        n.cached.remove(&file);
        n.dirty.insert(file, value);
        n.synced.insert(file, value);
        n.base.insert(file, version);
        n.held.insert(file);
    }

    /// Makes a file's newest bytes durable here, and then with all partners that keep copies.
    pub fn sync(&mut self, node: usize, file: usize, why: Why) {
        let delay = 1 + self.dice.roll(10);
        let (life, since) = (self.nodes[node].life, self.now);
        self.at(delay, What::SyncedHere(node, life, file, since, why));
    }

    pub fn in_copies(&mut self, what: What) -> Checked {
        match what {
            What::SyncedHere(node, life, file, since, why) if self.lives(node, life) => {
                self.copy_out(node, file, since, why)
            }
            What::Keep(keep) => {
                self.receive(*keep);
                Ok(())
            }
            What::Kept(keep, life) => {
                if self.lives(keep.to, life) {
                    let takes = self.takes_copy(&keep);
                    if takes {
                        self.write_copy(&keep);
                        self.sync_copy(&keep);
                    }
                    self.answer_keep(&keep, takes);
                }
                Ok(())
            }
            What::KeepDone(node, life, partner, seq, waiter, ok) if self.lives(node, life) => {
                self.keep_done(node, partner, seq, waiter, ok)
            }
            What::FillBegins { from, life, epoch, to, fill, answers } => {
                let Some(core) = self.nodes[to].core.as_mut() else { return Ok(()) };
                let ok = core.fill_begins(&name(from), epoch, fill);
                if ok && self.neglect != Some(Neglect::DropBeforeFill) {
                    let is_durable = self.neglect != Some(Neglect::DropDurably);
                    self.drop_copies(to, from, is_durable);
                    self.nodes[to].damaged.remove(&from);
                }
                if ok && answers {
                    self.fill_begins(to, from);
                }
                match answers {
                    true => self.send(to, What::FillBegun(from, life, fill, ok)),
                    false if ok => {
                        let dismissed = Input::Dismissed { partner: name(to), fill };
                        self.send(to, What::Give(from, life, dismissed));
                    }
                    false => {}
                }
                Ok(())
            }
            What::FillBegun(node, life, fill, ok) if self.lives(node, life) => {
                self.fill_begun(node, fill, ok)
            }
            What::Listed(node, life, home) if self.lives(node, life) => {
                let copies = self.nodes[node].copies.iter();
                let of_home = copies.filter(|((of, _), copy)| *of == home && copy.value.is_some());
                let files = of_home.map(|((_, file), copy)| (key(*file), copy.number)).collect();
                let is_whole = !self.nodes[node].damaged.contains(&home);
                self.counts.copied.short += u64::from(!is_whole);
                self.give(node, Input::Copies { member: name(home), files, is_whole })
            }
            What::Adopt(node, life, home, file) if self.lives(node, life) => {
                self.adopt(node, home, file)
            }
            What::Settle(node, life, file) if self.lives(node, life) => self.settle(node, file),
            _ => Ok(()),
        }
    }

    fn copy_out(&mut self, node: usize, file: usize, since: u64, why: Why) -> Checked {
        let n = &mut self.nodes[node];
        let dirty = n.dirty.get(&file).copied();
        let Some(value) = dirty.or(n.adopted.get(&file).copied()) else {
            // The file is at the store, or never was in the tier.
            return match why {
                Why::Ack { .. } => self.copied(node, file, 0, why),
                _ => self.not_copied(node, file, why),
            };
        };
        let is_careless = matches!(why, Why::Ack { .. }) && self.neglect == Some(Neglect::SyncHere);
        if let Some(value) = dirty.filter(|_| !is_careless) {
            n.synced.insert(file, value);
        } else if dirty.is_none() && self.neglect != Some(Neglect::AdoptDurably) {
            n.disk.adopts(file);
        }
        if !self.is_fit(node) {
            return self.not_copied(node, file, why);
        }
        let Some(core) = &self.nodes[node].core else { return Ok(()) };
        let keepers = core.keepers();
        let number = core.claim_number(key(file));
        let is_alone =
            keepers.required.is_empty() && keepers.filling.is_empty() && keepers.leaving.is_empty();
        let is_careless = matches!(why, Why::Adopt) && self.neglect == Some(Neglect::CopyAdopted);
        if is_alone || is_careless {
            return self.copied(node, file, value, why);
        }
        let Some(number) = number else {
            if self.now >= since + PATIENCE {
                return self.not_copied(node, file, why);
            }
            let life = self.nodes[node].life;
            self.at(15, What::SyncedHere(node, life, file, since, why));
            return self.hurry(node);
        };
        let is_synced = matches!(why, Why::Ack { .. }) && !keepers.required.is_empty();
        self.counts.copied.synced += u64::from(is_synced);
        let id = self.ticket();
        let waits_for_filling = self.neglect != Some(Neglect::WaitForFilling);
        let filling = keepers.filling.iter().filter(|_| waits_for_filling);
        let required = keepers.required.iter().chain(filling);
        let required: BTreeSet<usize> = required.map(|k| node_of(&k.member)).collect();
        let leaving = keepers.leaving.iter().map(|name| node_of(name));
        let open = leaving.clone().chain(required.iter().copied()).collect();
        let sync = Sync { file, value, why, unanswered: required, open };
        self.nodes[node].syncs.insert(id, sync);
        for keeper in keepers.required.iter().chain(&keepers.filling) {
            self.keep(node, keeper, file, number, Some(value), Waiter::Sync(id));
        }
        for partner in leaving.collect::<Vec<_>>() {
            self.strike(node, id, partner)?;
        }
        self.copied_by_all(node, id)
    }

    /// Sends claims at once: a copy waits for the claim of its new file.
    fn hurry(&mut self, node: usize) -> Checked {
        let is_claiming = self.nodes[node].core.as_ref().is_some_and(Core::is_claiming);
        let copied = &mut self.counts.copied;
        copied.hurried += 1;
        copied.hurried_amid += u64::from(is_claiming);
        copied.hurried_cut_off += u64::from(self.nodes[node].cut_registry > self.now);
        self.give(node, Input::Hurry)
    }

    fn keep(
        &mut self,
        node: usize,
        keeper: &Keeper,
        file: usize,
        number: u64,
        value: Option<u64>,
        waiter: Waiter,
    ) -> u64 {
        let (seq, to) = (self.ticket(), node_of(&keeper.member));
        let (life, epoch) = (self.nodes[node].life, self.nodes[node].epoch);
        self.at(ANSWER, What::KeepDone(node, life, to, seq, waiter, false));
        let fill = keeper.fill;
        let keep = Keep { from: node, life, to, epoch, fill, file, number, value, seq, waiter };
        self.send(node, What::Keep(Box::new(keep)));
        seq
    }

    /// Tells partners that the store has the bytes of their copies. No caller waits for that.
    pub fn forget_copies(&mut self, node: usize, file: usize) {
        let Some(core) = &self.nodes[node].core else { return };
        let (keepers, number) = (core.keepers(), core.claim_number(key(file)));
        for keeper in keepers.required.iter().chain(&keepers.filling) {
            if self.dice.roll(4) > 0 {
                self.keep(node, keeper, file, number.unwrap_or_default(), None, Waiter::Nobody);
            }
        }
    }

    fn takes_copy(&mut self, keep: &Keep) -> bool {
        // An incomplete set of copies cannot be built upon.
        if self.nodes[keep.to].damaged.contains(&keep.from)
            || self.lacks_fill_of(keep.to, keep.from)
        {
            return false;
        }
        let core = self.nodes[keep.to].core.as_ref();
        core.is_some_and(|core| core.accepts_copies_of(&name(keep.from), keep.epoch, keep.fill))
    }

    fn receive(&mut self, keep: Keep) {
        if self.nodes[keep.to].core.is_none() {
            return;
        }
        let is_full = self.nodes[keep.to].full > self.now && keep.value.is_some();
        self.counts.copied.full += u64::from(is_full);
        if is_full || !self.takes_copy(&keep) {
            return self.answer_keep(&keep, false);
        }
        let delay = match self.dice.roll(20) {
            0 if self.faulty() => 200 + self.dice.roll(200),
            _ => 1 + self.dice.roll(10),
        };
        let life = self.nodes[keep.to].life;
        self.at(delay, What::Kept(Box::new(keep), life));
    }

    fn write_copy(&mut self, keep: &Keep) {
        let anew = Copy { number: keep.number, value: keep.value, seq: keep.seq };
        let copies = &mut self.nodes[keep.to].copies;
        let copy = copies.entry((keep.from, keep.file)).or_insert(Copy { seq: 0, ..anew });
        if copy.seq < keep.seq {
            *copy = Copy { number: keep.number, value: keep.value, seq: keep.seq };
        }
    }

    fn answer_keep(&mut self, keep: &Keep, ok: bool) {
        let done = What::KeepDone(keep.from, keep.life, keep.to, keep.seq, keep.waiter, ok);
        self.send(keep.to, done);
    }

    fn keep_done(
        &mut self,
        node: usize,
        partner: usize,
        seq: u64,
        waiter: Waiter,
        ok: bool,
    ) -> Checked {
        let n = &mut self.nodes[node];
        match waiter {
            Waiter::Sync(id) => {
                let sync = n.syncs.get_mut(&id);
                match sync.is_some_and(|sync| sync.unanswered.remove(&partner)) {
                    true if ok => self.kept_by(node, id, partner, true),
                    true => self.strike(node, id, partner),
                    false => Ok(()),
                }
            }
            Waiter::Fill(fill) => {
                let Some(found) = n.fills.get_mut(&fill) else { return Ok(()) };
                if !found.waits.remove(&seq) || (ok && !found.waits.is_empty()) {
                    return Ok(());
                }
                self.end_fill(node, fill, ok)
            }
            Waiter::Nobody => Ok(()),
        }
    }

    fn strike(&mut self, node: usize, id: u64, partner: usize) -> Checked {
        let ticket = self.ticket();
        self.nodes[node].strikes.insert(ticket, (id, partner));
        self.give(node, Input::CopyFailed { ticket, partner: name(partner) })
    }

    /// A partner has the copy, or no longer counts. If neither is so, the bytes are not acknowledged.
    fn kept_by(&mut self, node: usize, id: u64, partner: usize, ok: bool) -> Checked {
        let Some(sync) = self.nodes[node].syncs.get_mut(&id) else { return Ok(()) };
        sync.open.remove(&partner);
        if ok {
            return self.copied_by_all(node, id);
        }
        let (file, why) = (sync.file, sync.why);
        self.nodes[node].syncs.remove(&id);
        self.not_copied(node, file, why)
    }

    fn copied_by_all(&mut self, node: usize, id: u64) -> Checked {
        let syncs = &mut self.nodes[node].syncs;
        if syncs.get(&id).is_none_or(|sync| !sync.open.is_empty()) {
            return Ok(());
        }
        let Some(sync) = syncs.remove(&id) else { return Ok(()) };
        self.copied(node, sync.file, sync.value, sync.why)
    }

    fn copied(&mut self, node: usize, file: usize, value: u64, why: Why) -> Checked {
        match why {
            Why::Ack { value, reply_to } => {
                self.closes(node, file, 40);
                self.counts.remote_writes += u64::from(reply_to.is_some());
                self.served_for(node, reply_to, Ok(value));
                match reply_to {
                    None => self.acknowledged(file, value, true),
                    Some(_) => Ok(()),
                }
            }
            Why::Flush(_) if !self.is_fit(node) => self.not_copied(node, file, why),
            Why::Flush(after) => {
                self.put(node, file, value, after);
                Ok(())
            }
            Why::Adopt => self.give(node, Input::Adopted { file: key(file), ok: true }),
        }
    }

    fn not_copied(&mut self, node: usize, file: usize, why: Why) -> Checked {
        match why {
            Why::Ack { reply_to, .. } => {
                self.closes(node, file, 40);
                self.served_for(node, reply_to, Err(()));
                Ok(())
            }
            Why::Flush(after) => self.end_flush(node, file, after),
            Why::Adopt => self.give(node, Input::Adopted { file: key(file), ok: false }),
        }
    }

    fn fill_begun(&mut self, node: usize, fill: u64, ok: bool) -> Checked {
        let n = &mut self.nodes[node];
        let Some(found) = n.fills.get_mut(&fill).filter(|fill| !fill.is_sent) else {
            return Ok(());
        };
        if !ok {
            return if found.has_begun { Ok(()) } else { self.end_fill(node, fill, false) };
        }
        let (since, has_begun) = (found.since, std::mem::replace(&mut found.has_begun, true));
        let partner = name(found.partner);
        if !has_begun {
            self.give(node, Input::FillBegun { partner: partner.clone(), fill })?;
        }
        let n = &mut self.nodes[node];
        let Some(found) = n.fills.get_mut(&fill) else { return Ok(()) };
        let is_late = self.now >= since + PATIENCE;
        let keeper = Keeper { member: partner, fill };
        let Some(core) = &n.core else { return Ok(()) };
        let numbered =
            |(file, value): (&usize, &u64)| Some((*file, *value, core.claim_number(key(*file))?));
        let files: Option<Vec<_>> = n.synced.iter().chain(&n.adopted).map(numbered).collect();
        // A file that was synced while no partner kept copies may be unclaimed still.
        let Some(files) = files else {
            if is_late {
                return self.end_fill(node, fill, false);
            }
            let life = n.life;
            self.at(15, What::FillBegun(node, life, fill, true));
            return Ok(());
        };
        found.is_sent = true;
        for (file, value, number) in files {
            let seq = self.keep(node, &keeper, file, number, Some(value), Waiter::Fill(fill));
            if let Some(found) = self.nodes[node].fills.get_mut(&fill) {
                found.waits.insert(seq);
            }
        }
        match self.nodes[node].fills.get(&fill).is_some_and(|fill| fill.waits.is_empty()) {
            true => self.end_fill(node, fill, true),
            false => Ok(()),
        }
    }

    fn end_fill(&mut self, node: usize, fill: u64, ok: bool) -> Checked {
        let Some(found) = self.nodes[node].fills.remove(&fill) else { return Ok(()) };
        self.counts.copied.filled += u64::from(ok);
        self.give(node, Input::Filled { partner: name(found.partner), fill, ok })
    }

    fn adopt(&mut self, node: usize, home: usize, file: usize) -> Checked {
        let n = &mut self.nodes[node];
        let copy = n.copies.remove(&(home, file));
        if let Some((value, number)) = copy.and_then(|copy| Some((copy.value?, copy.number))) {
            n.adopted.insert(file, value);
            n.adopted_under.insert(file, number);
            n.disk.adopted_of.insert(file, home);
            if n.claimed_early.remove(&file) {
                self.takes(node, file, value);
            }
        } else if !n.adopted.contains_key(&file) {
            return self.give(node, Input::Adopted { file: key(file), ok: false });
        }
        self.sync(node, file, Why::Adopt);
        Ok(())
    }

    /// Settles a file to which no other member writes any more.
    fn settle(&mut self, node: usize, file: usize) -> Checked {
        let n = &mut self.nodes[node];
        // The file is written once at least, so that a former home that comes back sees that others
        // had it.
        let is_written = n.flushed.contains(&file) && !n.flushing.contains(&file);
        if is_written && n.dirty.get(&file) == Some(&self.files[file].store) {
            n.held.remove(&file);
            self.clean(node, file);
            return self.end_flush(node, file, After::Settle);
        }
        self.counts.copied.flushed_again += 1;
        self.flush(node, file, After::Settle)
    }
}
