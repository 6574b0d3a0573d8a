//! Opening and closing files, and the choice between passthrough and the daemon.
//!
//! The kernel allows an inode one mode at a time, so plan, pin and count change together, under
//! the `open` lock.

use std::ffi::OsStr;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forebay_backing::{Error, FileKey, New, Result};
use forebay_base::lock::MutexGuard;
use forebay_cluster::front::Guard;
use forebay_engine::rules::Origin;
use forebay_engine::{Admission, DatedAttr, File, OpenFile, Past, WritePolicy};

use super::answers::Became;
use super::{AtClose, Entry, Handle, How, OpenNode, OpenNodes, Opened, Vfs};
use crate::Passthrough;
use crate::control::Control;
use crate::flags::OpenFlags;
use crate::modes::{Mode, Permit, Plan, Wish, plan};

/// The way in which a file that was found is to be opened.
pub(super) struct Opens {
    pub flags: OpenFlags,
    /// Created or truncated by this open.
    pub fresh: bool,
    /// The file may be written past the daemon, which does not see what is written.
    pub ready: bool,
    pub admission: Admission,
    /// The claim that a writer needs.
    pub held: Option<Guard>,
}

/// The condition for writing a file past the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The file is complete.
    Any,
    /// Writes can be found by comparing contents.
    Ready,
}

impl Vfs {
    pub fn create(
        &self,
        parent: u64,
        name: &OsStr,
        new: New,
        flags: OpenFlags,
        who: Origin,
    ) -> Result<(Entry, Opened)> {
        let _tree = self.tree();
        let path = self.below(parent, name)?;
        let dir = self.cluster().and_then(|cluster| Some((cluster, self.nodes.key(parent)?)));
        let making = dir.map(|(cluster, dir)| cluster.create(dir, &path)).transpose()?;
        let asked = self.engine.verbs.asking();
        let mut change = self.foresight.answers.changing(&[&path], &[]);
        match self.engine.verbs.create(&path, &new) {
            Ok((file, attr)) => {
                let told = DatedAttr::by(asked, attr);
                change.became(&path, Became::Made(told));
                drop(change);
                let held = dir.map(|(cluster, dir)| cluster.created(attr.key, dir, &path));
                let admission = self.engine.room.admission_of(&file, who);
                let entry = self.entry(parent, name, attr, told.at());
                let wish = Opens { flags, fresh: true, ready: false, admission, held };
                let opened = self.open_as(entry.id, file, wish)?;
                drop(making);
                Ok((entry, opened))
            }
            // Others have made the file since the kernel's lookup. The kernel looks it up again, and checks
            // whether the caller may open it.
            Err(e) if e.is(libc::EEXIST) && !flags.is_exclusive() => {
                drop(change);
                // The member that made the file may ask what is being made here before it answers.
                drop(making);
                Err(self.replaced(&path))
            }
            Err(e) => Err(e),
        }
    }

    pub fn open(&self, id: u64, flags: OpenFlags, who: Origin) -> Result<Opened> {
        if Control::owns(id) {
            let text = self.control.read(id)?;
            let handle = self.keep(Handle::Control { id, text });
            return Ok(Opened { handle, how: How::Direct, at_close: AtClose::Nothing });
        }
        if flags.changes() {
            self.engine.files.refuse_read_only()?;
        }
        let tree = self.tree();
        if self.is_far(id) {
            return self.open_there(id, flags, who);
        }
        let held = self.claim(id, flags.access())?;
        let opened = self.open_node(id, !flags.changes());
        if opened.is_err()
            && let Some(path) = self.nodes.path(id)
        {
            // The kernel looks the name up again, and must find the file that has it now.
            self.foresight.answers.doubt(&path);
        }
        let file = opened?;
        if self.cluster().is_some() && self.nodes.key(id) != Some(file.key) {
            // The claim is for the file that had the name before.
            return Err(self.replaced(&self.path(id)?));
        }
        let admission = self.engine.room.admission_of(&file, who);
        let truncate = flags.truncates();
        if truncate {
            self.engine.io.set_len_in(&admission, &file, 0)?;
        }
        if truncate && self.engine.verbs.has_set_id(&file) {
            self.strip_privilege(id, None, Some(who));
        }
        self.tell_growth(id, &file);
        // The path is not needed any more. Making a file ready waits for the tier: no rename may wait for it.
        drop(tree);
        let ready = flags.writes() && !truncate && self.make_ready(&file, flags, &admission);
        let wish = Opens { flags, fresh: truncate, ready, admission, held };
        let opened = self.open_as(id, file, wish)?;
        if opened.maps_unseen(flags) {
            // The kernel's attributes of the file may get out of date without a further request.
            self.tell_attributes(id);
        }
        Ok(opened)
    }

