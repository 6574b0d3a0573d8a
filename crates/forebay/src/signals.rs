//! Signals as plain values. A command polls whether it was interrupted; a daemon blocks them in
//! every thread and takes them in one.

use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use libc::{SIGHUP, SIGINT, SIGTERM, c_int, c_void, siginfo_t};

/// The last signal that was not taken yet; negative if the terminal sent it, 0 if there is none.
static LAST: AtomicI32 = AtomicI32::new(0);

/// A signal that interrupts a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupt {
    pub signal: c_int,
    pub from: From,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// A key press: all processes in the foreground of the terminal got the signal too.
    Terminal,
    Process,
}

extern "C" fn note(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler installed with SA_SIGINFO.
    let terminal = unsafe { (*info).si_code } == libc::SI_KERNEL;
    LAST.store(if terminal { -signal } else { signal }, Relaxed);
}

/// Makes SIGINT and SIGTERM set `LAST` instead of ending the process.
pub fn catch_interrupts() {
    for signal in [SIGINT, SIGTERM] {
        // SAFETY: the handler stores to an atomic, which is async-signal-safe; the action is
        // zeroed and then given a valid handler and an empty mask.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as *const () as usize;
            action.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// The last interrupt since the previous call, if any.
pub fn take_interrupt() -> Option<Interrupt> {
    match LAST.swap(0, Relaxed) {
        0 => None,
        signal if signal < 0 => Some(Interrupt { signal: -signal, from: From::Terminal }),
        signal => Some(Interrupt { signal, from: From::Process }),
    }
}

/// Makes a write beyond the file size limit (RLIMIT_FSIZE) fail with an error.
pub fn ignore_file_size() {
    // SAFETY: no handler is involved.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// The signals a daemon takes with [`Blocked::wait`].
pub struct Blocked(libc::sigset_t);

impl Blocked {
    /// Blocks SIGINT, SIGTERM and SIGHUP in this thread and every thread it starts later.
    pub fn new() -> Blocked {
        // SAFETY: the set is initialized by sigemptyset before it is used.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [SIGINT, SIGTERM, SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            Blocked(set)
        }
    }

    /// Waits for the next of these signals.
    pub fn wait(&self) -> c_int {
        let mut signal = 0;
        // SAFETY: both pointers are to live values.
        while unsafe { libc::sigwait(&self.0, &mut signal) } != 0 {}
        signal
    }
}

pub fn name(signal: c_int) -> &'static str {
    match signal {
        SIGINT => "SIGINT",
        SIGTERM => "SIGTERM",
        SIGHUP => "SIGHUP",
        _ => "signal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_is_taken_once() {
        catch_interrupts();
        // SAFETY: raises a signal that has a handler.
        unsafe { libc::raise(SIGINT) };
        assert_eq!(take_interrupt(), Some(Interrupt { signal: SIGINT, from: From::Process }));
        assert_eq!(take_interrupt(), None);
    }
}
