//! A task's process: its start, and its forced end.

use crate::interrupt;

/// Ends tasks that do not notice that the phase is over.
pub fn kill_all(children: &[(usize, libc::pid_t)]) {
    for &(_, pid) in children {
        // SAFETY: a child of this process, not yet reaped, so the id is still its own.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

/// Runs `work` in a fresh child and ends it without running the parent's exit handlers.
pub fn child(held: SignalsHeld, work: impl FnOnce()) -> ! {
    // SAFETY: asks the kernel to kill this process with its parent, and makes it the leader of a
    // session of its own. The scheduler shares processors among sessions first (autogroup), so on a
    // busy machine a task gets the share of a separate application.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::setsid();
    }
    interrupt::ignore();
    drop(held);
    work();
    // SAFETY: ends this process only (T3).
    unsafe { libc::_exit(0) }
}

/// Holds SIGINT and SIGTERM back until dropped.
pub struct SignalsHeld {
    before: libc::sigset_t,
}

impl SignalsHeld {
    pub fn new() -> Self {
        // SAFETY: the sets are valid for writing; only this thread's mask changes.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
            Self { before }
        }
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        // SAFETY: restores the mask saved in `new`.
        unsafe {
            libc::sigprocmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }
}
