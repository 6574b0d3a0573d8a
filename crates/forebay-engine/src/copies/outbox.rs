//! What our partners are told.
//!
//! One round at a time is under way for each file, for all partners at once ([`crate::core::copied`]). Who
//! comes while one is under way waits for the next, which one of those who wait begins for all.

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

/// Who waits for a round looks this often whether it is over.
const WAIT_LOOK: Duration = Duration::from_millis(50);

/// A round whose file is cut meanwhile is begun again. Who cuts it waits for a round himself.
pub(super) const ROUNDS_MAX: u32 = 64;

/// So many files are told of beside what else goes on.
const THREADS: usize = 16;

pub(super) const CUT: &str = "the file is cut all the time while it is copied to partners";

/// Tells those who keep copies of our files what is new.
pub struct Outbox {
    pub(super) files: Arc<Files>,
    /// This run of the engine, to partners.
    pub(super) session: u64,
    /// Somebody tells partners what they may forget.
    forgetting: AtomicBool,
    /// Partners may remember, after a loss of power, what they were told to forget.
    may_remember: AtomicBool,
    /// They may have copies from the run before this one, of which they were never told that they are over.
    follows: AtomicBool,
    threads: Pool,
    ahead: Ahead,
}

/// What partners do not have yet.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Behind {
    /// Dirty files of which partners have all that was synced, and their dirty bytes.
    pub copied_files: u64,
    pub copied_bytes: u64,
    pub copied: Vec<PathBuf>,
    /// The others.
    pub behind: Vec<BehindFile>,
}

#[derive(Debug, Clone, Serialize)]
pub struct BehindFile {
    pub key: FileKey,
    pub path: PathBuf,
    /// Dirty bytes that partners do not have.
    pub bytes: u64,
}

/// Whether partners have forgotten a file durably when they have been told so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lasting {
    Yes,
    No,
}

