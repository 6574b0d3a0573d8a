//! Copies that we keep for others.
//!
//! Words are taken one round after the other for each file ([`crate::core::copied`]). What a round brings is
//! written where it belongs, synced, and counts once the log says so, synced as well.
//!
//! Invariants:
//! - C1: what the log says of a copy is in its shadow file, durably, before the log says so.
//! - C2: nothing is taken out of a shadow file before it is durable that the log has let it go.
//! - C3: an older round never lands on a newer one, however late it comes.
//! - C4: a round counts only if all that it has brought was taken by this process, under the claim by whose number
//!   it ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_backing::{Error, FileKey, Kind, Result, Timestamp};

use crate::copies::shelf::{DIR, Entry, Found, FoundHome, Grown, Kept, Shelf, encoded};
use crate::core::copied::{Mark, Then, Words};
use crate::core::id::FileId;
use crate::core::ranges::{Ranges, State};
use crate::core::state::Portrait;
use crate::files::Files;
use crate::lock::{Mutex, MutexGuard, Rank};
use crate::room::Room;
use crate::tier::dir::{shadow_dir, shadow_name};
use crate::tier::log::LogFile;
use crate::tier::media::{MediaFile, Open};

/// A file of a log is begun anew once it is this long, and four times as long as it was at first.
const LOG_MIN: u64 = 1 << 20;

/// Who brings so many bytes at once brings more: they are on their way to the disk until the round ends.
const WRITTEN_OUT: u64 = 256 << 10;

/// So many forgotten files of a home are remembered, for what comes late.
const FORGOTTEN_MAX: usize = 65_536;

/// Files of other members that are dirty there, in this tier.
pub struct Copies {
    files: Arc<Files>,
    room: Arc<Room>,
    homes: Mutex<BTreeMap<String, Arc<OfHome>>>,
    /// Homes whose copies were dropped, and that have not begun to fill since.
    emptied: Mutex<BTreeSet<String>>,
}

/// A file of another member of which we have a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyInfo {
    pub file: FileKey,
    /// The number of the claim that it was made under.
    pub number: u64,
    pub path: PathBuf,
    /// Bytes of it that are newer than the backing store's.
    pub bytes: u64,
    pub mtime: Timestamp,
}

/// The copies that are kept for one home.
struct OfHome {
    dir: String,
    inner: Mutex<Inner>,
}

struct Inner {
    shelf: Shelf,
    /// `None`: the next entry begins a file of the log.
    log: Option<LogFile>,
    /// How long it was when it was begun.
    begun_len: u64,
    /// Files of the log that are older than that.
    older: Vec<String>,
    next_seq: u64,
    /// Everything before it is durable.
    synced: u64,
    /// Whose turn it is to write to a copy.
    turns: HashMap<FileKey, Arc<Mutex<Turn>>>,
    forgotten: HashMap<FileKey, u64>,
    /// No round up to this one is taken of a file that is not known.
    floor: u64,
    /// What can go once the log is synced up to there (C2).
    leavings: Vec<(u64, Leaving)>,
    /// What is there cannot be built upon.
    broken: bool,
}

/// What is not needed of a shadow file any more.
enum Leaving {
    File { id: FileId, charged: u64 },
    Bytes { id: FileId, size: u64, gone: Vec<(u64, u64)> },
}

/// Who has it writes to one copy.
#[derive(Default)]
struct Turn {
    id: Option<FileId>,
    /// The name of its shadow is durable.
    named: bool,
    /// The round that was seen last, how far it has come, and the number of the claim that it is made under.
    seen: u64,
    step: u32,
    claim: u64,
    /// What that has brought so far.
    brought: Ranges,
    /// Its shadow, while a round is under way.
    shadow: Option<Arc<dyn MediaFile>>,
    /// Something was written since the last sync of the shadow.
    wrote: bool,
    /// Bytes that are in the sum of the tier's.
    charged: u64,
}

/// What becomes of words.
enum Verdict {
    Take,
    /// They are of no concern here, or not any more.
    Leave,
}

