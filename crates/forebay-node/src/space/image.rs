//! Images: files that hold a file system of their own.
//!
//! - I1: an image that has its final name is complete: every byte allocated, and a file system on it.
//! - I2: its file system gives its owner the requested capacity, or more.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_base::folder::{Folder, Wanted};
use forebay_base::lock::sleep;
use forebay_base::{Error, Kind, Result};
use rustix::fs;
use rustix::fs::{FallocateFlags, OFlags};

use super::{Fs, SpaceSpec, failed, usage_error};
use crate::failpoint;

const MIB: u64 = 1 << 20;

/// The block size of both file systems: the kernel's page, and the unit of the loop device.
const BLOCK: u64 = 4096;

/// `mkfs` writes some megabytes. If that takes longer than this, the tier is broken.
const MKFS_LIMIT: Duration = Duration::from_secs(60);

/// The blocks of an ext4 group, as many as one bitmap holds.
const GROUP: u64 = 128 * MIB;

const INODE_EXT4: u64 = 256;

const INODE_XFS: u64 = 512;

/// The first inodes are ext4's own: the journal, the root directory, `lost+found`.
const OWN_INODES: u64 = 11;

/// The size of an image that offers `spec.capacity` bytes: the ledger counts this (I2).
///
/// The sum is an upper bound; a test compares it to what file systems of many sizes have.
pub(super) fn size(spec: &SpaceSpec) -> u64 {
    let more = match spec.fs {
        Fs::Ext4 => ext4_overhead(spec),
        Fs::Xfs => xfs_overhead(spec),
    };
    (spec.capacity + more).next_multiple_of(MIB)
}

fn ext4_overhead(spec: &SpaceSpec) -> u64 {
    let (capacity, inodes) = (spec.capacity, spec.inodes());
    let tables = (inodes + OWN_INODES) * INODE_EXT4;
    // Tables and journal need groups, too.
    let groups = (capacity + tables + journal(capacity)).div_ceil(GROUP) + 2;
    // Two bitmaps, inodes rounded up to whole blocks, descriptors and their copies.
    let of_groups = groups * 4 * BLOCK;
    // The kernel's reserve for splitting extents: 2 %, at most 4096 blocks.
    let kept = ((capacity + tables) / 50 + BLOCK).min(16 * MIB);
    // A last group that is too small for its table is left out.
    let last = tables / groups + MIB;
    tables + journal(capacity) + of_groups + kept + last + MIB
}

/// Large enough that the creation of many files never waits for it, small beside the capacity.
fn journal(capacity: u64) -> u64 {
    match capacity / MIB {
        0..128 => 4 * MIB,
        128..1024 => 16 * MIB,
        1024..32_768 => 64 * MIB,
        _ => 256 * MIB,
    }
}

fn xfs_overhead(spec: &SpaceSpec) -> u64 {
    // The log; the kernel's own reserve (8192 blocks); headers and free lists of groups.
    let fixed = 64 * MIB + 32 * MIB + 16 * MIB;
    fixed + spec.capacity / 200 + spec.inodes() * INODE_XFS * 5 / 4
}

/// The image of a space: an existing complete one, or a new one.
pub(super) fn make(folder: &Folder, name: &str, spec: &SpaceSpec, room: u64) -> Result<File> {
    let at = folder.path().join(name);
    if let Some(image) = super::record::open_file(folder, name)? {
        return require_size(image, room, &at);
    }
    let aside = format!("{name}.new");
    folder.remove_if_there(&aside).map_err(failed(folder.path().join(&aside).display()))?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let made = folder.open(&aside, flags, Wanted::File);
    let image = File::from(made.map_err(failed(folder.path().join(&aside).display()))?);
    fill(&image, room, &at)?;
    failpoint::pass("space-allocated");
    format(&folder.path().join(&aside), spec)?;
    // `mkfs` may have punched holes where it wanted zeros.
    fill(&image, room, &at)?;
    image.sync_all().map_err(failed(at.display()))?;
    failpoint::pass("space-formatted");
    folder.rename(&aside, name).map_err(failed(at.display()))?;
    fs::fsync(folder).map_err(failed(at.display()))?;
    failpoint::pass("space-image");
    Ok(image)
}

