//! Judges whether a phase's number can be true, by evidence: the page cache before it, the bytes
//! still in memory after it, and the device's count of moved bytes.
//!
//! Says nothing without evidence, and never corrects a number.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::beneath;
use crate::cache::Residency;
use crate::io::Direction;
use crate::units::{human_bytes, human_rate};

/// Below this share the cache did not determine the number.
const NOTICEABLE: f64 = 0.05;

/// The evidence about one finished phase.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    pub bytes: u64,
    pub seconds: f64,
    /// The page cache before a read phase, or after a write phase.
    pub cache: Option<Residency>,
    /// The bytes that the device moved in the phase's direction, if a device is behind the path.
    pub device_bytes: Option<u64>,
    /// The highest rate of the device or network in bytes per second, as the user stated it.
    pub limit: Option<f64>,
    pub memory: Memory,
}

/// Whether the file system keeps its files in memory only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Memory {
    #[default]
    No,
    Yes,
}

impl Memory {
    /// Whether the file system that holds the bytes is in memory.
    pub fn of(path: &Path) -> Self {
        let path = beneath::holder(path);
        const TMPFS: i64 = 0x0102_1994;
        const RAMFS: i64 = 0x8584_58f6;
        let Ok(name) = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()) else {
            return Memory::No;
        };
        // SAFETY: all fields are integers; the structure is written by the call.
        let kind = unsafe {
            let mut found: libc::statfs = std::mem::zeroed();
            libc::statfs(name.as_ptr(), &raw mut found);
            found.f_type as i64
        };
        if [TMPFS, RAMFS].contains(&kind) { Memory::Yes } else { Memory::No }
    }
}

/// Options that prevent the cache from determining the number.
#[derive(Debug, Clone, Copy)]
pub struct Remedies {
    pub read: &'static str,
    pub write: &'static str,
}

const OF_IOR: Remedies = Remedies {
    read: "--cache drop, --cache fadvise or --posix.odirect (-C and -e help only between machines)",
    write: "-e or --posix.odirect",
};

/// The doubts about the number of a phase: each a sentence with cause and remedy.
pub fn judge(direction: Direction, evidence: &Evidence) -> Vec<String> {
    judge_with(direction, evidence, OF_IOR)
}

/// [`judge`] for a command with options of its own.
pub fn judge_with(direction: Direction, evidence: &Evidence, remedies: Remedies) -> Vec<String> {
    if evidence.bytes == 0 || evidence.seconds <= 0.0 {
        return Vec::new();
    }
    let cause = match direction {
        Direction::Read => read_cause(evidence, remedies.read),
        Direction::Write => write_cause(evidence, remedies.write),
    };
    let rate = evidence.bytes as f64 / evidence.seconds;
    let impossible = evidence.limit.filter(|limit| rate > *limit).map(|limit| {
        let why =
            if cause.is_some() { "" } else { "; a cache below this machine's, or a wrong limit" };
        format!("{} is more than the device can do ({}){why}", human_rate(rate), human_rate(limit))
    });
    impossible.into_iter().chain(cause).collect()
}

fn read_cause(evidence: &Evidence, remedy: &str) -> Option<String> {
    if evidence.memory == Memory::Yes {
        return Some(IN_MEMORY.to_owned());
    }
    let share = evidence.cache.map_or(0.0, Residency::share);
    if share >= NOTICEABLE {
        return Some(format!(
            "{:.0} % of what was read was in the page cache; add {remedy}",
            share * 100.0
        ));
    }
    let delivered = evidence.device_bytes?;
    let missing = evidence.bytes.saturating_sub(delivered);
    (missing as f64 >= evidence.bytes as f64 / 2.0).then(|| {
        format!(
            "the device delivered only {} of {}; the rest was cached on the way, read twice, or \
             a hole in the file",
            human_bytes(delivered),
            human_bytes(evidence.bytes)
        )
    })
}