    /// The kernel ends a read where the file ended when the kernel was told. If the open has found another end, the
    /// kernel asks again.
    fn tell_growth(&self, id: u64, file: &File) {
        let found = file.lock().state.base();
        if let Some(path) = self.nodes.path(id)
            && self.foresight.answers.outgrown(&path, &found)
        {
            self.tell_attributes(id);
        }
    }

    /// Opens the file of a node. A file that has just lost its name is opened without one: the kernel
    /// looked it up before. Where members share the store the kernel's name may be much older than that:
    /// then only if a program here has the file open.
    pub(super) fn open_node(&self, id: u64, to_read: bool) -> Result<OpenFile> {
        let key = self.nodes.key(id);
        let opened = self.path(id).and_then(|path| {
            let file = self.open_as_of_now(&path, key, to_read)?;
            match self.nodes.id_of(file.key) == Some(id) {
                true => Ok(file),
                false => Err(Error::os(libc::ESTALE, "the file was replaced")),
            }
        });
        match opened {
            Err(e) if e.is(libc::ESTALE) || e.is(libc::ENOENT) => {
                if self.cluster().is_some() && self.open_file(id).is_none() {
                    return Err(self.replaced(&self.path(id)?));
                }
                let pin = self.nodes.pin(id);
                key.and_then(|key| self.engine.files.open_unlinked(key, pin.as_deref())).ok_or(e)
            }
            other => other,
        }
    }

    /// Opens a file by its path. Where members share the store no open gets bytes of a version that the store no
    /// longer has, though a program may keep them, which reads them past the daemon: the file begins anew. Opens by
    /// the kernel's old node are refused then ([`Vfs::open_under`]), and looked up again.
    pub(super) fn open_as_of_now(
        &self,
        path: &Path,
        key: Option<FileKey>,
        to_read: bool,
    ) -> Result<OpenFile> {
        let open = || match to_read {
            true => self.engine.io.open_to_read(path, key),
            false => self.engine.io.open(path, key),
        };
        let file = open()?;
        if self.cluster().is_none() || !self.engine.files.is_outdated(&file) {
            return Ok(file);
        }
        let old = Arc::clone(&file);
        drop(file);
        self.engine.files.give_way(&old, old.lock())?;
        open()
    }

    /// Whether programs here have a file open that has given its key away since.
    pub(super) fn has_older_open(&self, key: FileKey) -> bool {
        let open = self.open.lock().get(&key).map(|node| node.file.clone());
        let now = || self.engine.files.find(key);
        open.is_some_and(|open| now().is_none_or(|now| !Arc::ptr_eq(&now, &open)))
    }

    /// Makes the handle, in the mode that the inode's other descriptors allow.
    pub(super) fn open_as(&self, id: u64, file: OpenFile, wish: Opens) -> Result<Opened> {
        let write = wish.flags.writes();
        let placing = (write && self.cluster().is_some()).then(|| self.placing(file.key));
        let _one = placing.as_ref().map(|placing| placing.lock());
        let open = self.open.lock();
        self.open_under(open, id, file, wish)
    }