impl Copies {
    pub(crate) fn new(files: Arc<Files>, room: Arc<Room>, found: Found) -> Result<Copies> {
        let mut homes = BTreeMap::new();
        for found in found.homes {
            let name = found.name.clone();
            let adopted = found.adopted;
            let home = OfHome::found(found);
            home.charge(&files);
            if adopted {
                // Else, once such a file is forgotten, it would be taken for a copy again.
                files.note_tier(home.begin_log(&files))?;
            }
            homes.insert(name, Arc::new(home));
        }
        let emptied = Mutex::new(Rank::CopyHomes, BTreeSet::new());
        Ok(Copies { files, room, homes: Mutex::new(Rank::CopyHomes, homes), emptied })
    }

    /// Takes what [`Partners::keep`](crate::Partners::keep) or `fill` of the home `home` was handed.
    /// Durable on return. `number` is that of the claim.
    ///
    /// # Errors
    ///
    /// ENOSPC without room in the tier; ESTALE if the copies of this home are not what the words build
    /// upon, and have to be filled anew.
    pub fn keep(
        &self,
        home: &str,
        number: u64,
        file: FileKey,
        words: &[u8],
        bytes: &[u8],
    ) -> Result<()> {
        let words: Words<'_> = decoded(words)?;
        let Some(home) = self.home(home) else {
            // What is told beside a fill that is about to begin comes with the fill.
            return match self.emptied.lock().contains(home) {
                true => Ok(()),
                false => Err(stale("nothing was filled for this member")),
            };
        };
        let len = bytes.len() as u64;
        self.room.make_room_for_copy(len)?;
        match self.take(&home, number, file, words.clone(), bytes) {
            Err(e) if e.is(libc::ENOSPC) => {
                self.room.tier_is_full(len);
                self.take(&home, number, file, words, bytes)
            }
            taken => taken,
        }
    }

    fn take(
        &self,
        home: &OfHome,
        number: u64,
        file: FileKey,
        words: Words<'_>,
        bytes: &[u8],
    ) -> Result<()> {
        let turn = home.turn(file, words.session)?;
        let mut turn = turn.lock();
        match home.judge(file, number, &words, &mut turn)? {
            Verdict::Leave => return Ok(()),
            Verdict::Take => {}
        }
        if let Then::Forget { lasts } = words.then {
            return self.forget(home, file, &words, &mut turn, lasts);
        }
        let shadow = self.shadow(&mut turn)?;
        self.write(&mut turn, &*shadow, &words, bytes)?;
        let whole = match words.then {
            Then::Grown { size, mtime } => {
                let ranges = turn.brought.iter().map(|run| (run.start, run.end)).collect();
                Ok(Grown { claim: number, round: words.number, size, mtime, ranges })
            }
            Then::Whole(portrait) => {
                let id = turn.id.expect("its shadow is open");
                Err(Kept { id, claim: number, round: words.number, portrait: *portrait })
            }
            Then::More { .. } | Then::Forget { .. } => return Ok(()),
        };
        let size = whole.as_ref().map_or_else(|kept| kept.portrait.size, |grown| grown.size);
        self.make_durable(&mut turn, &*shadow, size)?;
        let seq = match whole {
            Ok(grown) => self.record_grown(home, file, words.session, grown),
            Err(kept) => self.record_whole(home, file, words.session, kept, &turn),
        }?;
        (turn.brought, turn.shadow) = (Ranges::None, None);
        self.sync(home, seq)?;
        let allocated = self.files.note_tier(shadow.stat())?.allocated;
        self.charge(&mut turn, allocated);
        Ok(())
    }

    /// Takes what [`Partners::mark`](crate::Partners::mark) was handed.
    ///
    /// # Errors
    ///
    /// Those of the tier; ESTALE if a fill ends that did not begin.
    pub fn mark(&self, home: &str, words: &[u8]) -> Result<()> {
        match decoded(words)? {
            Mark::Begin { session } => {
                let before = self.home(home);
                if let Some(before) = &before {
                    before.lock().broken = true; // Who has a turn still is told so.
                }
                let fresh = OfHome::begun(home, session, before.as_deref());
                self.files.note_tier(self.files.media().make_dir(DIR))?;
                self.files.note_tier(self.files.media().make_dir(&fresh.dir))?;
                self.files.note_tier(self.files.media().sync_dir(DIR))?;
                self.files.note_tier(fresh.begin_log(&self.files))?;
                self.homes.lock().insert(home.into(), Arc::new(fresh));
                self.emptied.lock().remove(home);
                if let Some(before) = before {
                    self.empty(&before);
                }
                Ok(())
            }
            Mark::End { session } => {
                let home = self.home(home).ok_or_else(|| stale("no fill has begun"))?;
                let seq = {
                    let mut inner = home.lock();
                    inner.refuse_unless_of(session)?;
                    let entry = Entry::Session { session, filled: true };
                    self.files.note_tier(home.append(&mut inner, &self.files, entry))?
                };
                self.sync(&home, seq)
            }
        }
    }

