//! The page cache: how much of a file it holds, and how to get it out of the way.
//!
//! Residency is measured, by `cachestat(2)` (Linux 6.5) or else `mincore(2)`; a policy's effect is
//! never assumed. The measured cache is that of the file as opened, and of the files that
//! [`crate::beneath`] knows to hold its bytes: a cache on another machine is not visible.

mod hog;
mod pieces;

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

pub use hog::Hog;
pub use pieces::Pieces;

use crate::beneath::{self, Bytes};
use crate::units;
use crate::{Error, Result};

/// The action on the page cache before a phase reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// None: the cache as applications see it.
    #[default]
    Keep,
    /// `sync` and `/proc/sys/vm/drop_caches`; needs root.
    Drop,
    /// O_DIRECT: the cache is not used.
    Direct,
    /// `fsync` and `POSIX_FADV_DONTNEED` on the files of the test.
    Fadvise,
    /// Occupies memory, so that little is left for the cache.
    Hog(Amount),
}

/// The memory that a hog occupies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    Bytes(u64),
    PercentOfMemory(u8),
}

impl Amount {
    /// Reads `2g` or `75%`, as `-M` takes it.
    pub fn parse(text: &str) -> Result<Self> {
        if !text.ends_with('%') {
            return units::terse_size(text).map(Amount::Bytes).map_err(Error::usage);
        }
        match units::parse_percent(text) {
            Ok(percent @ 0..=95) => Ok(Amount::PercentOfMemory(percent)),
            _ => Err(Error::usage(format!("{text:?} is not a share of memory; use 0% to 95%"))),
        }
    }

    pub fn bytes(self) -> u64 {
        match self {
            Amount::Bytes(bytes) => bytes,
            Amount::PercentOfMemory(percent) => {
                meminfo("MemTotal").unwrap_or(0) / 100 * u64::from(percent)
            }
        }
    }
}

impl Policy {
    /// Reads `keep`, `drop`, `direct`, `fadvise`, `hog=75%`.
    pub fn parse(text: &str) -> Result<Self> {
        match text.split_once('=').unwrap_or((text, "")) {
            ("keep", "") => Ok(Policy::Keep),
            ("drop", "") => Ok(Policy::Drop),
            ("direct", "") => Ok(Policy::Direct),
            ("fadvise", "") => Ok(Policy::Fadvise),
            ("hog", "") => Err(Error::usage("--cache hog needs an amount: --cache hog=75%")),
            ("hog", amount) => Ok(Policy::Hog(Amount::parse(amount)?)),
            _ => Err(Error::usage(format!(
                "--cache {text}: no such policy; use keep, drop, direct, fadvise or hog=75%"
            ))),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Policy::Keep => "keep",
            Policy::Drop => "drop",
            Policy::Direct => "direct",
            Policy::Fadvise => "fadvise",
            Policy::Hog(_) => "hog",
        }
    }

    /// Fails before anything is written, if the policy cannot be carried out here.
    pub fn check(self) -> Result<()> {
        let switch = Path::new(DROP_CACHES);
        match self {
            Policy::Drop if File::options().write(true).open(switch).is_err() => {
                Err(Error::usage(format!(
                    "--cache drop needs permission to write {DROP_CACHES}; \
                     run as root, or use --cache fadvise or --cache direct"
                )))
            }
            Policy::Hog(amount) => hog::check(amount),
            _ => Ok(()),
        }
    }

    /// Removes the files from the cache, if the policy does that between phases.
    pub fn before_reading(self, files: &[impl AsRef<Path>]) -> Result<()> {
        match self {
            Policy::Keep | Policy::Direct | Policy::Hog(_) => Ok(()),
            Policy::Drop => drop_caches(),
            Policy::Fadvise => files.iter().try_for_each(|path| advise_away(path.as_ref())),
        }
    }
}

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

fn drop_caches() -> Result<()> {
    // SAFETY: takes no arguments; dirty pages cannot be dropped, so they are written first.
    unsafe { libc::sync() };
    std::fs::write(DROP_CACHES, "3").map_err(|error| Error::io("write", DROP_CACHES, &error))
}

