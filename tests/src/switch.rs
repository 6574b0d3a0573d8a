//! The kernel's switch for FUSE over io_uring. There is one for the whole machine: a test that
//! changes it holds a lock, and restores it.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The switch, held until dropped.
pub struct Switch {
    before: String,
    _lock: File,
}

impl Switch {
    /// Waits for the lock; `None` where the kernel has no such switch, or this process may not use
    /// io_uring.
    pub fn take() -> Option<Switch> {
        let before = std::fs::read_to_string(SWITCH).ok()?;
        if !may_make_rings() || !may_run_everywhere() {
            return None;
        }
        // The lock is not in a place that a test removes; it is shared with `run`.
        let path = Path::new("/run/forebay-enable_uring.lock");
        let lock = File::options().create(true).append(true).open(path).expect("lock file");
        crate::within(Duration::from_secs(600), "the switch is free", || {
            crate::sys::flock(&lock, libc::LOCK_EX | libc::LOCK_NB).is_ok()
        });
        let before = std::fs::read_to_string(SWITCH).unwrap_or(before);
        Some(Switch { before, _lock: lock })
    }

    pub fn set(&self, word: &str) {
        std::fs::write(SWITCH, word).expect("root may set the switch");
    }
}

/// Whether io_uring works: a container may forbid it.
fn may_make_rings() -> bool {
    let mut params = [0_u64; 15];
    // SAFETY: `struct io_uring_params` has 120 bytes, and zeros ask for nothing special.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    if fd >= 0 {
        // SAFETY: the descriptor was just made, and nothing else knows it.
        unsafe { libc::close(fd as i32) };
    }
    fd >= 0
}

/// Whether all processors are usable: a container may be given some only, and then the daemon uses
/// /dev/fuse.
fn may_run_everywhere() -> bool {
    let mine = rustix::thread::sched_getaffinity(None).map_or(0, |set| set.count() as usize);
    let online = std::fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let is_cpu = |name: &str| name.strip_prefix("cpu").is_some_and(|n| n.parse::<usize>().is_ok());
    let there = online.filter(|entry| {
        let on = std::fs::read_to_string(entry.path().join("online"));
        is_cpu(&entry.file_name().to_string_lossy()) && on.map_or(true, |word| word.trim() == "1")
    });
    mine >= there.count()
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
            None => $crate::skip!("no FUSE over io_uring here"),
        }
    }};
}