fn require_size(image: File, room: u64, at: &Path) -> Result<File> {
    match image.metadata().map_err(failed(at.display()))?.len() {
        len if len == room => Ok(image),
        len => Err(Error::new(
            Kind::Corrupt,
            format!(
                "{}: an image of {len} bytes, where the record says {room}: remove the instance",
                at.display()
            ),
        )),
    }
}

/// Allocates every byte of the image, and the holes in it again (I1).
pub(super) fn fill(image: &File, room: u64, at: &Path) -> Result<()> {
    loop {
        match fs::fallocate(image, FallocateFlags::empty(), 0, room) {
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(failed(at.display())(e)),
            Ok(()) => break,
        }
    }
    match is_whole(image, room).map_err(failed(at.display()))? {
        true => Ok(()),
        false => Err(Error::os(
            libc::EOPNOTSUPP,
            format!("{}: the tier's file system does not allocate ahead", at.display()),
        )),
    }
}

pub(super) fn is_whole(image: &File, room: u64) -> std::io::Result<bool> {
    Ok(image.metadata()?.blocks() * 512 >= room)
}

/// The program that makes such a file system.
pub(super) fn program(fs: Fs) -> Option<PathBuf> {
    let name = format!("mkfs.{}", fs.name());
    let dirs = ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"];
    dirs.iter().map(|dir| Path::new(dir).join(&name)).find(|path| path.exists())
}

pub(super) fn package(fs: Fs) -> &'static str {
    match fs {
        Fs::Ext4 => "e2fsprogs",
        Fs::Xfs => "xfsprogs",
    }
}

fn format(image: &Path, spec: &SpaceSpec) -> Result<()> {
    let program = program(spec.fs).ok_or_else(|| {
        let name = spec.fs.name();
        usage_error(format!("mkfs.{name} is missing: install {}", package(spec.fs)))
    })?;
    let mut command = Command::new(&program);
    command.args(arguments(spec)).arg(image);
    command.env_clear().env("LC_ALL", "C").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed(program.display()))?;
    let (status, said) = wait(&mut child, &program)?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::os(
            libc::EIO,
            format!("{} of {}: {status}: {}", program.display(), image.display(), said.trim()),
        )),
    }
}

/// Features are named one by one: no `mke2fs.conf` can change the overhead (I2).
fn arguments(spec: &SpaceSpec) -> Vec<String> {
    let owned = |args: &[&str]| args.iter().map(ToString::to_string).collect::<Vec<_>>();
    match spec.fs {
        Fs::Ext4 => {
            let mut args = owned(&["-q", "-F", "-m", "0", "-b", "4096", "-I", "256"]);
            let features = "none,has_journal,ext_attr,dir_index,filetype,extent,64bit,flex_bg,\
                            sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum";
            let journal = format!("size={}", journal(spec.capacity) / MIB);
            // Fresh blocks of the tier read as zeros: nothing has to be cleared, now or later.
            args.extend(owned(&["-O", features, "-E", "nodiscard,lazy_itable_init=1"]));
            args.extend(owned(&["-J", &journal, "-N", &(spec.inodes() + OWN_INODES).to_string()]));
            args
        }
        Fs::Xfs => {
            let percent = (spec.inodes() * INODE_XFS * 100).div_ceil(size(spec)).clamp(1, 100);
            // Features that would reserve blocks for themselves are off.
            let mut args = owned(&["-q", "-f", "-K", "-b", "size=4096", "-l", "size=64m"]);
            // Loop devices have the sector size of the tier's disk, which is at most this large.
            args.extend(owned(&["-s", "size=4096"]));
            args.extend(owned(&["-m", "crc=1,finobt=0,rmapbt=0,reflink=0"]));
            args.extend(owned(&["-i", &format!("size={INODE_XFS},maxpct={percent}")]));
            args
        }
    }
}

