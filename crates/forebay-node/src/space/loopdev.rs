//! Loop devices: an image as a block device.
//!
//! - D1: a device is found by the file behind it (device and inode), never by its number, which may be
//!   another device's a moment later.
//! - D2: a device is freed when its last user leaves (autoclear): a mount, a process, or a daemon that
//!   was killed before it could mount.
//! - D3: a device reads and writes past the page cache, and never gives room of the image back: see
//!   `decisions/space.md`.
//! - D4: forebay makes its own devices, with high numbers, and removes them again: the kernel keeps the
//!   limits of a device (D3) beyond its use, and other programs must not get a device with these limits.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use forebay_base::lock::sleep;
use forebay_base::{Error, Result};
use rustix::fs;
use rustix::fs::{Mode, OFlags};

use super::failed;

/// linux/loop.h
const LOOP_SET_DIRECT_IO: u32 = 0x4C08;
const LOOP_GET_STATUS64: u32 = 0x4C05;
const LOOP_CONFIGURE: u32 = 0x4C0A;
const LOOP_CTL_ADD: u32 = 0x4C80;
const LOOP_CTL_REMOVE: u32 = 0x4C81;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

const CONTROL: &str = "/dev/loop-control";

/// D4: far above the numbers that the kernel hands out, which are the lowest free ones.
const OURS: std::ops::Range<u32> = 4096..8192;

/// How often a device is tried: another program may take a new device before it is used. Each round
/// waits longer than the last one: 32 of them take about half a second.
const ROUNDS: u32 = 32;

#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// An open device: it stays as long as this is held, or a file system of it is mounted.
#[derive(Debug)]
pub(super) struct Loop {
    file: File,
    number: u32,
}

impl Loop {
    /// The device of an image.
    pub fn find(image: &File) -> Result<Option<Loop>> {
        let stat = fs::fstat(image).map_err(failed("cannot look at an image"))?;
        for number in configured()? {
            let Ok(device) = open(number, OFlags::RDONLY) else { continue };
            // The device was freed meanwhile.
            let Ok(info) = device.info() else { continue };
            if info.inode == stat.st_ino && same_device(info.device, stat.st_dev) {
                return Ok(Some(device));
            }
        }
        Ok(None)
    }

    /// Puts a device in front of an image that has none.
    pub fn attach(image: &File, path: &Path) -> Result<Loop> {
        let control = fs::open(CONTROL, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed(format_args!("{CONTROL} (load the kernel's module: modprobe loop)")))?;
        let mut last = io::Error::from_raw_os_error(libc::EBUSY);
        for round in 0..ROUNDS {
            match attach_once(&control, image, path) {
                Err(e) if was_taken(&e) => last = e,
                Err(e) => return Err(failed(format_args!("{}: loop device", path.display()))(e)),
                Ok(device) => return device.settled(path),
            }
            sleep(Duration::from_millis(u64::from(round)));
        }
        Err(failed(format_args!("{}: no loop device could be had", path.display()))(last))
    }

    /// Applies D3, and verifies it.
    fn settled(self, path: &Path) -> Result<Loop> {
        self.require_direct().map_err(|e| e.context(path.display()))?;
        self.forbid_discard().map_err(|e| e.context(path.display()))?;
        Ok(self)
    }

    pub fn require_direct(&self) -> Result<()> {
        let name = self.name();
        let is_direct = |info: &Info| info.flags & LO_FLAGS_DIRECT_IO != 0;
        if is_direct(&self.info().map_err(failed(&name))?) {
            return Ok(());
        }
        // The device was found as another program left it.
        let _ = self.control(LOOP_SET_DIRECT_IO, 1);
        match is_direct(&self.info().map_err(failed(&name))?) {
            true => Ok(()),
            false => Err(Error::os(
                libc::EOPNOTSUPP,
                format!("{name} does not take direct-io: use a pool on ext4 or XFS"),
            )),
        }
    }

    /// Room that the space frees stays allocated in the image: a hole in the image could not be filled
    /// again on a full tier, and a write would fail with EIO.
    fn forbid_discard(&self) -> Result<()> {
        let queue = format!("/sys/block/loop{}/queue", self.number);
        let at = format!("{queue}/discard_max_bytes");
        std::fs::write(&at, "0").map_err(failed(&at))?;
        // Kernels before 6.17 do not have it.
        let _ = std::fs::write(format!("{queue}/write_zeroes_unmap_max_bytes"), "0");
        match std::fs::read_to_string(&at).map_err(failed(&at))?.trim() {
            "0" => Ok(()),
            other => Err(Error::os(libc::EOPNOTSUPP, format!("{at} stays at {other}"))),
        }
    }

    pub fn name(&self) -> String {
        format!("/dev/loop{}", self.number)
    }

    /// `major:minor`
    pub fn numbers(&self) -> Result<String> {
        let stat = fs::fstat(&self.file).map_err(failed(self.name()))?;
        Ok(show_device(stat.st_rdev))
    }

