//! The transfers and leftover files for which an instance waits before it goes (T3), and the access to the files of a
//! space meanwhile.

use std::sync::Arc;

use forebay_base::Result;
use forebay_base::units::{counted, human_secs};
use serde_json::Value;

use crate::book::Listed;
use crate::clock::Time;
use crate::clock::now;
use crate::hands::Moved;
use crate::job::{Job, Phase, is_elsewhere};
use crate::manifest;
use crate::node::{Live, Node};
use crate::records::{
    Actual, Direction, Instance, Life, Missing, Mode, Transfer, TransferActual, TransferState,
    TransferWant, Want, keys,
};
use crate::space::Door;

/// What an instance that is to go waits for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Before {
    Nothing,
    Wait(String, Needs),
}

/// What the instance needs to go on: a transfer that still has to be carried out may need its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    Files,
    Nobody,
    /// No transfer goes on by itself: the owner has to take up or give up the failed one.
    Owner,
}

/// Whether the failed transfers of an instance may be taken up again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    Shut,
}

impl Node {
    /// Whether an instance may go. Once it may, none of its transfers is taken up again: the gate is shut first, and
    /// the second look sees a transfer that came through before that.
    pub(crate) fn may_go(&self, instance: &Instance) -> Result<Before> {
        let mut before = self.before_leaving(instance)?;
        if before == Before::Nothing {
            self.set_gate(instance, Gate::Shut)?;
            before = self.before_leaving(instance)?;
        }
        if before != Before::Nothing {
            self.set_gate(instance, Gate::Open)?;
        }
        Ok(before)
    }

    fn set_gate(&self, instance: &Instance, gate: Gate) -> Result<()> {
        let (key, going) =
            (keys::actual_instance(&instance.id, &self.config.name), gate == Gate::Shut);
        self.book.change(&key, |draft| {
            match draft.read::<Actual>(&key)? {
                Some(told) if told.going != going => draft.put(&key, &Actual { going, ..told }),
                _ => {}
            }
            Ok(())
        })
    }

    /// T3. The transfers for which an instance waits before it goes.
    pub(crate) fn before_leaving(&self, instance: &Instance) -> Result<Before> {
        let all = self.desk().transfers_known()?;
        let mut waits = self.jobs_that_stage_out_of(instance)?;
        let mut needs = if waits.is_empty() { Needs::Nobody } else { Needs::Files };
        let mut held = Vec::new();
        for (id, record) in &all.unread {
            if record["instance"] == *instance.id && record["node"] == *self.config.name {
                waits.push(format!(
                    "transfer {id} is of a newer version: update this node's daemon"
                ));
            }
        }
        let here = all.read.into_iter().filter(|(transfer, _)| {
            transfer.belongs_to(instance) && transfer.node == self.config.name
        });
        for (transfer, actual) in here {
            let current = actual.as_ref().filter(|actual| actual.attempt == transfer.attempt);
            let state = current.map_or(TransferState::Waiting, |actual| actual.state);
            if !state.has_ended() {
                needs = Needs::Files;
            }
            match state {
                TransferState::Done => {}
                TransferState::Failed | TransferState::Cancelled => {
                    held.extend(self.kept_for(&transfer, instance)?);
                }
                TransferState::Running => waits.push(format!("transfer {} runs", transfer.id)),
                TransferState::Waiting => {
                    let why = current.and_then(|actual| actual.why.as_ref());
                    let why = why.map_or_else(String::new, |why| format!(": {why}"));
                    waits.push(format!("transfer {} is still to be carried out{why}", transfer.id));
                }
            }
        }
        if waits.is_empty() && !held.is_empty() && instance.want == Want::Gone {
            needs = Needs::Owner;
        }
        waits.append(&mut held);
        Ok(match waits.is_empty() {
            true => Before::Nothing,
            false => Before::Wait(waits.join("; "), needs),
        })
    }

    /// T3. Jobs on this node whose results in a named instance are to be ordered when they end.
    fn jobs_that_stage_out_of(&self, instance: &Instance) -> Result<Vec<String>> {
        if !matches!(instance.life, Life::Named { .. }) || instance.want == Want::GoneInHurry {
            return Ok(Vec::new());
        }
        let all: Listed<Job> = self.book.list_some(keys::JOBS)?;
        let waits = all.read.iter().map(|(_, job)| job).filter(|job| {
            let here = job.nodes.contains(&self.config.name);
            here && job.phase < Phase::Ended && job.stages_out_of(&instance.id)
        });
        let waits = waits.map(|job| format!("job {} stages out of it when it ends", job.key.id));
        // A newer daemon's record that does not name the instance does not stage out of it.
        let me = &self.config.name;
        let may = |job: &Value| !is_elsewhere(job, me) && names(job, &instance.id);
        let unread = all.unread.iter().filter(|(_, job)| may(job));
        let unread =
            unread.map(|(job, _)| format!("job {job}, which a newer forebay wrote, names it"));
        Ok(waits.chain(unread).collect())
    }

