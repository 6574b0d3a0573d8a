//! Ctrl-C and SIGTERM: noted, not obeyed at once, so that files can be removed and results printed.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::clock;

/// When the first signal came; 0 if none did.
static FIRST: AtomicU64 = AtomicU64::new(0);

/// `timeout` signals the process and then its group, which counts as one request: a person's second
/// request comes later.
const ONE_REQUEST: u64 = 300_000_000;

extern "C" fn note(_signal: libc::c_int) {
    // Both the clock and `_exit` are signal-safe.
    let now = clock::now();
    let first = FIRST.compare_exchange(0, now, SeqCst, SeqCst);
    // A second request means the clean end takes too long for the user.
    if first.is_err_and(|first| now.saturating_sub(first) > ONE_REQUEST) {
        // SAFETY: ends the process without running anything.
        unsafe { libc::_exit(130) };
    }
}

/// Turns SIGINT and SIGTERM into [`seen`]; another one, a moment later, ends the process at once.
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

/// Makes this process ignore Ctrl-C; its parent tells it when to stop.
pub(crate) fn ignore() {
    // SAFETY: setting a disposition to SIG_IGN runs no code.
    unsafe {
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        libc::signal(libc::SIGTERM, libc::SIG_DFL);
    }
}

pub fn seen() -> bool {
    FIRST.load(SeqCst) != 0
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
