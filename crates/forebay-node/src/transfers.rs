//! Transfers on this node: which one is to be carried out now, and what an instance waits for before
//! it goes.

use forebay_base::units::counted;
use forebay_base::{Error, Kind, Result};

use crate::crew::Next;
use crate::desk::now;
use crate::hands::{Failed, Moved, Order, Staging};
use crate::manifest;
use crate::node::Node;
use crate::records::{
    Direction, FAILED_NAMED_MAX, FailedFile, Instance, Missing, Mode, State, Transfer,
    TransferActual, TransferState, TransferWant, Want, When, keys,
};
use std::time::Duration;

/// What is to be done about a transfer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// It is to end where it is.
    Stop,
    Carry,
}

/// What an instance that is to go waits for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Before {
    Nothing,
    Wait(String),
}

/// Pure: what the records of a transfer and of its instance say.
pub(crate) fn decide(
    transfer: &Transfer,
    actual: Option<&TransferActual>,
    instance: Option<&Instance>,
) -> Step {
    let of_this_attempt = actual.filter(|actual| actual.attempt == transfer.attempt);
    if of_this_attempt.is_some_and(|actual| actual.state.has_ended()) {
        return Step::Nothing;
    }
    let Some(instance) = instance else { return Step::Stop };
    // What was to be done in a hurry stays where it is, until somebody takes it up again.
    let hurried = instance.want == Want::GoneInHurry && transfer.attempt == 0;
    if transfer.want != TransferWant::Done || hurried {
        return Step::Stop;
    }
    match (transfer.when, transfer.direction, instance.want) {
        (When::AtEnd, _, Want::Here) => Step::Nothing,
        // It would fill what is about to go.
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
                let actual = TransferActual {
                    state: TransferState::Waiting,
                    why: Some(error.to_string()),
                    ..nothing_moved(transfer)
                };
                // If not even that can be told, the next turn will.
                let _ = self.tell_transfer(transfer, actual);
                Next::BackOff
            }
        }
    }

    fn carry(&self, transfer: &Transfer, instance: &Instance) -> Result<Next> {
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
        let running = TransferActual { state: TransferState::Running, ..nothing_moved(transfer) };
        self.tell_transfer(transfer, running)?;
        let live = self.begin_live(&transfer.id);
        let moved = self.move_bytes(transfer, instance, &live);
        self.end_live(&transfer.id);
        let moved = match moved {
            // It goes on, and the next daemon hears how it ended.
            Err(error) if error.kind() == Kind::Interrupted => return Ok(Next::BackOff),
            moved => moved?,
        };
        self.conclude(transfer, instance, &moved)?;
        Ok(Next::After(Duration::from_secs(3600)))
    }

    fn move_bytes(
        &self,
        transfer: &Transfer,
        instance: &Instance,
        live: &crate::node::Live,
    ) -> Result<Moved> {
        let mut told = |moved: &Moved| {
            moved.clone_into(&mut live.moved.lock().unwrap_or_else(|e| e.into_inner()));
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
        Ok(Staging { transfer, root, kept })
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
        if state == TransferState::Cancelled && instance.mode == Mode::Private {
            self.hands.clean(&self.staging(transfer, instance)?)?;
        }
        let first = moved.failures.first();
        let why = first.map(|failed| format!("{}: {}", failed.path, failed.why));
        self.tell_transfer(
            transfer,
            TransferActual {
                state,
                files: moved.files,
                bytes: moved.bytes,
                files_total: moved.files_total,
                bytes_total: moved.bytes_total,
                failures: moved.failures_count,
                why,
                since: now(),
                attempt: transfer.attempt,
                failed: failed_in(transfer, moved),
            },
        )
    }

    /// Puts what a stage-out left behind into the manifest, in place of what an earlier attempt did.
    fn tell_missing(&self, transfer: &Transfer, instance: &Instance, moved: &Moved) -> Result<()> {
        let (me, id) = (&self.config.name, &instance.id);
        let all: Vec<(String, Missing)> = self.book.list(&keys::manifest_of(me, id))?;
        let others = all.into_iter().map(|(_, line)| line);
        let mut lines: Vec<Missing> =
            others.filter(|line| line.transfer.as_deref() != Some(&transfer.id)).collect();
        let mut failed = moved.failures.clone();
        if moved.cancelled && failed.is_empty() {
            let (files, bytes) = (
                moved.files_total.saturating_sub(moved.files),
                moved.bytes_total.saturating_sub(moved.bytes),
            );
            failed.push(Failed {
                path: format!("{} of {}", counted(files, "file"), transfer.source.display()),
                why: "cancelled".into(),
                bytes,
            });
        }
        lines.extend(manifest::of_transfer(instance, &transfer.id, &failed, None));
        manifest::replace(&self.book, me, id, &lines)
    }

    /// A transfer that is to end and does not run.
    pub(crate) fn say_stopped(&self, transfer: &Transfer) -> Next {
        let key = keys::actual_transfer(&transfer.id);
        let told = self.book.read::<TransferActual>(&key);
        let running =
            told.is_ok_and(|told| told.is_some_and(|t| t.state == TransferState::Running));
        let instance = self.book.read::<Instance>(&keys::wanted_instance(&transfer.instance));
        if let (true, Ok(Some(instance))) = (running, &instance)
            && let Ok(staging) = self.staging(transfer, instance)
        {
            // An earlier daemon began it, and its process may still be at work.
            let live = self.begin_live(&transfer.id);
            live.stop.now();
            let moved = match instance.mode {
                Mode::Private => self.hands.stage(&staging, &live.stop, &mut |_| {}),
                _ => Ok(Moved { cancelled: true, ..Moved::default() }),
            };
            self.end_live(&transfer.id);
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

    fn tell_transfer(&self, transfer: &Transfer, actual: TransferActual) -> Result<()> {
        let key = keys::actual_transfer(&transfer.id);
        let told: Option<TransferActual> = self.book.read(&key)?;
        let same =
            told.is_some_and(|told| TransferActual { since: actual.since, ..told } == actual);
        if same { Ok(()) } else { self.book.put(&key, &actual) }
    }

    /// T3. What of its transfers an instance waits for before it goes.
    pub(crate) fn before_leaving(&self, instance: &Instance) -> Result<Before> {
        let all = self.desk().transfers()?;
        let here = all.into_iter().filter(|(transfer, _)| {
            transfer.instance == instance.id && transfer.node == self.config.name
        });
        let mut waits = Vec::new();
        for (transfer, actual) in here {
            let current = actual.as_ref().filter(|actual| actual.attempt == transfer.attempt);
            match current.map(|actual| actual.state) {
                Some(TransferState::Done) => {}
                Some(TransferState::Failed | TransferState::Cancelled) => {
                    waits.extend(self.kept_for(&transfer, instance)?);
                }
                Some(TransferState::Running) => {
                    waits.push(format!("transfer {} runs", transfer.id))
                }
                Some(TransferState::Waiting) | None => {
                    waits.push(format!("transfer {} is still to be carried out", transfer.id));
                }
            }
        }
        Ok(match waits.is_empty() {
            true => Before::Nothing,
            false => Before::Wait(waits.join("; ")),
        })
    }

    /// What a stage-out that ended without being done holds the instance for. Nothing if it was revoked,
    /// or if its time is over.
    fn kept_for(&self, transfer: &Transfer, instance: &Instance) -> Result<Option<String>> {
        if transfer.direction == Direction::In || transfer.want == TransferWant::Revoked {
            return Ok(None);
        }
        if instance.mode == Mode::Cache {
            // What is dirty is brought home anyway (T2).
            return Ok(None);
        }
        let prefix = keys::manifest_of(&self.config.name, &instance.id);
        let lines: Vec<(String, Missing)> = self.book.list(&prefix)?;
        let of_it = lines.iter().filter(|(_, line)| line.transfer.as_deref() == Some(&transfer.id));
        let (count, since) = of_it
            .fold((0u64, u64::MAX), |(count, since), (_, line)| (count + 1, since.min(line.since)));
        if count == 0 {
            // It was told to hurry before it began, and so has no lines yet.
            return self.keep_unbegun(transfer, instance).map(Some);
        }
        if instance.want != Want::GoneInHurry {
            return Ok(Some(format!(
                "{} of transfer {} are not home: see `forebay manifest`; then `forebay stage resume {}`, \
                 `forebay stage revoke {}`, or `forebay instance destroy {} --hurry`",
                counted(count, "file"),
                transfer.id,
                transfer.id,
                transfer.id,
                instance.id
            )));
        }
        let until = since.saturating_add(self.config.keep_after_hurry.as_secs());
        if now() < until {
            let left = Duration::from_secs(until - now());
            return Ok(Some(format!(
                "{} of transfer {} are not home and are kept for {}: `forebay stage resume {}`",
                counted(count, "file"),
                transfer.id,
                forebay_base::units::human_secs(left.as_secs_f64()),
                transfer.id
            )));
        }
        self.drop_with_record(transfer, &lines)?;
        Ok(None)
    }

    fn keep_unbegun(&self, transfer: &Transfer, instance: &Instance) -> Result<String> {
        let failed = Failed {
            path: transfer.source.display().to_string(),
            why: "told to hurry before it was done".into(),
            bytes: 0,
        };
        let moved = Moved { failures: vec![failed], failures_count: 1, ..Moved::default() };
        self.tell_missing(transfer, instance, &moved)?;
        Ok(format!("transfer {} is not home", transfer.id))
    }

    /// The promise to keep what was told to hurry is over: what it was stays on record.
    fn drop_with_record(&self, transfer: &Transfer, lines: &[(String, Missing)]) -> Result<()> {
        let key = keys::actual_transfer(&transfer.id);
        let Some(told) = self.book.read::<TransferActual>(&key)? else { return Ok(()) };
        let files = counted(lines.len() as u64, "file");
        let why = format!("dropped after keep-after-hurry: {files} not home");
        tracing::warn!("transfer {}: {why}", transfer.id);
        self.tell_transfer(transfer, TransferActual { why: Some(why), since: now(), ..told })
    }
}

/// What a stage-in left; what a stage-out did is in the manifest.
fn failed_in(transfer: &Transfer, moved: &Moved) -> Vec<FailedFile> {
    let named = match transfer.direction {
        Direction::In => FAILED_NAMED_MAX,
        Direction::Out => 0,
    };
    let file = |failed: &Failed| FailedFile { path: failed.path.clone(), why: failed.why.clone() };
    moved.failures.iter().take(named).map(file).collect()
}

fn nothing_moved(transfer: &Transfer) -> TransferActual {
    TransferActual {
        state: TransferState::Waiting,
        files: 0,
        bytes: 0,
        files_total: 0,
        bytes_total: 0,
        failures: 0,
        why: None,
        since: now(),
        attempt: transfer.attempt,
        failed: Vec::new(),
    }
}
