//! N tasks working on one phase: forked processes (the default) or threads.
//!
//! The parent only watches: it shows progress, passes Ctrl-C on as a stop flag, and notices a task
//! that failed or died. One `Team::run` is one phase; preparation of tasks before [`Task::start`]
//! is not measured.
//!
//! Invariants:
//! - T1: a task that dies, for whatever reason, ends the phase; no task waits for it at a barrier.
//! - T2: processes are forked while the parent has no other thread of the benchmark.
//! - T3: a child never returns from `run`, and never prints to standard output.

mod process;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::futex::{self, Barrier};
use crate::meter::Meter;
use crate::progress::Progress;
use crate::shared::{Plain, Shared};
use crate::{Error, Result, clock, interrupt};
use process::{SignalsHeld, child, kill_all};

/// How long tasks may take to notice that the phase is over before they are killed.
const GRACE: Duration = Duration::from_secs(20);
const WATCH: Duration = Duration::from_millis(100);
const MESSAGE: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    #[default]
    Processes,
    Threads,
}

/// The reason why a task is not running any more; `Running` is zero, as fresh shared memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum State {
    Running,
    Done,
    Failed,
    /// Ended because another task failed, or on Ctrl-C: not a failure of its own.
    Followed,
}

#[repr(C)]
struct Control {
    barrier: Barrier,
    stop: AtomicU32,
    /// Counts tasks that ended; the parent sleeps on it.
    ended: AtomicU32,
    began: AtomicU64,
}

#[repr(C)]
struct Slot {
    state: AtomicU32,
    len: AtomicU32,
    message: [AtomicU8; MESSAGE],
}

// SAFETY: atomics only; zero is a fresh barrier and nothing ended.
unsafe impl Plain for Control {}
// SAFETY: atomics only; zero is `State::Running` without a message.
unsafe impl Plain for Slot {}

impl Slot {
    fn close(&self, state: State, message: &str) {
        for (cell, byte) in self.message.iter().zip(message.bytes()) {
            cell.store(byte, SeqCst);
        }
        self.len.store(message.len().min(MESSAGE) as u32, SeqCst);
        self.state.store(state as u32, SeqCst);
    }

    fn is(&self, state: State) -> bool {
        self.state.load(SeqCst) == state as u32
    }

    fn message(&self) -> String {
        let len = self.len.load(SeqCst) as usize;
        let bytes: Vec<u8> = self.message[..len].iter().map(|cell| cell.load(SeqCst)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A task's view of its team.
pub struct Task<'a> {
    pub rank: usize,
    pub tasks: usize,
    control: &'a Control,
    meter: &'a Meter,
}

impl Task<'_> {
    /// Waits for all tasks; an error means that one of them will never come.
    pub fn barrier(&self) -> Result<()> {
        self.meet(|| ())
    }

    /// Waits for all tasks and returns the common moment the phase began, which is also where the
    /// meter's time series starts.
    pub fn start(&self) -> Result<u64> {
        self.meet(|| self.control.began.store(clock::now(), SeqCst))?;
        let began = self.control.began.load(SeqCst);
        self.meter.begin(began);
        Ok(began)
    }

    /// True once the phase should end early: Ctrl-C, a failure elsewhere, or [`Task::stop_all`].
    #[inline]
    pub fn stopping(&self) -> bool {
        self.control.stop.load(std::sync::atomic::Ordering::Relaxed) != 0
    }

    pub fn stop_all(&self) {
        self.control.stop.store(1, SeqCst);
    }

    pub fn meter(&self) -> &Meter {
        self.meter
    }

    fn meet(&self, last: impl FnOnce()) -> Result<()> {
        self.control.barrier.wait(self.tasks as u32, last).map_err(|_| Error::Interrupted)
    }
}

/// The result of a phase.
pub struct Outcome<R: Plain> {
    results: Shared<R>,
    meters: Shared<Meter>,
    /// The moment [`Task::start`] returned; 0 if it never did.
    pub began: u64,
    /// Whether Ctrl-C ended the phase early; results cover the work until then.
    pub interrupted: bool,
    /// Rank and message of each task that failed by itself.
    pub failures: Vec<(usize, String)>,
}

impl<R: Plain> Outcome<R> {
    /// The results, one per task, in order of rank.
    pub fn results(&self) -> &[R] {
        &self.results
    }

