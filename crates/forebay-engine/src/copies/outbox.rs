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

use forebay_backing::{Error, FileKey, Kind, Result};
use serde::Serialize;

use crate::copies::round::{Ended, Pass, Round};
use crate::copies::sender::{Post, To, encoded};
use crate::core::copied::{Mark, Then, Untold, Words};
use crate::core::state::Conflict;
use crate::files::Files;
use crate::files::file::{File, Inner};
use crate::files::partners::{CopiesAt, Partners};
use crate::lock::{self, MutexGuard};
use crate::pool::Pool;

/// Who waits for a round looks this often whether it is over.
const WAIT_LOOK: Duration = Duration::from_millis(50);

/// A round whose file is cut meanwhile is begun again. Who cuts it waits for a round himself.
const ROUNDS_MAX: u32 = 64;

/// So many files are sent ahead at once.
const AHEAD_FILES: usize = 4;

/// Bytes that are sent ahead with one message, unless [`Config`](crate::Config) wants to begin with fewer.
const AHEAD_PIECE: u64 = 1 << 20;

const CUT: &str = "the file is cut all the time while it is copied to partners";

/// Tells those who keep copies of our files what is new.
pub struct Outbox {
    files: Arc<Files>,
    /// This run of the engine, to partners.
    session: u64,
    /// Somebody tells partners what they may forget.
    forgetting: AtomicBool,
    /// Partners may remember, after a loss of power, what they were told to forget.
    may_remember: AtomicBool,
    /// Threads that send bytes ahead.
    ahead: Pool,
}

/// Partners are being told of a file.
pub(crate) struct Telling<'a> {
    outbox: &'a Outbox,
    file: &'a Arc<File>,
    /// How many rounds of the file had begun before.
    begun: u64,
    under_way: Begun<'a>,
}

enum Begun<'a> {
    /// All is to be told still.
    Nothing,
    Round(Round<'a>, Result<bool>),
    /// They have it.
    All,
}

/// Somebody sends bytes of a file ahead, until this is dropped.
struct Sending {
    outbox: Arc<Outbox>,
    file: Arc<File>,
}

impl Drop for Sending {
    fn drop(&mut self) {
        let mut inner = self.file.lock();
        if let Some(live) = &mut inner.live {
            live.is_sent_ahead = false;
        }
    }
}