    /// The copies that are kept for a home, once words that are under way have their answers.
    pub fn list(&self, home: &str) -> Vec<CopyInfo> {
        let Some(home) = self.home(home) else { return Vec::new() };
        let turns: Vec<_> = home.lock().turns.values().cloned().collect();
        turns.iter().for_each(|turn| drop(turn.lock()));
        let inner = home.lock();
        let info = |(file, kept): (&FileKey, &Kept)| CopyInfo {
            file: *file,
            number: kept.claim,
            path: kept.portrait.first_path(),
            bytes: kept.bytes(),
            mtime: kept.portrait.mtime,
        };
        inner.shelf.copies.iter().map(info).collect()
    }

    /// The homes that copies are kept for.
    pub fn homes(&self) -> Vec<String> {
        let homes = self.homes.lock();
        homes.keys().cloned().collect()
    }

    /// Drops one copy, durably; there need not be one.
    pub fn drop_copy(&self, home: &str, file: FileKey) -> Result<()> {
        let Some(home) = self.home(home) else { return Ok(()) };
        let turn = home.lock().turn_of(file);
        let mut turn = turn.lock();
        self.let_go(&home, file, &mut turn)?.map_or(Ok(()), |seq| self.sync(&home, seq))
    }

    /// Drops all copies of a home, durably. What it tells before it fills us anew is taken and not kept:
    /// whoever lets it tell us anything knows that it is not in sync.
    pub fn drop_home(&self, home: &str) -> Result<()> {
        self.emptied.lock().insert(home.into());
        let Some(dropped) = self.homes.lock().remove(home) else { return Ok(()) };
        let logs = {
            let mut inner = dropped.lock();
            inner.broken = true;
            inner.logs()
        };
        for log in &logs {
            self.files.note_tier(self.files.media().remove(log))?;
        }
        self.files.note_tier(self.files.media().sync_dir(&dropped.dir))?;
        self.empty(&dropped);
        Ok(())
    }

    /// The names that the home knew of a file, if there is a copy.
    pub(crate) fn paths(&self, home: &str, file: FileKey) -> Option<Vec<PathBuf>> {
        let home = self.home(home)?;
        let inner = home.lock();
        inner.shelf.copies.get(&file).map(|kept| kept.portrait.paths().collect())
    }

    /// Hands a copy over to who makes it a file of ours, durably, before it returns: `take` is told the
    /// number of the shadow file. `None` if there is none.
    pub(crate) fn give<T>(
        &self,
        home: &str,
        file: FileKey,
        take: impl FnOnce(FileId, &Portrait) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(home) = self.home(home) else { return Ok(None) };
        let turn = home.lock().turn_of(file);
        let mut turn = turn.lock();
        let Some(kept) = home.lock().shelf.copies.get(&file).cloned() else { return Ok(None) };
        let taken = take(kept.id, &kept.portrait)?;
        let seq = {
            let mut inner = home.lock();
            let seq =
                self.files.note_tier(home.append(&mut inner, &self.files, Entry::Forget(file)))?;
            inner.turns.remove(&file);
            seq
        };
        self.charge(&mut turn, 0);
        (turn.id, turn.shadow) = (None, None);
        self.sync(&home, seq)?;
        Ok(Some(taken))
    }

    /// Gives back what is not needed any more.
    pub(crate) fn tend(&self) {
        let homes: Vec<_> = self.homes.lock().values().cloned().collect();
        for home in homes {
            let seq = {
                let inner = home.lock();
                (!inner.leavings.is_empty()).then_some(inner.next_seq)
            };
            if let Some(seq) = seq {
                let _ = self.sync(&home, seq);
            }
        }
    }

    fn home(&self, home: &str) -> Option<Arc<OfHome>> {
        self.homes.lock().get(home).cloned()
    }

