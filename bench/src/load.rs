//! The load generator: data loops and metadata loops over plain system calls.
//!
//! Every loop can be stopped (`guard::go_on`) and reports its work, so that a loop that did nothing
//! cannot pass for a fast one. Random offsets never repeat until all blocks were visited.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::guard::go_on;

pub const MIB: u64 = 1 << 20;
/// Block of the sequential loops.
pub const SEQ_BLOCK: usize = 1 << 20;
/// Block of the random loops.
pub const RANDOM_BLOCK: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    Buffered,
    Direct,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Read,
    Write,
}

/// What a sequential write does before it closes the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Close,
    SyncAndClose,
}

impl Caching {
    fn flag(self) -> i32 {
        match self {
            Caching::Buffered => 0,
            Caching::Direct => libc::O_DIRECT,
        }
    }

    pub fn label(self) -> &'static str {
        match self {
            Caching::Buffered => "buffered",
            Caching::Direct => "O_DIRECT",
        }
    }
}

/// Memory aligned for O_DIRECT, filled with bytes that do not compress.
pub struct Block {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Block {
    pub fn new(len: usize) -> Block {
        let mut memory = vec![0_u8; len + RANDOM_BLOCK];
        let start = memory.as_ptr().align_offset(RANDOM_BLOCK);
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        for word in memory[start..start + len].chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
        }
        Block { memory, start, len }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// MB/s (10^6 bytes) of `bytes` in `time`.
pub fn mb_per_sec(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64()
}

/// Creates (or truncates) a file for both reading and writing.
pub fn create(path: &Path, caching: Caching) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(caching.flag())
        .open(path)
        .with_context(|| format!("cannot create {}", path.display()))
}

pub fn open(path: &Path, caching: Caching) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(caching.flag())
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))
}

/// Opens a file for reading and writing.
pub fn open_to_write(path: &Path, caching: Caching) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(caching.flag())
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))
}

/// Writes `len` bytes from the start of `file`, 1 MiB at a time.
pub fn fill(file: &File, len: u64) -> Result<()> {
    let block = Block::new(SEQ_BLOCK);
    let mut offset = 0;
    while offset < len {
        go_on()?;
        let count = SEQ_BLOCK.min((len - offset) as usize);
        file.write_all_at(&block.bytes()[..count], offset)?;
        offset += count as u64;
    }
    Ok(())
}

/// Times creating, writing and closing a file.
pub fn write_seq(path: &Path, len: u64, caching: Caching, finish: Finish) -> Result<Duration> {
    let start = Instant::now();
    let file = create(path, caching)?;
    fill(&file, len)?;
    if finish == Finish::SyncAndClose {
        file.sync_all()?;
    }
    drop(file);
    Ok(start.elapsed())
}

/// Times opening, reading and closing a file; fails if it is not `len` bytes long.
pub fn read_seq(path: &Path, len: u64, caching: Caching) -> Result<Duration> {
    let mut block = Block::new(SEQ_BLOCK);
    let start = Instant::now();
    let file = open(path, caching)?;
    let mut offset = 0;
    loop {
        go_on()?;
        let count = file.read_at(block.bytes_mut(), offset)?;
        if count == 0 {
            break;
        }
        offset += count as u64;
    }
    drop(file);
    let time = start.elapsed();
    ensure!(offset == len, "{}: read {offset} bytes of {len}", path.display());
    Ok(time)
}

/// Reads a file through an open descriptor, so that later reads find it in memory.
pub fn warm(file: &File, len: u64) -> Result<()> {
    let mut block = Block::new(SEQ_BLOCK);
    for offset in (0..len).step_by(SEQ_BLOCK) {
        go_on()?;
        file.read_at(block.bytes_mut(), offset)?;
    }
    Ok(())
}

/// Random 4 KiB operations.
#[derive(Clone, Copy)]
pub struct Random {
    pub verb: Verb,
    pub threads: usize,
    pub time: Duration,
    /// Distinguishes rounds, so that a second round does not repeat the first one's offsets.
    pub seed: u64,
}

/// Operations per second of random 4 KiB operations on the first `len` bytes of `files`.
///
/// Thread `i` works on file `i` modulo their number; threads on one file share it out.
pub fn random(files: &[File], len: u64, work: Random) -> Result<f64> {
    let start = Instant::now();
    let counts: Vec<Result<u64>> = std::thread::scope(|scope| {
        let spawn = |index: usize| {
            let file = &files[index % files.len()];
            let offsets = Offsets::new(len, index as u64, work.threads as u64, work.seed);
            scope.spawn(move || random_thread(file, offsets, work))
        };
        let threads: Vec<_> = (0..work.threads).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("a load thread panicked")).collect()
    });
    let time = start.elapsed();
    let total: u64 = counts.into_iter().sum::<Result<u64>>()?;
    ensure!(total > 0, "no operation was done");
    Ok(total as f64 / time.as_secs_f64())
}