    /// The meters, one per task, in order of rank.
    pub fn meters(&self) -> &[Meter] {
        &self.meters
    }

    /// The failures as one error, if any.
    pub fn check(&self) -> Result<()> {
        let lines: Vec<String> =
            self.failures.iter().map(|(rank, message)| format!("task {rank}: {message}")).collect();
        if lines.is_empty() { Ok(()) } else { Err(Error::failed(lines.join("\n"))) }
    }
}

pub struct Team {
    tasks: usize,
    kind: Kind,
    progress: Option<Progress>,
}

impl Team {
    pub fn new(tasks: usize, kind: Kind) -> Self {
        Self { tasks, kind, progress: None }
    }

    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Runs `body` once per task, each with a zeroed `R` of its own, and waits for all of them.
    pub fn run<R: Plain>(
        mut self,
        body: impl Fn(&Task<'_>, &R) -> Result<()> + Sync,
    ) -> Outcome<R> {
        let ground = Ground {
            control: Shared::new(1),
            slots: Shared::new(self.tasks),
            results: Shared::new(self.tasks),
            meters: Shared::new(self.tasks),
        };
        match self.kind {
            Kind::Processes => self.fork_all(&ground, &body),
            Kind::Threads => std::thread::scope(|scope| {
                for rank in 0..self.tasks {
                    let (ground, body) = (&ground, &body);
                    scope.spawn(move || ground.work(rank, body));
                }
                self.watch(&ground, &mut Vec::new());
            }),
        }
        if let Some(progress) = &mut self.progress {
            progress.finish();
        }
        ground.outcome()
    }

    fn fork_all<R: Plain>(&mut self, ground: &Ground<R>, body: &Body<'_, R>) {
        let mut children = Vec::new();
        // A child must not receive Ctrl-C between its fork and the moment when it ignores the
        // signal.
        let held = SignalsHeld::new();
        for rank in 0..self.tasks {
            // SAFETY: the child only runs `work` and leaves by `_exit` (T2, T3).
            match unsafe { libc::fork() } {
                0 => child(held, || ground.work(rank, body)),
                -1 => ground.give_up(rank, "cannot fork; use fewer tasks or --threads"),
                pid => children.push((rank, pid)),
            }
        }
        drop(held);
        self.watch(ground, &mut children);
        for (_, pid) in children {
            // SAFETY: waits for a child of this process; no status wanted.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        }
    }

    /// Returns when every task has ended, which the grace period makes certain for processes.
    fn watch<R: Plain>(&mut self, ground: &Ground<R>, children: &mut Vec<(usize, libc::pid_t)>) {
        let control = &ground.control[0];
        let mut stop_seen: Option<Instant> = None;
        loop {
            let ended = control.ended.load(SeqCst);
            if ended as usize >= self.tasks {
                return;
            }
            futex::wait(&control.ended, ended, WATCH);
            children.retain(|&(rank, pid)| !ground.buried(rank, pid));
            if interrupt::seen() {
                control.stop.store(1, SeqCst);
            }
            if control.stop.load(SeqCst) != 0
                && stop_seen.get_or_insert_with(Instant::now).elapsed() > GRACE
            {
                kill_all(children);
            }
            if let Some(progress) = &mut self.progress {
                let sum = |of: fn(&Meter) -> u64| ground.meters.iter().map(of).sum();
                progress.tick(sum(Meter::bytes), sum(Meter::ops));
            }
        }
    }
}

type Body<'a, R> = dyn Fn(&Task<'_>, &R) -> Result<()> + Sync + 'a;

/// The shared memory of one phase.
struct Ground<R: Plain> {
    control: Shared<Control>,
    slots: Shared<Slot>,
    results: Shared<R>,
    meters: Shared<Meter>,
}

impl<R: Plain> Ground<R> {
    fn work(&self, rank: usize, body: &Body<'_, R>) {
        let task = Task {
            rank,
            tasks: self.slots.len(),
            control: &self.control[0],
            meter: &self.meters[rank],
        };
        match catch_unwind(AssertUnwindSafe(|| body(&task, &self.results[rank]))) {
            Ok(Ok(())) => self.end(rank, State::Done, ""),
            Ok(Err(Error::Interrupted)) => self.end(rank, State::Followed, ""),
            Ok(Err(error)) => self.give_up(rank, &error.to_string()),
            Err(_) => self.give_up(rank, "panicked; its message is above"),
        }
    }

