//! Access control lists. The kernel asks for them, keeps them as long as the attributes, and
//! enforces them; the backing store's file system makes mode and list agree.

use std::ffi::OsStr;
use std::path::Path;

use forebay_backing::{Error, FileKey, Kind, Result};

use super::Vfs;
use super::homes::moved;

/// The extended attribute with the access list of a file.
pub const ACCESS: &str = "system.posix_acl_access";

/// The subject of an entry of a list, and its number (linux/posix_acl_xattr.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Owner,
    User,
    GroupOf,
    Group,
    Mask,
    Others,
}

impl Tag {
    fn of(number: u16) -> Option<Tag> {
        Some(match number {
            0x01 => Tag::Owner,
            0x02 => Tag::User,
            0x04 => Tag::GroupOf,
            0x08 => Tag::Group,
            0x10 => Tag::Mask,
            0x20 => Tag::Others,
            _ => return None,
        })
    }
}

/// One line of a list: `bits` are those of a mode's last digit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub tag: Tag,
    pub id: u32,
    pub bits: u32,
}

const VERSION: u32 = 2;

/// The entries of a list, decoded from its extended attribute: none if there is no list.
///
/// # Errors
///
/// EIO if it is no list of the known version. Such a list grants nothing.
pub(super) fn entries(list: &[u8]) -> Result<Vec<Entry>> {
    let Some((version, rest)) = list.split_first_chunk() else { return Ok(Vec::new()) };
    let (entries, left) = rest.as_chunks::<8>();
    let read = |&[t0, t1, b0, b1, id @ ..]: &[u8; 8]| {
        let tag = Tag::of(u16::from_le_bytes([t0, t1]))?;
        let bits = u16::from_le_bytes([b0, b1]).into();
        Some(Entry { tag, id: u32::from_le_bytes(id), bits })
    };
    let read: Option<Vec<Entry>> = entries.iter().map(read).collect();
    match read.filter(|_| u32::from_le_bytes(*version) == VERSION && left.is_empty()) {
        Some(entries) => Ok(entries),
        None => Err(Error::os(libc::EIO, "an access list that cannot be read")),
    }
}

/// The extended attribute with the list that new files in a directory get.
const DEFAULT: &str = "system.posix_acl_default";

pub fn is_one(name: &OsStr) -> bool {
    name == ACCESS || name == DEFAULT
}

impl Vfs {
    /// A file's list. A file system without lists must say ENODATA: after any other error the
    /// kernel refuses everybody the file.
    pub(super) fn acl(&self, id: u64, name: &OsStr) -> Result<Vec<u8>> {
        let _tree = self.tree();
        let mark = self.nodes.acl_mark();
        let list = match listed(self.ask_acl(id, name)) {
            Err(error) if !self.engine.health.is_available() => {
                self.known(id, name).ok_or(error)?
            }
            list => list?,
        };
        if name == ACCESS {
            self.nodes.note_acl(id, mark, &list);
        }
        present(list)
    }

    fn ask_acl(&self, id: u64, name: &OsStr) -> Result<Vec<u8>> {
        // The pin comes first, since the file's name may be another file's any moment.
        if let Some(pin) = self.nodes.pin(id) {
            return self.engine.names.ask(|_| pin.xattr_get(name));
        }
        self.ask_acl_of(self.nodes.key(id), &self.path(id)?, name)
    }

    /// The present access list of a file that is open here, empty if it has none. `path` is where the file was last.
    /// Does not lock the tree.
    ///
    /// # Errors
    ///
    /// ESTALE if another file has the path by now: the caller looks again.
    pub(super) fn acl_at(&self, key: FileKey, path: &Path) -> Result<Vec<u8>> {
        let (id, name) = (self.nodes.id_of(key), OsStr::new(ACCESS));
        let own = self.engine.files.find(key).and_then(|file| file.path());
        let path = own.as_deref().unwrap_or(path);
        let list = match id.and_then(|id| self.nodes.pin(id)) {
            Some(pin) => listed(self.engine.names.ask(|_| pin.xattr_get(name))),
            None if self.has_no_list(Some(key), path, name) => return Ok(Vec::new()),
            None => listed(self.ask_store_for_acl(path, name)).and_then(|list| {
                // The list is that of the file which has the name now.
                match self.engine.names.ask(|b| b.stat(path))?.key == key {
                    true => Ok(list),
                    false => Err(moved()),
                }
            }),
        };
        match list {
            Err(error) if !self.engine.health.is_available() => {
                id.and_then(|id| self.known(id, name)).ok_or(error)
            }
            list => list,
        }
    }

