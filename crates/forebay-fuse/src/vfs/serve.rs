//! Questions of other members: this mount serves their programs the files that it is the home of.
//!
//! The threads of the members' door answer the questions. They take no lock of the tree, since a rename of a
//! directory here may wait for another member that waits for this one. They ask no other member; but for a
//! rename over a file of a third member, which asks no other in turn.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_backing::{Error, FileKey, Result};
use forebay_base::lock::{Mutex, Rank};
use forebay_cluster::core::{Access, Ends, Holder};
use forebay_cluster::front::{Guard, Place};
use forebay_cluster::words::{Answer, Attrs, By, NameChange, Opener, Question, Refusal};
use forebay_engine::{Admission, File, OpenFile, on_behalf_of, requester};

use super::Vfs;
use super::doubts::Due;
use super::homes::{moved, words_of};
use super::returned;
use crate::nodes::Side;

/// How often a file is flushed whose claim is to go while programs go on making it dirty.
const FLUSHES: usize = 8;

/// Behind this offset the kernel has no pages.
const PAGES_END: u64 = i64::MAX as u64;

/// The member whose program has the file open.
enum Caller {
    Own,
    /// Another member, in the life that opened the file.
    Member {
        name: String,
        epoch: u64,
    },
}

/// A file that a program has open here by its home's door: of another member, or of this one if the file has
/// come here since.
pub struct Guest {
    caller: Caller,
    file: OpenFile,
    /// The claim that a writer needs.
    _held: Option<Guard>,
    writes: bool,
    /// The number of the last append, and where it ended.
    appended: Mutex<(u64, u64)>,
}

impl Guest {
    /// A file that a program of this member has open; a writer has the claim.
    pub fn own(file: OpenFile, held: Option<Guard>) -> Guest {
        let writes = held.is_some();
        Guest::new(Caller::Own, file, held, writes)
    }

    fn of((name, epoch): (&str, u64), file: OpenFile, held: Option<Guard>, writes: bool) -> Guest {
        Guest::new(Caller::Member { name: name.into(), epoch }, file, held, writes)
    }

    fn new(caller: Caller, file: OpenFile, held: Option<Guard>, writes: bool) -> Guest {
        let appended = Mutex::new(Rank::GuestAppend, (0, 0));
        Guest { caller, file, writes, _held: held, appended }
    }

    /// The life of that member that opened the file, if it was that member's program.
    fn epoch_of(&self, member: &str) -> Option<u64> {
        match &self.caller {
            Caller::Member { name, epoch } if name == member => Some(*epoch),
            Caller::Member { .. } | Caller::Own => None,
        }
    }

    pub fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    fn may_write(&self) -> Result<()> {
        match self.writes {
            true => Ok(()),
            false => Err(Error::os(libc::EBADF, "the handle is for reading")),
        }
    }

    /// The file's attributes for a program that has it open, whether or not the file still has a name.
    pub fn attrs(&self, vfs: &Vfs) -> Attrs {
        words_of(&vfs.engine.verbs.stat_open(&self.file))
    }

    /// Puts the bytes that are read into `out`, from its beginning.
    pub fn read(&self, vfs: &Vfs, (offset, len): (u64, usize), out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        let (io, admission) = (&vfs.engine.io, Admission::default());
        if let Some(read) = io.read_cached_onto(&admission, &self.file, (offset, len), out) {
            return read.map(drop);
        }
        out.resize(len, 0);
        let n = io.read_in(&admission, &self.file, offset, out)?;
        out.truncate(n);
        Ok(())
    }

    pub fn write(&self, vfs: &Vfs, offset: u64, data: &[u8], sync: bool) -> Result<()> {
        self.may_write()?;
        let end = offset.saturating_add(data.len() as u64);
        let io = &vfs.engine.io;
        let write = || io.write_in(&Admission::default(), &self.file, offset, data).map(|()| end);
        let grows = end > vfs.engine.verbs.facts(&self.file).size;
        let last = data.last().copied().filter(|_| grows);
        vfs.over_pages(self.file.key, (offset, data.len() as u64), last, write)?;
        self.strip(vfs);
        if sync { self.sync(vfs) } else { Ok(()) }
    }