fn write_cause(evidence: &Evidence, remedy: &str) -> Option<String> {
    if evidence.memory == Memory::Yes {
        return Some(IN_MEMORY.to_owned());
    }
    let unwritten = evidence.cache?.unwritten?;
    let share = (unwritten as f64 / evidence.bytes as f64).min(1.0);
    (share >= NOTICEABLE).then(|| {
        format!(
            "{:.0} % of what was written was still only in memory at the end; add {remedy}",
            share * 100.0
        )
    })
}

const IN_MEMORY: &str =
    "this file system lives in memory: the number is one of memory; choose a path on a device";

/// The counters of the block device behind a path.
#[derive(Debug, Clone)]
pub struct Device {
    stat: PathBuf,
}

/// Bytes moved since the machine started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    pub read: u64,
    pub written: u64,
}

impl Device {
    /// `None` for file systems without a block device of their own (network, FUSE, memory).
    pub fn behind(path: &Path) -> Option<Self> {
        let device = std::fs::metadata(path).ok()?.dev();
        Self::numbered(device).or_else(|| Self::numbered(mounted_from(device)?))
    }

    fn numbered(device: u64) -> Option<Self> {
        let (major, minor) = (libc::major(device), libc::minor(device));
        let stat = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
        stat.exists().then_some(Self { stat })
    }

    pub fn moved(&self) -> Option<Moved> {
        const SECTOR: u64 = 512;
        let text = std::fs::read_to_string(&self.stat).ok()?;
        let field = |at: usize| text.split_whitespace().nth(at)?.parse::<u64>().ok();
        Some(Moved { read: field(2)? * SECTOR, written: field(6)? * SECTOR })
    }
}

/// The device that a file system with a made-up number (btrfs, for one) was mounted from.
fn mounted_from(device: u64) -> Option<u64> {
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let mounts = forebay_base::mounts::read().ok()?;
    let source = Path::new(&mounts.iter().find(|mount| mount.device == number)?.source);
    source.starts_with("/dev").then(|| std::fs::metadata(source).ok())?.map(|found| found.rdev())
}

impl Moved {
    pub fn since(self, before: Self, direction: Direction) -> u64 {
        match direction {
            Direction::Read => self.read.saturating_sub(before.read),
            Direction::Write => self.written.saturating_sub(before.written),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(resident: u64, unwritten: u64) -> Option<Residency> {
        Some(Residency { total: 100, resident, unwritten: Some(unwritten) })
    }

    fn evidence() -> Evidence {
        Evidence { bytes: 100, seconds: 1.0, cache: cached(0, 0), ..Evidence::default() }
    }

    #[test]
    fn a_clean_phase_is_believed() {
        let clean = Evidence { device_bytes: Some(100), limit: Some(200.0), ..evidence() };
        assert!(judge(Direction::Read, &clean).is_empty());
        assert!(judge(Direction::Write, &clean).is_empty());
    }

    #[test]
    fn a_cached_read_is_told_with_share_and_remedy() {
        let said = judge(Direction::Read, &Evidence { cache: cached(64, 0), ..evidence() });
        assert_eq!(said.len(), 1);
        let text = "64 % of what was read was in the page cache; add --cache drop";
        assert!(said[0].starts_with(text), "{said:?}");
    }

    #[test]
    fn a_write_that_stayed_in_memory_is_told() {
        let said = judge(Direction::Write, &Evidence { cache: cached(100, 81), ..evidence() });
        assert!(said[0].starts_with("81 %") && said[0].contains("-e"), "{said:?}");
    }

    #[test]
    fn faster_than_the_device_is_impossible_whatever_the_cause() {
        let fast = Evidence { limit: Some(50.0), ..evidence() };
        assert!(judge(Direction::Read, &fast)[0].contains("more than the device can do"));
        let explained = Evidence { cache: cached(90, 0), ..fast };
        assert_eq!(judge(Direction::Read, &explained).len(), 2);
    }

    #[test]
    fn a_silent_device_gives_a_cache_below_away() {
        let low = Evidence { device_bytes: Some(10), ..evidence() };
        assert!(judge(Direction::Read, &low)[0].contains("delivered only 10 bytes of 100 bytes"));
    }
}
