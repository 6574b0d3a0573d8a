//! Times, modes, owners, extended attributes and ACLs of copies.
//!
//! The order matters: a change of owner clears set-uid and capabilities, an ACL sets the mode, and each
//! of these changes moves the times.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::report::{Tried, destination, source};
use crate::spec::Options;
use crate::transfer::Engine;

/// The kernel's limits for a list of names and for a value.
const XATTR_MAX: usize = 64 << 10;

const SET_IDS: u32 = 0o6000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    Root,
    User,
}

impl Rights {
    pub fn now() -> Rights {
        if rustix::process::geteuid().is_root() { Rights::Root } else { Rights::User }
    }
}

pub struct Attributes<'a> {
    pub options: &'a Options,
    pub rights: Rights,
}

impl Attributes<'_> {
    /// Gives an opened file or directory the attributes of its source; `stat` is the source's. Returns the
    /// extended attributes that the destination does not keep.
    pub fn apply(&self, src: &impl AsFd, dst: &impl AsFd, stat: &Stat) -> Tried<Vec<CString>> {
        if self.gives_owner() {
            let (uid, gid) = owner(stat);
            fs::fchown(dst, Some(uid), Some(gid)).map_err(destination("setting the owner"))?;
        }
        let lost = self.xattrs(src, dst)?;
        let has_list =
            self.options.preserve.acls && !lost.iter().any(|name| name.as_c_str() == ACL);
        let mode = if has_list { self.mode(stat) } else { self.mode_without_list(src, dst, stat)? };
        fs::fchmod(dst, mode).map_err(destination("setting the mode"))?;
        if self.options.preserve.times {
            fs::futimens(dst, &times(stat)).map_err(destination("setting the times"))?;
        }
        Ok(lost)
    }

    pub fn gives_owner(&self) -> bool {
        self.options.preserve.owner && self.rights == Rights::Root
    }

    /// Whether this process may change the file's attributes: only its owner and root may.
    pub fn may_change(&self, there: &Stat) -> bool {
        self.rights == Rights::Root || owner(there).0 == rustix::process::geteuid()
    }

    pub fn mode(&self, stat: &Stat) -> Mode {
        let is_dir = fs::FileType::from_raw_mode(stat.st_mode) == fs::FileType::Directory;
        let bits = match (self.options.preserve.mode, is_dir) {
            (true, false) => stat.st_mode & 0o7777 & !self.foreign_ids(stat),
            (true, true) => stat.st_mode & 0o7777,
            // As `cp` does: a file that others may not read stays so, and a program stays executable.
            (false, _) => stat.st_mode & 0o777 & !self.options.umask,
        };
        Mode::from_raw_mode(bits)
    }

    /// The mode where the source may have an access list and the destination has none: in a mode with a list, the
    /// group's bits are the list's mask, so the group's own rights take their place.
    pub fn mode_without_list(&self, src: &impl AsFd, dst: &impl AsFd, stat: &Stat) -> Tried<Mode> {
        let group = match group_of_list(src)? {
            Some(group) if group_of_list(dst)?.is_none() => group,
            _ => 0o070,
        };
        Ok(self.mode(stat) & Mode::from_raw_mode(!0o070 | group))
    }

    /// The set-id bits to clear: a file that runs as its owner must not come to run as another user.
    fn foreign_ids(&self, stat: &Stat) -> u32 {
        let own = stat.st_uid == rustix::process::geteuid().as_raw();
        if self.gives_owner() || own { 0 } else { SET_IDS }
    }

    fn xattrs(&self, src: &impl AsFd, dst: &impl AsFd) -> Tried<Vec<CString>> {
        let mut lost = Vec::new();
        for name in self.taken(src)? {
            if self.xattr(src, dst, &name)? == Kept::No {
                lost.push(name);
            }
        }
        Ok(lost)
    }

    /// The names of the extended attributes that are copied.
    pub fn taken(&self, src: &impl AsFd) -> Tried<Vec<CString>> {
        if !self.options.preserve.xattrs && !self.options.preserve.acls {
            return Ok(Vec::new());
        }
        let len = match fs::flistxattr_query(src) {
            Ok(0) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Vec::new()),
            Ok(len) => len,
            Err(errno) => return Err(source("listing extended attributes")(errno)),
        };
        let mut names = vec![0u8; len.max(XATTR_MAX)];
        let len = fs::flistxattr(src, &mut names[..]);
        let len = len.map_err(source("listing extended attributes"))?;
        let names = names[..len].split_inclusive(|&byte| byte == 0);
        let names = names.filter_map(|name| CStr::from_bytes_with_nul(name).ok());
        Ok(names.filter(|name| self.takes(name)).map(CString::from).collect())
    }

    /// Whether an attribute is copied. Labels of a security module are left to the destination.
    fn takes(&self, name: &CStr) -> bool {
        let name = name.to_bytes();
        let root = self.rights == Rights::Root;
        match name {
            _ if name == ACL.to_bytes() => self.options.preserve.acls,
            b"system.posix_acl_default" => self.options.preserve.acls,
            _ if name.starts_with(b"user.") => self.options.preserve.xattrs,
            b"security.capability" => self.options.preserve.xattrs && root,
            _ if name.starts_with(b"trusted.") => {
                self.options.preserve.xattrs && root && !name.starts_with(b"trusted.overlay.")
            }
            _ => false,
        }
    }

    /// Sets an extended attribute that has another value at the destination.
    pub fn renew(&self, src: &OwnedFd, dst: &OwnedFd, name: &CStr) -> Tried<Renewed> {
        let read = |of: &OwnedFd| -> Option<Vec<u8>> {
            let len = fs::fgetxattr(of, name, &mut [0u8; 0][..]).ok()?;
            let mut value = vec![0u8; len];
            let len = fs::fgetxattr(of, name, &mut value[..]).ok()?;
            value.truncate(len);
            Some(value)
        };
        match (read(src), read(dst)) {
            (Some(here), Some(there)) if here == there => Ok(Renewed::Same),
            _ => Ok(match self.xattr(src, dst, name)? {
                Kept::Yes => Renewed::Yes,
                Kept::No => Renewed::Lost,
            }),
        }
    }

    fn xattr(&self, src: &impl AsFd, dst: &impl AsFd, name: &CStr) -> Tried<Kept> {
        let mut value = vec![0u8; XATTR_MAX];
        let len = match fs::fgetxattr(src, name, &mut value[..]) {
            Ok(len) => len,
            Err(Errno::NODATA) => return Ok(Kept::Yes),
            Err(errno) => return Err(source("reading an extended attribute")(errno)),
        };
        match fs::fsetxattr(dst, name, &value[..len], XattrFlags::empty()) {
            Ok(()) => Ok(Kept::Yes),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(Kept::No),
            Err(errno) => Err(destination("setting an extended attribute")(errno)),
        }
    }
}