    /// The files for which a stage-out that ended without being done holds the instance. None if it was revoked, or
    /// if its time is over.
    fn kept_for(&self, transfer: &Transfer, instance: &Instance) -> Result<Option<String>> {
        if transfer.direction == Direction::In || transfer.want == TransferWant::Revoked {
            return Ok(None);
        }
        if instance.mode == Mode::Cache {
            // Dirty bytes are flushed anyway (T2).
            return Ok(None);
        }
        let me = &self.config.name;
        let mut lines = manifest::of(&self.book, me, &instance.id, &transfer.id)?;
        if lines.is_empty() {
            // The transfer was told to hurry before it began, and thus has no lines yet.
            self.keep_unbegun(transfer, instance)?;
            lines = manifest::of(&self.book, me, &instance.id, &transfer.id)?;
        }
        let (id, files) = (&transfer.id, counted(lines.len() as u64, "file"));
        if instance.want != Want::GoneInHurry {
            return Ok(Some(format!(
                "{files} of transfer {id} are not home: see `forebay manifest`; then `forebay stage \
                 resume {id}`, `forebay stage revoke {id}`, or `forebay instance destroy {} --hurry`",
                instance.id
            )));
        }
        let time = self.clock.time();
        let left = self.promised(transfer, instance, lines, time)?.saturating_sub(time.seconds);
        if left == 0 {
            if let Some(ahead) = self.clock_is_ahead(now())? {
                return Ok(Some(format!("{files} of transfer {id} would be dropped, but {ahead}")));
            }
            if self.drop_with_record(transfer, &files)? {
                return Ok(None);
            }
        }
        Ok(Some(format!(
            "{files} of transfer {id} are not home and are kept for {}: `forebay stage resume {id}`",
            human_secs(left as f64)
        )))
    }

    /// Until when the files of an instance that was told to hurry are kept: counted from when they were first seen to
    /// be left, by a clock that can be believed.
    fn promised(
        &self,
        transfer: &Transfer,
        instance: &Instance,
        mut lines: Vec<Missing>,
        time: Time,
    ) -> Result<u64> {
        if let Some(until) = lines.iter().filter_map(|line| line.expires).max() {
            return Ok(until);
        }
        let until = time.seconds.saturating_add(self.config.keep_after_hurry.as_secs());
        if time.doubt.is_some() || self.clock_is_off(now())? {
            return Ok(until.max(time.seconds + 1));
        }
        lines.iter_mut().for_each(|line| line.expires = Some(until));
        manifest::write(&self.book, &self.config.name, &instance.id, &transfer.id, &lines)?;
        Ok(until)
    }

    fn keep_unbegun(&self, transfer: &Transfer, instance: &Instance) -> Result<()> {
        // An unmounted space cannot be counted; that it is to be kept is recorded all the same.
        if let Err(error) = self.pool_of(instance)?.bring_back(instance) {
            tracing::warn!("transfer {}: counting what it left: {error}", transfer.id);
        }
        let moved = Moved::refused("told to hurry before it was done");
        self.tell_missing(transfer, instance, &moved)
    }

    /// Ends the promise to keep a transfer's files after a hurry: only their description stays on record. Not if the
    /// transfer was taken up again in this moment.
    pub(crate) fn drop_with_record(&self, transfer: &Transfer, files: &str) -> Result<bool> {
        let why = format!("dropped after keep-after-hurry: {files} not home");
        let dropped = self.book.change(&format!("transfer {}", transfer.id), |draft| {
            let key = keys::wanted_transfer(&transfer.id);
            let wanted: Option<Transfer> = draft.read(&key)?;
            let Some(wanted) = wanted.filter(|wanted| wanted.attempt == transfer.attempt) else {
                return Ok(false);
            };
            draft.put(&key, &Transfer { want: TransferWant::Revoked, ..wanted });
            let key = keys::actual_transfer(&transfer.id);
            if let Some(told) = draft.read::<TransferActual>(&key)? {
                draft.put(&key, &TransferActual { why: Some(why.clone()), since: now(), ..told });
            }
            Ok(true)
        })?;
        if dropped {
            tracing::warn!("transfer {}: {why}", transfer.id);
        }
        Ok(dropped)
    }

    /// Begins to carry out a transfer. A space is mounted first, since after a restart of the machine only an empty
    /// mount point exists; and the owner gets access to the files of a space that is going.
    pub(crate) fn begin_live(&self, transfer: &Transfer, instance: &Instance) -> Result<Arc<Live>> {
        if instance.mode == Mode::Private {
            self.pool_of(instance)?.bring_back(instance)?;
        }
        let _doors = self.lock_doors();
        if instance.mode == Mode::Private && instance.want != Want::Here {
            self.pool_of(instance)?.set_door(instance, Door::Open)?;
        }
        let mut all = self.lock_live();
        let live = all.entry(transfer.id.clone()).or_default();
        Ok(live.clone())
    }

    /// Shuts a space that was told to hurry and is only kept: former users of the node cannot look in.
    pub(crate) fn mind_door(&self, instance: &Instance, needs: Needs) -> Result<()> {
        let kept = instance.mode == Mode::Private && instance.want == Want::GoneInHurry;
        if !kept || needs == Needs::Files {
            return Ok(());
        }
        // Under the lock: a transfer that begins opens the door again. It is not the lock of the transfers, for which
        // every request for their progress asks, while the registry may take long.
        let _doors = self.lock_doors();
        let transfers = self.desk().transfers()?;
        let all = self.lock_live();
        let used = transfers
            .iter()
            .any(|(transfer, _)| transfer.belongs_to(instance) && all.contains_key(&transfer.id));
        drop(all);
        if used { Ok(()) } else { self.pool_of(instance)?.set_door(instance, Door::Shut) }
    }

    /// The progress at which a transfer stood still when it was looked at last, if it did.
    pub(crate) fn still_at(&self, id: &str) -> Option<Moved> {
        self.lock_still().get(id).cloned()
    }

    pub(crate) fn note_still(&self, id: &str, last: Moved) {
        self.lock_still().insert(id.into(), last);
    }
}

/// Whether the value contains this text.
fn names(value: &Value, text: &str) -> bool {
    match value {
        Value::String(found) => found == text,
        Value::Array(all) => all.iter().any(|one| names(one, text)),
        Value::Object(all) => all.values().any(|one| names(one, text)),
        _ => false,
    }
}
