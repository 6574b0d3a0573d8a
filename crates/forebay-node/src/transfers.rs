//! Transfers on this node: which ones are to be carried out now, and how they ended.

use forebay_base::units::counted;
use forebay_base::{Error, Kind, Result};

use crate::backing;
use crate::clock::now;
use crate::crew::Next;
use crate::hands::{Failed, Moved, Order, Staging};
use crate::manifest;
use crate::node::Node;
use crate::records::{
    Direction, FAILED_NAMED_MAX, FailedFile, Instance, Mode, NOTES_MAX, State, Transfer,
    TransferActual, TransferState, TransferWant, Want, When, keys,
};
use crate::space::LOST;
use std::time::Duration;

/// How often a transfer that stands still is looked at.
const STILL: Duration = Duration::from_secs(5);

/// The step for a transfer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// The transfer is to end where it is.
    Stop,
    Carry,
}

/// Pure: decides from the records of a transfer and of its instance.
pub(crate) fn decide(
    transfer: &Transfer,
    actual: Option<&TransferActual>,
    instance: Option<&Instance>,
) -> Step {
    let of_this_attempt = actual.filter(|actual| actual.attempt == transfer.attempt);
    if of_this_attempt.is_some_and(|actual| actual.state.has_ended()) {
        return Step::Nothing;
    }
    let Some(instance) = instance.filter(|instance| transfer.belongs_to(instance)) else {
        return Step::Stop;
    };
    // After a hurry a transfer stays where it is, until its owner takes it up again.
    let hurried = instance.want == Want::GoneInHurry && !transfer.after_hurry;
    if transfer.want != TransferWant::Done || hurried {
        return Step::Stop;
    }
    match (transfer.when, transfer.direction, instance.want) {
        (When::AtEnd, _, Want::Here) => Step::Nothing,
        // A stage-in would fill an instance that is about to go.
        (_, Direction::In, Want::Gone | Want::GoneInHurry) => Step::Stop,
        _ => Step::Carry,
    }
}

impl Node {
    pub(crate) fn carry_and_tell(&self, transfer: &Transfer, instance: &Instance) -> Next {
        match self.carry(transfer, instance) {
            Ok(next) => next,
            Err(error) => {
                tracing::warn!("transfer {}: {error}", transfer.id);
                let waits = self.moved_so_far(transfer, TransferState::Waiting);
                let actual = TransferActual { why: Some(error.to_string()), ..waits };
                // If not even that can be recorded, the next turn tries again.
                let _ = self.tell_transfer(transfer, actual);
                Next::BackOff
            }
        }
    }

    fn carry(&self, transfer: &Transfer, instance: &Instance) -> Result<Next> {
        if instance.mode == Mode::Private && self.pool_of(instance)?.is_lost(instance)? {
            let moved = self.lost(transfer, instance)?;
            self.conclude(transfer, instance, &moved)?;
            return Ok(Next::After(Duration::from_secs(3600)));
        }
        let told = self.told(instance)?;
        let ready = told.as_ref().is_some_and(|told| match instance.want {
            Want::Here => told.state == State::Ready,
            Want::Gone | Want::GoneInHurry => true,
        });
        if !ready {
            let why = told.and_then(|told| told.why);
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            let why = Some(format!("waits for instance {}{why}", instance.id));
            let waiting =
                TransferActual { state: TransferState::Waiting, why, ..nothing_moved(transfer) };
            self.tell_transfer(transfer, waiting)?;
            return Ok(Next::After(Duration::from_millis(500)));
        }
        if instance.mode == Mode::Private {
            backing::require_mounted(transfer.outside(), &self.config.backing_mounts)?;
        }
        let running = self.moved_so_far(transfer, TransferState::Running);
        self.tell_transfer(transfer, running.clone())?;
        let live = self.begin_live(transfer, instance)?;
        let moved = self.move_bytes(transfer, instance, &live);
        let last = self.end_live(transfer);
        let moved = match moved {
            // The transfer goes on, and the next daemon hears how it ended.
            Err(error) if error.kind() == Kind::Interrupted => return Ok(Next::BackOff),
            Err(error) if error.kind() == Kind::TimedOut => {
                self.note_still(&transfer.id, last);
                let why = Some(error.to_string());
                self.tell_transfer(transfer, TransferActual { why, ..running })?;
                return Ok(Next::After(STILL));
            }
            // The mount of the cache goes without the transfer, and its dirty bytes are flushed
            // (T2).
            Err(error) if error.kind() == Kind::Unreachable && leaves_cache(instance) => {
                Moved::refused(error.to_string())
            }
            moved => moved?,
        };
        self.conclude(transfer, instance, &moved)?;
        Ok(Next::After(Duration::from_secs(3600)))
    }

