//! Messages to partners about the files of this member.
//!
//! One round at a time is under way for each file, for all partners at once ([`crate::core::copied`]). A
//! caller that comes during a round waits for the next, which one of the waiting callers begins for all.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use forebay_backing::{Error, FileKey, Result};
use serde::Serialize;

use crate::copies::ahead::{self, Ahead};
use crate::copies::round::{Ended, Post, Round, Sending, To, encoded};
use crate::copies::telling::Telling;
use crate::core::copied::{Then, Untold, Words};
use crate::core::state::Conflict;
use crate::files::Files;
use crate::files::file::{File, Inner};
use crate::files::partners::{CopiesAt, Partners};
use crate::pool::Pool;
use forebay_base::lock::{self, MutexGuard};

/// How often a caller that waits for a round checks whether it is over.
const WAIT_LOOK: Duration = Duration::from_millis(50);

/// Rounds that are tried: if the file is truncated meanwhile, the round is repeated. The truncating
/// call waits for a round itself.
pub(super) const ROUNDS_MAX: u32 = 64;

/// The number of messages that are sent beside other work.
const THREADS: usize = 16;

pub(super) const CUT: &str = "the file is cut all the time while it is copied to partners";

/// Sends this member's new bytes to its partners, which keep copies of its files.
pub struct Outbox {
    pub(super) files: Arc<Files>,
    /// The number of this run of the engine, for partners.
    pub(super) session: u64,
    /// Whether a thread tells partners which files they may forget.
    forgetting: AtomicBool,
    /// Whether partners may remember, after a loss of power, files that they were told to forget.
    may_remember: AtomicBool,
    /// Whether partners may have copies from the previous run, and were never told to forget them.
    follows: AtomicBool,
    threads: Pool,
    ahead: Ahead,
}

/// The files that partners do not have completely yet.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Behind {
    /// Dirty files of which partners have all synced bytes, and their dirty bytes.
    pub copied_files: u64,
    pub copied_bytes: u64,
    pub copied: Vec<PathBuf>,
    /// The other dirty files.
    pub behind: Vec<BehindFile>,
}

#[derive(Debug, Clone, Serialize)]
pub struct BehindFile {
    pub key: FileKey,
    pub path: PathBuf,
    /// Dirty bytes that partners do not have.
    pub bytes: u64,
}

/// Whether partners must have forgotten a file durably when the call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lasting {
    Yes,
    No,
}

impl Outbox {
    pub(crate) fn new(files: Arc<Files>) -> Outbox {
        // Random, as the keys of the hasher are.
        let session = RandomState::new().build_hasher().finish();
        let (forgetting, may_remember) = (AtomicBool::new(false), AtomicBool::new(false));
        let threads = Pool::new("fb-copies", THREADS, files.time().clone());
        let follows = AtomicBool::new(false);
        Outbox {
            files,
            session,
            forgetting,
            may_remember,
            follows,
            threads,
            ahead: Ahead::default(),
        }
    }

    /// Begins a run of the engine after which partners may have copies from the previous one. They
    /// are told of changes to such a file, and other copies that they have do not count. To be
    /// called before anything is served.
    pub fn begin_anew(&self) {
        for file in self.files.all_files() {
            let mut inner = file.lock();
            if !is_to_be_known(&inner) {
                continue;
            }
            // Synced bytes of the previous run were told, and of the others some may have been.
            let is_durable = inner.state.durable_size().is_some() || inner.state.is_held();
            let untold = match is_durable {
                true => Untold::of_before(self.files.copying().next_number()),
                false => Untold::none(),
            };
            inner.live().begin_copies(untold);
        }
        self.follows.store(true, SeqCst);
    }