    /// Writes pages of a mapping, as far as they lie before the file's end.
    pub fn overwrite(&self, vfs: &Vfs, offset: u64, data: &[u8]) -> Result<()> {
        self.may_write()?;
        let write = || vfs.engine.io.overwrite_in(&Admission::default(), &self.file, offset, data);
        vfs.over_pages(self.file.key, (offset, data.len() as u64), None, write)?;
        self.strip(vfs);
        Ok(())
    }

    /// Writes at the end of the file, and returns where the file ends then. A repeated append is made once.
    pub fn append(&self, vfs: &Vfs, number: u64, data: &[u8], sync: bool) -> Result<u64> {
        self.may_write()?;
        let mut last = self.appended.lock();
        if number < last.0 {
            return Err(Error::os(libc::EIO, "an append came after a later one"));
        }
        if number > last.0 {
            let end = vfs.append(&self.file, &Admission::default(), data)?;
            *last = (number, end);
            self.strip(vfs);
        }
        if sync {
            self.sync(vfs)?;
        }
        Ok(last.1)
    }

    pub fn sync(&self, vfs: &Vfs) -> Result<()> {
        vfs.engine.io.sync_in(&Admission::default(), &self.file)
    }

    /// Called when a descriptor of the file was closed.
    pub fn flush(&self, vfs: &Vfs) -> Result<()> {
        vfs.engine.io.closing(&self.file, &Admission::default())
    }

    pub fn resize(&self, vfs: &Vfs, size: u64) -> Result<()> {
        self.may_write()?;
        vfs.resize_for(&self.file, size)?;
        self.strip(vfs);
        Ok(())
    }

    pub fn allocate(&self, vfs: &Vfs, offset: u64, len: u64, mode: i32) -> Result<()> {
        self.may_write()?;
        let allocate = || vfs.allocate(&self.file, &Admission::default(), offset, len, mode);
        // A range that is only reserved has the bytes that it had.
        let size = vfs.engine.verbs.facts(&self.file).size;
        let is_zeroed = mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0;
        let first = if is_zeroed { offset } else { offset.max(size) };
        match offset.saturating_add(len).saturating_sub(first) {
            0 => allocate()?,
            // A zeroing ends where the file does.
            changed => vfs.over_pages(self.file.key, (first, changed), None, || {
                let end = first.saturating_add(changed);
                allocate().map(|()| end.min(vfs.engine.verbs.facts(&self.file).size))
            })?,
        }
        self.strip(vfs);
        Ok(())
    }

    pub fn seek(&self, vfs: &Vfs, offset: u64, whence: i32) -> Result<u64> {
        vfs.seek(&self.file, offset, whence)
    }

    /// The program that wrote is not known here: the file keeps no set-user-id or set-group-id bit.
    fn strip(&self, vfs: &Vfs) {
        if vfs.engine.verbs.has_set_id(&self.file) {
            // The bytes are changed: if the asker was answered meanwhile, the bits have to go all the same.
            requester::for_nobody(|| {
                vfs.strip_for_member(self.file.key, self.file.path().as_deref());
            });
        }
    }
}

impl Vfs {
    /// Changes `len` bytes of a file from `offset` on, for another member. Pages that were changed through a mapping
    /// here are written first, and not over this change.
    ///
    /// `change` returns where it ended: bytes behind that are not changed. If it makes the file longer, `last` is the
    /// file's last byte then.
    pub(super) fn over_pages(
        &self,
        key: FileKey,
        (offset, len): (u64, u64),
        last: Option<u8>,
        change: impl FnOnce() -> Result<u64>,
    ) -> Result<()> {
        self.tell_pages(key, offset, len);
        // The kernel drops no page while it waits for it: this may have taken long.
        requester::check()?;
        let changing = self.members.laundry.change(key, (offset, len))?;
        // A failed change may have changed a part, of which the kernel may have older bytes all the same.
        let made = change().map(|end| {
            let range = (offset, end.saturating_sub(offset));
            match last {
                Some(last) => {
                    let made = changing.made_longer(range);
                    // Pages from before have zeros where the new bytes are.
                    self.tell_pages(key, offset, len);
                    self.tell_end(key, end, last);
                    made.end_is_known();
                    made
                }
                None => changing.made(range),
            }
        });
        self.tell_pages(key, offset, len);
        made.map(drop)
    }