    /// The shadow of a copy, made if it is new.
    fn shadow(&self, turn: &mut Turn) -> Result<Arc<dyn MediaFile>> {
        if let Some(open) = &turn.shadow {
            return Ok(open.clone());
        }
        let (id, how) = match turn.id {
            Some(id) => (id, Open::Existing),
            None => (self.files.new_id(), Open::Fresh),
        };
        let shadow = self.files.note_tier(self.files.media().open(&shadow_name(id), how))?;
        turn.id = Some(id);
        turn.shadow = Some(shadow.clone());
        Ok(shadow)
    }

    /// Writes what words have brought.
    fn write(
        &self,
        turn: &mut Turn,
        shadow: &dyn MediaFile,
        words: &Words<'_>,
        bytes: &[u8],
    ) -> Result<()> {
        let mut left = bytes;
        for &(start, end) in &*words.data {
            let len = end.checked_sub(start).filter(|len| *len <= left.len() as u64);
            let len =
                len.ok_or_else(|| Error::os(libc::EPROTO, "fewer bytes than the words say"))?;
            let (part, rest) = left.split_at(len as usize);
            turn.wrote = true;
            self.files.note_tier(shadow.write_at(part, start))?;
            if len >= WRITTEN_OUT {
                // What its end will wait for. A failure shows there, too.
                let _ = shadow.begin_sync(start, len);
            }
            turn.brought.set(start, end, State::Durable);
            left = rest;
        }
        for &(start, end) in &*words.zeros {
            turn.wrote = true;
            self.files.note_tier(zero(shadow, start, end))?;
            turn.brought.set(start, end, State::Durable);
        }
        let charged = turn.charged + bytes.len() as u64;
        self.charge(turn, charged);
        Ok(())
    }

    /// C1.
    fn make_durable(&self, turn: &mut Turn, shadow: &dyn MediaFile, size: u64) -> Result<()> {
        if self.files.note_tier(shadow.stat())?.len < size {
            turn.wrote = true;
            self.files.note_tier(shadow.set_len(size))?;
        }
        if turn.wrote {
            self.files.note_tier(shadow.sync_data())?;
            turn.wrote = false;
        }
        if !turn.named {
            let dir = shadow_dir(turn.id.expect("its shadow is open"));
            self.files.note_tier(self.files.media().sync_dir(&dir))?;
            turn.named = true;
        }
        Ok(())
    }

    /// Returns up to where the log has to be durable.
    fn record_grown(
        &self,
        home: &OfHome,
        file: FileKey,
        session: u64,
        grown: Grown,
    ) -> Result<u64> {
        let mut inner = home.lock();
        inner.refuse_unless_of(session)?;
        let kept = inner.shelf.copies.get_mut(&file).ok_or_else(|| stale("its copy is gone"))?;
        let portrait = &kept.portrait;
        let covers = |(start, end): &(u64, u64)| portrait.ranges.covers(*start, *end);
        let known = kept.claim == grown.claim
            && portrait.size == grown.size
            && grown.ranges.iter().all(covers);
        if known {
            // The record has all but the time, which bytes that are overwritten move at a home, too.
            kept.grow(&Grown { ranges: Vec::new(), ..grown });
            return Ok(inner.synced);
        }
        self.files.note_tier(home.append(&mut inner, &self.files, Entry::Grown(file, grown)))
    }

    fn record_whole(
        &self,
        home: &OfHome,
        file: FileKey,
        session: u64,
        kept: Kept,
        turn: &Turn,
    ) -> Result<u64> {
        let mut inner = home.lock();
        inner.refuse_unless_of(session)?;
        let before = inner.shelf.copies.get(&file).map(|kept| kept.portrait.ranges.clone());
        let before = before.unwrap_or_default();
        let (id, size) = (kept.id, kept.portrait.size);
        let mut gone = before.clone();
        for run in kept.portrait.ranges.iter() {
            gone.clear(run.start, run.end);
        }
        // C2: what this round has brought is there in any case.
        turn.brought.iter().for_each(|run| gone.clear(run.start, run.end));
        let gone = gone.iter().map(|run| (run.start, run.end)).collect();
        let entry = Entry::Whole(file, Box::new(kept));
        let seq = self.files.note_tier(home.append(&mut inner, &self.files, entry))?;
        inner.leavings.push((seq, Leaving::Bytes { id, size, gone }));
        Ok(seq)
    }

