//! Locks under a schedule explorer, in debug builds, where a test has registered one.
//!
//! An explored test runs in the explorer's tasks, one at a time. Each lock that is waited for, tried or released,
//! each wait for a condition and each notification is a point at which another task may go on. Time stands: no wait
//! runs out until the test has seen what it waits for, so a lost wake-up shows as steps without end.

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock, TryLockError, TryLockResult};

use crate::lock::MutexGuard;

/// Runs tasks one at a time on one thread.
pub trait Explorer: Sync {
    /// The task that runs, if this thread is explored.
    fn task(&self) -> Option<usize>;
    /// Another task may go on here.
    fn give_way(&self);
    /// Whether the test has seen what it waits for: the remaining tasks, such as idle threads of a pool, may end.
    fn has_seen(&self) -> bool;
}

static EXPLORER: OnceLock<&'static dyn Explorer> = OnceLock::new();

/// From now on the explorer controls this process's locks, in its own tasks. The first explorer stays.
pub fn explore_by(explorer: &'static dyn Explorer) {
    let _ = EXPLORER.set(explorer);
}

/// The explorer, with its running task.
fn explored() -> Option<(&'static dyn Explorer, usize)> {
    let explorer = *EXPLORER.get()?;
    explorer.task().map(|task| (explorer, task))
}

/// The task that runs, if it is explored.
pub fn task() -> Option<usize> {
    explored().map(|(_, task)| task)
}

/// A point at which another task may go on.
pub fn point() {
    if let Some((explorer, _)) = explored().filter(|_| !std::thread::panicking()) {
        explorer.give_way();
    }
}

/// Lets other tasks go on until `free` holds: the holder of a lock runs on the same thread.
pub(super) fn until(free: impl Fn() -> bool) {
    let Some((explorer, _)) = explored() else { return };
    explorer.give_way();
    while !free() {
        explorer.give_way();
    }
}

pub(super) fn is_free<G>(attempt: &TryLockResult<G>) -> bool {
    !matches!(attempt, Err(TryLockError::WouldBlock))
}

/// The explored tasks that wait for a condition.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<VecDeque<usize>>);

impl Queue {
    pub const fn new() -> Queue {
        Queue(Mutex::new(VecDeque::new()))
    }

    fn tasks(&self) -> std::sync::MutexGuard<'_, VecDeque<usize>> {
        self.0.lock().expect("no panic inside")
    }

    /// If the thread is explored: the guard again after a notification, or once the time has run out.
    pub fn wait<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
    ) -> std::result::Result<(MutexGuard<'a, T>, bool), MutexGuard<'a, T>> {
        let Some((explorer, task)) = explored() else { return Err(guard) };
        self.tasks().push_back(task);
        let of = guard.of;
        drop(guard);
        while self.tasks().contains(&task) && !explorer.has_seen() {
            explorer.give_way();
        }
        Ok((of.lock(), explorer.has_seen()))
    }

    pub fn notify_one(&self) {
        if task().is_some() {
            point();
            self.tasks().pop_front();
        }
    }

    pub fn notify_all(&self) {
        if task().is_some() {
            point();
            self.tasks().clear();
        }
    }
}
