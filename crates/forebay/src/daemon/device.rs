//! The bytes that the block device under the fast tier has read and written, as the kernel counts them.
//! Reads, and overwrites, that bypass the daemon and miss the page cache show up only here. The figures
//! include other users of the device.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The kernel's unit, whatever the device's own sector size is.
const SECTOR_BYTES: u64 = 512;

pub struct Device {
    /// Absent without a single block device underneath: tmpfs, btrfs, overlays.
    figures: Option<PathBuf>,
    /// The figures when the daemon began.
    before: Moved,
}

/// Bytes read and written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    pub read: u64,
    pub written: u64,
}

impl Device {
    pub fn under(tier: &Path) -> Device {
        let found = std::fs::metadata(tier).ok().map(|meta| {
            let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
            PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"))
        });
        let figures = found.filter(|path| path.exists());
        let before = figures.as_deref().and_then(look).unwrap_or_default();
        Device { figures, before }
    }

    /// The bytes moved since the daemon began.
    pub fn moved(&self) -> Option<Moved> {
        let now = look(self.figures.as_deref()?)?;
        Some(Moved {
            read: now.read.saturating_sub(self.before.read),
            written: now.written.saturating_sub(self.before.written),
        })
    }
}

fn look(figures: &Path) -> Option<Moved> {
    parse(&std::fs::read_to_string(figures).ok()?)
}

/// Parses the fields: reads, merged, sectors read, time, writes, merged, sectors written, ...
fn parse(figures: &str) -> Option<Moved> {
    let mut sectors = figures.split_whitespace().skip(2).step_by(4);
    let mut next = || sectors.next()?.parse::<u64>().ok();
    Some(Moved { read: next()? * SECTOR_BYTES, written: next()? * SECTOR_BYTES })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_become_bytes() {
        let line = "  31 2 1248 14 9 12 168 4 0 20 18 0 0 0 0 0 0\n";
        assert_eq!(parse(line), Some(Moved { read: 1248 * 512, written: 168 * 512 }));
        assert_eq!(parse(""), None);
        assert!(Device::under(Path::new("/proc")).moved().is_none());
    }
}