/// As [`advise_away_here`], also for the files that hold the bytes, if the path only leads to them.
pub fn advise_away(path: &Path) -> Result<()> {
    advise_away_here(path)?;
    match beneath::bytes_of(&[path]).pop() {
        Some(Bytes::In(files)) => files.iter().try_for_each(|file| advise_away_here(file)),
        Some(Bytes::Here | Bytes::Unknown) | None => Ok(()),
    }
}

/// Writes a file's dirty pages and asks the kernel to forget the clean ones. The advice is carried
/// out later or not at all for pages in use, so it is repeated while it still helps.
fn advise_away_here(path: &Path) -> Result<()> {
    let file = File::open(path).map_err(|error| Error::io("open", path, &error))?;
    file.sync_all().map_err(|error| Error::io("sync", path, &error))?;
    let mut before = u64::MAX;
    for _ in 0..10 {
        // SAFETY: a plain system call on our descriptor.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        let left = residency(&file, 0, u64::MAX).map_or(0, |found| found.resident);
        if left == 0 || left >= before {
            break;
        }
        before = left;
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Ok(())
}

/// Bytes of a range of a file in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Residency {
    /// The part of the range that lies within the file.
    pub total: u64,
    pub resident: u64,
    /// Bytes not yet written to the device, or being written; `None` where only `mincore` is
    /// available.
    pub unwritten: Option<u64>,
}

impl Residency {
    /// The share in memory, 0.0 to 1.0.
    pub fn share(self) -> f64 {
        if self.total == 0 { 0.0 } else { (self.resident as f64 / self.total as f64).min(1.0) }
    }

    /// The joint residency of two files with the same bytes.
    fn with(self, other: Self) -> Self {
        let sum = |a: u64, b: u64| (a + b).min(self.total);
        Self {
            total: self.total,
            resident: sum(self.resident, other.resident),
            unwritten: self.unwritten.zip(other.unwritten).map(|(a, b)| sum(a, b)),
        }
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let unwritten = match (self.unwritten, other.unwritten) {
            (Some(a), Some(b)) => Some(a + b),
            (one, two) if self.total == 0 || other.total == 0 => one.or(two),
            _ => None,
        };
        Self {
            total: self.total + other.total,
            resident: self.resident + other.resident,
            unwritten,
        }
    }
}

const PAGE: u64 = 4096;

/// The residency of `offset..offset+len` of a file.
pub fn residency(file: &File, offset: u64, len: u64) -> std::io::Result<Residency> {
    let size = file.metadata()?.len();
    let total = size.saturating_sub(offset).min(len);
    if total == 0 {
        return Ok(Residency { unwritten: Some(0), ..Residency::default() });
    }
    if let Some((cached, unwritten)) = cachestat(file.as_raw_fd(), offset, total) {
        let resident = (cached * PAGE).min(total);
        return Ok(Residency { total, resident, unwritten: Some((unwritten * PAGE).min(total)) });
    }
    let resident = (mincore(file.as_raw_fd(), offset, total)? * PAGE).min(total);
    Ok(Residency { total, resident, unwritten: None })
}

/// [`residency`] of whole files, added up; files that cannot be opened count as absent. `None` if
/// the place of a file's bytes is unknown.
pub fn residency_of(paths: &[impl AsRef<Path>]) -> Option<Residency> {
    let paths: Vec<&Path> = paths.iter().map(AsRef::as_ref).collect();
    let mut all = Residency::default();
    for (path, bytes) in paths.iter().zip(beneath::bytes_of(&paths)) {
        let here = residency_here(path);
        all = all.plus(match bytes {
            Bytes::Here => here,
            Bytes::In(files) => files.iter().fold(here, |sum, file| sum.with(residency_here(file))),
            Bytes::Unknown => return None,
        });
    }
    Some(all)
}

fn residency_here(path: &Path) -> Residency {
    let found = File::open(path).and_then(|file| residency(&file, 0, u64::MAX));
    found.unwrap_or_default()
}

