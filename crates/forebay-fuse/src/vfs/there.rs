//! Files that another member serves: each is a node of its own, opened with FOPEN_DIRECT_IO (only mappings use
//! the kernel's pages), and requests about it go to its home.
//!
//! A home that has begun anew knows none of its earlier handles. A handle is then opened again, and if bytes of the
//! file were not synced ([`unsynced`](super::unsynced)), its next fsync or close gives EIO, once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use forebay_backing::{Attr, Error, FileKey, Result};
use forebay_base::lock::{Mutex, MutexGuard, Rank};
use forebay_cluster::core::{Access, Holder};
use forebay_cluster::front::Place;
use forebay_cluster::words::{Answer, Attrs, Opener, Question};
use forebay_engine::File;
use forebay_engine::rules::Origin;

use super::ahead::{Ahead, Asking, Part, Wanted};
use super::blanks::Share;
use super::copies::{Succession, is_silence};
use super::doubts::{Again, Asked};
use super::homes::{Looks, attr_of, moved, odd, with_home, words_of};
use super::rights::opener;
use super::serve::Guest;
use super::unsynced::{Account, Life};
use super::{AtClose, Handle, How, Manner, Opened, Vfs};
use crate::flags::OpenFlags;
use crate::nodes::Side;

/// How often a handle follows its file to another home for one request.
const LOOKS: usize = 3;

/// Whether a question that a silent home did not answer is asked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeated {
    Yes,
    /// At another home only. The silent one may still make the change, and over later writes of others.
    Elsewhere,
    No,
}

/// A handle of a file that is open at its home.
pub(super) struct Remote {
    id: u64,
    key: FileKey,
    write: bool,
    append: bool,
    seat: Mutex<Seat>,
    /// Held while an append is under way.
    appended: Mutex<()>,
    pub account: Account,
    /// Whether the home has taken something since it was last told of a close.
    pub has_written: AtomicBool,
    ahead: Ahead,
    pub blank: Share,
}

/// A handle at a home, and the life of the home that knows the handle.
#[derive(Debug, Clone)]
pub(super) struct There {
    pub life: Life,
    pub handle: u64,
}

impl There {
    pub fn home(&self) -> &str {
        &self.life.home
    }
}

#[derive(Clone)]
pub(super) enum Seat {
    There(There),
    /// The home has given the file back, and it is served here, still without the kernel's page cache.
    Here(Arc<Guest>),
    Nowhere,
}

impl Remote {
    pub fn key(&self) -> FileKey {
        self.key
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    #[track_caller]
    pub fn seat(&self) -> MutexGuard<'_, Seat> {
        self.seat.lock()
    }

    /// Gives up the handle at the home. Returns whether no other thread has given it up before.
    pub fn leave(&self, left: &There) -> bool {
        let mut seat = self.seat();
        let is_there = matches!(&*seat, Seat::There(there) if there.handle == left.handle);
        if is_there {
            *seat = Seat::Nowhere;
        }
        is_there
    }

    fn access(&self) -> Access {
        if self.write { Access::Write } else { Access::Read }
    }
}

/// The place where a file is served, as far as it is known here.
enum Home {
    Here,
    At(String),
    Unknown,
}

impl Home {
    /// Whether the known home is the one of this seat, or no home is known. The home of the seat may have given the
    /// file back long ago, and not know the next one.
    fn is_at(&self, seat: &Seat) -> bool {
        match (self, seat) {
            (_, Seat::Nowhere) | (Home::Unknown, _) => true,
            (Home::Here, Seat::Here(_)) => true,
            (Home::At(home), Seat::There(at)) => home == at.home(),
            (Home::Here, Seat::There(_)) | (Home::At(_), Seat::Here(_)) => false,
        }
    }
}

