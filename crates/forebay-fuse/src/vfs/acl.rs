//! Access control lists. The kernel asks for them, keeps them as long as the attributes, and
//! enforces them; the backing store's file system makes mode and list agree.

use std::ffi::OsStr;

use forebay_backing::{Error, Kind, Result};

use super::Vfs;

/// Who may do what with a file.
pub const ACCESS: &str = "system.posix_acl_access";

/// What new files in a directory get.
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
        let list = match self.ask_acl(id, name) {
            Err(error) if error.is(libc::EOPNOTSUPP) || error.is(libc::ENODATA) => Vec::new(),
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
        // First, since its name may be another file's any moment.
        if let Some(pin) = self.nodes.pin(id) {
            return self.engine.names.ask(|_| pin.xattr_get(name));
        }
        let path = self.path(id)?;
        if self.lacks(&path, name) {
            return Ok(Vec::new());
        }
        // What one file is told tells of others of the same file system: that of the store's root.
        let is_own = self.nodes.key(id).is_some_and(|key| !key.may_be_nested());
        let dir = path.parent().filter(|_| is_own);
        if dir.is_some_and(|dir| self.foresight.answers.has_no_acls(dir)) {
            return Ok(Vec::new());
        }
        let asked = self.foresight.answers.moment();
        let list = self.engine.names.ask(|b| b.xattr_get(&path, name));
        self.note_asked(&list);
        if let (Some(dir), Err(error)) = (dir, &list)
            && error.is(libc::EOPNOTSUPP)
        {
            self.foresight.answers.hear_no_acls(dir, asked);
        }
        list
    }

    /// After an extended attribute was changed.
    pub(super) fn acl_may_differ(&self, id: u64, name: &OsStr) {
        if is_one(name) {
            self.nodes.forget_acl(id);
        }
    }

    /// Without the backing store (S10) a list that nobody has asked for denies: nothing is granted
    /// that it might not grant.
    pub fn getxattr_cached(&self, id: u64, name: &OsStr) -> Result<Vec<u8>> {
        let late = || Error::new(Kind::TimedOut, "the backing store hangs");
        self.known(id, name).ok_or_else(late).and_then(present)
    }

    fn known(&self, id: u64, name: &OsStr) -> Option<Vec<u8>> {
        if name == ACCESS { self.nodes.acl(id) } else { None }
    }
}

/// A list that is there: an empty one is none.
fn present(list: Vec<u8>) -> Result<Vec<u8>> {
    if list.is_empty() { Err(Error::os(libc::ENODATA, "no list")) } else { Ok(list) }
}
