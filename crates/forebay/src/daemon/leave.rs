//! The end of the daemon: a client asks for it, a signal does, or a user unmounts. Dirty bytes are flushed
//! unless the client wants to keep them; bytes that stay dirty stay in the tier and are reported.
//!
//! One thread leaves at a time (`leaving`). A signal can cut its drain short (`drain`, `hurry`), and so can
//! an unmount that keeps dirty bytes: it waits for no drain.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use forebay_backing::{Error, Result};
use forebay_base::lock::{MutexGuard, sleep};
use forebay_engine::{KeepDirty, PERISHABLE, Progress, Report};

use super::jobs::Outcome;
use super::{Daemon, Event, spawn};
use crate::mounts::users_of;
use crate::units::{counted, human_secs, human_size};
use crate::wire::{JobKind, JobReport, Leave, NewJob, Phase};

/// The pause between two reports in the log about a drain.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// Programs that use the mount that are named.
const USERS_NAMED: usize = 5;

/// The pause between two tries for the turn to leave.
const TURN_LOOK: Duration = Duration::from_millis(50);

impl Daemon {
    /// Starts the job that drains, unmounts and ends the daemon; if it fails, the daemon stays.
    pub fn start_leave(self: &Arc<Daemon>, ask: &Leave) -> Result<u64> {
        let keep = if ask.keep_dirty { KeepDirty::Yes } else { KeepDirty::No };
        let timeout = ask.timeout_secs.map(|secs| Duration::from_secs_f64(secs.clamp(0.0, 1e9)));
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let grip = if ask.lazy { Grip::Last } else { Grip::Polite };
        let daemon = self.clone();
        self.jobs.start(NewJob::of(JobKind::Umount, Vec::new()), move |id, progress| {
            let keeper = matches!(keep, KeepDirty::Yes).then(|| Keeper::new(&daemon));
            let Some(_turn) = daemon.turn_in_time(keep, deadline, progress) else {
                drop(keeper);
                let report = Report { cancelled: true, ..Report::default() };
                let expired = !progress.is_cancelled();
                return daemon.called_off(&report, expired).expect("it was cancelled");
            };
            if daemon.engine_is_down() {
                return daemon.parting(keep, JobReport::default());
            }
            let outcome = daemon.leave(keep, grip, deadline, progress);
            if daemon.session_over.load(SeqCst) || daemon.engine_is_down() {
                daemon.settled(Some(id), outcome.exit_code);
            }
            outcome
        })
    }

