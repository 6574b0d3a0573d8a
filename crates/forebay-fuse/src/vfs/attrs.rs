//! Changing attributes and extended attributes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use forebay_backing::{Attr, Error, FileKey, Result, SetAttr};
use forebay_cluster::core::Access;
use forebay_cluster::front::Guard;
use forebay_cluster::words::{Asker, NameChange};
use forebay_engine::rules::Origin;
use forebay_engine::{Admission, File, Named};

use super::members::Settled;
use super::served_names::{set_of, xattr_mode};
use super::{Handle, Vfs, acl};
use crate::control::{self, Control};

/// A change of attributes that may be another's to make.
enum Attributes {
    /// It is made here; what lasts until it is made.
    Here(Option<Guard>, Option<Guard>),
    Changed(Attr),
}

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
        let settled = self.settle_attr(id, path.as_deref(), who, set, size)?;
        let (_change, _held) = match settled {
            Attributes::Here(change, held) => (change, held),
            Attributes::Changed(attr) => return Ok(attr),
        };
        if let Some((size, handle)) = size {
            let admission = handle.and_then(|handle| self.admission(handle));
            self.set_size(id, path.as_deref(), size, |file| {
                admission.unwrap_or_else(|| self.engine.room.admission_of(file, who))
            })?;
            self.strip_privilege(id, path.as_deref(), Some(who));
            if let Some(key) = self.nodes.key(id).filter(|_| self.is_far(id)) {
                self.tell_pages(key, 0, 0);
            }
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

    /// Before attributes are changed: by their file's home, if that is another member.
    fn settle_attr(
        &self,
        id: u64,
        path: Option<&Path>,
        who: Origin,
        set: &SetAttr,
        size: Option<(u64, Option<u64>)>,
    ) -> Result<Attributes> {
        if self.cluster().is_none() || self.nodes.is_dir(id) {
            return Ok(Attributes::Here(None, None));
        }
        let mut set = *set;
        let gives_away = set.uid.is_some() || set.gid.is_some();
        if let (Some(path), true, None) = (path, gives_away, set.mode) {
            set.mode = self.mode_with_owner(path, who)?;
        }
        let size = size.map(|(size, _)| size);
        let change = |file, path: &Path| NameChange::SetAttr {
            file,
            path: path.into(),
            set: set_of(&set),
            size,
            asker: Asker { uid: who.uid, gid: who.gid },
        };
        let placed = self.placed(id).zip(path);
        let Some(((key, dir), path)) = placed else {
            // Without a name: open here, or at its home.
            let key = self.nodes.key(id).filter(|_| self.is_far(id));
            let home = key.and_then(|key| self.home_of(key));
            let Some((key, home)) = key.zip(home) else { return Ok(Attributes::Here(None, None)) };
            self.ask_change(&home, change(key, Path::new("")))?;
            return self.getattr_there(id).map(Attributes::Changed);
        };
        match self.settle(&[(key, dir)], None, || change(key, path))? {
            Settled::Done(attrs) => {
                self.nodes.forget_acl(id);
                self.changed_there(path, attrs).map(Attributes::Changed)
            }
            Settled::Here(change) => {
                let held = size.map(|_| self.claim(id, Access::Write)).transpose()?.flatten();
                Ok(Attributes::Here(change, held))
            }
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
        let change = |file| NameChange::SetXattr {
            file,
            path: path.clone(),
            name: name.as_bytes().to_vec(),
            value: value.to_vec(),
            flags,
            asker: Asker { uid: who.uid, gid: who.gid },
        };
        let Settled::Here(_change) = self.settle_xattr(id, change)? else {
            self.acl_may_differ(id, name);
            if name == acl::ACCESS {
                self.strip_after_acl(id, &path, who);
            }
            return Ok(());
        };
        let mode = xattr_mode(flags);
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
        let change = |file| NameChange::RemoveXattr {
            file,
            path: path.clone(),
            name: name.as_bytes().to_vec(),
        };
        let Settled::Here(_change) = self.settle_xattr(id, change)? else {
            self.acl_may_differ(id, name);
            return Ok(());
        };
        let done = self.engine.verbs.remove_xattr(self.at(id, &path)?, name);
        self.acl_may_differ(id, name);
        done
    }

    /// Before an extended attribute is changed. Those of directories are the store's alone.
    fn settle_xattr(&self, id: u64, change: impl Fn(FileKey) -> NameChange) -> Result<Settled> {
        match self.placed(id) {
            Some((key, dir)) => self.settle(&[(key, dir)], None, || change(key)),
            None => Ok(Settled::Here(None)),
        }
    }

    pub(super) fn at<'a>(&self, id: u64, path: &'a Path) -> Result<Named<'a>> {
        let key =
            self.nodes.key(id).ok_or_else(|| Error::os(libc::ESTALE, "a name that is gone"))?;
        Ok(Named { path, key, is_dir: self.nodes.is_dir(id) })
    }
}