    /// As [`Vfs::open_as`], for a caller that has locked the table of open files.
    pub(super) fn open_under(
        &self,
        mut open: MutexGuard<'_, OpenNodes>,
        id: u64,
        file: OpenFile,
        Opens { flags, fresh, ready, admission, held }: Opens,
    ) -> Result<Opened> {
        let write = flags.writes();
        let node = open.entry(file.key).or_insert_with(|| OpenNode {
            file: file.clone(),
            cached: 0,
            past: Vec::new(),
            kernel_id: None,
        });
        if !Arc::ptr_eq(&node.file, &file) {
            // The store has given the number of a removed file that is still open here to another file, or its bytes
            // are out of date.
            return Err(Error::os(libc::ESTALE, "an earlier file of that number is still open"));
        }
        let facts = self.engine.verbs.facts(&file);
        // A file may still be mapped by a program that has closed it, or have a writer of an earlier daemon.
        let is_past = !node.past.is_empty() || facts.fingerprint.is_none();
        let mode = match (node.cached, is_past) {
            (0, false) => Mode::Idle,
            (0, true) => Mode::Passthrough,
            _ => Mode::Cached,
        };
        let (complete, wholly_dirty) = (facts.complete, facts.wholly_dirty);
        let wish = Wish { write, fresh, complete, wholly_dirty, ready };
        let way = match mode == Mode::Idle && ready && !wholly_dirty {
            true => Way::Ready,
            false => Way::Any,
        };
        let mut permit = self.permit(write, facts.set_id, &admission);
        // Bytes that are synced past the daemon are on no record.
        permit.write &= !flags.syncs();
        let mut planned = plan(mode, wish, permit);
        let mut kernel_id = 0;
        if planned != Plan::Cached {
            match self.pass_through(node, &file, planned, (way, flags.maps_writes())) {
                Ok(Some(found)) => kernel_id = found,
                Ok(None) if !node.past.is_empty() => {
                    return Err(Error::os(
                        libc::EBUSY,
                        "it is open past the daemon, which this open cannot be",
                    ));
                }
                Ok(None) => planned = Plan::Cached,
                Err(e) => {
                    self.drop_if_unused(open, file.key);
                    return Err(e);
                }
            }
        }
        let node = open.get_mut(&file.key).expect("entered above");
        // Otherwise the kernel of each node would say where the end is.
        let append = flags.appends() && self.cluster().is_some();
        let how = match planned {
            Plan::Cached if append => {
                node.cached += 1;
                How::Direct
            }
            Plan::Cached => {
                node.cached += 1;
                let held = self.nodes.pages(id);
                How::Cached { keep: facts.fingerprint.is_some_and(|now| now.get() == held) }
            }
            Plan::PassRead | Plan::PassWrite => How::Passthrough(kernel_id),
        };
        if planned == Plan::PassWrite {
            self.nodes.set_pages(id, 0);
        }
        drop(open);
        // A process loses its record locks of a file with any close of that file.
        let flushes = self.engine.io.flushes_at_close(&admission) || self.grants_locks();
        let at_close = if flushes { AtClose::Flush } else { AtClose::Nothing };
        let set_id = facts.set_id;
        let append = append && planned == Plan::Cached;
        let plan = planned;
        let has_written = AtomicBool::new(fresh);
        let _held = held;
        let handle = Handle::File { id, file, plan, set_id, admission, append, _held, has_written };
        let handle = self.keep(handle);
        Ok(Opened { handle, how, at_close })
    }

    pub(super) fn permit(&self, write: bool, set_id: bool, admission: &Admission) -> Permit {
        let possible = self.registrar.get().is_some()
            && self.passthrough != Passthrough::Off
            && admission.is_free();
        let policy = self.engine.files.policy();
        // Writes around the tier leave a shadow file behind: no program may hold on to one.
        let around = policy == WritePolicy::WriteAround;
        let write = write
            && possible
            && !set_id
            && policy == WritePolicy::WriteBack
            && !self.engine.files.watches_writers()
            && match self.passthrough {
                Passthrough::Always => true,
                Passthrough::Auto | Passthrough::New => self.engine.passed.may_write_unseen(),
                Passthrough::ReadOnly | Passthrough::Off => false,
            };
        Permit { read: possible && !around && !self.engine.files.copies_writes(), write }
    }

    /// Makes a complete file ready to be written past the daemon, if the mount passes such writers through. This
    /// may take a flush of the device, for which other opens of the file wait as well: the vfs holds no lock.
    fn make_ready(&self, file: &Arc<File>, flags: OpenFlags, admission: &Admission) -> bool {
        if !matches!(self.passthrough, Passthrough::Auto | Passthrough::Always) {
            return false;
        }
        let facts = self.engine.verbs.facts(file);
        let seen = flags.syncs() || !facts.complete || facts.wholly_dirty;
        let cached = || self.open.lock().get(&file.key).is_some_and(|node| node.cached > 0);
        if seen || cached() || !self.permit(true, facts.set_id, admission).write {
            return false;
        }
        self.engine.passed.make_ready(file).unwrap_or_else(|error| {
            tracing::debug!(%error, "a file is not written past the daemon");
            false
        })
    }

    /// Pins the shadow or begins unseen writing, and registers the shadow with the kernel.
    /// Returns `Ok(None)` if that is not possible after all.
    pub(super) fn pass_through(
        &self,
        node: &mut OpenNode,
        file: &Arc<File>,
        plan: Plan,
        (way, maps): (Way, bool),
    ) -> Result<Option<u32>> {
        let Some(registrar) = self.registrar.get() else { return Ok(None) };
        let past = match plan {
            Plan::PassWrite if way == Way::Ready => self.engine.passed.write_ready(file, maps)?,
            Plan::PassWrite => self.engine.passed.write(file, maps)?,
            _ => self.engine.passed.read(file)?,
        };
        let Some(past) = past else { return Ok(None) };
        if let Some(id) = node.kernel_id {
            node.past.push(past);
            return Ok(Some(id));
        }
        let registered = match past.shadow().as_fd() {
            Some(fd) => registrar.register(fd),
            None => Err(std::io::ErrorKind::Unsupported.into()),
        };
        match registered {
            Ok(id) => {
                node.kernel_id = Some(id);
                node.past.push(past);
                Ok(Some(id))
            }
            Err(e) => {
                tracing::debug!(error = %e, "the kernel refused a shadow file; going through the daemon");
                Ok(None)
            }
        }
    }