    fn forget(
        &self,
        home: &OfHome,
        file: FileKey,
        words: &Words<'_>,
        turn: &mut Turn,
        lasts: bool,
    ) -> Result<()> {
        home.lock().note_forgotten(file, words.number);
        self.let_go(home, file, turn)?;
        if !lasts {
            return Ok(());
        }
        // With what was forgotten before.
        let seq = home.lock().next_seq;
        self.sync(home, seq)
    }

    /// Lets go of a copy, or of what was brought of one so far.
    fn let_go(&self, home: &OfHome, file: FileKey, turn: &mut Turn) -> Result<Option<u64>> {
        let mut inner = home.lock();
        let known = inner.shelf.copies.contains_key(&file);
        let seq = match known {
            true => {
                let forget = Entry::Forget(file);
                Some(self.files.note_tier(home.append(&mut inner, &self.files, forget))?)
            }
            false => None,
        };
        inner.turns.remove(&file);
        turn.shadow = None;
        if let Some(id) = turn.id.take() {
            let leaving = Leaving::File { id, charged: std::mem::take(&mut turn.charged) };
            let at = seq.unwrap_or(inner.synced);
            inner.leavings.push((at, leaving));
        }
        Ok(seq)
    }

    /// Makes the log durable up to `seq`; what that was waited for goes.
    fn sync(&self, home: &OfHome, seq: u64) -> Result<()> {
        let log = {
            let inner = home.lock();
            let file = inner.log.as_ref().filter(|_| inner.synced < seq).map(LogFile::file);
            file.map(|file| (file, inner.next_seq))
        };
        let synced = match &log {
            Some((file, _)) => self.files.note_tier(file.sync_data()),
            None => Ok(()),
        };
        let (mut inner, mut leavings) = (home.lock(), Vec::new());
        if let Err(error) = synced {
            // What a later sync says of the same records proves nothing.
            inner.broken = true;
            return Err(error);
        }
        if let Some((_, upto)) = log {
            inner.synced = inner.synced.max(upto);
        }
        let synced = inner.synced;
        for (at, leaving) in std::mem::take(&mut inner.leavings) {
            match at <= synced {
                true => leavings.push(leaving),
                false => inner.leavings.push((at, leaving)),
            }
        }
        // Under the lock: a round that comes next may write to the same places.
        leavings.into_iter().for_each(|leaving| self.take_out(leaving));
        Ok(())
    }

    fn take_out(&self, leaving: Leaving) {
        let media = self.files.media();
        match leaving {
            Leaving::File { id, charged } => {
                let _ = media.remove(&shadow_name(id));
                self.files.totals().charge_copy(charged, 0);
            }
            Leaving::Bytes { id, size, gone } => {
                let Ok(shadow) = media.open(&shadow_name(id), Open::Existing) else { return };
                if shadow.stat().is_ok_and(|stat| stat.len > size) {
                    let _ = shadow.set_len(size);
                }
                for (start, end) in gone {
                    let end = end.min(size);
                    if start < end {
                        let _ = shadow.punch(start, end - start);
                    }
                }
            }
        }
    }

    /// Takes the shadow files of what is on no record any more.
    fn empty(&self, home: &OfHome) {
        let (shelf, turns, leavings) = {
            let mut inner = home.lock();
            let shelf = std::mem::take(&mut inner.shelf);
            (shelf, std::mem::take(&mut inner.turns), std::mem::take(&mut inner.leavings))
        };
        let mut charged: HashMap<FileId, u64> = HashMap::new();
        for turn in turns.into_values() {
            let mut turn = turn.lock();
            turn.shadow = None;
            if let Some(id) = turn.id.take() {
                charged.insert(id, std::mem::take(&mut turn.charged));
            }
        }
        // One whose turn was nobody's has no bytes in the sum.
        for kept in shelf.copies.into_values() {
            charged.entry(kept.id).or_insert(0);
        }
        for (id, charged) in charged {
            self.take_out(Leaving::File { id, charged });
        }
        for (_, leaving) in leavings {
            if let Leaving::File { .. } = &leaving {
                self.take_out(leaving);
            }
        }
    }

    fn charge(&self, turn: &mut Turn, charged: u64) {
        self.files.totals().charge_copy(turn.charged, charged);
        turn.charged = charged;
    }
}