    /// Waits for the turn to leave; `None` if the time is up or the job is cancelled before.
    fn turn_in_time(
        &self,
        keep: KeepDirty,
        deadline: Option<Instant>,
        progress: &Progress,
    ) -> Option<Turn<'_>> {
        loop {
            if let Some(turn) = self.leaving.try_lock_anyway() {
                return Some(Turn::new(self, turn));
            }
            if matches!(keep, KeepDirty::Yes) {
                self.cut_short();
            }
            if progress.is_cancelled() || deadline.is_some_and(|at| Instant::now() >= at) {
                return None;
            }
            sleep(TURN_LOOK);
        }
    }

    /// Stops the drain of the leaving thread at its next safe point.
    fn cut_short(&self) {
        if let Some(progress) = self.drain_slot().as_ref() {
            progress.cancel();
        }
    }

    /// The first signal drains and unmounts; the next one cuts the drain short.
    pub fn on_signal(self: &Arc<Daemon>, count: u32) {
        if count == 1 {
            let daemon = self.clone();
            spawn("leave", move || daemon.leave_by_signal());
            return;
        }
        self.hurry.store(true, SeqCst);
        self.cut_short();
    }

    /// Waits until the kernel reports that the mount is gone.
    pub fn watch_session(&self) {
        if let Ok(mount) = self.mount() {
            mount.wait();
        }
        self.session_over.store(true, SeqCst);
        // The send fails once the daemon has settled; then the event does not matter.
        let _ = self.events.send(Event::SessionOver);
    }

    /// Flushes dirty bytes after a user unmounted, and ends the daemon.
    pub fn leave_after_unmount(&self) {
        let _turn = self.turn();
        if self.engine_is_down() {
            return;
        }
        tracing::warn!("unmounted from outside; flushing what is dirty before ending");
        let _held = self.engine.drain.keep_holds();
        let exit_code = self.shut_down_logged();
        self.settled(None, exit_code);
    }

    fn leave_by_signal(&self) {
        let _turn = self.turn();
        if self.engine_is_down() {
            return;
        }
        // Jobs end, successfully or not, before all is flushed.
        let _held = self.engine.drain.keep_holds();
        if !self.hurry.load(SeqCst) {
            let progress = self.begin_drain();
            let report = logged(&progress, || self.engine.drain.flush(&[], &progress));
            log_failures(&report);
            // A signal, or an unmount that keeps dirty bytes, cut the drain short: the shutdown does not flush.
            if progress.is_cancelled() {
                self.hurry.store(true, SeqCst);
            }
        }
        if let Err(error) = self.unmount(Grip::Last) {
            tracing::error!("{error}");
        }
        let exit_code = self.shut_down_logged();
        self.settled(None, exit_code);
    }

    /// Drains, unmounts, shuts down. Until the unmount has succeeded, everything can be called off and
    /// the mount goes on serving.
    fn leave(
        &self,
        keep: KeepDirty,
        grip: Grip,
        deadline: Option<Instant>,
        progress: &Arc<Progress>,
    ) -> Outcome {
        let mut moved = JobReport::default();
        let _drain = matches!(keep, KeepDirty::No).then(|| DrainOf::new(self, progress));
        let _held = self.engine.drain.keep_holds();
        if matches!(keep, KeepDirty::No) {
            let (report, expired) =
                with_deadline(deadline, progress, || self.engine.drain.flush(&[], progress));
            moved = JobReport::from(&report);
            if let Some(outcome) = self.called_off(&report, expired) {
                return outcome;
            }
        }
        if let Err(error) = self.unmount(grip) {
            let exit_code = error.exit_code();
            return Outcome { report: moved, error: Some(error.to_string()), exit_code };
        }
        self.jobs.freeze();
        let report = self.engine.ops.shutdown(keep, progress, deadline);
        self.leave_cluster();
        self.down();
        moved.files += report.files;
        moved.bytes += report.bytes;
        moved.failures.extend(report.failures.iter().map(Into::into));
        self.parting(keep, moved)
    }

    /// The outcome of a drain after which the mount stays; `None` if the unmount can go on.
    fn called_off(&self, report: &Report, expired: bool) -> Option<Outcome> {
        let left = self.engine.ops.status();
        let (message, exit_code) = if expired {
            ("the time is up: still mounted, nothing is lost", 4)
        } else if report.cancelled && self.keepers.load(SeqCst) > 0 {
            ("called off for an unmount with --keep-dirty: nothing is lost", 4)
        } else if report.cancelled {
            ("cancelled: still mounted, nothing is lost", 130)
        } else if !report.failures.is_empty() {
            ("not everything could be flushed: still mounted", 4)
        } else {
            return None;
        };
        let message = format!(
            "{message}; {} in {} are dirty in the tier",
            human_size(left.dirty_bytes),
            counted(left.dirty_files, "file")
        );
        let report = JobReport {
            left_dirty_files: Some(left.dirty_files),
            left_dirty_bytes: Some(left.dirty_bytes),
            ..JobReport::from(report)
        };
        Some(Outcome { report, error: Some(message), exit_code })
    }

    /// The outcome of an unmount that succeeded.
    fn parting(&self, keep: KeepDirty, mut report: JobReport) -> Outcome {
        let left = self.engine.ops.status();
        report.left_dirty_files = Some(left.dirty_files);
        report.left_dirty_bytes = Some(left.dirty_bytes);
        let none_left = left.dirty_bytes + left.dirty_files + left.busy_files == 0;
        let perishable = report.failures.iter().filter(|failure| failure.state == PERISHABLE);
        if let Some(message) = perishes(perishable.count()) {
            let error = Some(format!("unmounted, but {message}"));
            return Outcome { report, error, exit_code: 4 };
        }
        if matches!(keep, KeepDirty::Yes) || none_left {
            return Outcome { report, error: None, exit_code: 0 };
        }
        let message = format!(
            "unmounted, but {} in {} stay dirty in the tier {}: mount it again, or `forebay \
             recover` it",
            human_size(left.dirty_bytes),
            counted(left.dirty_files, "file"),
            self.places.tier.display()
        );
        Outcome { report, error: Some(message), exit_code: 4 }
    }

    fn unmount(&self, grip: Grip) -> Result<()> {
        if self.session_over.load(SeqCst) {
            return Ok(());
        }
        let at = self.places.mountpoint.display();
        let mount = self.mount()?;
        match (mount.unmount(), grip) {
            (Ok(()), _) => {
                self.session_over.store(true, SeqCst);
                Ok(())
            }
            (Err(_), _) if self.session_over.load(SeqCst) => Ok(()),
            (Err(error), Grip::Polite) if error.is(libc::EBUSY) => {
                Err(Error::os(libc::EBUSY, self.in_use()))
            }
            (Err(error), Grip::Polite) => Err(error.context(format!("unmounting {at}"))),
            (Err(error), Grip::Last) => {
                tracing::warn!("unmounting {at}: {error}; detaching it");
                mount.detach()
            }
        }
    }

    /// The error of a mount in use. It names the users: the caller may be on another node, and cannot see them.
    fn in_use(&self) -> String {
        let by = match users_of(&self.places.mountpoint, USERS_NAMED) {
            users if users.is_empty() => String::new(),
            users => format!(" by {}", users.join(", ")),
        };
        let at = self.places.mountpoint.display();
        format!("{at} is in use{by}: close what is open in it and try again")
    }

    /// Gives back claims without dirty bytes, so that the other members need not wait for this one.
    fn leave_cluster(&self) {
        if let Some(member) = &self.member {
            member.leave();
        }
    }

    /// Shuts the engine down and logs its progress; returns the exit code.
    fn shut_down_logged(&self) -> u8 {
        let hurry = self.hurry.load(SeqCst);
        let keep = if hurry { KeepDirty::Yes } else { KeepDirty::No };
        self.jobs.freeze();
        let progress = self.begin_drain();
        let report = logged(&progress, || self.engine.ops.shutdown(keep, &progress, None));
        self.leave_cluster();
        self.down();
        log_failures(&report);
        let left = self.engine.ops.status();
        if left.dirty_bytes + left.dirty_files + left.busy_files == 0 {
            return 0;
        }
        let perishable = report.failures.iter().filter(|failure| failure.state == PERISHABLE);
        match perishes(perishable.count()) {
            Some(message) => tracing::error!("ended, but {message}"),
            None => tracing::warn!(
                dirty_bytes = left.dirty_bytes,
                dirty_files = left.dirty_files,
                "ended with dirty bytes; they are safe in the tier and are flushed by the next mount"
            ),
        }
        4
    }

    fn begin_drain(&self) -> Arc<Progress> {
        let progress = Arc::new(Progress::default());
        self.can_be_cut_short(&progress);
        progress
    }

    fn can_be_cut_short(&self, progress: &Arc<Progress>) {
        *self.drain_slot() = Some(progress.clone());
        // A signal that came before the slot was filled must still cancel the drain.
        if self.hurry.load(SeqCst) {
            progress.cancel();
        }
    }

    fn settled(&self, job: Option<u64>, exit_code: u8) {
        // The receiver lives until everything is settled.
        let _ = self.events.send(Event::Settled { job, exit_code });
    }

    /// The turn to leave. A panic in another thread's turn must not prevent the unmount, and the lock guards no data.
    #[track_caller]
    fn turn(&self) -> Turn<'_> {
        Turn::new(self, self.leaving.lock_anyway())
    }

    /// How far the daemon is from its end.
    pub fn phase(&self) -> Phase {
        match (self.session_over.load(SeqCst), self.is_leaving.load(SeqCst)) {
            (true, _) => Phase::Unmounted,
            (false, true) => Phase::Leaving,
            (false, false) => Phase::Serving,
        }
    }

    #[track_caller]
    fn drain_slot(&self) -> MutexGuard<'_, Option<Arc<Progress>>> {
        self.drain.lock()
    }

    fn down(&self) {
        self.engine_down.store(true, SeqCst);
    }

    fn engine_is_down(&self) -> bool {
        self.engine_down.load(SeqCst)
    }
}