/// Waits for a program, and kills it if it takes too long; its last output is kept, up to a page.
fn wait(child: &mut Child, program: &Path) -> Result<(std::process::ExitStatus, String)> {
    let end = Instant::now() + MKFS_LIMIT;
    loop {
        if let Some(status) = child.try_wait().map_err(failed(program.display()))? {
            let mut said = String::new();
            if let Some(stderr) = child.stderr.take() {
                let _ = stderr.take(BLOCK).read_to_string(&mut said);
            }
            return Ok((status, said));
        }
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            let limit = MKFS_LIMIT.as_secs();
            let context = format!("{} did not end within {limit} s", program.display());
            return Err(Error::new(Kind::TimedOut, context));
        }
        sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::super::loopdev::Loop;
    use super::super::{Owner, mount};
    use super::*;
    use std::os::fd::AsFd;

    /// I2, checked by file systems of many sizes and numbers of inodes, as the kernel counts them. Images are
    /// sparse here: the comparison does not depend on that.
    #[test]
    fn an_image_holds_what_was_asked_for_and_little_more() {
        if !rustix::process::geteuid().is_root() || program(Fs::Xfs).is_none() {
            println!("SKIPPED: needs root and mkfs.xfs");
            return;
        }
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let capacities = [4, 5, 31, 64, 127, 129, 300, 777, 1024, 5000, 40_000, 1_000_003, 4 << 20];
        for (fs, mib) in [Fs::Ext4, Fs::Xfs].iter().flat_map(|fs| capacities.map(|c| (*fs, c))) {
            for inodes in [None, Some(64), Some(mib * 60)] {
                let at = "/never".into();
                let mut spec = SpaceSpec::new("a".parse().unwrap(), mib * MIB, Owner::ROOT, at);
                (spec.fs, spec.inodes) = (fs, inodes);
                if spec.check_image().is_ok() {
                    check(dir.path(), &spec);
                }
            }
        }
    }

    fn check(dir: &Path, spec: &SpaceSpec) {
        let path = dir.join("image");
        let image = File::create_new(&path).unwrap();
        image.set_len(size(spec)).unwrap();
        format(&path, spec).unwrap();
        let image = File::options().read(true).write(true).open(&path).unwrap();
        if spec.fs == Fs::Xfs {
            // `sb_sectsize` (xfs_format.h): a smaller one cannot be mounted where the tier's disk has sectors of
            // 4096 bytes.
            let mut sector = [0; 2];
            std::os::unix::fs::FileExt::read_exact_at(&image, &mut sector, 102).unwrap();
            assert_eq!(u16::from_be_bytes(sector), 4096);
        }
        let device = Loop::attach(&image, &path).unwrap();
        let settings: &[_] = match spec.fs {
            Fs::Ext4 => &[mount::Setting::Flag("noinit_itable")],
            Fs::Xfs => &[],
        };
        let mount = mount::system(spec.fs.name(), &device.name(), settings).unwrap();
        let stat = fs::fstatvfs(mount.as_fd()).unwrap();
        let free = stat.f_bavail * stat.f_frsize;
        let more = free as i64 - spec.capacity as i64;
        let what =
            format!("{:?} of {} MiB, {:?} inodes", spec.fs, spec.capacity / MIB, spec.inodes);
        // XFS takes the room of new inodes from the same free space.
        let for_inodes = if spec.fs == Fs::Xfs { spec.inodes() * INODE_XFS } else { 0 };
        let least = for_inodes as i64;
        assert!(more >= least, "{what}: {more} bytes more than asked for, {least} needed");
        let most =
            spec.capacity / 50 + least.cast_unsigned() / 2 + least.cast_unsigned() + 80 * MIB;
        assert!(more.cast_unsigned() <= most, "{what}: {more} bytes more than asked for");
        if spec.fs == Fs::Ext4 {
            assert!(stat.f_ffree >= spec.inodes(), "{what}: {} inodes", stat.f_ffree);
        }
        drop((mount, device));
        std::fs::remove_file(path).unwrap();
    }
}