    /// Takes out a node without open descriptors, and ends its registration once the lock is given back:
    /// otherwise all opens of files and questions about them would wait for the kernel.
    pub(super) fn drop_if_unused(&self, mut open: MutexGuard<'_, OpenNodes>, key: FileKey) {
        let unused = open.get(&key).is_some_and(|node| node.cached == 0 && node.past.is_empty());
        let kernel_id = unused.then(|| open.remove(&key)).flatten().and_then(|node| node.kernel_id);
        drop(open);
        if let (Some(kernel_id), Some(registrar)) = (kernel_id, self.registrar.get()) {
            registrar.release(kernel_id);
        }
    }

    /// Ends a handle whose last descriptor is gone. A mapping of a file that was passed through may be left.
    pub fn release(&self, handle: u64) {
        if self.grants_locks() {
            self.release_locks(handle);
        }
        let found = self.handles.write().remove(&handle);
        let Some(found) = found else { return };
        if let Handle::There(remote) = &*found {
            return self.close_there(remote);
        }
        let Handle::File { file, admission, .. } = &*found else { return };
        self.end_handle(&found);
        // The kernel sends no FLUSH for a handle that was opened before the policy changed.
        if let Err(e) = self.engine.io.closing(file, admission) {
            tracing::debug!(error = %e, "the flush at the end of a handle; it is tried again");
        }
        drop(found);
        self.engine.files.make_blank();
    }

    /// A new file of this mount is another member's after all: handles that write to it fail with EIO.
    pub fn lose_file(&self, key: FileKey) {
        let handles = self.handles.read();
        let is_lost = |handle: &Handle| matches!(handle, Handle::File { file, _held: Some(_), .. } if file.key == key);
        let lost: Vec<u64> =
            handles.iter().filter(|(_, handle)| is_lost(handle)).map(|(n, _)| *n).collect();
        drop(handles);
        tracing::error!(
            ino = key.ino,
            handles = lost.len(),
            "a file that was made here is another member's: what was written to it here ends as a conflict"
        );
        lost.into_iter().for_each(|handle| self.locks.lose(handle));
    }

    /// Closes all handles, when no program can use them any more. Dirty bytes are left to the end of the
    /// engine, which flushes or keeps them.
    pub fn close_all(&self) {
        for node in self.open.lock().values() {
            node.past.iter().filter(|past| past.writes()).for_each(Past::may_go_on);
        }
        let left = std::mem::take(&mut *self.handles.write());
        for handle in left.into_values() {
            self.end_handle(&handle);
        }
    }

    /// Ends a handle that was taken out of the table, and with it its mode.
    fn end_handle(&self, handle: &Handle) {
        let Handle::File { id, file, plan, set_id, .. } = handle else { return };
        let mut open = self.open.lock();
        // The engine knows this as long as the file is open.
        let passes = *plan == Plan::PassWrite;
        let over = passes && self.engine.verbs.is_written_over_set_id(file);
        // The pages are noted before the mode can change: the kernel's pages are of the file's contents
        // now, and a writer that comes next must find no trace of them.
        // The node may belong to another file by now, which got the inode number.
        let is_ours = self.nodes.key(*id) == Some(file.key);
        if *plan == Plan::Cached && is_ours {
            let now = self.engine.verbs.facts(file).fingerprint;
            self.nodes.set_pages(*id, now.map_or(0, NonZeroU64::get));
        }
        if let Some(node) = open.get_mut(&file.key) {
            match plan {
                Plan::Cached => node.cached -= 1,
                Plan::PassRead | Plan::PassWrite => {
                    let same = |past: &Past| past.writes() == (*plan == Plan::PassWrite);
                    let at = node.past.iter().position(same).expect("each handle has one");
                    drop(node.past.swap_remove(at));
                }
            }
        }
        self.drop_if_unused(open, file.key);
        let facts = self.engine.verbs.facts(file);
        let written = over || (passes && *set_id && facts.wholly_dirty);
        if written && facts.set_id && is_ours {
            // The program that wrote past the daemon is not known: the file keeps no such bit.
            self.strip_privilege(*id, None, None);
        }
    }
}
