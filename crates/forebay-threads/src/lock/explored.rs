//! Locks as a schedule explorer has them, in tests that ask for it.
//!
//! An explored test runs in shuttle's tasks, one at a time, and each lock that is waited for, tried or let
//! go, each wait for a condition and each notification is a point at which another task may go on. Time
//! stands: until the test has seen what it wanted no wait runs out, so a wake-up that is lost is seen as steps without end.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Mutex, TryLockError, TryLockResult};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread::JoinHandle;
use shuttle::{Config, MaxSteps, Runner, current, thread};

use crate::lock::MutexGuard;

/// So many schedules of each kind: a few seconds at most.
const SCHEDULES: usize = 500;

/// Far more than any of the tests needs.
const STEPS: usize = 20_000;

/// Runs `test` under many schedules.
pub fn explore(test: impl Fn() + Clone + Send + Sync + 'static) {
    run(RandomScheduler::new(SCHEDULES), test.clone());
    run(PctScheduler::new(3, SCHEDULES), test);
}

thread_local! {
    /// The test has seen what it wanted: who is left, such as idle threads of a pool, may end.
    static SEEN: Cell<bool> = const { Cell::new(false) };
}

fn run(scheduler: impl Scheduler + 'static, test: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(STEPS);
    Runner::new(scheduler, config).run(move || {
        SEEN.set(false);
        test();
        SEEN.set(true);
    });
}

/// Another task, joined by who wants to see what it did.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::spawn(work)
}

/// Lets the others go on until it is so.
pub fn wait_until(it_is_so: impl Fn() -> bool) {
    while !it_is_so() {
        thread::yield_now();
    }
}

/// The task that runs, if it is explored.
pub fn task() -> Option<usize> {
    current::try_get_current_task().map(usize::from)
}

/// Another task may go on here.
pub fn point() {
    if task().is_some() && !std::thread::panicking() {
        thread::yield_now();
    }
}

/// Lets others go on until `free`: who holds a lock runs on the same thread.
pub(super) fn until(free: impl Fn() -> bool) {
    if task().is_none() {
        return;
    }
    thread::yield_now();
    while !free() {
        thread::yield_now();
    }
}

pub(super) fn is_free<G>(attempt: &TryLockResult<G>) -> bool {
    !matches!(attempt, Err(TryLockError::WouldBlock))
}

/// Who waits for a condition, in explored tasks.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<VecDeque<usize>>);

impl Queue {
    pub const fn new() -> Queue {
        Queue(Mutex::new(VecDeque::new()))
    }

    fn tasks(&self) -> std::sync::MutexGuard<'_, VecDeque<usize>> {
        self.0.lock().expect("no panic inside")
    }

    /// Also says whether the time has run out.
    pub fn wait<'a, T>(&self, task: usize, guard: MutexGuard<'a, T>) -> (MutexGuard<'a, T>, bool) {
        self.tasks().push_back(task);
        let of = guard.of;
        drop(guard);
        while self.tasks().contains(&task) && !SEEN.get() {
            thread::yield_now();
        }
        (of.lock(), SEEN.get())
    }

    pub fn notify_one(&self) {
        point();
        self.tasks().pop_front();
    }

    pub fn notify_all(&self) {
        point();
        self.tasks().clear();
    }
}