    /// Whether it is known without a question that there is no list.
    fn has_no_list(&self, key: Option<FileKey>, path: &Path, name: &OsStr) -> bool {
        // The store's answer for one file holds for all of its file system, that of the store's root.
        let dir = path.parent().filter(|_| key.is_some_and(|key| !key.may_be_nested()));
        self.lacks(path, name) || dir.is_some_and(|dir| self.foresight.answers.has_no_acls(dir))
    }

    fn ask_acl_of(&self, key: Option<FileKey>, path: &Path, name: &OsStr) -> Result<Vec<u8>> {
        if self.has_no_list(key, path, name) {
            return Ok(Vec::new());
        }
        let asked = self.foresight.answers.moment();
        let list = self.ask_store_for_acl(path, name);
        let dir = path.parent().filter(|_| key.is_some_and(|key| !key.may_be_nested()));
        if let (Some(dir), Err(error)) = (dir, &list)
            && error.is(libc::EOPNOTSUPP)
        {
            self.foresight.answers.hear_no_acls(dir, asked);
        }
        list
    }

    fn ask_store_for_acl(&self, path: &Path, name: &OsStr) -> Result<Vec<u8>> {
        let list = self.engine.names.ask(|b| b.xattr_get(path, name));
        self.note_asked(&list);
        list
    }

    /// To be called after an extended attribute was changed.
    pub(super) fn acl_may_differ(&self, id: u64, name: &OsStr) {
        if is_one(name) {
            self.nodes.forget_acl(id);
        }
    }

    /// The list without the backing store (S10). A list that was never read denies: nothing is granted
    /// that the list might not grant.
    pub fn getxattr_cached(&self, id: u64, name: &OsStr) -> Result<Vec<u8>> {
        let late = || Error::new(Kind::TimedOut, "the backing store hangs");
        self.known(id, name).ok_or_else(late).and_then(present)
    }

    fn known(&self, id: u64, name: &OsStr) -> Option<Vec<u8>> {
        if name == ACCESS { self.nodes.acl(id) } else { None }
    }
}

/// Takes the errors of a file system without lists, or of a file without one, for an empty list.
fn listed(list: Result<Vec<u8>>) -> Result<Vec<u8>> {
    match list {
        Err(error) if error.is(libc::EOPNOTSUPP) || error.is(libc::ENODATA) => Ok(Vec::new()),
        list => list,
    }
}

/// Returns a list that exists; ENODATA for an empty one.
fn present(list: Vec<u8>) -> Result<Vec<u8>> {
    if list.is_empty() { Err(Error::os(libc::ENODATA, "no list")) } else { Ok(list) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_whole_or_not_at_all() {
        let mut list = VERSION.to_le_bytes().to_vec();
        list.extend([1, 0, 6, 0, 0xff, 0xff, 0xff, 0xff, 2, 0, 4, 0, 0xe8, 3, 0, 0]);
        let read = entries(&list).unwrap();
        let expected = [
            Entry { tag: Tag::Owner, id: u32::MAX, bits: 6 },
            Entry { tag: Tag::User, id: 1000, bits: 4 },
        ];
        assert_eq!(read, expected);
        assert_eq!(entries(&[]).unwrap(), []);
        for (at, with) in [(0, 3), (4, 3)] {
            let mut odd = list.clone();
            odd[at] = with;
            assert!(entries(&odd).is_err(), "byte {at}");
        }
        assert!(entries(&list[..list.len() - 1]).is_err(), "cut");
    }
}