/// The warning about files whose dirty bytes the tier could not make durable.
fn perishes(files: usize) -> Option<String> {
    (files > 0).then(|| {
        format!(
            "the tier could not make the dirty bytes of {} durable: mount it again, and flush, \
             before the machine is started anew",
            counted(files as u64, "file")
        )
    })
}

/// How forcibly to unmount.
#[derive(Clone, Copy)]
enum Grip {
    /// Fails while something is open in the mount.
    Polite,
    /// The process is about to end, so the mount goes even if something is open in it.
    Last,
}

/// The turn to leave; status says while this value lives that the daemon leaves.
struct Turn<'a> {
    daemon: &'a Daemon,
    _guard: MutexGuard<'a, ()>,
}

impl Turn<'_> {
    fn new<'a>(daemon: &'a Daemon, guard: MutexGuard<'a, ()>) -> Turn<'a> {
        daemon.is_leaving.store(true, SeqCst);
        Turn { daemon, _guard: guard }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.daemon.is_leaving.store(false, SeqCst);
    }
}

/// An unmount under way that keeps dirty bytes.
struct Keeper<'a>(&'a Daemon);

impl Keeper<'_> {
    fn new(daemon: &Daemon) -> Keeper<'_> {
        daemon.keepers.fetch_add(1, SeqCst);
        Keeper(daemon)
    }
}

