//! Extended attributes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_backing::{Error, FileKey, Result};
use forebay_cluster::words::NameChange;
use forebay_engine::rules::Origin;

use super::members::Settled;
use super::rights::asker_of;
use super::served_names::xattr_mode;
use super::{Vfs, acl};
use crate::control::{self, Control};

/// Namespaces in which the kernel itself checks who may read and change attributes, before it asks the daemon.
const CHECKED: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Whether an attribute is served. For others, such as the ACLs of NFSv4 and CIFS in `system.`, the kernel leaves
/// the check of rights to the file system (`xattr_permission` in Linux, fs/xattr.c): the store would see the daemon
/// ask.
fn is_served(name: &OsStr) -> bool {
    acl::is_one(name) || CHECKED.iter().any(|space| name.as_bytes().starts_with(space))
}

fn require_served(name: &OsStr) -> Result<()> {
    match is_served(name) {
        true => Ok(()),
        false => Err(Error::os(libc::EOPNOTSUPP, "an attribute that the mount does not serve")),
    }
}

/// The attribute that the kernel asks for at the first write to a file.
const CAPABILITY: &str = "security.capability";

impl Vfs {
    pub fn getxattr(&self, id: u64, name: &OsStr) -> Result<Vec<u8>> {
        if Control::owns(id) {
            return Err(Error::os(libc::ENODATA, "xattr"));
        }
        require_served(name)?;
        if acl::is_one(name) {
            return self.acl(id, name);
        }
        // The kernel asks for it at the first write after each look at the attributes.
        let is_capability = name == CAPABILITY;
        let file = is_capability.then(|| self.open_file(id)).flatten();
        if file.as_ref().is_some_and(|file| self.engine.verbs.lacks_capability(file, self.attr_ttl))
        {
            return Err(Error::os(libc::ENODATA, "xattr"));
        }
        let _tree = self.tree();
        let path = self.path(id)?;
        let asked = file.as_ref().map(|file| self.engine.verbs.before_asking(file));
        let value = match self.lacks(&path, name) {
            true => Err(Error::os(libc::ENODATA, "xattr")),
            false => self.engine.names.ask(|b| b.xattr_get(&path, name)),
        };
        // The kernel asks for the capability at writes, whatever programs do.
        if !is_capability {
            self.note_asked(&value);
        }
        if let (Some(file), Some(asked), Err(error)) = (file, asked, &value)
            && error.is(libc::ENODATA)
        {
            self.engine.verbs.note_no_capability(&file, asked);
        }
        value
    }

    pub fn listxattr(&self, id: u64) -> Result<Vec<u8>> {
        if Control::owns(id) {
            return Ok(Vec::new());
        }
        let _tree = self.tree();
        let path = self.path(id)?;
        let known = match self.cluster() {
            Some(_) => None,
            None => self.foresight.xattrs(&path),
        };
        let names = match known {
            Some(names) => names,
            None => self.engine.names.ask(|b| b.xattr_list(&path))?,
        };
        let mut bytes = Vec::new();
        for name in names.iter().filter(|name| is_served(name)) {
            bytes.extend_from_slice(name.as_encoded_bytes());
            bytes.push(0);
        }
        Ok(bytes)
    }

    pub fn setxattr(
        &self,
        id: u64,
        who: Origin,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        control::refuse(id)?;
        require_served(name)?;
        let _tree = self.tree();
        let path = self.path(id)?;
        let change = |file| NameChange::SetXattr {
            file,
            path: path.clone(),
            name: name.as_bytes().to_vec(),
            value: value.to_vec(),
            flags,
            asker: asker_of(who),
        };
        let Settled::Here(_change) = self.settle_xattr(id, change)? else {
            self.acl_may_differ(id, name);
            if name == acl::ACCESS {
                self.strip_after_acl(&path, who);
            }
            return Ok(());
        };
        let mode = xattr_mode(flags);
        let altering = self.foresight.answers.altering(Some(&path), self.nodes.key(id));
        let done = self.engine.verbs.set_xattr(self.at(id, &path)?, name, value, mode);
        drop(altering);
        self.acl_may_differ(id, name);
        if done.is_ok() && name == acl::ACCESS {
            self.strip_after_acl(&path, who);
        }
        done
    }

    pub fn removexattr(&self, id: u64, who: Origin, name: &OsStr) -> Result<()> {
        control::refuse(id)?;
        require_served(name)?;
        let _tree = self.tree();
        let path = self.path(id)?;
        let change = |file| NameChange::RemoveXattr {
            file,
            path: path.clone(),
            name: name.as_bytes().to_vec(),
            asker: asker_of(who),
        };
        let Settled::Here(_change) = self.settle_xattr(id, change)? else {
            self.acl_may_differ(id, name);
            return Ok(());
        };
        let _altering = self.foresight.answers.altering(Some(&path), self.nodes.key(id));
        let done = self.engine.verbs.remove_xattr(self.at(id, &path)?, name);
        self.acl_may_differ(id, name);
        done
    }

    /// To be called before an extended attribute is changed. No member is asked about those of directories.
    fn settle_xattr(&self, id: u64, change: impl Fn(FileKey) -> NameChange) -> Result<Settled> {
        match self.nodes.placed(id) {
            Some((key, dir)) => self.settle(&[(key, dir)], None, || change(key)),
            None => Ok(Settled::Here(None)),
        }
    }

    /// Whether a file is known to have no such attribute, or is found to have none by a question for all of its
    /// attributes. That question is asked if the attribute that was asked for last was missing.
    pub(super) fn lacks(&self, path: &Path, name: &OsStr) -> bool {
        if self.cluster().is_some() || !self.is_listed(name) {
            return false;
        }
        if let Some(has) = self.foresight.answers.has_xattr(path, name) {
            return !has;
        }
        name != CAPABILITY
            && self.foresight.answers.foresees_absence()
            && self.foresight.xattrs(path).is_some_and(|names| names.iter().all(|it| it != name))
    }

    /// Notes the store's answer to a question for one extended attribute.
    pub(super) fn note_asked(&self, value: &Result<Vec<u8>>) {
        let is_absent = value.as_ref().err().map(|error| error.is(libc::ENODATA));
        self.foresight.answers.note_absence(is_absent.unwrap_or_default());
    }

    /// Whether the store lists an attribute of that name where there is one.
    fn is_listed(&self, name: &OsStr) -> bool {
        let bytes = name.as_encoded_bytes();
        match acl::is_one(name) {
            true => self.engine.names.ask(|b| Ok(b.lists_acls())).unwrap_or_default(),
            false => bytes.starts_with(b"user.") || bytes.starts_with(b"security."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Root's daemon must do nothing in a user's name that the kernel has not allowed that user.
    // S-1
    #[test]
    fn attributes_that_the_kernel_leaves_to_the_store_are_not_served() {
        let served = |name: &str| is_served(OsStr::new(name));
        for name in ["user.x", "trusted.x", "security.capability", "system.posix_acl_access"] {
            assert!(served(name), "{name}");
        }
        for name in ["system.nfs4_acl", "system.cifs_acl", "system.advise", "btrfs.compression", ""]
        {
            assert!(!served(name), "{name}");
        }
    }
}
