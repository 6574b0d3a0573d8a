//! Waiting for a condition, never for a time.

use std::time::{Duration, Instant};

/// Longer than any operation that ends takes, on however busy a machine. Costs nothing where a test
/// passes.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Polls `done` until it holds; panics with `what` after `limit`.
#[track_caller]
pub fn within(limit: Duration, what: &str, done: impl FnMut() -> bool) {
    assert!(eventually(limit, done), "not within {limit:?}: {what}");
}

/// Polls `done` until it holds; false after `limit`.
pub fn eventually(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// The duration of the long versions, if they are asked for.
pub fn soak() -> Option<Duration> {
    let seconds = std::env::var("FOREBAY_SOAK").ok()?;
    Some(Duration::from_secs(seconds.parse().expect("FOREBAY_SOAK is a number of seconds")))
}

/// The seed of a test: its own, moved on by `FOREBAY_SEED`.
pub fn seed(own: u64) -> u64 {
    let more = std::env::var("FOREBAY_SEED")
        .map_or(0, |text| text.parse::<u64>().expect("FOREBAY_SEED is a number"));
    own.wrapping_add(more.wrapping_mul(1_000_003))
}
