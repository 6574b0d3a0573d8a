//! Changing attributes and extended attributes.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use forebay_backing::{Attr, Error, Result, SetAttr, XattrMode};
use forebay_engine::rules::Origin;
use forebay_engine::{Admission, File, Named};

use super::{Handle, Vfs, acl};
use crate::control::{self, Control};

impl Vfs {
    /// Changes attributes, and the size if one is given, through the handle that comes with it.
    pub fn setattr(
        &self,
        id: u64,
        who: Origin,
        set: &SetAttr,
        size: Option<(u64, Option<u64>)>,
    ) -> Result<Attr> {
        if Control::owns(id) {
            return self.control.set_attr(id, set, size.is_some());
        }
        let tree = self.tree();
        let path = self.nodes.path(id);
        if let Some((size, handle)) = size {
            let admission = handle.and_then(|handle| self.admission(handle));
            self.set_size(id, path.as_deref(), size, |file| {
                admission.unwrap_or_else(|| self.engine.room.admission_of(file, who))
            })?;
            self.strip_privilege(id, path.as_deref(), Some(who));
        }
        let changes = set.mode.is_some()
            || set.uid.is_some()
            || set.gid.is_some()
            || set.atime.is_some()
            || set.mtime.is_some();
        if let (None, true, Some(file)) = (&path, changes, self.open_file(id)) {
            return self.engine.verbs.set_attr_open(&file, set);
        }
        if let (Some(path), true) = (path, changes) {
            let mut set = *set;
            if (set.uid.is_some() || set.gid.is_some()) && set.mode.is_none() {
                set.mode = self.mode_with_owner(&path, who)?;
            }
            let done = self.engine.verbs.set_attr(self.at(id, &path)?, &set);
            if set.mode.is_some() {
                self.nodes.forget_acl(id);
            }
            return done;
        }
        drop(tree);
        match changes {
            // A removed directory.
            true => Err(Error::os(libc::ESTALE, "a name that is gone")),
            false => self.getattr(id),
        }
    }

    fn admission(&self, handle: u64) -> Option<Admission> {
        match &*self.handle(handle).ok()? {
            Handle::File { admission, .. } => Some(admission.clone()),
            _ => None,
        }
    }

    fn set_size(
        &self,
        id: u64,
        path: Option<&Path>,
        size: u64,
        admission: impl FnOnce(&Arc<File>) -> Admission,
    ) -> Result<()> {
        if let Some(file) = self.open_file(id) {
            return self.engine.io.set_len_in(&admission(&file), &file, size);
        }
        let path = path.ok_or_else(|| Error::os(libc::ESTALE, "a name that is gone"))?;
        let file = self.engine.io.open(path, self.nodes.key(id))?;
        let done = self.engine.io.set_len_in(&admission(&file), &file, size);
        drop(file);
        self.nodes.set_pages(id, 0);
        done
    }

    pub fn getxattr(&self, id: u64, name: &OsStr) -> Result<Vec<u8>> {
        if Control::owns(id) {
            return Err(Error::os(libc::ENODATA, "xattr"));
        }
        if acl::is_one(name) {
            return self.acl(id, name);
        }
        // Asked by the kernel at the first write after each look at the attributes.
        let file = (name == "security.capability").then(|| self.open_file(id)).flatten();
        if file.as_ref().is_some_and(|file| self.engine.verbs.lacks_capability(file, self.attr_ttl))
        {
            return Err(Error::os(libc::ENODATA, "xattr"));
        }
        let _tree = self.tree();
        let path = self.path(id)?;
        let asked = file.as_ref().map(|file| self.engine.verbs.before_asking(file));
        let value = self.engine.names.ask(|b| b.xattr_get(&path, name));
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
        let names = self.engine.names.ask(|b| b.xattr_list(&path))?;
        let mut bytes = Vec::new();
        for name in names {
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
        let _tree = self.tree();
        let path = self.path(id)?;
        let mode = match flags {
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => XattrMode::Any,
        };
        let done = self.engine.verbs.set_xattr(self.at(id, &path)?, name, value, mode);
        self.acl_may_differ(id, name);
        if done.is_ok() && name == acl::ACCESS {
            self.strip_after_acl(id, &path, who);
        }
        done
    }

    pub fn removexattr(&self, id: u64, name: &OsStr) -> Result<()> {
        control::refuse(id)?;
        let _tree = self.tree();
        let path = self.path(id)?;
        let done = self.engine.verbs.remove_xattr(self.at(id, &path)?, name);
        self.acl_may_differ(id, name);
        done
    }

    pub(super) fn at<'a>(&self, id: u64, path: &'a Path) -> Result<Named<'a>> {
        let key =
            self.nodes.key(id).ok_or_else(|| Error::os(libc::ESTALE, "a name that is gone"))?;
        Ok(Named { path, key, is_dir: self.nodes.is_dir(id) })
    }
}