    /// Gives a file another size, for another member.
    pub(super) fn resize_for(&self, file: &OpenFile, size: u64) -> Result<()> {
        self.cut_pages(file.key, size, || {
            self.engine.io.set_len_in(&Admission::default(), file, size)
        })
    }

    /// Changes a file's size. An older page that is written behind the new end would make the file longer again.
    pub(super) fn cut_pages(
        &self,
        key: FileKey,
        size: u64,
        resize: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let behind = (size, PAGES_END.saturating_sub(size));
        self.over_pages(key, behind, None, || resize().map(|()| PAGES_END))
    }

    /// Writes at the end of a file, wherever that is by then, and returns where the write ended.
    pub(super) fn append(
        &self,
        file: &OpenFile,
        admission: &Admission,
        data: &[u8],
    ) -> Result<u64> {
        let placing = self.placing(file.key);
        let one = placing.lock();
        let is_unseen = self.engine.verbs.facts(file).fingerprint.is_none();
        let past = match is_unseen {
            true => self.engine.passed.write(file, false)?,
            false => None,
        };
        let shadow = past.as_ref().and_then(|past| past.shadow().as_fd());
        // The page with the end so far may be mapped here, with zeros behind the end: the kernel would write
        // these, too, if it heard of the new end first.
        let size = self.engine.verbs.facts(file).size;
        let behind = (size, PAGES_END.saturating_sub(size));
        let changing = self.members.laundry.change(file.key, behind)?;
        let end = match shadow {
            // Beside programs that append past the daemon only their kernel knows where the end is.
            Some(shadow) => {
                append_to(shadow, data)?;
                self.engine.verbs.facts(file).size
            }
            None => self.engine.io.append_in(admission, file, data)?,
        };
        let start = end.saturating_sub(data.len() as u64);
        let made = changing.made_longer((start, data.len() as u64));
        drop(past);
        drop(one);
        if let Some(last) = data.last() {
            // Pages from before have zeros where the new bytes are.
            self.tell_pages(file.key, start, 0);
            self.tell_end(file.key, end, *last);
        }
        made.end_is_known();
        self.tell_pages(file.key, start, 0);
        drop(made);
        Ok(end)
    }

    /// The attributes of a file that is known here; `None` if it is not: then the store has them. Waits for a thread
    /// that is at work on the file: the store's attributes would be wrong.
    fn stat_held(&self, key: FileKey) -> Option<Attrs> {
        let verbs = &self.engine.verbs;
        let waited = || self.engine.files.find(key).map(|file| verbs.stat_open(&file));
        verbs.stat_cached(key).or_else(waited).map(|attr| words_of(&attr))
    }

    /// The attributes of a file that a member is told. A member that has the file open here is told them also when
    /// the file has no name any more, and its claim is given back.
    fn attrs_for(&self, from: &str, key: FileKey) -> Option<Attrs> {
        let as_opened = || self.opened_for(from, key).map(|guest| guest.attrs(self));
        match self.cluster()?.holder(key) {
            Holder::Here => self.stat_held(key).or_else(as_opened),
            Holder::Nobody => as_opened(),
            Holder::There(_) | Holder::Dead(_) => None,
        }
    }

    /// A handle by which a program of another member has the file open here.
    fn opened_for(&self, from: &str, file: FileKey) -> Option<Arc<Guest>> {
        let guests = self.members.guests.lock();
        let found =
            guests.values().find(|guest| guest.epoch_of(from).is_some() && guest.file.key == file);
        found.cloned()
    }

    /// Opens a file that is known to be here, by its path or without a name.
    pub(super) fn known_at(&self, key: FileKey, path: &Path) -> Result<OpenFile> {
        if let Some(file) = self.named_at(key, path)? {
            return Ok(file);
        }
        let pin = self.nodes.id_of(key).and_then(|id| self.nodes.pin(id));
        self.engine.files.open_unlinked(key, pin.as_deref()).ok_or_else(moved)
    }