    fn info(&self) -> io::Result<Info> {
        // SAFETY: integers and arrays of them, for which zeros are values.
        let mut info: Info = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one `Info`.
        check(unsafe {
            libc::ioctl(self.file.as_raw_fd(), LOOP_GET_STATUS64.into(), &raw mut info)
        })?;
        Ok(info)
    }

    fn control(&self, request: u32, value: u64) -> io::Result<()> {
        // SAFETY: the request takes an integer.
        check(unsafe { libc::ioctl(self.file.as_raw_fd(), request.into(), value) }).map(drop)
    }
}

pub(super) fn show_device(device: u64) -> String {
    format!("{}:{}", fs::major(device), fs::minor(device))
}

/// Why there are no loop devices, if there are none.
pub(super) fn missing() -> Option<String> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match fs::open(CONTROL, flags, Mode::empty()) {
        Ok(_) => None,
        Err(e) => Some(format!("{CONTROL}: {} (modprobe loop)", io::Error::from(e))),
    }
}

/// Whether another program took the device: one that asked for a free one, or one that cleared away.
fn was_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::ENXIO | libc::ENODEV | libc::ENOENT))
}

/// D4: makes a device that did not exist before.
fn add(control: &OwnedFd) -> io::Result<u32> {
    for number in OURS {
        match change(control, LOOP_CTL_ADD, number) {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {}
            done => return done.map(|()| number),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

fn change(control: &OwnedFd, request: u32, number: u32) -> io::Result<()> {
    // SAFETY: the request takes an integer.
    check(unsafe { libc::ioctl(control.as_raw_fd(), request.into(), number) }).map(drop)
}

/// Removes forebay's devices that have no file behind them any more (D4). The kernel keeps those in use.
pub(super) fn clear_away() {
    let Ok(control) = fs::open(CONTROL, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    let Ok(entries) = std::fs::read_dir("/sys/block") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop")?.parse().ok());
        let unused = !entry.path().join("loop/backing_file").exists();
        if let Some(number) = number.filter(|number| OURS.contains(number) && unused) {
            let _ = change(&control, LOOP_CTL_REMOVE, number);
        }
    }
}

fn attach_once(control: &OwnedFd, image: &File, path: &Path) -> io::Result<Loop> {
    let device = open(add(control)?, OFlags::RDWR)?;
    // SAFETY: integers and arrays of them, for which zeros are values.
    let mut config: Config = unsafe { std::mem::zeroed() };
    config.fd = image.as_raw_fd().unsigned_abs();
    config.block_size = block_size(image)?;
    config.info.flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
    put_name(&mut config.info.file_name, path);
    // SAFETY: the kernel reads one `Config`.
    let done =
        unsafe { libc::ioctl(device.file.as_raw_fd(), LOOP_CONFIGURE.into(), &raw const config) };
    check(done).map(|_| device)
}

/// The tier's block size: direct-io in smaller blocks is refused, and programs may not expect larger
/// ones.
fn block_size(image: &File) -> io::Result<u32> {
    let device = format!("/sys/dev/block/{}", show_device(fs::fstat(image)?.st_dev));
    // A partition has its queue one directory above.
    let sizes = ["queue", "../queue"].into_iter().find_map(|queue| {
        let size = std::fs::read_to_string(format!("{device}/{queue}/logical_block_size")).ok()?;
        size.trim().parse().ok()
    });
    // All devices support these.
    Ok(sizes.unwrap_or(4096))
}

/// Sets the name that `losetup` shows; cut to what fits, with a NUL behind it.
fn put_name(to: &mut [u8; 64], path: &Path) {
    let bytes = path.as_os_str().as_encoded_bytes();
    let len = bytes.len().min(to.len() - 1);
    to[..len].copy_from_slice(&bytes[..len]);
}

/// The numbers of devices that have a file behind them.
fn configured() -> Result<Vec<u32>> {
    let at = "/sys/block";
    let entries = std::fs::read_dir(at).map_err(failed(at))?;
    let number = |entry: io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let number = entry.file_name().to_str()?.strip_prefix("loop")?.parse().ok()?;
        entry.path().join("loop/backing_file").exists().then_some(number)
    };
    Ok(entries.filter_map(number).collect())
}

fn open(number: u32, flags: OFlags) -> io::Result<Loop> {
    let path = format!("/dev/loop{number}");
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let fd = fs::open(&path, flags, Mode::empty())?;
    let stat = fs::fstat(&fd)?;
    // 7 is the major number of loop devices; the minor number depends on the number of partitions that
    // each may have.
    match fs::major(stat.st_rdev) == 7 {
        true => Ok(Loop { file: fd.into(), number }),
        false => Err(io::Error::other(format!("{path} is no loop device"))),
    }
}

/// The kernel writes its own, older form of the numbers into `Info`: 12 bits of minor around 12 bits of
/// major.
fn same_device(kernels: u64, stats: u64) -> bool {
    let major = (kernels >> 8) & 0xfff;
    let minor = (kernels & 0xff) | ((kernels >> 12) & 0xf_ff00);
    (u64::from(fs::major(stats)), u64::from(fs::minor(stats))) == (major, minor)
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
