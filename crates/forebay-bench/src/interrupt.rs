//! Ctrl-C and SIGTERM: noticed, not obeyed at once, so that files can be removed and results printed.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

static SEEN: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: libc::c_int) {
    // A second one means the clean end takes too long for the user. `_exit` is signal-safe.
    if SEEN.swap(true, SeqCst) {
        // SAFETY: ends the process without running anything.
        unsafe { libc::_exit(130) };
    }
}

/// Turns SIGINT and SIGTERM into [`seen`]; a second one ends the process at once.
pub fn install() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: `note` only touches an atomic. No SA_RESTART: waits shall end early.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as *const () as usize;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Makes this process deaf to Ctrl-C; its parent tells it when to stop.
pub(crate) fn ignore() {
    // SAFETY: setting a disposition to SIG_IGN runs no code.
    unsafe {
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        libc::signal(libc::SIGTERM, libc::SIG_DFL);
    }
}

pub fn seen() -> bool {
    SEEN.load(SeqCst)
}

/// Sleeps, but not through an interruption; false if there was one.
pub fn sleep(seconds: f64) -> bool {
    let end = std::time::Instant::now() + std::time::Duration::from_secs_f64(seconds.max(0.0));
    while !seen() {
        let left = end.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(std::time::Duration::from_millis(100)));
    }
    false
}