impl Outbox {
    pub(crate) fn new(files: Arc<Files>) -> Outbox {
        // Random, as its keys are.
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

    /// Partners may have copies from a run of the engine before this one. They are told of what changes in such a
    /// file, and what they have of others does not count. To be said before anything is served.
    pub fn begin_anew(&self) {
        for file in self.files.all_files() {
            let mut inner = file.lock();
            if !is_to_be_known(&inner) {
                continue;
            }
            // What was synced was told, and of the rest some may have been.
            let is_durable = inner.state.durable_size().is_some() || inner.state.is_held();
            let untold = match is_durable {
                true => Untold::of_before(self.files.copying().next_number()),
                false => Untold::none(),
            };
            inner.live().begin_copies(untold);
        }
        self.follows.store(true, SeqCst);
    }

    /// Partners have all of the file when this returns, if it is dirty and they are to have it.
    pub(crate) fn tell(&self, file: &Arc<File>) -> Result<()> {
        let Some(partners) = self.files.copying().wanted() else {
            self.give_up(file);
            return Ok(());
        };
        let begun = file.lock().in_use().map_or(0, |live| live.rounds().begun);
        for _ in 0..ROUNDS_MAX {
            let inner = self.wait_for_round(file);
            // One that began after us has everything.
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

    /// What is dirty of the file was told, and a program is about to hear so: whether enough have it.
    pub(crate) fn has_enough(&self, file: &Arc<File>) -> Result<()> {
        match self.files.copying().wanted() {
            Some(partners) if is_to_be_known(&file.lock()) => partners.has_enough(),
            _ => Ok(()),
        }
    }

    /// [`Outbox::tell`] beside what the caller does meanwhile, if partners are to have anything.
    pub(crate) fn begin(self: &Arc<Self>, file: &Arc<File>) -> Option<Telling> {
        if !self.files.copying().is_wanted() {
            return None;
        }
        let (outbox, file) = (self.clone(), file.clone());
        let tell = move || outbox.tell(&file);
        Some(Telling::begin(&self.threads, self.files.time(), tell))
    }

    /// So many bytes of a file were written, which nobody waits for yet.
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

    /// Goes on for as long as the file is written as fast.
    fn go_ahead(&self, file: &Arc<File>) {
        loop {
            // Who syncs it waits for the disks, too: ours is at it while partners are told.
            let shadow = file.lock().in_use().and_then(|live| live.shadow.clone());
            if let Some(shadow) = shadow {
                shadow.begin_sync();
            }
            let told = self.tell(file);
            if let Err(error) = &told {
                // Whoever syncs it tells them again, and is told so.
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

    /// The file has changed in another way than by a write: who knows of it is told, before the answer.
    pub(crate) fn tell_if_copied(&self, file: &Arc<File>) -> Result<()> {
        match self.files.copying().is_on() && file.lock().is_copied() {
            true => self.tell(file),
            false => Ok(()),
        }
    }

    /// A write of so many bytes has returned, or what is like it.
    #[inline]
    pub(crate) fn tell_written(self: &Arc<Self>, file: &Arc<File>, bytes: u64) -> Result<()> {
        match self.files.copying().at() {
            Some(CopiesAt::Write) => return self.tell(file).and_then(|()| self.has_enough(file)),
            Some(CopiesAt::Sync) => self.tell_ahead(file, bytes),
            None => {}
        }
        Ok(())
    }

    /// The size has changed.
    pub(crate) fn tell_resized(&self, file: &Arc<File>) -> Result<()> {
        match self.files.copying().at() {
            Some(CopiesAt::Write) => self.tell(file),
            Some(CopiesAt::Sync) => self.tell_if_copied(file),
            None => Ok(()),
        }
    }

    /// The file is about to have another name: who has to look for it looks there, too.
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

    /// A directory is about to be renamed: of the files below.
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

    /// Directories were renamed, or not: of the files below this one.
    pub(crate) fn tell_below(&self, dir: &Path) -> Result<()> {
        if !self.files.copying().is_on() {
            return Ok(());
        }
        let ids = self.files.tree().at_or_below(dir);
        let mut files = ids.into_iter().filter_map(|id| self.files.by_id(id));
        files.try_for_each(|file| self.tell_name(&file, None))
    }

    /// Partners forget the file, if they know of it and nothing of it is dirty.
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
            // Dirty again meanwhile, it is told anew.
            Ok(()) => live.end_copies(),
            Err(_) => {
                let copied = live.copied_mut().expect("nobody ends it but who is at it");
                copied.note_anew(); // Nobody knows who has forgotten it.
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

    /// Of a file that partners have forgotten.
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
        // Nobody keeps copies any more: who does so again is filled.
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

    /// Tells partners what they may forget, if nobody is at it.
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

    /// Whether [`Outbox::tend`] has anything to do.
    pub(crate) fn has_over(&self) -> bool {
        !self.forgetting.load(SeqCst) && self.files.copying().has_over()
    }

    /// Partners have all that is dirty of a file here when this returns: of one that was taken over, once
    /// its claim is ours.
    pub fn copy(&self, file: FileKey) -> Result<()> {
        self.files.find(file).map_or(Ok(()), |file| self.tell(&file))
    }

    /// What partners do not have yet, for the status.
    pub fn behind(&self) -> Behind {
        let mut found = Behind::default();
        for file in self.files.all_files() {
            // Who holds the lock long is being written: the next look has it.
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
            // What was synced in a run before this one was told then.
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

    /// Nobody wants copies: who had some is filled anew when he is to have some again.
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

    /// The file's lock, while no round is under way.
    pub(crate) fn wait_for_round<'a>(&self, file: &'a Arc<File>) -> MutexGuard<'a, Inner> {
        let mut inner = file.lock();
        while inner.in_use().and_then(|live| live.copied.as_ref()).is_some_and(|it| it.sending) {
            inner = self.files.time().wait(file.changed(), inner, WAIT_LOOK).0;
        }
        inner
    }
}

/// Whether partners are to have what is here of a file: it is dirty, or held, so that what was flushed of it may be
/// written over still.
pub(super) fn is_to_be_known(inner: &Inner) -> bool {
    let ours = inner.state.conflict() != Conflict::Superseded;
    let is_newer = inner.state.is_dirty() || inner.state.is_held();
    ours && is_newer && !inner.is_unlinked() && !inner.gone()
}