impl Vfs {
    pub(super) fn open_there(&self, id: u64, flags: OpenFlags, who: Origin) -> Result<Opened> {
        let (key, dir) = self.nodes.placed(id).ok_or_else(moved)?;
        let path = self.path(id)?;
        let cluster = self.cluster().ok_or_else(moved)?;
        // Bytes fetched ahead for other handles may be too old for this open, and all share the kernel's pages.
        self.members.fetching.stir(key);
        let mut seat = None;
        let mut looks = Looks::begin();
        let succession = Succession::default();
        let mut named = self.named_home(&[key]);
        let program = opener(who, flags);
        loop {
            let place = match named.take() {
                Some(home) => Place::There(home),
                None => cluster.open(key, self.as_found(dir, &path), &path, flags.access())?,
            };
            match place {
                Place::There(home) => {
                    let how = (flags.changes(), Some(program.clone()));
                    match self.ask_open(&home, key, path.clone(), how) {
                        Ok(there) => {
                            self.opened_at(key, Some(&there.life));
                            seat = Some(Seat::There(there));
                        }
                        Err(error) if error.is(libc::ESTALE) => {}
                        Err(error) if error.is(libc::ENOENT) => {
                            return Err(self.replaced(&path));
                        }
                        Err(error) if self.awaits_heir(&succession, &home, &error) => {
                            self.heard(key, None);
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
                // The file has come here since the kernel's lookup: it is served here, without the page cache.
                Place::Here(held) => {
                    let Some(file) = self.named_at(key, &path)? else {
                        return Err(self.replaced(&path));
                    };
                    self.allows_open(&program, &self.engine.verbs.stat_open(&file), &path)?;
                    self.opened_at(key, None);
                    seat = Some(Seat::Here(Arc::new(Guest::own(file, held))));
                }
            }
            if seat.is_some() {
                break;
            }
            self.heard(key, None);
            if !looks.again() {
                break;
            }
        }
        let seat = seat.ok_or_else(|| self.replaced(&path))?;
        let remote = Remote {
            id,
            key,
            write: flags.changes(),
            append: flags.appends(),
            seat: Mutex::new(Rank::Seat, seat),
            appended: Mutex::new(Rank::FarAppend, ()),
            account: self.members.unsynced.open(key),
            has_written: AtomicBool::new(flags.truncates()),
            ahead: Ahead::default(),
            blank: self.members.blanks.open(key, flags.changes()),
        };
        if flags.truncates()
            && let Err(error) = self.truncate_there(&remote)
        {
            self.close_there(&remote);
            return Err(error);
        }
        // A program that opens the file to map it asks for its size, and must not get the one that the kernel has.
        self.tell_attributes(id);
        let handle = self.keep(Handle::There(remote));
        // A process loses its record locks of a file with any close of that file.
        Ok(Opened { handle, how: How::Direct, at_close: AtClose::Flush })
    }

    fn ask_open(
        &self,
        home: &str,
        file: FileKey,
        path: PathBuf,
        (write, program): (bool, Option<Opener>),
    ) -> Result<There> {
        let question = Question::Open { file, path, write, program };
        match self.ask(home, &question, &[], &mut Vec::new())? {
            // If the home has begun anew since, it does not know the handle any more.
            Answer::Opened { handle, as_of, .. } => {
                Ok(There { life: self.life_of(home, as_of)?, handle })
            }
            other => Err(odd(&other)),
        }
    }

    /// Opens the file of a handle again, wherever it is served now.
    fn sit_down(&self, remote: &Remote) -> Result<Seat> {
        let _tree = self.tree();
        let gone = || Error::os(libc::EIO, "the file's home ended, and its name is gone");
        // The file's names may be those of the other node, as which it is served since.
        let ids = [Some(remote.id), self.nodes.id_of(remote.key)];
        let found = ids.into_iter().flatten().find_map(|id| {
            let (key, dir) = self.nodes.placed(id).filter(|(key, _)| *key == remote.key)?;
            Some((key, dir, self.nodes.path(id)?))
        });
        let (key, dir, path) = found.ok_or_else(gone)?;
        let cluster = self.cluster().ok_or_else(moved)?;
        let dir = self.as_found(dir, &path);
        let seat = match cluster.open(key, dir, &path, remote.access())? {
            Place::There(home) => {
                let there = self.ask_open(&home, key, path, (remote.write, None))?;
                self.opened_at(key, Some(&there.life));
                Seat::There(there)
            }
            Place::Here(held) => {
                let file = self.known_at(key, &path)?;
                self.opened_at(key, None);
                Seat::Here(Arc::new(Guest::own(file, held)))
            }
        };
        let mut at = remote.seat();
        let taken = match &*at {
            Seat::Nowhere => None,
            // Another thread of the handle was faster.
            other => Some(other.clone()),
        };
        let Some(taken) = taken else {
            *at = seat.clone();
            return Ok(seat);
        };
        drop(at);
        if let Seat::There(there) = seat {
            self.close_later(&there);
        }
        Ok(taken)
    }

    /// Makes a request about an open file at the file's home.
    ///
    /// - ESTALE: the home refused the request and did nothing: the request is made at the next home.
    /// - EIO or silence: the home may have done it. The request is made again only if it may be `repeated` and another
    ///   member may take the home's place.
    /// - The handle at a silent home is kept, as the home may come back, unless another home is known by then or the
    ///   request must go elsewhere.
    pub(super) fn at_home<T>(
        &self,
        remote: &Remote,
        repeated: Repeated,
        there: impl Fn(&There) -> Result<T>,
        here: impl Fn(&Guest) -> Result<T>,
    ) -> Result<T> {
        let succession = Succession::default();
        let mut silent: Option<(String, Error)> = None;
        let mut looks = 0;
        while looks < LOOKS {
            looks += 1;
            self.rise(remote);
            let seat = remote.seat().clone();
            let seat = match seat {
                Seat::Nowhere => match self.sit_down(remote) {
                    Err(error) if error.is(libc::ESTALE) => continue,
                    Err(error)
                        if silent.as_ref().is_some_and(|(home, _)| {
                            self.awaits_heir(&succession, home, &error)
                        }) =>
                    {
                        looks = 0;
                        continue;
                    }
                    seat => seat?,
                },
                seat => seat,
            };
            let at = match seat {
                Seat::Here(guest) => return here(&guest),
                Seat::There(at) => at,
                Seat::Nowhere => continue,
            };
            let home = at.home();
            let is_back = |(silent, _): &mut (String, Error)| *silent == home;
            if repeated == Repeated::Elsewhere
                && let Some((_, error)) = silent.take_if(is_back)
            {
                return Err(error);
            }
            match there(&at) {
                Err(error) if error.is(libc::ESTALE) => self.leave(remote, &at),
                Err(error) if error.errno() == libc::EIO || is_silence(&error) => {
                    let awaits =
                        repeated != Repeated::No && self.awaits_heir(&succession, home, &error);
                    let is_left = || {
                        repeated == Repeated::Elsewhere
                            || self.home_of(remote.key).is_none_or(|now| now != home)
                    };
                    if error.errno() == libc::EIO || awaits && is_left() {
                        self.leave(remote, &at);
                    }
                    if !awaits {
                        return Err(error);
                    }
                    (silent, looks) = (Some((home.to_string(), error)), 0);
                }
                done => return done,
            }
        }
        Err(Error::os(libc::EIO, "the file goes from home to home"))
    }

    /// Asks a question that is answered with no more than success.
    pub(super) fn ask_done(&self, home: &str, question: &Question, bytes: &[u8]) -> Result<()> {
        match self.ask(home, question, bytes, &mut Vec::new())? {
            Answer::Done => Ok(()),
            other => Err(odd(&other)),
        }
    }

    /// Reads from a handle at its home. Returns whether no program had the file open for writing.
    pub(super) fn ask_read(
        &self,
        home: &str,
        handle: u64,
        (offset, len): (u64, usize),
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let question = Question::Read { handle, offset, len: len as u32 };
        match self.ask(home, &question, &[], out)? {
            Answer::Bytes => Ok(false),
            Answer::QuietBytes => Ok(true),
            other => Err(odd(&other)),
        }
    }

    pub(super) fn read_there(&self, remote: &Remote, offset: u64, len: usize) -> Result<Part> {
        let all = &self.members.fetching;
        let stirred = all.stirred(remote.key);
        if !self.known_home(remote.key).is_at(&remote.seat()) {
            // Programs here, or of a third member, may write to the file without stirring it.
            remote.ahead.forget();
        }
        let (part, quiet) = match remote.ahead.take(offset, len, stirred) {
            Some(part) if part.bytes().len() == len => (part, None),
            first => self.read_on(remote, (offset, len), first, stirred)?,
        };
        let wanted = remote.ahead.plan(all, (offset, part.bytes().len()), quiet, stirred);
        if !wanted.is_empty() {
            self.fetch_ahead(remote, wanted);
        }
        Ok(part)
    }

    /// Reads on behind `first`, which was fetched ahead. Returns also whether no program had the file open for
    /// writing, if its home was asked.
    fn read_on(
        &self,
        remote: &Remote,
        (offset, len): (u64, usize),
        first: Option<Part>,
        stirred: u64,
    ) -> Result<(Part, Option<bool>)> {
        let Some(first) = first else {
            let (part, is_quiet) = self.read_now(remote, offset, len)?;
            return Ok((part, Some(is_quiet)));
        };
        let (mut joined, mut quiet) = (self.members.fetching.buffer(), None);
        joined.bytes.clear();
        joined.bytes.extend_from_slice(first.bytes());
        drop(first);
        while joined.bytes.len() < len && quiet.is_none() {
            let (at, left) = (offset + joined.bytes.len() as u64, len - joined.bytes.len());
            let part = match remote.ahead.take(at, left, stirred) {
                Some(part) => part,
                None => {
                    let (part, is_quiet) = self.read_now(remote, at, left)?;
                    quiet = Some(is_quiet);
                    part
                }
            };
            joined.bytes.extend_from_slice(part.bytes());
        }
        Ok((joined.into_part(len), quiet))
    }

    /// The place where a file is served, as known without a question. To be called with no seat locked.
    fn known_home(&self, key: FileKey) -> Home {
        match self.cluster().map_or(Holder::Nobody, |cluster| cluster.holder(key)) {
            Holder::Here => Home::Here,
            Holder::There(home) | Holder::Dead(home) => Home::At(home),
            Holder::Nobody => self.home_of(key).map_or(Home::Unknown, Home::At),
        }
    }

    /// Leaves a seat where the file is not served any more: all handles here share the kernel's pages, and some of
    /// them have opened the file since.
    fn rise(&self, remote: &Remote) {
        let home = self.known_home(remote.key);
        let mut at = remote.seat();
        if home.is_at(&at) {
            return;
        }
        let left = std::mem::replace(&mut *at, Seat::Nowhere);
        drop(at);
        if let Seat::There(there) = left {
            self.close_later(&there);
        }
    }

    /// Reads where the file is served. Returns also whether no program had the file open for writing.
    fn read_now(&self, remote: &Remote, offset: u64, len: usize) -> Result<(Part, bool)> {
        let all = &self.members.fetching;
        let there = |there: &There| {
            let mut out = all.buffer();
            let is_quiet =
                self.ask_read(there.home(), there.handle, (offset, len), &mut out.bytes)?;
            Ok((out.into_part(len), is_quiet))
        };
        let here = |guest: &Guest| {
            let mut out = all.buffer();
            guest.read(self, (offset, len), &mut out.bytes)?;
            Ok((out.into_part(len), false))
        };
        self.at_home(remote, Repeated::Yes, there, here)
    }

    fn fetch_ahead(&self, remote: &Remote, wanted: Vec<Wanted>) {
        let seat = remote.seat().clone();
        for wanted in wanted {
            let asking = Asking::new(&remote.ahead, wanted);
            let (Seat::There(There { life, handle }), Some(cluster)) =
                (seat.clone(), self.members.cluster.get().cloned())
            else {
                continue;
            };
            let all = self.members.fetching.clone();
            let ask = move |question: &Question, out: &mut Vec<u8>| {
                cluster.ask(&life.home, question, &[], out)
            };
            self.members.fetching.pool.offer(move || asking.ask(&all, handle, ask));
        }
    }

    pub(super) fn write_there(
        &self,
        remote: &Remote,
        offset: u64,
        data: &[u8],
        manner: Manner,
    ) -> Result<()> {
        let sync = manner.syncs;
        remote.has_written.fetch_or(!sync, SeqCst);
        let _stirs = self.members.fetching.stirring(remote.key);
        match remote.append {
            true => self.append_there(remote, data, sync)?,
            false => self.at_home(
                remote,
                Repeated::Elsewhere,
                |there| {
                    let handle = there.handle;
                    let write = |number| Question::Write { handle, number, offset, sync };
                    let asking = remote.account.asks();
                    self.ask_to_change_done(remote, there, Again::Once, write, data)?;
                    if !sync {
                        self.owes(&asking, &there.life);
                    }
                    Ok(())
                },
                |guest| guest.write(self, offset, data, sync),
            )?,
        }
        Ok(())
    }

    /// Brings home pages that programs here have changed through mappings: the bytes before the file's end at its
    /// home, but not blanks that are still zeros. The file gets no longer.
    pub(super) fn write_pages_there(
        &self,
        remote: &Remote,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        remote.has_written.store(true, SeqCst);
        let _stirs = self.members.fetching.stirring(remote.key);
        for (start, end) in remote.blank.stored(offset, data) {
            let bytes = &data[(start - offset) as usize..(end - offset) as usize];
            let there = |there: &There| {
                let handle = there.handle;
                let write = |number| Question::Overwrite { handle, number, offset: start };
                let asking = remote.account.asks();
                self.ask_to_change_done(remote, there, Again::Once, write, bytes)?;
                self.owes(&asking, &there.life);
                Ok(())
            };
            let here = |guest: &Guest| guest.overwrite(self, start, bytes);
            // Noted first: an unanswered write may have been made, and zeros stored over it later must come home.
            remote.blank.is_home(start, end);
            self.at_home(remote, Repeated::Elsewhere, there, here)?;
        }
        Ok(())
    }

    fn ask_to_change_done(
        &self,
        remote: &Remote,
        there: &There,
        again: Again,
        question: impl Fn(u64) -> Question,
        bytes: &[u8],
    ) -> Result<()> {
        match self.ask_to_change(
            there.home(),
            (&[remote.key], Asked::OwnFile),
            again,
            question,
            bytes,
        )? {
            Answer::Done => Ok(()),
            other => Err(odd(&other)),
        }
    }

    /// Called right after the open, with the tree locked: if the file has moved since, the kernel opens it anew.
    fn truncate_there(&self, remote: &Remote) -> Result<()> {
        let _stirs = self.members.fetching.stirring(remote.key);
        let seat = remote.seat().clone();
        match seat {
            Seat::There(there) => {
                let cut = |number| Question::Resize { handle: there.handle, number, size: 0 };
                let asking = remote.account.asks();
                self.ask_to_change_done(remote, &there, Again::Once, cut, &[])?;
                self.owes(&asking, &there.life);
                Ok(())
            }
            Seat::Here(guest) => guest.resize(self, 0),
            Seat::Nowhere => Err(moved()),
        }
    }

    fn append_there(&self, remote: &Remote, data: &[u8], sync: bool) -> Result<()> {
        // Appends are made one after the other, as they are numbered.
        let _one = remote.appended.lock();
        let there = |there: &There| {
            let append = |number| Question::Append { handle: there.handle, number, sync };
            let asking = remote.account.asks();
            match self.ask_to_change(
                there.home(),
                (&[remote.key], Asked::OwnFile),
                Again::No,
                append,
                data,
            )? {
                Answer::At(_) => {
                    if !sync {
                        self.owes(&asking, &there.life);
                    }
                    Ok(())
                }
                other => Err(odd(&other)),
            }
        };
        self.at_home(remote, Repeated::No, there, |guest| {
            guest.append(self, self.members.numbers.next(), data, sync).map(drop)
        })?;
        // The kernel takes the end to be where it asked to write.
        self.tell_attributes(remote.id);
        Ok(())
    }

    pub(super) fn allocate_there(
        &self,
        remote: &Remote,
        offset: u64,
        len: u64,
        mode: i32,
    ) -> Result<()> {
        remote.has_written.store(true, SeqCst);
        let _stirs = self.members.fetching.stirring(remote.key);
        self.at_home(
            remote,
            Repeated::No,
            |there| {
                let handle = there.handle;
                let allocate = |number| Question::Allocate { handle, number, offset, len, mode };
                let asking = remote.account.asks();
                self.ask_to_change_done(remote, there, Again::No, allocate, &[])?;
                self.owes(&asking, &there.life);
                Ok(())
            },
            |guest| guest.allocate(self, offset, len, mode),
        )
    }

    pub(super) fn seek_there(&self, remote: &Remote, offset: u64, whence: i32) -> Result<u64> {
        let there = |there: &There| {
            let question = Question::Seek { handle: there.handle, offset, whence };
            match self.ask(there.home(), &question, &[], &mut Vec::new())? {
                Answer::At(at) => Ok(at),
                other => Err(odd(&other)),
            }
        };
        self.at_home(remote, Repeated::Yes, there, |guest| guest.seek(self, offset, whence))
    }

    /// Attributes of a node that another member serves.
    ///
    /// # Errors
    ///
    /// ESTALE if the name is gone or another file's, and no program here has the file open: the kernel looks the name
    /// up again.
    pub(super) fn getattr_there(&self, id: u64) -> Result<Attr> {
        let key = self.nodes.key(id).ok_or_else(moved)?;
        let known = self.attrs_at_home(key)?;
        let path = self.path_of(id, key);
        let of_store = path.as_deref().map(|path| self.engine.verbs.stat(path)).transpose();
        match (of_store, known) {
            (Ok(Some(attr)), Some(home)) if attr.key == key => Ok(with_home(attr, &home)),
            (Ok(Some(attr)), None) if attr.key == key => Ok(attr),
            // Others have changed the file's name. The home tells how many it has.
            (_, Some(home)) => Ok(attr_of(&home)),
            (of_store, None) => match (self.attrs_as_opened(id, key)?, of_store) {
                (Some(opened), _) => Ok(Attr { nlink: 0, ..attr_of(&opened) }),
                (None, Err(error)) if !error.is(libc::ENOENT) => Err(error),
                (None, _) => Err(path.map_or_else(moved, |path| self.replaced(&path))),
            },
        }
    }

    /// Runs with a handle by which a program here writes to a file that another member serves, if there is one.
    pub(super) fn with_writer<T>(&self, key: FileKey, run: impl FnOnce(&Remote) -> T) -> Option<T> {
        let writes = |handle: &&Arc<Handle>| matches!(&***handle, Handle::There(remote) if remote.key == key && remote.write);
        let handle = self.handles.read().values().find(writes).cloned()?;
        match &*handle {
            Handle::There(remote) => Some(run(remote)),
            _ => None,
        }
    }

    /// A path of a file: its names may be those of the other node, as which it is served since.
    fn path_of(&self, id: u64, key: FileKey) -> Option<PathBuf> {
        let others = [Side::Near, Side::Far].map(|side| self.nodes.id_at(key, side));
        let given = Some(id).filter(|id| self.nodes.key(*id) == Some(key));
        [given].into_iter().chain(others).flatten().find_map(|id| self.nodes.path(id))
    }

    /// The attributes of a file without a known claim, if programs here have it open at its home: as told by the
    /// member that serves their handles, else by the one that would serve a new open.
    fn attrs_as_opened(&self, id: u64, key: FileKey) -> Result<Option<Attrs>> {
        let (home, seats) = (self.known_home(key), self.seats(key));
        if seats.is_empty() {
            return Ok(None);
        }
        let at_seat = |seat| match seat {
            Seat::There(there) => self.attrs_there(there.home(), key).ok().flatten(),
            Seat::Here(guest) => Some(guest.attrs(self)),
            Seat::Nowhere => None,
        };
        let told = seats.into_iter().filter(|seat| home.is_at(seat)).find_map(at_seat);
        if told.is_some() {
            return Ok(told);
        }
        let (dir, path) = self.claimable(id, key);
        match self.open_at(key, (self.as_found(dir, &path), &path), Access::Read)? {
            Place::There(home) => self.attrs_there(&home, key),
            Place::Here(_) => {
                let file = self.known_at(key, &path).ok();
                Ok(file.map(|file| words_of(&self.engine.verbs.stat_open(&file))))
            }
        }
    }

    /// A file that came here when programs had it open at its home.
    pub(super) fn seated_here(&self, key: FileKey) -> Option<Arc<File>> {
        self.seats(key).into_iter().find_map(|seat| match seat {
            Seat::Here(guest) => Some(guest.file()),
            Seat::There(_) | Seat::Nowhere => None,
        })
    }

    /// Whether programs here have opened the file at its home.
    pub(super) fn has_seats(&self, key: FileKey) -> bool {
        !self.seats(key).is_empty()
    }

    /// Where the handles are by which programs here have the file open at its home.
    fn seats(&self, key: FileKey) -> Vec<Seat> {
        let handles = self.handles.read();
        let is_its = |handle: &&Arc<Handle>| matches!(&***handle, Handle::There(remote) if remote.key == key);
        let opened: Vec<Arc<Handle>> = handles.values().filter(is_its).cloned().collect();
        drop(handles);
        let seat = |handle: Arc<Handle>| match &*handle {
            Handle::There(remote) => Some(remote.seat().clone()),
            _ => None,
        };
        opened.into_iter().filter_map(seat).collect()
    }

    /// The attributes of a file after its home has changed it.
    pub(super) fn changed_there(&self, path: &Path, attrs: Option<Attrs>) -> Result<Attr> {
        let attr = self.engine.verbs.stat(path)?;
        Ok(attrs.map_or(attr, |attrs| with_home(attr, &attrs)))
    }
}