impl OfHome {
    fn of(dir: String, shelf: Shelf, older: Vec<String>, next_seq: u64, broken: bool) -> OfHome {
        let inner = Inner {
            shelf,
            log: None,
            begun_len: 0,
            older,
            next_seq,
            synced: next_seq,
            turns: HashMap::new(),
            forgotten: HashMap::new(),
            floor: 0,
            leavings: Vec::new(),
            broken,
        };
        OfHome { dir, inner: Mutex::new(Rank::Copies, inner) }
    }

    fn found(found: FoundHome) -> OfHome {
        let dir = format!("{DIR}/{}", encoded(&found.name));
        let next_seq = found.next_seq.max(1);
        OfHome::of(dir, found.shelf, found.logs, next_seq, found.damage.is_some())
    }

    fn begun(home: &str, session: u64, before: Option<&OfHome>) -> OfHome {
        let (older, next_seq) = before.map_or((Vec::new(), 1), |before| {
            let mut inner = before.lock();
            (inner.logs(), inner.next_seq + 1)
        });
        let dir = format!("{DIR}/{}", encoded(home));
        OfHome::of(dir, Shelf::of_session(session), older, next_seq, false)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Counts what was found.
    fn charge(&self, files: &Files) {
        let found: Vec<_> = {
            let mut inner = self.lock();
            let files: Vec<FileKey> = inner.shelf.copies.keys().copied().collect();
            files.into_iter().map(|file| inner.turn_of(file)).collect()
        };
        for turn in found {
            let mut turn = turn.lock();
            let charged = turn.id.map_or(0, |id| files.shadow_bytes(id));
            files.totals().charge_copy(0, charged);
            turn.charged = charged;
        }
    }

    fn turn(&self, file: FileKey, session: u64) -> Result<Arc<Mutex<Turn>>> {
        let mut inner = self.lock();
        inner.refuse_unless_of(session)?;
        Ok(inner.turn_of(file))
    }

    /// What becomes of words (C3).
    fn judge(
        &self,
        file: FileKey,
        claim: u64,
        words: &Words<'_>,
        turn: &mut Turn,
    ) -> Result<Verdict> {
        let inner = self.lock();
        inner.refuse_unless_of(words.session)?;
        // A fill that is not at its end brings what is missing.
        let missing = |what: &str| match inner.shelf.filled {
            true => Err(stale(what)),
            false => Ok(Verdict::Leave),
        };
        let kept = inner.shelf.copies.get(&file);
        let late = (words.number, words.step) < (turn.seen, turn.step)
            || (kept.is_none() && words.number <= inner.forgotten_at(file));
        if late {
            return match words.then {
                Then::Forget { .. } => Ok(Verdict::Leave),
                _ => Err(stale("newer words have come")),
            };
        }
        let ends = matches!(words.then, Then::Grown { .. } | Then::Whole(_));
        if ends && kept.is_some_and(|kept| (kept.round, kept.claim) == (words.number, claim)) {
            return Ok(Verdict::Leave); // They come again: whoever asked did not hear the answer.
        }
        if (words.number, claim) != (turn.seen, turn.claim) {
            // C4.
            (turn.seen, turn.claim, turn.brought) = (words.number, claim, Ranges::None);
        }
        turn.step = words.step;
        let all = || {
            let mut all = turn.brought.clone();
            for &(start, end) in words.data.iter().chain(&*words.zeros) {
                all.set(start, end, State::Durable);
            }
            all
        };
        let builds = match &words.then {
            Then::Grown { .. } | Then::Whole(_) if all().bytes(|_| true) != words.brought => {
                return missing("some of what this round has brought is missing");
            }
            Then::Grown { .. } | Then::More { whole: false } => true,
            Then::Whole(portrait) => {
                let mut here = kept.map_or(Ranges::None, |kept| kept.portrait.ranges.clone());
                all().iter().for_each(|run| here.set(run.start, run.end, State::Durable));
                if portrait.ranges.iter().any(|run| !here.covers(run.start, run.end)) {
                    return missing("bytes of it are missing");
                }
                false
            }
            Then::More { whole: true } | Then::Forget { .. } => false,
        };
        if builds && kept.is_none_or(|kept| kept.round < words.after) {
            return missing("it builds upon what is not here");
        }
        Ok(Verdict::Take)
    }

    /// Appends an entry, and makes it. Returns up to where the log has to be durable for it.
    fn append(&self, inner: &mut Inner, files: &Files, entry: Entry) -> io::Result<u64> {
        let long = |log: &LogFile| log.len() > LOG_MIN.max(4 * inner.begun_len);
        if inner.log.as_ref().is_none_or(long) {
            self.begin_log_with(inner, files)?;
        }
        let (seq, synced) = (inner.next_seq, inner.synced);
        let log = inner.log.as_mut().expect("begun above");
        log.append(seq, synced, &entry)?;
        inner.next_seq += 1;
        inner.shelf.apply(entry);
        Ok(inner.next_seq)
    }

    fn begin_log(&self, files: &Files) -> io::Result<()> {
        self.begin_log_with(&mut self.lock(), files)
    }

    /// Begins a file of the log with all that there is, durably; the older ones go.
    fn begin_log_with(&self, inner: &mut Inner, files: &Files) -> io::Result<()> {
        let media = &**files.media();
        let mut log = LogFile::create_in(media, &self.dir, inner.next_seq)?;
        let mut seq = inner.next_seq;
        let written = (|| {
            for entry in inner.shelf.entries() {
                log.append_later(seq, inner.synced, &entry)?;
                seq += 1;
            }
            log.flush()?;
            log.file().sync_data()
        })();
        if let Err(error) = written {
            // The number is used: what is there must not be read behind what comes.
            inner.next_seq = seq + 1;
            let _ = media.remove(&log.name);
            return Err(error);
        }
        (inner.next_seq, inner.synced, inner.begun_len) = (seq, seq, log.len());
        let before = inner.log.replace(log).map(|before| before.name);
        for name in inner.older.drain(..).chain(before) {
            let _ = media.remove(&name);
        }
        Ok(())
    }
}

impl Inner {
    fn refuse_unless_of(&self, session: u64) -> Result<()> {
        match self.broken || self.shelf.session != session {
            true => Err(stale("what is here is not what the home has filled")),
            false => Ok(()),
        }
    }