    /// The rest of a transfer whose space was lost before it was staged out.
    fn lost(&self, transfer: &Transfer, instance: &Instance) -> Result<Moved> {
        let told: Option<TransferActual> = self.book.read(&keys::actual_transfer(&transfer.id))?;
        let bytes = told.map_or(0, |told| told.bytes_total.saturating_sub(told.bytes));
        let path = transfer.source.display().to_string();
        let failed = Failed { path, why: format!("what {} held {LOST}", instance.id), bytes };
        Ok(Moved { failures: vec![failed], failures_count: 1, ..Moved::default() })
    }

    fn move_bytes(
        &self,
        transfer: &Transfer,
        instance: &Instance,
        live: &crate::node::Live,
    ) -> Result<Moved> {
        let mut told = |moved: &Moved| {
            moved.clone_into(&mut live.moved.lock());
        };
        match instance.mode {
            Mode::Cache => {
                let path = match transfer.direction {
                    Direction::In => transfer.destination.clone(),
                    Direction::Out => transfer.source.clone(),
                };
                let order = Order {
                    direction: transfer.direction,
                    what: transfer.what,
                    path,
                    options: &transfer.options,
                };
                self.hands.carry(&order, &live.stop, &mut told)
            }
            Mode::Private => {
                let staging = self.staging(transfer, instance)?;
                self.hands.stage(&staging, &live.stop, &mut told)
            }
            Mode::Swap => Err(Error::new(Kind::Usage, "swap holds no files")),
        }
    }