impl Drop for Keeper<'_> {
    fn drop(&mut self) {
        self.0.keepers.fetch_sub(1, SeqCst);
    }
}

/// The drain of a job that leaves; other threads can cut it short while this value lives.
struct DrainOf<'a>(&'a Daemon);

impl DrainOf<'_> {
    fn new<'a>(daemon: &'a Daemon, progress: &Arc<Progress>) -> DrainOf<'a> {
        daemon.can_be_cut_short(progress);
        DrainOf(daemon)
    }
}

impl Drop for DrainOf<'_> {
    fn drop(&mut self) {
        // `lock_anyway`: this also runs while unwinding.
        *self.0.drain.lock_anyway() = None;
    }
}

/// Runs `work` and cancels it at the deadline; returns whether it was cancelled.
pub fn with_deadline<T>(
    deadline: Option<Instant>,
    progress: &Progress,
    work: impl FnOnce() -> T,
) -> (T, bool) {
    let Some(deadline) = deadline else { return (work(), false) };
    let expired = AtomicBool::new(false);
    let (done, over) = mpsc::channel::<()>();
    let result = thread::scope(|scope| {
        let expired = &expired;
        scope.spawn(move || {
            let left = deadline.saturating_duration_since(Instant::now());
            if over.recv_timeout(left) == Err(mpsc::RecvTimeoutError::Timeout) {
                expired.store(true, SeqCst);
                progress.cancel();
            }
        });
        let result = work();
        drop(done);
        result
    });
    (result, expired.into_inner())
}

/// Runs `work` and logs its progress now and then.
fn logged<T>(progress: &Progress, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let (done, over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while over.recv_timeout(REPORT_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                log_progress(progress, start.elapsed());
            }
        });
        let result = work();
        drop(done);
        result
    })
}

fn log_progress(progress: &Progress, elapsed: Duration) {
    let done = progress.done_bytes.load(SeqCst);
    let total = progress.total_bytes.load(SeqCst);
    tracing::info!(
        done_bytes = done,
        total_bytes = total,
        "draining: {} of {} in {}",
        human_size(done),
        human_size(total),
        human_secs(elapsed.as_secs_f64())
    );
}

fn log_failures(report: &Report) {
    for failure in &report.failures {
        tracing::error!(path = %failure.path.display(), state = failure.state, "{}", failure.error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_cancels_what_takes_longer_and_leaves_the_rest_alone() {
        let until_cancelled = |progress: &Progress| {
            while !progress.is_cancelled() {
                thread::yield_now();
            }
        };
        let progress = Progress::default();
        let soon = Instant::now() + Duration::from_millis(10);
        let ((), expired) = with_deadline(Some(soon), &progress, || until_cancelled(&progress));
        assert!(expired);

        let progress = Progress::default();
        let late = Instant::now() + Duration::from_secs(3600);
        let (value, expired) = with_deadline(Some(late), &progress, || 7);
        assert_eq!((value, expired, progress.is_cancelled()), (7, false, false));
    }
}
