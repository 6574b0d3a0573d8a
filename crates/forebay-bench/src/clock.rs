//! One clock for all tasks.

/// Nanoseconds of `CLOCK_MONOTONIC`: the same in every process of this machine.
#[inline]
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing; this clock always exists on Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Seconds since 1970.
pub fn wall_seconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

pub fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