    fn staging<'a>(&self, transfer: &'a Transfer, instance: &Instance) -> Result<Staging<'a>> {
        let root = instance.mountpoint.clone().expect("a private instance shows somewhere");
        let kept = self.local.transfers()?.path().to_path_buf();
        let patience = self.config.busy_patience;
        let still = self.still_at(&transfer.id);
        Ok(Staging { transfer, root, kept, patience, still })
    }

    fn conclude(&self, transfer: &Transfer, instance: &Instance, moved: &Moved) -> Result<()> {
        let state = match (moved.cancelled, moved.failures_count) {
            (true, _) => TransferState::Cancelled,
            (false, 0) => TransferState::Done,
            (false, _) => TransferState::Failed,
        };
        if transfer.direction == Direction::Out {
            self.tell_missing(transfer, instance, moved)?;
        }
        let private = instance.mode == Mode::Private;
        if state == TransferState::Cancelled && private && moved.hangs.is_none() {
            // Files that could not be removed stay; no caller waits for that.
            if let Err(error) = self.hands.clean(&self.staging(transfer, instance)?) {
                tracing::warn!("transfer {}: removing what it left: {error}", transfer.id);
            }
        }
        let first = moved.failures.first();
        let why = first.map(|failed| format!("{}: {}", failed.path, failed.why));
        let why = moved.hangs.clone().or(moved.refused.clone()).or(why);
        let failed = failed_in(transfer, moved);
        let told = TransferActual { why, failed, ..told_of(transfer, moved, state) };
        self.tell_transfer(transfer, told)
    }

    /// Replaces a stage-out's lines in the manifest, those of an earlier attempt, by the files left
    /// behind now.
    pub(crate) fn tell_missing(
        &self,
        transfer: &Transfer,
        instance: &Instance,
        moved: &Moved,
    ) -> Result<()> {
        let mut failed = moved.failures.clone();
        if let Some(why) = &moved.refused {
            failed.push(self.all_of(transfer, instance, why));
        }
        if moved.cancelled && failed.is_empty() {
            failed.push(self.rest_of(transfer, instance, moved));
        }
        let lines = manifest::of_transfer(instance, &transfer.id, &failed);
        manifest::write(&self.book, &self.config.name, &instance.id, &transfer.id, &lines)
    }

    fn rest_of(&self, transfer: &Transfer, instance: &Instance, moved: &Moved) -> Failed {
        let why = moved.hangs.as_deref().unwrap_or("cancelled");
        if moved.files_total == 0 {
            return self.all_of(transfer, instance, why);
        }
        let files = counted(moved.files_total.saturating_sub(moved.files), "file");
        Failed {
            path: format!("{files} of {}", transfer.source.display()),
            why: why.into(),
            bytes: moved.bytes_total.saturating_sub(moved.bytes),
        }
    }

    /// The line of a transfer that has not even counted its files.
    fn all_of(&self, transfer: &Transfer, instance: &Instance, why: &str) -> Failed {
        let staging = (instance.mode == Mode::Private).then(|| self.staging(transfer, instance));
        // A cache lists its dirty files itself.
        let bytes = staging.and_then(Result::ok).map_or(0, |staging| self.hands.size_of(&staging));
        Failed { path: transfer.source.display().to_string(), why: why.into(), bytes }
    }

    /// Records that a transfer that is to end does not run.
    pub(crate) fn say_stopped(&self, transfer: &Transfer) -> Next {
        let key = keys::actual_transfer(&transfer.id);
        let told = self.book.read::<TransferActual>(&key);
        let running =
            told.is_ok_and(|told| told.is_some_and(|t| t.state == TransferState::Running));
        let instance = self.book.read::<Instance>(&keys::wanted_instance(&transfer.instance));
        let instance = instance.ok().flatten().filter(|instance| transfer.belongs_to(instance));
        if let (true, Some(instance)) = (running, &instance)
            && let Ok(staging) = self.staging(transfer, instance)
        {
            // An earlier daemon began it, or it stood still: its process may still be at work. This
            // needs no file, and the space need not be mounted.
            let live = self.lock_live().entry(transfer.id.clone()).or_default().clone();
            let moved = match instance.mode {
                Mode::Private => {
                    live.stop.now();
                    self.hands.stage(&staging, &live.stop, &mut |_| {})
                }
                _ => Ok(Moved { cancelled: true, ..Moved::default() }),
            };
            self.end_live(transfer);
            if let Err(error) = moved.and_then(|moved| self.conclude(transfer, instance, &moved)) {
                tracing::warn!("transfer {}: {error}", transfer.id);
                return Next::BackOff;
            }
            return Next::After(Duration::from_secs(3600));
        }
        let why = match transfer.want {
            TransferWant::Revoked => "revoked",
            _ => "cancelled before it began",
        };
        let actual = TransferActual {
            state: TransferState::Cancelled,
            why: Some(why.into()),
            ..nothing_moved(transfer)
        };
        match self.tell_transfer(transfer, actual) {
            Ok(()) => Next::After(Duration::from_secs(3600)),
            Err(_) => Next::BackOff,
        }
    }

    /// The progress of a transfer, as far as this daemon knows.
    fn moved_so_far(&self, transfer: &Transfer, state: TransferState) -> TransferActual {
        told_of(transfer, &self.still_at(&transfer.id).unwrap_or_default(), state)
    }

    pub(crate) fn tell_transfer(&self, transfer: &Transfer, actual: TransferActual) -> Result<()> {
        let key = keys::actual_transfer(&transfer.id);
        let told: Option<TransferActual> = self.book.read(&key)?;
        let same =
            told.is_some_and(|told| TransferActual { since: actual.since, ..told } == actual);
        if same { Ok(()) } else { self.book.put(&key, &actual) }
    }
}

fn leaves_cache(instance: &Instance) -> bool {
    instance.mode == Mode::Cache && instance.want != Want::Here
}

/// The files that a stage-in left; those of a stage-out are in the manifest.
fn failed_in(transfer: &Transfer, moved: &Moved) -> Vec<FailedFile> {
    let named = match transfer.direction {
        Direction::In => FAILED_NAMED_MAX,
        Direction::Out => 0,
    };
    let file = |path: &str, why: &str| FailedFile { path: path.into(), why: why.into() };
    let refused = moved.refused.iter().map(|why| file("/", why));
    let failed = moved.failures.iter().map(|failed| file(&failed.path, &failed.why));
    refused.chain(failed).take(named).collect()
}

pub(crate) fn nothing_moved(transfer: &Transfer) -> TransferActual {
    told_of(transfer, &Moved::default(), TransferState::Waiting)
}

fn told_of(transfer: &Transfer, moved: &Moved, state: TransferState) -> TransferActual {
    TransferActual {
        state,
        files: moved.files,
        bytes: moved.bytes,
        files_total: moved.files_total,
        bytes_total: moved.bytes_total,
        failures: moved.failures_count,
        why: None,
        since: now(),
        attempt: transfer.attempt,
        failed: Vec::new(),
        noted: moved.notes_count,
        notes: moved.notes.iter().take(NOTES_MAX).cloned().collect(),
        how: moved.how,
    }
}