fn random_thread(file: &File, mut offsets: Offsets, work: Random) -> Result<u64> {
    let mut block = Block::new(RANDOM_BLOCK);
    let start = Instant::now();
    let mut count = 0;
    loop {
        let offset = offsets.next_offset();
        match work.verb {
            Verb::Read => file.read_exact_at(block.bytes_mut(), offset)?,
            Verb::Write => file.write_all_at(block.bytes(), offset)?,
        }
        count += 1;
        // The clock is read after every operation on slow stores, and seldom on fast ones.
        if (count < 256 || count % 64 == 0) && start.elapsed() >= work.time {
            return Ok(count);
        }
        if count.is_multiple_of(1024) {
            go_on()?;
        }
    }
}

/// A walk over all 4 KiB blocks of one thread's share, in an order without runs.
struct Offsets {
    first: u64,
    blocks: u64,
    step: u64,
    at: u64,
}

impl Offsets {
    fn new(len: u64, index: u64, threads: u64, seed: u64) -> Offsets {
        let share = len / RANDOM_BLOCK as u64 / threads;
        // The largest power of two: an affine walk over it with odd factors visits all of it.
        let blocks = 1 << share.max(1).ilog2();
        let at = (seed.wrapping_mul(0x9E37_79B9) + index) & (blocks - 1);
        Offsets { first: index * share, blocks, step: 0x9E37 * 2 + 1, at }
    }

    fn next_offset(&mut self) -> u64 {
        // Full period modulo a power of two: factor = 1 mod 4, increment odd.
        self.at = (self.at.wrapping_mul(0x5DEE_CE65).wrapping_add(self.step)) & (self.blocks - 1);
        (self.first + self.at) * RANDOM_BLOCK as u64
    }
}