    fn end(&self, rank: usize, state: State, message: &str) {
        self.slots[rank].close(state, message);
        self.control[0].ended.fetch_add(1, SeqCst);
        futex::wake_all(&self.control[0].ended);
    }

    /// Ends a task as failed, and with it the phase (T1).
    fn give_up(&self, rank: usize, message: &str) {
        self.control[0].stop.store(1, SeqCst);
        self.control[0].barrier.shatter();
        self.end(rank, State::Failed, message);
    }

    /// Reaps `pid` if it is gone, whether it ended by itself or was killed.
    fn buried(&self, rank: usize, pid: libc::pid_t) -> bool {
        let mut status = 0;
        // SAFETY: polls a child of this process.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } != pid {
            return false;
        }
        if self.slots[rank].is(State::Running) {
            let how = match libc::WIFSIGNALED(status) {
                true => format!("died of signal {}", libc::WTERMSIG(status)),
                false => format!("exited with {} half way", libc::WEXITSTATUS(status)),
            };
            self.give_up(rank, &how);
        }
        true
    }

    fn outcome(self) -> Outcome<R> {
        let failed = self.slots.iter().enumerate().filter(|(_, slot)| slot.is(State::Failed));
        Outcome {
            began: self.control[0].began.load(SeqCst),
            interrupted: interrupt::seen(),
            failures: failed.map(|(rank, slot)| (rank, slot.message())).collect(),
            results: self.results,
            meters: self.meters,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 2] = [Kind::Processes, Kind::Threads];

    #[test]
    fn every_task_leaves_its_result_and_its_meter() {
        for kind in KINDS {
            let outcome = Team::new(3, kind).run(|task: &Task<'_>, own: &AtomicU64| {
                let began = task.start()?;
                own.store(task.rank as u64 + 10, SeqCst);
                task.meter().record(began, began + 5, 100);
                task.barrier()
            });
            assert_eq!(outcome.check(), Ok(()), "{kind:?}");
            let results: Vec<u64> = outcome.results().iter().map(|r| r.load(SeqCst)).collect();
            assert_eq!(results, [10, 11, 12]);
            assert_eq!(crate::meter::Total::of(outcome.meters()).bytes, 300);
            assert!(outcome.began > 0);
        }
    }

    /// T1: the other tasks wait at a barrier for a task that fails, panics, or is killed.
    #[test]
    fn a_task_that_ends_early_does_not_hang_the_others() {
        for kind in KINDS {
            let outcome = Team::new(4, kind).run(|task: &Task<'_>, (): &()| {
                if task.rank == 2 {
                    return Err(Error::failed("disk on fire"));
                }
                task.barrier()
            });
            assert_eq!(outcome.failures, [(2, "disk on fire".to_owned())], "{kind:?}");
        }
        let outcome = Team::new(4, Kind::Processes).run(|task: &Task<'_>, (): &()| {
            if task.rank == 1 {
                // SAFETY: kills this very process.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            task.barrier()
        });
        assert_eq!(outcome.failures, [(1, "died of signal 9".to_owned())]);
    }

    #[test]
    fn one_task_can_stop_all() {
        for kind in KINDS {
            let outcome = Team::new(2, kind).run(|task: &Task<'_>, (): &()| {
                task.start()?;
                if task.rank == 0 {
                    task.stop_all();
                }
                while !task.stopping() {
                    std::thread::yield_now();
                }
                task.barrier()
            });
            assert!(outcome.failures.is_empty() && !outcome.interrupted);
        }
    }
}
