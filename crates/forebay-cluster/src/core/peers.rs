//! The questions of other members.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use forebay_backing::FileKey;

use super::own::{Ending, SOMEWHERE};
use super::{Core, Effect, Leaving, Peer, Reply, Rule, Stage, Task, Ticket};

/// A question whether a file is held, that came while a file was being made in its directory: the new file may be on
/// the store, where the asker found it, before this member hears which file it is.
#[derive(Debug)]
pub struct Parked {
    ticket: Ticket,
    file: FileKey,
    awaits: BTreeSet<(FileKey, Ticket)>,
    since: Duration,
}

impl Core {
    pub(super) fn asked(&mut self, ticket: Ticket, peer: Peer) {
        if self.is_superseded {
            return; // The asker's next question finds the newer epoch.
        }
        let is_early = !self.has_begun && self.rules.obey(Rule::BeganBeforeHolds);
        // The progress of the mirror is known also before the dirty files are.
        let is_of_holding = !matches!(peer, Peer::Reached { .. });
        if (self.is_suspended || is_early) && is_of_holding {
            self.early.push((ticket, peer));
            return;
        }
        let is_held = matches!(peer, Peer::Recall { file } if self.is_held(file));
        match peer {
            Peer::Holds { file, dir } => {
                let is_there = |d: FileKey| d == dir || dir == SOMEWHERE;
                let dirs = self.own_dirs.iter().filter(|(d, _)| is_there(**d));
                let making = dirs.flat_map(|(d, own)| own.making.iter().map(|by| (*d, *by)));
                let awaits = match self.rules.obey(Rule::HoldsWaitsForMaking) {
                    true => making.collect(),
                    false => BTreeSet::new(),
                };
                self.parked.push(Parked { ticket, file, awaits, since: self.now });
            }
            Peer::Recall { file } => match self.own.get_mut(&file) {
                None => self.out.push(Effect::Reply(ticket, Reply::Given(true))),
                Some(own) if own.uses > 0 || is_held => {
                    self.out.push(Effect::Reply(ticket, Reply::Given(false)));
                }
                Some(own) => {
                    own.recalls.push(ticket);
                    self.release(file, true);
                }
            },
            Peer::RecallBelow { path } => self.enter(ticket, Task::GiveBelow { path, left: None }),
            Peer::Changed { file } => {
                self.out.push(Effect::Forget { file, end: None });
                self.out.push(Effect::Reply(ticket, Reply::Done));
            }
            Peer::Reached { revision } => self.asked_how_far(ticket, revision),
        }
    }

    /// Answers the parked questions that can be answered by now. An asker waits no longer than the patience.
    pub(super) fn answer_parked(&mut self) {
        if self.is_suspended {
            return;
        }
        let Core { parked, own, own_dirs, out, now, patience, .. } = self;
        parked.retain_mut(|Parked { ticket, file, awaits, since }| {
            awaits.retain(|(dir, by)| own_dirs.get(dir).is_some_and(|dir| dir.making.contains(by)));
            let holds = own.contains_key(file);
            let is_known = holds || awaits.is_empty();
            if is_known {
                out.push(Effect::Reply(*ticket, Reply::Holds(holds)));
            }
            !is_known && *now < *since + *patience
        });
    }

    /// Finds the files below a path and gives them back, until no more can be given back. The gate must stand first, so
    /// that no file is claimed anew after its give-back.
    pub(super) fn look_below(
        &mut self,
        task: Ticket,
        path: PathBuf,
        left: Option<BTreeMap<FileKey, bool>>,
    ) {
        let is_leaving = path.as_os_str().is_empty();
        let Some(mut left) = left else {
            if !is_leaving && self.mirror.gate.is_none() {
                self.tasks.remove(&task);
                self.out.push(Effect::Reply(task, Reply::Given(false)));
                return;
            }
            self.stage(task, Stage::Asking);
            self.out.push(Effect::FindBelow { ticket: task, path });
            return;
        };
        let below = self.own.iter().filter(|(_, own)| own.path.starts_with(&path));
        for (file, _) in below {
            left.entry(*file).or_insert(false);
        }
        left.retain(|file, _| self.own.contains_key(file));
        for (file, has_begun) in &mut left {
            if !*has_begun {
                *has_begun = !self.own[file].is_claiming;
                self.release(*file, true);
            }
        }
        let mut dirs = 0;
        for own in self.own_dirs.values_mut() {
            if own.path.as_os_str().is_empty() || own.path.starts_with(&path) {
                own.leaving.get_or_insert(Ending::Wanted);
                dirs += 1;
            }
        }
        let is_moving = left
            .iter()
            .any(|(file, has_begun)| !has_begun || self.own[file].leaving != Leaving::No);
        let stays = !left.is_empty();
        // A member that leaves gives back its directories even if files stay: with their keys left, the home of any
        // unclaimed file in them would be unknown.
        if !is_moving && (dirs == 0 || (stays && !is_leaving)) {
            self.tasks.remove(&task);
            if stays {
                for own in self.own_dirs.values_mut() {
                    own.leaving.take_if(|ending| *ending == Ending::Wanted);
                }
            }
            self.out.push(Effect::Reply(task, Reply::Given(!stays)));
            return;
        }
        self.remember_left(task, left);
    }

    pub(super) fn found_below(&mut self, task: Ticket, files: Vec<FileKey>) {
        let own = files.into_iter().filter(|file| self.own.contains_key(file));
        let left = own.map(|file| (file, false)).collect();
        self.remember_left(task, left);
        self.stage(task, Stage::Reach(self.mirror.revision));
    }

    fn remember_left(&mut self, task: Ticket, anew: BTreeMap<FileKey, bool>) {
        if let Some(waiting) = self.tasks.get_mut(&task)
            && let Task::GiveBelow { left, .. } = &mut waiting.ask
        {
            *left = Some(anew);
        }
    }
}