const ACL: &CStr = c"system.posix_acl_access";

/// The rights of the owning group in a source's access list, as mode bits; `None` if it has no list
/// (linux/posix_acl_xattr.h: a version, then tag, permissions and id of each entry).
fn group_of_list(src: &impl AsFd) -> Tried<Option<u32>> {
    const GROUP: u16 = 0x04;
    const MASK: u16 = 0x10;
    let mut value = vec![0u8; XATTR_MAX];
    let len = match fs::fgetxattr(src, ACL, &mut value[..]) {
        Ok(len) => len,
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(None),
        Err(errno) => return Err(source("reading an access list")(errno)),
    };
    let entries = value[..len].get(4..).unwrap_or_default().as_chunks::<8>().0;
    let bits = |wanted: u16| {
        let entry = entries.iter().find(|&&[a, b, ..]| u16::from_le_bytes([a, b]) == wanted);
        entry.map(|&[_, _, a, b, ..]| u32::from(u16::from_le_bytes([a, b])))
    };
    Ok(bits(GROUP).map(|group| (group & bits(MASK).unwrap_or(0o7)) << 3))
}

/// The result for an attribute of a file that existed already.
pub enum Renewed {
    Same,
    Yes,
    /// The destination does not keep attributes of this kind.
    Lost,
}

/// Whether the destination has the attribute now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Yes,
    No,
}

impl Engine<'_> {
    /// Notes the extended attributes of a source that its destination lacks.
    pub fn note_lost(&self, path: &Path, names: &[CString]) {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        for name in names {
            let (path, name) = (path.display(), name.to_string_lossy());
            self.ledger.note(format!("{path}: {name}: the destination keeps no such attributes"));
        }
    }
}

pub fn owner(stat: &Stat) -> (Uid, Gid) {
    (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid))
}

pub fn times(stat: &Stat) -> Timestamps {
    let time =
        |seconds: i64, nanos: u64| Timespec { tv_sec: seconds, tv_nsec: nanos.cast_signed() };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}