/// Pages cached, and pages dirty or under writeback; `None` on kernels without the call.
fn cachestat(fd: RawFd, offset: u64, len: u64) -> Option<(u64, u64)> {
    const SYS_CACHESTAT: libc::c_long = 451;
    #[repr(C)]
    #[derive(Default)]
    struct Counts {
        cache: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    let (range, mut counts) = ([offset, len], Counts::default());
    // SAFETY: both structures live through the call and have the kernel's layout.
    let status = unsafe { libc::syscall(SYS_CACHESTAT, fd, range.as_ptr(), &raw mut counts, 0) };
    (status == 0).then_some((counts.cache, counts.dirty + counts.writeback))
}

/// Pages of a range that are in memory, by mapping it a piece at a time.
fn mincore(fd: RawFd, offset: u64, len: u64) -> std::io::Result<u64> {
    const PIECE: u64 = 1 << 30;
    let (first, end) = (offset / PAGE * PAGE, offset + len);
    let mut pages = vec![0u8; PIECE.min(end - first).div_ceil(PAGE) as usize];
    let mut resident = 0;
    for start in (first..end).step_by(PIECE as usize) {
        let bytes = PIECE.min(end - start) as usize;
        // SAFETY: a new mapping that is never accessed, asked about, and removed again; `pages` has
        // one byte for each of its pages.
        unsafe {
            let (none, at) = (std::ptr::null_mut(), start.cast_signed());
            let map = libc::mmap(none, bytes, libc::PROT_READ, libc::MAP_SHARED, fd, at);
            if map == libc::MAP_FAILED {
                return Err(std::io::Error::last_os_error());
            }
            let status = libc::mincore(map, bytes, pages.as_mut_ptr());
            libc::munmap(map, bytes);
            if status != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        let asked = &pages[..bytes.div_ceil(PAGE as usize)];
        resident += asked.iter().filter(|&&page| page & 1 == 1).count() as u64;
    }
    Ok(resident)
}

/// A line of `/proc/meminfo` in bytes.
pub fn meminfo(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    const LEN: u64 = 4 << 20;

    /// A file on the build directory's file system, which is not tmpfs where `/tmp` may be.
    fn written() -> tempfile::NamedTempFile {
        let program = std::env::current_exe().unwrap();
        let mut file = tempfile::NamedTempFile::new_in(program.parent().unwrap()).unwrap();
        file.write_all(&vec![7; LEN as usize]).unwrap();
        file
    }

    #[test]
    fn both_ways_of_asking_agree() {
        let look = || {
            let file = written();
            let file = file.as_file();
            let all = residency(file, 0, u64::MAX).unwrap();
            let mapped = mincore(file.as_raw_fd(), 0, LEN).unwrap() * PAGE;
            let part = residency(file, LEN - PAGE, 10 * PAGE).unwrap();
            assert_eq!((all.total, part.total), (LEN, PAGE));
            assert_eq!(residency(file, LEN, PAGE).unwrap().total, 0);
            (all.resident, mapped, part.resident)
        };
        // Another process may drop the caches of the machine, though not always.
        let found: Vec<_> = (0..5).map(|_| look()).collect();
        assert!(found.contains(&(LEN, LEN, PAGE)), "{found:?}");
    }

    #[test]
    fn advice_empties_the_cache_and_a_read_fills_it() {
        let file = written();
        let look = || {
            advise_away(file.path()).unwrap();
            residency(file.as_file(), 0, u64::MAX).unwrap()
        };
        let found = look();
        if found.resident == LEN {
            println!("SKIPPED: the build directory is on a file system that lives in memory");
            return;
        }
        // It is only advice: the kernel may be using some of the pages, though not always.
        let emptied = (0..5).map(|_| look()).find(|found| found.resident == 0);
        let emptied = emptied.unwrap_or_else(|| panic!("{found:?}"));
        assert!(emptied.unwritten.is_none_or(|bytes| bytes == 0));
        file.as_file().read_exact_at(&mut [0; 100], 0).unwrap();
        assert!(residency(file.as_file(), 0, u64::MAX).unwrap().resident > 0);
    }

    #[test]
    fn policies_are_named_as_they_are_read() {
        for name in ["keep", "drop", "direct", "fadvise"] {
            assert_eq!(Policy::parse(name).unwrap().name(), name);
        }
        let hog = Policy::Hog(Amount::PercentOfMemory(75));
        assert_eq!(Policy::parse("hog=75%"), Ok(hog));
        for wrong in ["hog", "evict", "drop=1", "hog=99%", "hog=x"] {
            assert_eq!(Policy::parse(wrong).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }
}
