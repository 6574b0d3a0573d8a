//! The kernel's switch for FUSE over io_uring. It is one for the machine: who changes it holds a
//! lock, and puts it back.

use std::fs::File;
use std::path::Path;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The switch, ours until dropped.
pub struct Switch {
    before: String,
    _lock: File,
}

impl Switch {
    /// Waits for the lock; `None` where the kernel has no such switch.
    pub fn take() -> Option<Switch> {
        let before = std::fs::read_to_string(SWITCH).ok()?;
        // Not in a place that a test removes; shared with `run`.
        let path = Path::new("/tmp/forebay-enable_uring.lock");
        let lock = File::options().create(true).append(true).open(path).expect("lock file");
        crate::sys::flock(&lock, libc::LOCK_EX).expect("the lock");
        let before = std::fs::read_to_string(SWITCH).unwrap_or(before);
        Some(Switch { before, _lock: lock })
    }

    pub fn set(&self, word: &str) {
        std::fs::write(SWITCH, word).expect("root may set the switch");
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = std::fs::write(SWITCH, self.before.trim());
    }
}

/// Takes the switch for a test, or leaves the test.
#[macro_export]
macro_rules! needs_ring {
    () => {{
        $crate::needs_forebay!();
        match $crate::Switch::take() {
            Some(switch) => switch,
            None => $crate::skip!("this kernel has no FUSE over io_uring"),
        }
    }};
}