/// What partners do not have yet.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Behind {
    /// Dirty files of which partners have all that was synced, and their dirty bytes.
    pub copied_files: u64,
    pub copied_bytes: u64,
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
        let ahead = Pool::new("fb-copies", AHEAD_FILES, files.time().clone());
        Outbox { files, session, forgetting, may_remember, ahead }
    }

    /// Partners have all of the file when this returns, if it is dirty and they are to have it.
    pub(crate) fn tell(&self, file: &Arc<File>) -> Result<()> {
        let begun = rounds_begun(&file.lock());
        self.tell_since(file, begun)
    }

    /// The same for who has something else to do meanwhile: they have it once [`Telling::end`] has returned.
    pub(crate) fn begin<'a>(&'a self, file: &'a Arc<File>) -> Result<Telling<'a>> {
        let begun = rounds_begun(&file.lock());
        let under_way = match self.files.copying().wanted() {
            Some(partners) if partners.is_ready(file.key) => {
                self.begin_round(partners, file, begun)?
            }
            _ => Begun::Nothing,
        };
        Ok(Telling { outbox: self, file, begun, under_way })
    }

    fn begin_round<'a>(
        &'a self,
        partners: Arc<dyn Partners>,
        file: &'a Arc<File>,
        begun: u64,
    ) -> Result<Begun<'a>> {
        let inner = self.wait_for_round(file);
        // One that began after us has everything.
        if inner.live.as_ref().is_some_and(|live| live.rounds().done > begun) {
            return Ok(Begun::All);
        }
        if !is_to_be_known(&inner) {
            return Ok(Begun::Nothing);
        }
        Ok(match Round::begin(self.post(partners, To::All), file, inner)? {
            None => Begun::All,
            Some(mut round) => {
                let sent = round.send();
                Begun::Round(round, sent)
            }
        })
    }

    fn tell_since(&self, file: &Arc<File>, begun: u64) -> Result<()> {
        let Some(partners) = self.files.copying().wanted() else {
            self.give_up(file);
            return Ok(());
        };
        for _ in 0..ROUNDS_MAX {
            match self.begin_round(partners.clone(), file, begun)? {
                Begun::All => return Ok(()),
                Begun::Nothing => return self.forget(file, Lasting::No),
                Begun::Round(round, sent) => match round.end(sent)? {
                    Ended::Well(_) => return Ok(()),
                    Ended::Cut => {}
                },
            }
        }
        Err(Error::os(libc::EBUSY, CUT))
    }

    fn post<'a>(&'a self, partners: Arc<dyn Partners>, to: To<'a>) -> Post<'a> {
        Post { files: &self.files, partners, session: self.session, to }
    }

    /// The file has changed in another way than by a write: who knows of it is told, before the answer.
    pub(crate) fn tell_if_copied(&self, file: &Arc<File>) -> Result<()> {
        if !self.files.copying().is_on() {
            return Ok(());
        }
        // What was only sent ahead counts for nothing.
        let is_known = {
            let inner = file.lock();
            inner.is_told() || (inner.is_copied() && !is_to_be_known(&inner))
        };
        if is_known { self.tell(file) } else { Ok(()) }
    }

    /// A write of so many bytes has returned, or what is like it.
    #[inline]
    pub(crate) fn tell_written(self: &Arc<Self>, file: &Arc<File>, len: u64) -> Result<()> {
        match self.files.copying().at() {
            Some(CopiesAt::Write) => self.tell(file),
            Some(CopiesAt::Sync) => {
                self.note_written(file, len);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Has partners sent what is new of a file, once that is much.
    fn note_written(self: &Arc<Self>, file: &Arc<File>, len: u64) {
        {
            let mut inner = file.lock();
            let live = inner.live();
            live.fresh += len;
            if live.is_sent_ahead || live.fresh < self.files.config().ahead_from {
                return;
            }
            live.is_sent_ahead = true;
        }
        let sending = Sending { outbox: self.clone(), file: file.clone() };
        self.ahead.run(move || {
            if let Err(error) = sending.outbox.send_ahead(&sending.file) {
                tracing::debug!(%error, "bytes were not sent to partners ahead");
            }
        });
    }

    /// Sends partners what is new of a file, as long as that is much and nobody has to tell them more.
    fn send_ahead(&self, file: &Arc<File>) -> Result<()> {
        let mut least = self.files.config().ahead_from;
        let enough = least.min(AHEAD_PIECE);
        loop {
            let partners = self.files.copying().wanted();
            // A new file's claim is waited for by nobody but who syncs.
            let ready = partners.filter(|partners| partners.is_ready(file.key));
            let mut inner = file.lock();
            inner.live().fresh = 0;
            let Some(partners) = ready else { return Ok(()) };
            if !is_to_be_known(&inner) {
                return Ok(());
            }
            let pass = Pass::begin(self.post(partners, To::All), file, inner, least)?;
            match pass.map(|pass| pass.run(enough)).transpose()? {
                Some(true) => least = enough,
                Some(false) | None => return Ok(()),
            }
        }
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
            let live = inner.live.as_mut();
            let copied = live.and_then(|live| live.copied.as_mut());
            let Some(copied) = copied.filter(|copied| copied.is_told()) else { return Ok(()) };
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
        let live = inner.live.as_mut();
        let Some(copied) = live.and_then(|live| live.copied.as_mut()).filter(|_| ends) else {
            drop(inner);
            return self.forget_durably(file.key, lasting);
        };
        let number = copied.end().unwrap_or_else(|| self.files.copying().next_number());
        copied.begin_telling();
        drop(inner);
        let told = self.say_forget(file.key, number, lasting);
        let mut inner = file.lock();
        let live = inner.live();
        match &told {
            // Dirty again meanwhile, it is told anew.
            Ok(()) => live.copied = None,
            Err(_) => {
                let copied = live.copied.as_mut().expect("nobody ends it but who is at it");
                copied.end_telling();
                copied.note_anew(); // Nobody knows who has forgotten it.
                self.files.copying().is_over(file.clone());
            }
        }
        file.changed.notify_all();
        if inner.gone {
            inner.live = None;
        } else {
            self.files.retire(file, inner);
        }
        told
    }

    /// Of a file that partners have forgotten.
    fn forget_durably(&self, key: FileKey, lasting: Lasting) -> Result<()> {
        if lasting == Lasting::No || !self.may_remember.swap(false, SeqCst) {
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
        let (data, zeros) = (none.clone(), none);
        let words = Words { session, number, after: 0, data, zeros, then, step: 0, brought: 0 };
        if lasting == Lasting::No {
            self.may_remember.store(true, SeqCst);
        }
        lock::calls_the_store();
        partners.begin(key, encoded(&words), Vec::new()).end().1.map(drop)
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

    /// Sends one partner all that is dirty and durable here, while the others are told as ever. From
    /// when its fill has begun it is told with them: see [`Partners::mark`](crate::Partners::mark). At most so many bytes per second as [`Config`](crate::Config) says. `stop` is asked between files.
    ///
    /// # Errors
    ///
    /// The partner's; Interrupted if it is to stop.
    pub fn fill_partner(&self, partner: &str, stop: &dyn Fn() -> bool) -> Result<()> {
        let partners = self.files.copying().partners();
        let partners = partners.ok_or_else(|| {
            Error::new(Kind::Usage, "no copies are kept of what is here: mount with copies")
        })?;
        let session = self.session;
        partners.mark(partner, &encoded(&Mark::Begin { session }))?;
        let (began, mut sent) = (self.files.time().now(), 0);
        for file in self.files.all_files() {
            if stop() {
                return Err(Error::new(Kind::Interrupted, "the fill was told to stop"));
            }
            sent += self.fill_file(&partners, partner, &file)?;
            let rate = self.files.config().fill_rate.max(1);
            let due = Duration::from_secs_f64(sent as f64 / rate as f64);
            let took = self.files.time().since(began);
            if let Some(pause) = due.checked_sub(took).filter(|it| *it > WAIT_LOOK / 10) {
                self.files.time().sleep(pause.min(Duration::from_secs(1)));
            }
        }
        partners.mark(partner, &encoded(&Mark::End { session }))
    }

    /// Returns how many bytes were sent.
    fn fill_file(
        &self,
        partners: &Arc<dyn Partners>,
        partner: &str,
        file: &Arc<File>,
    ) -> Result<u64> {
        for _ in 0..ROUNDS_MAX {
            let mut inner = self.wait_for_round(file);
            if let Some(copied) = inner.live.as_mut().and_then(|live| live.copied.as_mut()) {
                // The partner has none of it.
                copied.drop_ahead();
            }
            let is_told = inner.is_told();
            if !(is_told || inner.state.durable_size().is_some()) || !is_to_be_known(&inner) {
                return Ok(0);
            }
            // Of what nobody was told the others are to know as well.
            let to = if is_told { To::One(partner) } else { To::All };
            let round = Round::begin(self.post(partners.clone(), to), file, inner)?;
            match round.map(Round::run).transpose()? {
                None => return Ok(0),
                Some(Ended::Well(sent)) => return Ok(sent),
                Some(Ended::Cut) => {}
            }
        }
        Err(Error::os(libc::EBUSY, CUT))
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
            let Some(inner) = file.inner.try_lock() else { continue };
            if !is_to_be_known(&inner) {
                continue;
            }
            let (size, bytes) = (inner.size(), inner.state.dirty_bytes());
            let copied = inner.copied();
            let left = copied.map_or(bytes, |copied| {
                let untold = copied.untold(size).into_iter();
                let dirty = untold.flat_map(|(start, end)| inner.state.dirty_of(start, end));
                dirty.map(|(start, end)| end - start).sum()
            });
            if copied.is_some_and(|copied| copied.number > 0) && left == 0 {
                found.copied_files += 1;
                found.copied_bytes += bytes;
            } else if inner.is_told() || inner.state.durable_size().is_some() {
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
            inner.live().copied = None;
            self.files.retire(file, inner);
        }
    }

    /// The file's lock, while no round is under way.
    fn wait_for_round<'a>(&self, file: &'a Arc<File>) -> MutexGuard<'a, Inner> {
        let mut inner = file.lock();
        let mut waits = false;
        while inner.copied().is_some_and(Untold::is_busy) {
            if let Some(copied) = inner.live().copied.as_mut().filter(|_| !waits) {
                copied.awaited += 1;
                waits = true;
            }
            inner = self.files.time().wait(&file.changed, inner, WAIT_LOOK).0;
        }
        let live = inner.live.as_mut().filter(|_| waits);
        if let Some(copied) = live.and_then(|live| live.copied.as_mut()) {
            // It may be another one than was waited for.
            copied.awaited = copied.awaited.saturating_sub(1);
        }
        inner
    }
}

impl Telling<'_> {
    /// Partners have all that there was of the file when this was begun, if it is dirty and they are to have
    /// it.
    ///
    /// # Errors
    ///
    /// As [`Partners::begin`].
    pub fn end(self) -> Result<()> {
        match self.under_way {
            Begun::All => return Ok(()),
            Begun::Nothing => {}
            Begun::Round(round, sent) => match round.end(sent)? {
                Ended::Well(_) => return Ok(()),
                Ended::Cut => {}
            },
        }
        self.outbox.tell_since(self.file, self.begun)
    }
}

fn rounds_begun(inner: &Inner) -> u64 {
    inner.live.as_ref().map_or(0, |live| live.rounds().begun)
}

/// Whether partners are to have what is here of a file.
fn is_to_be_known(inner: &Inner) -> bool {
    let ours = inner.state.conflict() != Conflict::Superseded;
    ours && inner.state.is_dirty() && !inner.is_unlinked() && !inner.gone
}
