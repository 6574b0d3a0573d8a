//! Changing attributes.

use std::path::Path;
use std::sync::Arc;

use forebay_backing::{Attr, Error, Result, SetAttr};
use forebay_cluster::core::Access;
use forebay_cluster::front::Guard;
use forebay_cluster::words::{Attrs, NameChange, NewSize};
use forebay_engine::rules::Origin;
use forebay_engine::{Admission, File, Named};

use super::homes::attr_of;
use super::members::Settled;
use super::privilege::mode_with_owner;
use super::rights::asker_of;
use super::served_names::{has_no_name, set_of};
use super::{Handle, Vfs};
use crate::control::Control;

/// A change of attributes that may be another member's to make.
enum Attributes {
    /// The change is made here; the guards last until it is made.
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
            // Where members share the store, the bytes here may be of an old version, although a program reads them.
            let is_named = handle.is_none() && self.has_members() && path.is_some();
            let own = handle.and_then(|handle| self.file(handle).ok());
            let open = own.or_else(|| self.opened_here(id).filter(|_| !is_named));
            let resize = || {
                self.set_size((id, open), path.as_deref(), size, |file| {
                    admission.unwrap_or_else(|| self.engine.room.admission_of(file, who))
                })
            };
            // Programs here may have the file open as a file of this node as well.
            match self.nodes.key(id).filter(|_| self.is_far(id)) {
                Some(key) => self.cut_pages(key, size, resize)?,
                None => resize()?,
            }
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
        if let (true, None, Some(file)) = (changes, self.cluster(), self.open_file(id))
            && let Some(attr) = self.engine.verbs.is_set(&file, set, self.attr_ttl)
        {
            return Ok(attr);
        }
        let altering =
            changes.then(|| self.foresight.answers.altering(path.as_deref(), self.nodes.key(id)));
        if let (None, true, Some(file)) = (&path, changes, self.opened_here(id)) {
            return self.engine.verbs.set_attr_open(&file, set);
        }
        if let (Some(path), true) = (path, changes) {
            let done = self.set_by_name(id, &path, who, *set);
            // Another member may have changed the name of a file that a program has open here.
            let is_lost = self.has_members() && done.as_ref().is_err_and(has_no_name);
            return match is_lost.then(|| self.opened_here(id)).flatten() {
                Some(file) => self.engine.verbs.set_attr_open(&file, set),
                None => done,
            };
        }
        drop((tree, altering));
        match changes {
            // This was a removed directory.
            true => Err(Error::os(libc::ESTALE, "a name that is gone")),
            false => self.getattr(id),
        }
    }

    fn set_by_name(&self, id: u64, path: &Path, who: Origin, mut set: SetAttr) -> Result<Attr> {
        let gives_away = set.uid.is_some() || set.gid.is_some();
        if gives_away && set.mode.is_none() && who.uid != 0 {
            let attr = self.engine.names.ask(|b| b.stat(path))?;
            set.mode = mode_with_owner(&attr, &asker_of(who));
        }
        let done = self.engine.verbs.set_attr(self.at(id, path)?, &set);
        if set.mode.is_some() {
            self.nodes.forget_acl(id);
        }
        done
    }

    /// Has the file's home change the attributes, if that is another member. The home's answer tells them: the path
    /// may be another file's by then.
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
        let size = size.map(|(size, handle)| NewSize { size, is_open: handle.is_some() });
        let change = |file, path: &Path| NameChange::SetAttr {
            file,
            path: path.into(),
            is_open: self.open_file(id).is_some() || self.has_seats(file),
            set: set_of(set),
            size,
            asker: asker_of(who),
        };
        let placed = self.nodes.placed(id).zip(path);
        let Some(((key, dir), path)) = placed else {
            // A file without a name is open here, or at its home.
            let key = self.nodes.key(id).filter(|_| self.is_far(id));
            let home = key.and_then(|key| self.home_of(key));
            let Some((key, home)) = key.zip(home) else { return Ok(Attributes::Here(None, None)) };
            let attrs = self.ask_change(&home, change(key, Path::new("")))?;
            return self.told_attr(id, attrs).map(Attributes::Changed);
        };
        match self.settle(&[(key, dir)], None, || change(key, path))? {
            Settled::Done(attrs) => {
                self.nodes.forget_acl(id);
                self.told_attr(id, attrs).map(Attributes::Changed)
            }
            Settled::Here(change) => {
                let held = size.map(|_| self.claim(id, Access::Write)).transpose()?.flatten();
                Ok(Attributes::Here(change, held))
            }
        }
    }

    fn told_attr(&self, id: u64, attrs: Option<Attrs>) -> Result<Attr> {
        attrs.map_or_else(|| self.getattr_there(id), |attrs| Ok(attr_of(&attrs)))
    }

    /// A file that a program here has open, and that is served here.
    fn opened_here(&self, id: u64) -> Option<Arc<File>> {
        let key = self.nodes.file_key(id)?;
        if !self.is_far(id) {
            return self.open_file(id);
        }
        let open = || self.open_file(id).filter(|_| !self.has_older_open(key));
        self.seated_here(key).or_else(open)
    }

    fn admission(&self, handle: u64) -> Option<Admission> {
        match &*self.handle(handle).ok()? {
            Handle::File { admission, .. } => Some(admission.clone()),
            _ => None,
        }
    }

    fn set_size(
        &self,
        (id, open): (u64, Option<Arc<File>>),
        path: Option<&Path>,
        size: u64,
        admission: impl FnOnce(&Arc<File>) -> Admission,
    ) -> Result<()> {
        if let Some(file) = open {
            return self.engine.io.set_len_in(&admission(&file), &file, size);
        }
        let path = path.ok_or_else(|| Error::os(libc::ESTALE, "a name that is gone"))?;
        let file = self.open_as_of_now(path, self.nodes.key(id), false)?;
        let is_older = || !self.is_far(id) && self.has_older_open(file.key);
        if self.nodes.file_key(id) != Some(file.key) || is_older() {
            return Err(Error::os(libc::ESTALE, "the file was replaced"));
        }
        let done = self.engine.io.set_len_in(&admission(&file), &file, size);
        drop(file);
        self.nodes.set_pages(id, 0);
        done
    }

    pub(super) fn at<'a>(&self, id: u64, path: &'a Path) -> Result<Named<'a>> {
        let key =
            self.nodes.key(id).ok_or_else(|| Error::os(libc::ESTALE, "a name that is gone"))?;
        Ok(Named { path, key, is_dir: self.nodes.is_dir(id) })
    }
}