    fn turn_of(&mut self, file: FileKey) -> Arc<Mutex<Turn>> {
        let kept = self.shelf.copies.get(&file);
        let fresh = || {
            let (id, seen) = kept.map_or((None, 0), |kept| (Some(kept.id), kept.round));
            let turn = Turn { id, seen, named: kept.is_some(), ..Turn::default() };
            Arc::new(Mutex::new(Rank::Copy, turn))
        };
        self.turns.entry(file).or_insert_with(fresh).clone()
    }

    fn forgotten_at(&self, file: FileKey) -> u64 {
        self.forgotten.get(&file).copied().unwrap_or(self.floor)
    }

    fn note_forgotten(&mut self, file: FileKey, round: u64) {
        if self.forgotten.len() >= FORGOTTEN_MAX {
            self.floor = self.forgotten.values().copied().max().unwrap_or(self.floor);
            self.forgotten.clear();
        }
        self.forgotten.insert(file, round);
    }

    /// The files of its log.
    fn logs(&mut self) -> Vec<String> {
        let current = self.log.as_ref().map(|log| log.name.clone());
        self.older.iter().cloned().chain(current).collect()
    }
}

/// Makes `[start, end)` read as zeros, as far as the file reaches: beyond, it does.
fn zero(shadow: &dyn MediaFile, start: u64, end: u64) -> io::Result<()> {
    let end = end.min(shadow.stat()?.len);
    if start >= end {
        return Ok(());
    }
    match shadow.punch(start, end - start) {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            let zeros = vec![0; (end - start).min(1 << 20) as usize];
            let mut at = start;
            while at < end {
                let len = (end - at).min(zeros.len() as u64);
                shadow.write_at(&zeros[..len as usize], at)?;
                at += len;
            }
            Ok(())
        }
        done => done,
    }
}

fn decoded<'a, T: serde::Deserialize<'a>>(words: &'a [u8]) -> Result<T> {
    postcard::from_bytes(words).map_err(|e| {
        let text = format!(
            "words about a copy cannot be read ({e}): do both members run the same version?"
        );
        Error::new(Kind::Os(libc::EPROTO), text)
    })
}

fn stale(why: &str) -> Error {
    Error::os(libc::ESTALE, format!("{why}: the copies have to be filled anew"))
}