/// A shared mapping of a whole file.
struct Mapping {
    memory: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(file: &File, len: u64, verb: Verb) -> io::Result<Mapping> {
        let protection = match verb {
            Verb::Read => libc::PROT_READ,
            Verb::Write => libc::PROT_READ | libc::PROT_WRITE,
        };
        let len = len as usize;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let memory = unsafe {
            let fd = file.as_raw_fd();
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { memory: memory.cast(), len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, unmapped once.
        unsafe { libc::munmap(self.memory.cast(), self.len) };
    }
}

/// Operations per second of random 4 KiB copies out of (or into) a fresh shared mapping.
pub fn mmap_random(file: &File, len: u64, verb: Verb, time: Duration, seed: u64) -> Result<f64> {
    let mut block = Block::new(RANDOM_BLOCK);
    let mut offsets = Offsets::new(len, 0, 1, seed);
    let start = Instant::now();
    let map = Mapping::new(file, len, verb)?;
    let mut count = 0_u64;
    while !count.is_multiple_of(64) || start.elapsed() < time {
        let place = map.memory.wrapping_add(offsets.next_offset() as usize);
        let own = block.bytes_mut().as_mut_ptr();
        // SAFETY: offsets stay below `len`, the mapping and the block are both writable there when
        // written, and the file is not shortened meanwhile.
        unsafe {
            match verb {
                Verb::Read => std::ptr::copy_nonoverlapping(place, own, RANDOM_BLOCK),
                Verb::Write => std::ptr::copy_nonoverlapping(own, place, RANDOM_BLOCK),
            }
        }
        black_box(block.bytes());
        count += 1;
        if count.is_multiple_of(4096) {
            go_on()?;
        }
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

/// Microseconds per operation of `work` on the names `0..count`.
fn per_name(count: usize, mut work: impl FnMut(&str) -> io::Result<()>) -> Result<f64> {
    let start = Instant::now();
    for index in 0..count {
        if index % 256 == 0 {
            go_on()?;
        }
        work(&name(index)).with_context(|| name(index))?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / count as f64)
}

fn name(index: usize) -> String {
    format!("file-{index:06}")
}

pub fn create_empty(dir: &Path, count: usize) -> Result<f64> {
    per_name(count, |name| File::create_new(dir.join(name)).map(drop))
}

/// By lstat(2), as the C library and most programs do.
pub fn stat_all(dir: &Path, count: usize) -> Result<f64> {
    per_name(count, |name| lstat(&dir.join(name)))
}

fn lstat(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path ends with a zero, and the kernel writes one stat.
    match unsafe { libc::lstat(path.as_ptr(), stat.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// By statx(2) with the birth time, as `ls --time=birth` and Rust's own library do.
pub fn statx_all(dir: &Path, count: usize) -> Result<f64> {
    per_name(count, |name| fs::symlink_metadata(dir.join(name)).map(drop))
}

pub fn unlink_all(dir: &Path, count: usize) -> Result<f64> {
    per_name(count, |name| fs::remove_file(dir.join(name)))
}

/// Microseconds per entry of listing `dir`, names only.
pub fn list(dir: &Path, count: usize) -> Result<f64> {
    let start = Instant::now();
    let mut seen = 0;
    for entry in fs::read_dir(dir)? {
        entry?;
        seen += 1;
    }
    let time = start.elapsed();
    ensure!(seen == count, "{}: listed {seen} of {count}", dir.display());
    Ok(time.as_secs_f64() * 1e6 / count as f64)
}

/// Opens, reads and closes `count` small files with `threads` threads; microseconds of wall time each.
pub fn read_small(dir: &Path, count: usize, threads: usize) -> Result<f64> {
    shared_out(count, threads, |name| fs::read(dir.join(name)).map(|bytes| drop(black_box(bytes))))
}

/// An archive of a source tree: `count` files of 1 to 32 KiB, 8 on average, a hundred to a directory.
pub fn archive(at: &Path, count: usize) -> Result<PathBuf> {
    let (archive, tree) = (at.join("tree.tar"), at.join("tree"));
    for dir in 0..count / 100 {
        let dir = tree.join(format!("{}/{}", dir % 10, dir));
        fs::create_dir_all(&dir)?;
        for file in 0..100 {
            let len = 1024 << ((file * 7) % 6);
            fs::write(dir.join(format!("file-{file}.c")), Block::new(len).bytes())?;
        }
    }
    let mut tar = Command::new("tar");
    let made = tar.arg("-cf").arg(&archive).arg("-C").arg(at).arg("tree").status();
    ensure!(made.context("cannot start tar")?.success(), "tar -c failed");
    fs::remove_dir_all(&tree)?;
    Ok(archive)
}

/// Writes `count` files of `size` bytes with `threads` threads; microseconds of wall time each.
pub fn write_small(dir: &Path, count: usize, size: usize, threads: usize) -> Result<f64> {
    let block = Block::new(size);
    shared_out(count, threads, |name| fs::write(dir.join(name), block.bytes()))
}

/// Microseconds of wall time per operation of `work` on the names `0..count`, which threads share.
fn shared_out(
    count: usize,
    threads: usize,
    work: impl Fn(&str) -> io::Result<()> + Sync,
) -> Result<f64> {
    let start = Instant::now();
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let spawn = |first| {
            let work = &work;
            scope.spawn(move || {
                for index in (first..count).step_by(threads) {
                    if index % 64 == first {
                        go_on()?;
                    }
                    work(&name(index)).with_context(|| name(index))?;
                }
                Ok(())
            })
        };
        let workers: Vec<_> = (0..threads).map(spawn).collect();
        workers.into_iter().map(|worker| worker.join().expect("a writer panicked")).collect()
    });
    results.into_iter().collect::<Result<()>>()?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / count as f64)
}

/// Drops the clean cached pages of one file, as seen through this path.
pub fn drop_pages(path: &Path) -> Result<()> {
    let file = open(path, Caching::Buffered)?;
    // SAFETY: a live descriptor; the length 0 means to the end.
    let result = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    ensure!(result == 0, "posix_fadvise: {}", io::Error::from_raw_os_error(result));
    Ok(())
}

/// The caches that `drop_caches` drops.
#[derive(Clone, Copy)]
pub enum Forget {
    Pages = 1,
    NamesAndInodes = 2,
}

/// Drops clean caches of the whole machine; needs root; returns whether it was done.
pub fn drop_caches(what: Forget) -> bool {
    fs::write("/proc/sys/vm/drop_caches", (what as u8).to_string()).is_ok()
}

/// Whether the two files hold the same bytes.
pub fn same_bytes(left: &Path, right: &Path) -> Result<bool> {
    let (left, right) = (open(left, Caching::Buffered)?, open(right, Caching::Buffered)?);
    if left.metadata()?.len() != right.metadata()?.len() {
        return Ok(false);
    }
    let (mut a, mut b) = (vec![0; SEQ_BLOCK], vec![0; SEQ_BLOCK]);
    let (len, mut offset) = (left.metadata()?.len(), 0);
    while offset < len {
        let count = SEQ_BLOCK.min((len - offset) as usize);
        left.read_exact_at(&mut a[..count], offset)?;
        right.read_exact_at(&mut b[..count], offset)?;
        if a[..count] != b[..count] {
            return Ok(false);
        }
        offset += count as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_visits_every_block_once_before_repeating() {
        let mut walk = Offsets::new(64 * RANDOM_BLOCK as u64, 0, 1, 3);
        let mut seen: Vec<u64> = (0..64).map(|_| walk.next_offset()).collect();
        seen.sort_unstable();
        let all: Vec<u64> = (0..64).map(|index| index * RANDOM_BLOCK as u64).collect();
        assert_eq!(seen, all);
    }

    #[test]
    fn threads_stay_in_their_own_share() {
        let mut walk = Offsets::new(64 * RANDOM_BLOCK as u64, 3, 4, 9);
        for _ in 0..100 {
            let block = walk.next_offset() / RANDOM_BLOCK as u64;
            assert!((48..64).contains(&block));
        }
    }

    #[test]
    fn a_block_is_aligned() {
        let block = Block::new(SEQ_BLOCK);
        assert_eq!(block.bytes().as_ptr().align_offset(RANDOM_BLOCK), 0);
        assert_eq!(block.bytes().len(), SEQ_BLOCK);
    }
}
