//! What an engine is told at start, and what can be changed while it runs.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// When a write reaches the backing store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WritePolicy {
    /// Lands in the fast tier, is flushed later.
    WriteBack,
    /// Lands in the fast tier and is flushed before close returns; fsync means the backing store.
    WriteThrough,
    /// Goes to the backing store at once; the fast tier holds only what was read.
    WriteAround,
}

/// Fixed for the life of an engine.
#[derive(Debug, Clone)]
pub struct Config {
    pub policy: WritePolicy,
    /// Refuse every change; nothing can become dirty.
    pub read_only: bool,
    /// Bytes the tier may occupy. `None`: what its file system has, less 5 %.
    pub tier_size: Option<u64>,
    /// Names remembered after the kernel forgot them.
    pub names_max: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            policy: WritePolicy::WriteBack,
            read_only: false,
            tier_size: None,
            names_max: 1_000_000,
        }
    }
}

/// Changeable while the engine runs. Watermarks are shares of the tier's size in percent, with
/// `dirty_low <= dirty_high <= dirty_hard <= used_high`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tunables {
    /// A dirty byte is flushed once it is this old.
    pub max_age: Duration,
    /// Flushing by level stops below this share of dirty bytes.
    pub dirty_low: u8,
    /// Flushing by level starts above this share.
    pub dirty_high: u8,
    /// Above this share writers are slowed down.
    pub dirty_hard: u8,
    /// Above this share of used bytes clean extents are evicted.
    pub used_high: u8,
    /// Cap on the drain in bytes per second; 0 is none.
    pub rate_max: u64,
    /// Copies to the backing store in flight at once (1 to 64).
    pub flush_depth: u32,
    /// Fills from the backing store in flight at once (1 to 64).
    pub fill_depth: u32,
    /// Read ahead of a sequential reader at most this many bytes.
    pub readahead: u64,
    /// A cached file's attributes are believed this long after they were checked. Zero checks at
    /// every open.
    pub revalidate: Duration,
    /// A call to the backing store that takes longer than this fails for its caller (S10).
    pub backing_timeout: Duration,
}

impl Default for Tunables {
    fn default() -> Tunables {
        Tunables {
            max_age: Duration::from_secs(30),
            dirty_low: 20,
            dirty_high: 50,
            dirty_hard: 80,
            used_high: 90,
            rate_max: 0,
            flush_depth: 16,
            fill_depth: 16,
            readahead: 16 << 20,
            revalidate: Duration::ZERO,
            backing_timeout: Duration::from_secs(30),
        }
    }
}

impl Tunables {
    /// Checks ranges and order; the message names the field, its value and what is allowed.
    pub fn validate(&self) -> Result<(), String> {
        let marks = [
            ("dirty-low", self.dirty_low),
            ("dirty-high", self.dirty_high),
            ("dirty-hard", self.dirty_hard),
            ("used-high", self.used_high),
        ];
        for pair in marks.windows(2) {
            let ((low, l), (high, h)) = (pair[0], pair[1]);
            if l > h {
                return Err(format!(
                    "{low} ({l}%) is above {high} ({h}%): lower {low} or raise {high}"
                ));
            }
        }
        if self.used_high > 98 {
            return Err(format!("used-high is {}%: choose at most 98%", self.used_high));
        }
        for (name, depth) in [("flush-depth", self.flush_depth), ("fill-depth", self.fill_depth)] {
            if !(1..=64).contains(&depth) {
                return Err(format!("{name} is {depth}: choose 1 to 64"));
            }
        }
        if self.backing_timeout < Duration::from_millis(100) {
            return Err("backing-timeout is below 100ms: choose 100ms or more".into());
        }
        Ok(())
    }
}