    /// Tells partners of a file: on return they have all of it, if it is dirty and they are to have it.
    pub(crate) fn tell(&self, file: &Arc<File>) -> Result<()> {
        let Some(partners) = self.files.copying().wanted() else {
            self.give_up(file);
            return Ok(());
        };
        let begun = file.lock().in_use().map_or(0, |live| live.rounds().begun);
        for _ in 0..ROUNDS_MAX {
            let inner = self.wait_for_round(file);
            // A round that began after this call has everything.
            if inner.in_use().is_some_and(|live| live.rounds().done > begun) {
                return Ok(());
            }
            if !is_to_be_known(&inner) {
                drop(inner);
                return self.forget(file, Lasting::No);
            }
            let round = Round::begin(self.post(&partners, To::All), file, inner)?;
            match round.map(Round::run).transpose()? {
                None | Some(Ended::Well(_) | Ended::Part(_)) => return Ok(()),
                Some(Ended::Cut) => {}
            }
        }
        Err(Error::os(libc::EBUSY, CUT))
    }

    /// Whether enough partners have the dirty bytes of a file, before a program gets its answer.
    pub(crate) fn has_enough(&self, file: &Arc<File>) -> Result<()> {
        match self.files.copying().wanted() {
            Some(partners) if is_to_be_known(&file.lock()) => partners.has_enough(),
            _ => Ok(()),
        }
    }

    /// Begins [`Outbox::tell`] on another thread, if partners are to have anything.
    pub(crate) fn begin(self: &Arc<Self>, file: &Arc<File>) -> Option<Telling> {
        if !self.files.copying().is_wanted() {
            return None;
        }
        let (outbox, file) = (self.clone(), file.clone());
        let tell = move || outbox.tell(&file);
        Some(Telling::begin(&self.threads, self.files.time(), tell))
    }

    /// Notes a write of `bytes` for which no program waits yet, and may send the file ahead.
    fn tell_ahead(self: &Arc<Self>, file: &Arc<File>, bytes: u64) {
        if !ahead::begins(&mut file.lock(), bytes, self.files.config().ahead_from) {
            return;
        }
        let going = self.may_go_ahead(file.key).then(|| self.ahead.enter()).flatten();
        let Some(going) = going else {
            file.lock().live().go_ahead(false);
            return;
        };
        let (outbox, file) = (self.clone(), file.clone());
        self.threads.run(move || {
            outbox.go_ahead(&file);
            drop(going);
        });
    }

    /// Sends the file again and again, as long as programs write to it as fast as before.
    fn go_ahead(&self, file: &Arc<File>) {
        loop {
            // A later sync waits for the disks, too: this tier's sync begins while partners are told.
            let shadow = file.lock().in_use().and_then(|live| live.shadow.clone());
            if let Some(shadow) = shadow {
                shadow.begin_sync();
            }
            let told = self.tell(file);
            if let Err(error) = &told {
                // A sync of the file tells them again, and reports the error.
                tracing::debug!(%error, "partners could not be told of what is written");
            }
            let may = told.is_ok() && self.may_go_ahead(file.key);
            if !ahead::goes_on(&mut file.lock(), may, self.files.config().ahead_from) {
                return;
            }
        }
    }

    fn may_go_ahead(&self, file: FileKey) -> bool {
        self.files.copying().wanted().is_some_and(|partners| partners.takes(file))
    }

