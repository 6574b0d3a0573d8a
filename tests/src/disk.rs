//! A disk with a volatile write cache: a power cut on it leaves the worst that a real one may leave.
//!
//! The disk is an image file behind a small FUSE file system with a loop device on top. Written
//! blocks stay in memory until the kernel asks for a flush; then they go to the image. A cut copies
//! the image at that instant and adds what a real cache may have written besides: of each block that
//! was written since the last flush any of its versions, or none, and some blocks sector by sector
//! from two versions.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, WriteFlags,
};

use crate::images::{self, LoopDevice};
use crate::rng::Rng;
use crate::sys;
use crate::wait::{PATIENCE, eventually};

const BLOCK: u64 = 4096;
/// The unit that a disk writes whole or not at all.
const SECTOR: usize = 512;
/// Versions of blocks in the cache, 64 MiB: beyond it the disk writes by itself, as real ones do.
const VERSIONS_MAX: usize = 16 << 10;
const DISK: INodeNo = INodeNo(2);
const TTL: Duration = Duration::from_secs(3600);

type Block = Box<[u8]>;

/// The disk, its file system and its loop device; taken apart when dropped.
pub struct VolatileDisk {
    // Dropped in this order: each stands on the next one.
    device: Option<LoopDevice>,
    session: Option<BackgroundSession>,
    at: PathBuf,
    cache: Arc<Cache>,
}

/// The unit that a disk writes whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    /// Blocks of 4 KiB, as flash does. XFS takes a block whose header is new for a new one.
    Blocks,
    Sectors,
}

/// The fate of the blocks that no flush had covered.
#[derive(Debug, Clone, Copy, Default)]
pub struct Forgotten {
    pub kept: usize,
    pub dropped: usize,
    pub torn: usize,
}

impl VolatileDisk {
    /// Puts a disk on an image. `at` is a directory for the FUSE file system.
    pub fn insert(image: &Path, at: &Path, atomic: Atomic) -> VolatileDisk {
        std::fs::create_dir_all(at).expect("a directory for the disk");
        let cache = Arc::new(Cache::of(image, atomic).expect("the image of the disk"));
        let session = fuser::spawn_mount(Disk(cache.clone()), at, &Config::default())
            .expect("a FUSE mount for the disk");
        let device = LoopDevice::attach(&at.join("disk"));
        VolatileDisk { device: Some(device), session: Some(session), at: at.into(), cache }
    }

    pub fn device(&self) -> &Path {
        self.device.as_ref().expect("there until it is dropped").path()
    }

    /// From now on no block is written: writes and flushes fail, reads go on.
    pub fn die(&self) {
        self.cache.state().dead = true;
    }

    /// Copies the state that a power cut at this instant, or the disk's death, leaves to `to`, on the
    /// image's file system.
    pub fn cut(&self, to: &Path, chance: &mut Rng) -> io::Result<Forgotten> {
        self.cache.cut(to, chance)
    }

    /// The number of flushes that the kernel asked for: proof that the disk gets any.
    pub fn flushes(&self) -> u64 {
        self.cache.state().flushes
    }
}

impl Drop for VolatileDisk {
    fn drop(&mut self) {
        drop(self.device.take());
        drop(self.session.take());
        if !eventually(PATIENCE, || images::unmount(&self.at, false).is_ok()) {
            let _ = images::unmount(&self.at, true);
        }
    }
}

struct Cache {
    image: File,
    path: PathBuf,
    len: u64,
    atomic: Atomic,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Every version of a block since the last flush, the oldest first.
    blocks: BTreeMap<u64, Vec<Block>>,
    versions: usize,
    flushes: u64,
    dead: bool,
}

