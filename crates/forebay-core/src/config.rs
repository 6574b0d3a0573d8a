//! The configuration of an engine: fixed at start, or changeable while it runs.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::governor::law::Preset;
use crate::governor::schedule::Schedule;
use crate::near::{Near, Owned};
use crate::time::Time;

/// Whether the tier takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attachment {
    #[default]
    Attached,
    /// Reads and writes go around the tier; dirty bytes are flushed.
    Detached,
    /// As `Detached`, but dirty bytes stay, and are read and written in the tier.
    DetachedKeepDirty,
}

/// When a write reaches the backing store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WritePolicy {
    /// Lands in the fast tier, is flushed later.
    WriteBack,
    /// Lands in the fast tier and is flushed before close returns; fsync means the backing store.
    WriteThrough,
    /// Goes to the backing store at once; the fast tier holds only bytes that were read.
    WriteAround,
}

/// Which clean bytes are evicted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// Units that were used once go before units that were used again.
    #[default]
    S3Fifo,
    /// Units go in the order in which they came.
    Fifo,
}

/// A smaller file is copied as a whole in one call: it is not worth a side file of digests.
const DIGESTS_FROM: u64 = 1 << 20;

/// Fixed for the life of an engine.
#[derive(Debug, Clone)]
pub struct Config {
    /// Refuse every change; nothing can become dirty.
    pub read_only: bool,
    /// Names remembered after the kernel forgot them.
    pub names_max: usize,
    /// Whether the tier takes part from the start.
    pub attachment: Attachment,
    /// The clock of the engine.
    pub time: Time,
    /// The neighbours that may have read the store already.
    pub near: Near,
    /// The files whose missing names a start may make again on the store: other files belong to other members.
    pub owned: Owned,
    /// The bytes per second at which a new partner is sent copies of all dirty bytes.
    pub fill_rate: u64,
    /// Files of at least this size have a table of digests of their bytes on the backing store; the largest
    /// number means no file has.
    pub digests_from: u64,
    /// Partners are told of a file ahead of its sync once it has this many new bytes.
    pub ahead_from: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            read_only: false,
            names_max: 1_000_000,
            attachment: Attachment::Attached,
            time: Time::default(),
            near: Near::default(),
            owned: Owned::default(),
            fill_rate: 200_000_000,
            digests_from: DIGESTS_FROM,
            ahead_from: 4 << 20,
        }
    }
}

/// A level of the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Watermark {
    /// Percent of the tier's size.
    Share(u8),
    Bytes(u64),
}

impl Watermark {
    /// The level in bytes, in a tier of `tier_bytes`.
    pub fn of(self, tier_bytes: u64) -> u64 {
        match self {
            Watermark::Share(percent) => {
                (u128::from(tier_bytes) * u128::from(percent) / 100) as u64
            }
            Watermark::Bytes(bytes) => bytes.min(tier_bytes),
        }
    }
}

/// The watermarks in bytes, in order: `low <= high <= hard < full`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    pub low: u64,
    pub high: u64,
    pub hard: u64,
    pub full: u64,
}

/// The most that `used_high` may be, in percent: above it nothing is left to evict ahead of a writer.
pub const USED_HIGH_MAX: u8 = 98;

/// Changeable while the engine runs. Watermarks keep the order
/// `dirty_low <= dirty_high <= dirty_hard <= used_high`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tunables {
    pub policy: WritePolicy,
    /// Bytes the tier may occupy. `None`: the size of its file system, less 5 %.
    pub tier_size: Option<u64>,
    /// Which clean bytes are evicted first.
    pub eviction: Eviction,
    /// A sequential reader's bytes beyond this are not taken into the tier; 0 takes all in.
    pub bypass_reads: u64,
    /// A sequential writer's bytes beyond this go to the backing store at once; 0 takes all in.
    pub bypass_writes: u64,
    /// How the drain decides.
    pub preset: Preset,
    /// A dirty byte is flushed before it is this old.
    pub max_age: Duration,
    /// Bytes that were rewritten less than this ago wait for the next lap of the drain.
    pub settle: Duration,
    /// Flushing by level stops below this many dirty bytes.
    pub dirty_low: Watermark,
    /// At this many dirty bytes the drain runs as fast as it can.
    pub dirty_high: Watermark,
    /// Above this many writers are slowed down.
    pub dirty_hard: Watermark,
    /// Clean bytes are evicted once more than this share of the tier is used.
    pub used_high: u8,
    /// Cap on the drain in bytes per second; 0 is none.
    pub rate_max: u64,
    /// Cap on the drain's writes to the backing store per second; 0 is none.
    pub ops_max: u64,
    /// The latency of foreground operations above which the drain makes way; `None` for 2 ms on the fast tier
    /// and 75 ms on the backing store.
    pub latency_target: Option<Duration>,
    /// When the drain may work.
    pub schedule: Schedule,
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
            policy: WritePolicy::WriteBack,
            tier_size: None,
            eviction: Eviction::S3Fifo,
            bypass_reads: 0,
            bypass_writes: 0,
            preset: Preset::Governor,
            max_age: Duration::from_secs(30),
            settle: Duration::from_secs(5),
            dirty_low: Watermark::Share(20),
            dirty_high: Watermark::Share(50),
            dirty_hard: Watermark::Share(80),
            used_high: 90,
            rate_max: 0,
            ops_max: 0,
            latency_target: None,
            schedule: Schedule::default(),
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
            ("used-high", Watermark::Share(self.used_high)),
        ];
        for (n, (low, l)) in marks.iter().enumerate() {
            for (high, h) in &marks[n + 1..] {
                check_order((low, *l), (high, *h))?;
            }
        }
        if self.used_high > USED_HIGH_MAX {
            return Err(format!(
                "used-high is {}%: choose at most {USED_HIGH_MAX}%",
                self.used_high
            ));
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

    /// The watermarks of a tier of `tier_bytes`. A share and a size can only be compared here: a
    /// mark above the next one counts as that.
    pub fn marks(&self, tier_bytes: u64) -> Marks {
        let full = Watermark::Share(self.used_high).of(tier_bytes).max(1);
        let hard = self.dirty_hard.of(tier_bytes).min(full - 1);
        let high = self.dirty_high.of(tier_bytes).min(hard);
        let low = self.dirty_low.of(tier_bytes).min(high);
        Marks { low, high, hard, full }
    }
}

/// What to do with dirty bytes at shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepDirty {
    No,
    Yes,
}

fn check_order(low: (&str, Watermark), high: (&str, Watermark)) -> Result<(), String> {
    use Watermark::{Bytes, Share};
    let wrong = match (low.1, high.1) {
        (Share(l), Share(h)) if l > h => (format!("{l}%"), format!("{h}%")),
        (Bytes(l), Bytes(h)) if l > h => (format!("{l} bytes"), format!("{h} bytes")),
        _ => return Ok(()),
    };
    let ((low, _), (high, _)) = (low, high);
    Err(format!("{low} ({}) is above {high} ({}): lower {low} or raise {high}", wrong.0, wrong.1))
}