    pub(super) fn post<'a>(&'a self, partners: &'a Arc<dyn Partners>, to: To<'a>) -> Post<'a> {
        Post { files: &self.files, partners, threads: &self.threads, session: self.session, to }
    }

    /// Tells partners of a file that has changed otherwise than by a write, if they know it, before the answer.
    pub(crate) fn tell_if_copied(&self, file: &Arc<File>) -> Result<()> {
        match self.files.copying().is_on() && file.lock().is_copied() {
            true => self.tell(file),
            false => Ok(()),
        }
    }

    /// Called when a write of `bytes`, or a similar change, has returned.
    #[inline]
    pub(crate) fn tell_written(self: &Arc<Self>, file: &Arc<File>, bytes: u64) -> Result<()> {
        match self.files.copying().at() {
            Some(CopiesAt::Write) => return self.tell(file).and_then(|()| self.has_enough(file)),
            Some(CopiesAt::Sync) => self.tell_ahead(file, bytes),
            None => {}
        }
        Ok(())
    }

    /// Called when the size has changed.
    pub(crate) fn tell_resized(&self, file: &Arc<File>) -> Result<()> {
        match self.files.copying().at() {
            Some(CopiesAt::Write) => self.tell(file),
            Some(CopiesAt::Sync) => self.tell_if_copied(file),
            None => Ok(()),
        }
    }

    /// Tells partners that the file is about to have another name, so that a takeover looks for it there, too.
    pub(crate) fn tell_name(&self, file: &Arc<File>, also: Option<&Path>) -> Result<()> {
        if !self.files.copying().is_on() {
            return Ok(());
        }
        {
            let mut inner = file.lock();
            let live = inner.in_use_mut();
            let Some(copied) = live.and_then(|live| live.copied_mut()) else { return Ok(()) };
            copied.also = also.map(Path::to_path_buf);
            copied.note_anew();
        }
        self.tell(file)
    }

    /// As `tell_name`, for the files below a directory that is about to be renamed.
    pub(crate) fn tell_names_below(&self, from: &Path, to: &Path) -> Result<()> {
        if !self.files.copying().is_on() {
            return Ok(());
        }
        for id in self.files.tree().at_or_below(from) {
            let Some(file) = self.files.by_id(id) else { continue };
            let also = file.path().and_then(|it| Some(to.join(it.strip_prefix(from).ok()?)));
            self.tell_name(&file, also.as_deref())?;
        }
        Ok(())
    }

    /// Tells the names of the files below a directory that was renamed, or not.
    pub(crate) fn tell_below(&self, dir: &Path) -> Result<()> {
        if !self.files.copying().is_on() {
            return Ok(());
        }
        let ids = self.files.tree().at_or_below(dir);
        let mut files = ids.into_iter().filter_map(|id| self.files.by_id(id));
        files.try_for_each(|file| self.tell_name(&file, None))
    }

    /// Makes partners forget the file, if they know it and no byte of it is dirty.
    pub(crate) fn forget(&self, file: &Arc<File>, lasting: Lasting) -> Result<()> {
        if !self.files.copying().is_on() {
            return Ok(());
        }
        let mut inner = self.wait_for_round(file);
        let ends = !is_to_be_known(&inner);
        let live = inner.in_use_mut();
        let Some(copied) = live.and_then(|live| live.copied_mut()).filter(|_| ends) else {
            drop(inner);
            return self.forget_durably(file.key, lasting);
        };
        let number = copied.end().unwrap_or_else(|| self.files.copying().next_number());
        copied.sending = true;
        drop(inner);
        let sending = Sending::of(&self.files, file);
        let told = self.say_forget(file.key, number, lasting);
        let mut inner = sending.end();
        let live = inner.live();
        match &told {
            // If the file is dirty again, it is told anew.
            Ok(()) => live.end_copies(),
            Err(_) => {
                let copied = live.copied_mut().expect("nobody ends it but who is at it");
                copied.note_anew(); // Some partners may have forgotten the file.
                self.files.copying().is_over(file.clone());
            }
        }
        if inner.gone() {
            inner.end_use();
        } else {
            self.files.retire(file, inner);
        }
        told
    }

    /// Makes the forgetting of a file durable at partners.
    fn forget_durably(&self, key: FileKey, lasting: Lasting) -> Result<()> {
        let may_remember = || self.may_remember.swap(false, SeqCst) || self.follows.load(SeqCst);
        if lasting == Lasting::No || !may_remember() {
            return Ok(());
        }
        let told = self.say_forget(key, self.files.copying().next_number(), lasting);
        if told.is_err() {
            self.may_remember.store(true, SeqCst);
        }
        told
    }

    fn say_forget(&self, key: FileKey, number: u64, lasting: Lasting) -> Result<()> {
        // Without partners nothing is sent: a later partner is filled.
        let Some(partners) = self.files.copying().wanted() else { return Ok(()) };
        let (session, none) = (self.session, Cow::Borrowed(&[][..]));
        let then = Then::Forget { lasts: lasting == Lasting::Yes };
        let (after, brought, named) = (0, 0, 0);
        let (data, zeros, runs) = (none.clone(), none.clone(), none);
        let words = Words { session, number, after, brought, data, zeros, runs, named, then };
        if lasting == Lasting::No {
            self.may_remember.store(true, SeqCst);
        }
        lock::calls_the_store();
        partners.forget(key, &encoded(&words))
    }

    /// Tells partners which files they may forget, unless another thread does so.
    pub(crate) fn tend(&self) {
        if self.forgetting.swap(true, SeqCst) {
            return;
        }
        for file in self.files.copying().take_over() {
            if let Err(error) = self.forget(&file, Lasting::No) {
                tracing::debug!(%error, "partners could not be told of a file that is clean");
            }
        }
        self.forgetting.store(false, SeqCst);
    }

    /// Whether [`Outbox::tend`] has work.
    pub(crate) fn has_over(&self) -> bool {
        !self.forgetting.load(SeqCst) && self.files.copying().has_over()
    }

    /// On return partners have all dirty bytes of a file: for a file that was taken over, once this
    /// member has its claim.
    pub fn copy(&self, file: FileKey) -> Result<()> {
        self.files.find(file).map_or(Ok(()), |file| self.tell(&file))
    }

    /// Returns the files that partners do not have yet, for the status.
    pub fn behind(&self) -> Behind {
        let mut found = Behind::default();
        for file in self.files.all_files() {
            // A lock that is held long is that of a file being written: the next look has it.
            let Some(inner) = file.try_lock() else { continue };
            if !is_to_be_known(&inner) {
                continue;
            }
            let size = inner.size();
            let owed = inner.state.owed_of(0, size).into_iter();
            let bytes: u64 = owed.map(|(start, end)| end - start).sum();
            let copied = inner.in_use().and_then(|live| live.copied.as_ref());
            let left = copied.map_or(bytes, |copied| {
                let unsent = copied.unsent(size).into_iter();
                let owed = unsent.flat_map(|(start, end)| inner.state.owed_of(start, end));
                owed.map(|(start, end)| end - start).sum()
            });
            // Bytes that were synced in the previous run were told then.
            let is_told =
                |copied: &Untold| copied.number > 0 && (left == 0 || copied.rounds.begun == 0);
            if copied.is_some_and(|copied| is_told(copied)) {
                found.copied_files += 1;
                found.copied_bytes += bytes;
                found.copied.push(inner.state.display_path());
            } else if copied.is_some() || inner.state.durable_size().is_some() {
                let path = inner.state.display_path();
                found.behind.push(BehindFile { key: file.key, path, bytes: left });
            }
        }
        found
    }

    /// Ends copies that are not wanted any more: a partner that is to have copies later is filled anew.
    fn give_up(&self, file: &Arc<File>) {
        if !self.files.copying().is_on() {
            return;
        }
        let mut inner = self.wait_for_round(file);
        if inner.is_copied() {
            inner.live().end_copies();
            self.files.retire(file, inner);
        }
    }

    /// Returns the file's lock once no round is under way.
    pub(crate) fn wait_for_round<'a>(&self, file: &'a Arc<File>) -> MutexGuard<'a, Inner> {
        let mut inner = file.lock();
        while inner.in_use().and_then(|live| live.copied.as_ref()).is_some_and(|it| it.sending) {
            inner = self.files.time().wait(file.changed(), inner, WAIT_LOOK).0;
        }
        inner
    }
}

/// Whether partners are to have the file's bytes: it is dirty, or held, so that its flushed bytes
/// may still be overwritten.
pub(super) fn is_to_be_known(inner: &Inner) -> bool {
    let ours = inner.state.conflict() != Conflict::Superseded;
    let is_newer = inner.state.is_dirty() || inner.state.is_held();
    ours && is_newer && !inner.is_unlinked() && !inner.gone()
}
