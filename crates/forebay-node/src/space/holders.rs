//! The processes that still use a mount, from `/proc` alone.
//!
//! No request goes to a file of a foreign file system: links are looked at with what the kernel has
//! cached (`AT_STATX_DONT_SYNC`). The search still ends at a deadline, and reports that.
//!
//! Not seen: a descriptor in transit through a socket, and one that io_uring has registered.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_base::mounts::{self, Mount};
use rustix::fs;
use rustix::fs::{AtFlags, CWD, StatxFlags};

use super::loopdev::show_device;
use super::record::Held;
use super::removal::Shown;

/// The search on a node with tens of thousands of open files takes far less.
const LIMIT: Duration = Duration::from_millis(200);

/// As many as a message can name.
const HOLDERS_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub pid: u32,
    pub name: String,
    pub how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Directory,
    File,
    Mapping,
    /// The process has mounts of its own, the space among them.
    Namespace,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.how {
            How::Directory => "works in it",
            How::File => "has a file open",
            How::Mapping => "has a file mapped",
            How::Namespace => "has it in a mount namespace",
        };
        write!(f, "{} (pid {}) {how}", self.name, self.pid)
    }
}

/// What the search looks for.
pub(super) struct Target<'h> {
    pub held: &'h Held,
    /// Whether the device is the space's alone, so that each of its mounts counts.
    pub device: Device,
    /// The source of a tmpfs, whose device number may be another file system's by now.
    pub source: Option<&'h str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Device {
    Own,
    Shared,
}

#[derive(Debug)]
pub(super) struct Found {
    pub holders: Vec<Holder>,
    /// Whether all processes were looked at.
    pub complete: bool,
}

pub(super) fn find(target: &Target<'_>) -> Found {
    let end = Instant::now() + LIMIT;
    let mut found = Found { holders: Vec::new(), complete: true };
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return Found { complete: false, ..found };
    };
    let ours = own_namespace();
    let mut known: HashSet<String> = ours.into_iter().collect();
    for entry in processes.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if Instant::now() > end || found.holders.len() >= HOLDERS_MAX {
            return Found { complete: false, ..found };
        }
        let at = entry.path();
        if let Some(how) = target.how(&at, &mut known) {
            found.holders.push(Holder { pid, name: name(&at), how });
        }
    }
    found
}

impl Target<'_> {
    fn how(&self, process: &Path, known: &mut HashSet<String>) -> Option<How> {
        for link in ["cwd", "root"] {
            if self.is_at(&process.join(link)) {
                return Some(How::Directory);
            }
        }
        if self.is_at(&process.join("exe")) || self.is_mapped(process) {
            return Some(How::Mapping);
        }
        let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        if files.into_iter().any(|file| self.is_at(&file.path())) {
            return Some(How::File);
        }
        self.is_in_namespace(process, known).then_some(How::Namespace)
    }

    /// Whether a link of `/proc` leads into the mount.
    fn is_at(&self, link: &Path) -> bool {
        let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let Ok(found) = fs::statx(CWD, link, flags, StatxFlags::MNT_ID) else {
            // XFS that was shut down answers nothing.
            return mount_of(link) == Some(self.held.mount);
        };
        let device = fs::makedev(found.stx_dev_major, found.stx_dev_minor);
        let knows_mount = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
        let same_mount = knows_mount && found.stx_mnt_id == self.held.mount;
        show_device(device) == self.held.device && (same_mount || self.device == Device::Own)
    }

    /// `maps` names devices in hexadecimal numbers.
    fn is_mapped(&self, process: &Path) -> bool {
        if self.device == Device::Shared {
            return false;
        }
        let Ok(maps) = std::fs::read_to_string(process.join("maps")) else { return false };
        let Some((major, minor)) = self.held.device.split_once(':') else { return false };
        let (Ok(major), Ok(minor)) = (major.parse::<u32>(), minor.parse::<u32>()) else {
            return false;
        };
        let device = format!("{major:02x}:{minor:02x}");
        maps.lines().any(|line| line.split_ascii_whitespace().nth(3) == Some(&device))
    }

    /// Each namespace counts once, by the first process found in it.
    fn is_in_namespace(&self, process: &Path, known: &mut HashSet<String>) -> bool {
        let Some(namespace) = namespace(process) else { return false };
        if self.device == Device::Shared || !known.insert(namespace) {
            return false;
        }
        let Ok(table) = std::fs::read(process.join("mountinfo")) else { return false };
        mounts::parse(&table).iter().any(|mount| self.fits(mount))
    }

    fn fits(&self, mount: &Mount) -> bool {
        mount.device == self.held.device && self.source.is_none_or(|source| mount.source == *source)
    }

    /// Whether the number of a gone tmpfs, or of a gone mount on a shared device, was given to another
    /// one.
    pub fn is_another_by_now(&self, shown: Shown) -> bool {
        let mounts = mounts::read().unwrap_or_default();
        let mut same = mounts.iter().filter(|mount| mount.device == self.held.device);
        match (self.source, self.device) {
            (Some(source), _) => same.any(|mount| mount.source != *source),
            (None, Device::Shared) => {
                shown == Shown::No && same.any(|mount| mount.id == self.held.mount)
            }
            (None, Device::Own) => false,
        }
    }
}

/// The mount that a link leads into; name_to_handle_at(2) sends no request to the file.
fn mount_of(link: &Path) -> Option<u64> {
    let link = std::ffi::CString::new(link.as_os_str().as_encoded_bytes()).ok()?;
    // With no room for a handle the kernel answers EOVERFLOW, and still gives the mount.
    let mut handle = [0u32; 2];
    let mut mount: libc::c_int = -1;
    // SAFETY: a path that ends in NUL, and room for the head of a handle and an integer.
    unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            link.as_ptr(),
            handle.as_mut_ptr(),
            &raw mut mount,
            libc::AT_SYMLINK_FOLLOW,
        );
    }
    u64::try_from(mount).ok()
}

fn namespace(process: &Path) -> Option<String> {
    let link = std::fs::read_link(process.join("ns/mnt")).ok()?;
    Some(link.to_string_lossy().into_owned())
}

fn own_namespace() -> Option<String> {
    namespace(Path::new("/proc/self"))
}

fn name(process: &Path) -> String {
    let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
    name.trim_end().to_string()
}

/// The holders' names, for messages.
pub(super) fn list(holders: &[Holder]) -> String {
    holders.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