impl State {
    fn alive(&self) -> io::Result<()> {
        if self.dead { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
    }
}

impl Cache {
    fn of(path: &Path, atomic: Atomic) -> io::Result<Cache> {
        let image = File::options().read(true).write(true).open(path)?;
        let len = image.metadata()?.len();
        assert_eq!(len % BLOCK, 0, "an image of whole blocks");
        Ok(Cache { image, path: path.into(), len, atomic, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic inside")
    }

    /// A block as the kernel must see it: the last version.
    fn block(&self, state: &State, block: u64) -> io::Result<Block> {
        match state.blocks.get(&block).and_then(|versions| versions.last()) {
            Some(last) => Ok(last.clone()),
            None => self.on_image(block),
        }
    }

    fn on_image(&self, block: u64) -> io::Result<Block> {
        let mut bytes = vec![0; BLOCK as usize].into_boxed_slice();
        self.image.read_exact_at(&mut bytes, block * BLOCK)?;
        Ok(bytes)
    }

    fn read(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let state = self.state();
        let end = (offset + len).min(self.len);
        let mut bytes = Vec::with_capacity(len as usize);
        for part in parts(offset, end) {
            bytes.extend_from_slice(&self.block(&state, part.block)?[part.from..part.to]);
        }
        Ok(bytes)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.alive()?;
        let mut left = data;
        for part in parts(offset, offset + data.len() as u64) {
            let mut block = self.block(&state, part.block)?;
            let (now, later) = left.split_at(part.to - part.from);
            block[part.from..part.to].copy_from_slice(now);
            left = later;
            state.blocks.entry(part.block).or_default().push(block);
            state.versions += 1;
        }
        if state.versions > VERSIONS_MAX {
            self.destage(&mut state)?;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = self.state();
        state.alive()?;
        state.flushes += 1;
        self.destage(&mut state)
    }

    fn destage(&self, state: &mut State) -> io::Result<()> {
        for (block, versions) in std::mem::take(&mut state.blocks) {
            let last = versions.last().expect("a block in the cache has a version");
            self.image.write_all_at(last, block * BLOCK)?;
        }
        state.versions = 0;
        Ok(())
    }

    fn cut(&self, to: &Path, chance: &mut Rng) -> io::Result<Forgotten> {
        let state = self.state();
        sys::clone_file(&self.path, to)?;
        let copy = File::options().read(true).write(true).open(to)?;
        let mut forgotten = Forgotten::default();
        // In one cut the cache has written many blocks by itself, in another few.
        let percent = chance.range(5, 95);
        for (block, versions) in &state.blocks {
            if chance.below(100) < percent {
                forgotten.dropped += 1;
                continue;
            }
            let kept = &versions[chance.below(versions.len() as u64) as usize];
            // The first block is not journalled: a file system is lost if it tears.
            let torn = self.atomic == Atomic::Sectors && *block > 0 && chance.one_in(8);
            let bytes = if torn { self.torn(*block, kept, chance)? } else { kept.clone() };
            copy.write_all_at(&bytes, block * BLOCK)?;
            forgotten.kept += 1;
            forgotten.torn += usize::from(torn);
        }
        Ok(forgotten)
    }

    /// A block with some sectors of this version, and the old ones of the image.
    fn torn(&self, block: u64, version: &[u8], chance: &mut Rng) -> io::Result<Block> {
        let mut bytes = self.on_image(block)?;
        for (old, new) in bytes.chunks_mut(SECTOR).zip(version.chunks(SECTOR)) {
            if chance.one_in(2) {
                old.copy_from_slice(new);
            }
        }
        Ok(bytes)
    }
}

/// A range within one block.
struct Part {
    block: u64,
    from: usize,
    to: usize,
}

fn parts(offset: u64, end: u64) -> impl Iterator<Item = Part> {
    (offset / BLOCK..end.div_ceil(BLOCK)).map(move |block| {
        let start = block * BLOCK;
        Part {
            block,
            from: offset.saturating_sub(start) as usize,
            to: (end - start).min(BLOCK) as usize,
        }
    })
}

/// The file system: a directory with one file in it.
struct Disk(Arc<Cache>);

impl Disk {
    fn attr(&self, ino: INodeNo) -> FileAttr {
        let is_disk = ino == DISK;
        FileAttr {
            ino,
            size: if is_disk { self.0.len } else { 0 },
            blocks: if is_disk { self.0.len / 512 } else { 0 },
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_disk { FileType::RegularFile } else { FileType::Directory },
            perm: if is_disk { 0o600 } else { 0o700 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: BLOCK as u32,
            flags: 0,
        }
    }
}

impl Filesystem for Disk {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == "disk" {
            true => reply.entry(&TTL, &self.attr(DISK), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr(ino));
    }

    /// Without pages in the kernel: this disk is the cache.
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.read(offset, u64::from(size)) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.0.write(offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error.into()),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.0.flush() {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    /// A close does not flush the disk.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(name: &str) -> (Cache, PathBuf) {
        let path = std::env::temp_dir().join(format!("fbt-disk-{name}-{}", std::process::id()));
        File::create(&path).and_then(|file| file.set_len(16 * BLOCK)).unwrap();
        (Cache::of(&path, Atomic::Sectors).unwrap(), path)
    }

    /// Unflushed bytes read back and are not on the image; a flush puts them there.
    #[test]
    fn what_is_not_flushed_is_not_on_the_image() {
        let (disk, path) = cache("flush");
        disk.write(1000, &[7; 5000]).unwrap();
        assert_eq!(disk.read(999, 5002).unwrap(), [&[0][..], &[7; 5000], &[0]].concat());
        assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
        disk.flush().unwrap();
        let image = std::fs::read(&path).unwrap();
        assert_eq!(image.iter().filter(|byte| **byte == 7).count(), 5000);
        std::fs::remove_file(path).unwrap();
    }

    /// A torn block holds whole sectors of the old and of the new version.
    #[test]
    fn a_torn_block_is_torn_between_sectors() {
        let (disk, path) = cache("torn");
        let block = disk.torn(3, &[9; BLOCK as usize], &mut Rng::new(5)).unwrap();
        let whole = |sector: &[u8]| sector.iter().all(|byte| *byte == sector[0]);
        assert!(block.chunks(SECTOR).all(whole));
        let new = block.chunks(SECTOR).filter(|sector| sector[0] == 9).count();
        assert!((1..8).contains(&new), "{new} sectors of 8 are new");
        std::fs::remove_file(path).unwrap();
    }
}