    /// As [`Vfs::known_at`], by a path only; `None` if the file has no path any more.
    pub(super) fn named_at(&self, key: FileKey, path: &Path) -> Result<Option<OpenFile>> {
        let own = self.engine.files.find(key).and_then(|file: Arc<File>| file.path());
        for path in [Some(path), own.as_deref()].into_iter().flatten() {
            match self.open_as_of_now(path, Some(key), false) {
                Ok(file) if file.key == key => return Ok(Some(file)),
                Ok(_) => {}
                Err(error) if error.is(libc::ENOENT) || error.is(libc::ESTALE) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The directory of a path, by its key.
    pub(super) fn dir_of(&self, path: &Path) -> Result<FileKey> {
        let dir = path.parent().unwrap_or(Path::new(""));
        match self.nodes.at(dir).and_then(|id| self.nodes.key(id)) {
            Some(key) => Ok(key),
            None => Ok(self.engine.names.ask(|b| b.stat(dir))?.key),
        }
    }

    pub(super) fn is_held(&self, file: FileKey) -> bool {
        self.cluster().is_some_and(|cluster| cluster.holder(file) == Holder::Here)
    }

    fn open_for(
        &self,
        from: (&str, u64),
        file: FileKey,
        path: &Path,
        (write, program): (bool, Option<Opener>),
    ) -> Result<Answer> {
        let cluster = self.cluster().ok_or_else(moved)?;
        let mut as_of = cluster.vouches(file).ok_or_else(moved)?;
        let mut held = None;
        if write {
            self.engine.files.refuse_read_only()?;
            let dir = self.dir_of(path)?;
            match cluster.open(file, dir, path, Access::Serve)? {
                Place::Here(guard) => held = guard,
                Place::There(_) => return Err(moved()),
            }
            // The revision of the claim that is held from here on: the earlier claim may have been given back.
            as_of = cluster.vouches(file).ok_or_else(moved)?;
        }
        let opened = self.named_at(file, path)?;
        // The name that was opened is gone: the asker looks it up again, unless it has the file open.
        let opened = match opened {
            Some(opened) => opened,
            None if self.opened_for(from.0, file).is_some() => self.known_at(file, path)?,
            None => return Err(Error::os(libc::ENOENT, "the file has no name any more")),
        };
        let attr = self.engine.verbs.stat_open(&opened);
        if let Some(program) = program {
            self.allows_open(&program, &attr, path)?;
        }
        let attrs = words_of(&attr);
        let guest = Guest::of(from, opened, held, write);
        let handle = self.members.next_guest();
        self.members.guests.lock().insert(handle, Arc::new(guest));
        Ok(Answer::Opened { handle, attrs, as_of })
    }

    /// Refuses changes of a member that has begun anew since: it may have gone on as if they had failed.
    fn is_of_now(&self, askers: &[By]) -> Result<()> {
        match askers.iter().all(|by| self.epoch_of(&by.member) <= by.epoch) {
            true => Ok(()),
            false => Err(Error::os(libc::ETIMEDOUT, "whoever asked for it has begun anew")),
        }
    }

    fn guest(&self, (from, epoch): (&str, u64), handle: u64) -> Option<Arc<Guest>> {
        let guests = self.members.guests.lock();
        guests.get(&handle).filter(|guest| guest.epoch_of(from) == Some(epoch)).cloned()
    }

    fn serve(
        &self,
        from: (&str, u64),
        question: Question,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Answer> {
        match question {
            Question::Open { file, path, write, program } => {
                self.open_for(from, file, &path, (write, program))
            }
            Question::Attrs { files } => {
                let of = |key: &FileKey| self.attrs_for(from.0, *key);
                Ok(Answer::Attrs(files.iter().map(of).collect()))
            }
            Question::Name { number, change } => self.change_fenced(by(from, number), change),
            Question::Fence { file, number } => {
                self.members.fences.raise(&by(from, number), file)?;
                // A change that another home was asked for on the asker's behalf may still be made there.
                self.settle_doubts(file, Due::OnBehalf(from.0))?;
                Ok(Answer::Done)
            }
            Question::Fetch { version, path, offset, len } => {
                out.resize(len as usize, 0);
                let n = self.engine.io.read_for_neighbour(&version, &path, offset, out)?;
                out.truncate(n);
                Ok(Answer::Bytes)
            }
            Question::Taken { .. } | Question::Compared => {
                returned::answer(self, from, &question, out)
            }
            Question::Lock { file, path, epoch, ask } => {
                let done = self.lock_for((from.0, epoch), file, &path, &ask);
                done.map(|(answer, ends)| Answer::Lock { answer, ends })
            }
            Question::Granted { number } => {
                self.lock_granted(number);
                Ok(Answer::Done)
            }
            Question::Reclaimed { epoch } => {
                self.locks_reclaimed(from.0, epoch)?;
                Ok(Answer::Done)
            }
            Question::Close { handle }
            | Question::Read { handle, .. }
            | Question::Write { handle, .. }
            | Question::Overwrite { handle, .. }
            | Question::Append { handle, .. }
            | Question::Sync { handle }
            | Question::Flush { handle }
            | Question::Resize { handle, .. }
            | Question::Allocate { handle, .. }
            | Question::Seek { handle, .. } => match self.guest(from, handle) {
                Some(guest) => self.serve_guest(from, (handle, &guest), &question, bytes, out),
                // A handle that is not open is closed.
                None if matches!(question, Question::Close { .. }) => Ok(Answer::Done),
                None => Ok(Answer::Refused(Refusal::Handle)),
            },
            other => Err(Error::os(libc::EPROTO, format!("{other:?} is not for a mount"))),
        }
    }
}

/// The change that a member has numbered.
fn by((member, epoch): (&str, u64), number: u64) -> By {
    By { member: member.into(), epoch, number }
}

impl Vfs {
    /// Makes a change of names unless its askers have given it up, or do so meanwhile.
    fn change_fenced(&self, by: By, change: NameChange) -> Result<Answer> {
        let askers: Vec<By> = [&by].into_iter().chain(change.by()).cloned().collect();
        self.is_of_now(&askers)?;
        let entered = self.members.fences.enter(&askers, &change.files())?;
        let change = || self.change_for(change, by);
        on_behalf_of(entered.changing.clone(), change)
    }

    /// Answers a question about a file that a guest has open.
    fn serve_guest(
        &self,
        from: (&str, u64),
        (handle, guest): (u64, &Guest),
        question: &Question,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Answer> {
        match *question {
            Question::Close { .. } => {
                self.members.guests.lock().remove(&handle);
                guest.flush(self).map(|()| Answer::Done)
            }
            Question::Read { offset, len, .. } => {
                let cluster = self.cluster().ok_or_else(moved)?;
                if let Holder::There(_) = cluster.holder(guest.file.key) {
                    return Err(moved()); // It was given back since, and claimed by another.
                }
                // Asked before the read: a writer that begins meanwhile comes after the asker's open.
                let is_quiet = !cluster.is_written(guest.file.key);
                guest.read(self, (offset, len as usize), out)?;
                Ok(if is_quiet { Answer::QuietBytes } else { Answer::Bytes })
            }
            Question::Write { number, .. }
            | Question::Overwrite { number, .. }
            | Question::Append { number, .. }
            | Question::Resize { number, .. }
            | Question::Allocate { number, .. } => {
                let entered = self.members.fences.enter(&[by(from, number)], &[guest.file.key])?;
                let change = || self.change_by(guest, question, bytes);
                on_behalf_of(entered.changing.clone(), change)
            }
            Question::Sync { .. } => guest.sync(self).map(|()| Answer::Done),
            Question::Flush { .. } => guest.flush(self).map(|()| Answer::Done),
            Question::Seek { offset, whence, .. } => {
                guest.seek(self, offset, whence).map(Answer::At)
            }
            _ => Ok(Answer::Refused(Refusal::Handle)),
        }
    }
}

impl Vfs {
    /// Makes a change of a file that a guest has open.
    fn change_by(&self, guest: &Guest, question: &Question, bytes: &[u8]) -> Result<Answer> {
        match *question {
            Question::Write { offset, sync, .. } => {
                guest.write(self, offset, bytes, sync).map(|()| Answer::Done)
            }
            Question::Overwrite { offset, .. } => {
                guest.overwrite(self, offset, bytes).map(|()| Answer::Done)
            }
            Question::Append { number, sync, .. } => {
                guest.append(self, number, bytes, sync).map(Answer::At)
            }
            Question::Resize { size, .. } => guest.resize(self, size).map(|()| Answer::Done),
            Question::Allocate { offset, len, mode, .. } => {
                guest.allocate(self, offset, len, mode).map(|()| Answer::Done)
            }
            _ => Ok(Answer::Refused(Refusal::Handle)),
        }
    }
}

impl super::members::Members {
    /// A number that no earlier daemon gave: a question with one of those is refused.
    fn next_guest(&self) -> u64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let _ = self.last_guest.compare_exchange(0, now().as_nanos() as u64, SeqCst, SeqCst);
        self.last_guest.fetch_add(1, SeqCst)
    }
}

/// Appends all of the data.
fn append_to(shadow: std::os::fd::BorrowedFd<'_>, mut data: &[u8]) -> Result<()> {
    use rustix::io::{Errno, ReadWriteFlags, pwritev2};
    while !data.is_empty() {
        match pwritev2(shadow, &[std::io::IoSlice::new(data)], 0, ReadWriteFlags::APPEND) {
            Ok(0) => return Err(Error::os(libc::EIO, "nothing is written to a shadow file")),
            Ok(n) => data = &data[n..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(Error::io(error.into(), "appending to a shadow file")),
        }
    }
    Ok(())
}

/// The methods behind [`forebay_cluster::front::Front`].
impl Vfs {
    /// Whether the file's claim can go as the file is.
    pub fn is_free(&self, file: FileKey) -> bool {
        self.may_give_back(file) && self.engine.files.is_at_rest(file)
    }

    pub fn release_claim(&self, file: FileKey) -> bool {
        if !self.may_give_back(file) {
            return false;
        }
        for _ in 0..FLUSHES {
            if self.engine.files.is_at_rest(file) {
                return true;
            }
            let Some(known) = self.engine.files.find(file) else { return true };
            // A program that writes past the daemon makes the file dirty again at once.
            let is_unseen = self.engine.verbs.facts(&known).fingerprint.is_none();
            if is_unseen || self.engine.drain.flush_file(&known).is_err() {
                return false;
            }
        }
        self.engine.files.is_at_rest(file)
    }

    /// Forgets all answers about a file, so that the next request asks again. Writes that homes owe under claims with
    /// these ends are settled: on the store, or lost.
    pub fn forget_file(&self, file: FileKey, ends: &Ends) {
        self.foresight.answers.doubt_file(file);
        self.engine.names.doubt(file);
        self.homes_ended(file, ends);
        self.drop_pages(file);
        if let Some(far) = self.nodes.id_at(file, Side::Far) {
            self.tell_attributes(far);
        }
    }

    pub fn answer(
        &self,
        from: (&str, u64),
        question: Question,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Answer {
        out.clear();
        let served = self.serve(from, question, bytes, out);
        // Another member may have taken this one's place by the time that the answer is there. Then the answer
        // counts for nothing, and the file is with the other member.
        let cut_off = |error: Error| Error::os(libc::ETIMEDOUT, error.to_string());
        let served = self.wait_fit().map_err(cut_off).and(served);
        served.unwrap_or_else(|error| {
            out.clear();
            match error.is(libc::ESTALE) {
                true => Answer::Refused(Refusal::NotHere),
                false => Answer::Refused(Refusal::Errno(error.errno(), error.to_string())),
            }
        })
    }

    /// While the store is away: gives up changes for other members that have been under way for longer.
    pub fn expire_guests(&self, limit: Duration) {
        self.members.fences.expire(limit);
    }

    /// Called when a member is dead, or has begun anew: closes the handles that its ended lives have here.
    pub fn member_ended(&self, member: &str) {
        let cluster = self.cluster();
        let newest = cluster.and_then(|cluster| cluster.epoch(member));
        let is_alive = cluster.is_some_and(|cluster| cluster.others().iter().any(|m| m == member));
        let lives = |epoch: u64| newest.is_some_and(|n| epoch > n || (epoch == n && is_alive));
        let mut ended = Vec::new();
        self.members.guests.lock().retain(|_, guest| {
            let stays = guest.epoch_of(member).is_none_or(lives);
            if !stays {
                ended.push(guest.clone());
            }
            stays
        });
        // Dropped without the lock: with the last handle of a file a lot may go.
        drop(ended);
    }
}
