//! The copies for one home: its log, the turns to write to a copy, and which bytes count.
//!
//! The invariants are those of [`super::store`].

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use forebay_backing::{Error, FileKey, Result};

use crate::core::copied::{Then, Words};
use crate::core::id::FileId;
use crate::core::ranges::{Ranges, Run, State};
use crate::files::Files;
use crate::tier::dir::shadow_name;
use crate::tier::log::LogFile;
use crate::tier::media::{MediaFile, Open};
use crate::tier::shelf::{DIR, Entry, FoundHome, Grown, Kept, Shelf, encoded};
use forebay_base::lock::{Mutex, MutexGuard, Rank};

/// The size from which a file of a log is rewritten, if it is also four times its first size.
const LOG_MIN: u64 = 1 << 20;

/// The number of forgotten files of a home that are remembered, for late messages.
const FORGOTTEN_MAX: usize = 65_536;

/// The home's belief about a partner that it tells of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// The partner has all that this message builds upon, or is no partner any more.
    Owes,
    /// The partner is being filled: missing bytes come with the fill.
    Beside,
}

/// The copies that are kept for one home.
pub(super) struct OfHome {
    pub dir: String,
    inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub shelf: Shelf,
    /// `None`: the next entry begins a new file of the log.
    log: Option<LogFile>,
    /// The length of the log file when it was begun.
    begun_len: u64,
    /// The older files of the log.
    older: Vec<String>,
    pub next_seq: u64,
    /// All entries before this number are durable.
    synced: u64,
    /// The turns to write to a copy, by file.
    pub turns: HashMap<FileKey, Arc<Mutex<Turn>>>,
    forgotten: HashMap<FileKey, u64>,
    /// Rounds up to this number are refused for a file that is not known.
    floor: u64,
    /// Parts of shadow files that can go once the log is durable up to a number (C2).
    pub leavings: Vec<(u64, Leaving)>,
    /// Whether the copies are damaged, so that no message can build upon them.
    pub broken: bool,
    /// Whether this was dropped: no entry is appended any more.
    pub gone: bool,
}

/// A part of a shadow file that is not needed any more.
pub(super) enum Leaving {
    File { id: FileId, charged: u64 },
    Bytes { id: FileId, size: u64, gone: Vec<(u64, u64)> },
}

/// The right to write to one copy, and its state.
#[derive(Default)]
pub(super) struct Turn {
    pub id: Option<FileId>,
    /// The copy's shadow file, open during a round.
    pub shadow: Option<Arc<dyn MediaFile>>,
    /// Whether the name of the shadow file is durable.
    pub named: bool,
    /// The number of the last round that came.
    seen: u64,
    /// The run of the home's engine that the round belongs to.
    session: u64,
    /// The ranges that the round has brought so far.
    pub brought: Ranges,
    /// The runs that the round has named.
    pub runs: Ranges,
    /// Whether a fill has brought a part of the file, and will bring the rest.
    pub is_part: bool,
    /// Whether the shadow was written since its last sync.
    pub wrote: bool,
    /// The copy's bytes in the sum of the tier.
    pub charged: u64,
}

/// The decision about a message.
pub(super) enum Verdict {
    Take,
    /// The message does not concern this copy, or not any more.
    Leave,
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
            gone: false,
        };
        OfHome { dir, inner: Mutex::new(Rank::Copies, inner) }
    }

    pub fn found(found: FoundHome) -> OfHome {
        let dir = format!("{DIR}/{}", encoded(&found.name));
        let next_seq = found.next_seq.max(1);
        OfHome::of(dir, found.shelf, found.logs, next_seq, found.damage.is_some())
    }

    pub fn begun(home: &str, session: u64, next_seq: u64) -> OfHome {
        let dir = format!("{DIR}/{}", encoded(home));
        OfHome::of(dir, Shelf::of_session(session), Vec::new(), next_seq, false)
    }

    /// Follows a home that was restarted and goes on with a complete fill: the copies here are all
    /// that its previous process has acknowledged.
    pub fn follow(&self, session: u64, files: &Files) -> Result<()> {
        let mut inner = self.lock();
        if inner.shelf.session == session || !inner.shelf.filled || inner.broken {
            return Ok(());
        }
        let entry = Entry::Session { session, filled: true };
        files.note_tier(self.append(&mut inner, files, entry))?;
        // The home numbers its rounds anew.
        inner.forgotten.clear();
        inner.floor = 0;
        Ok(())
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Adds the copies that were found to the sum of the tier.
    pub fn charge(&self, files: &Files) {
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

    pub fn has(&self, file: FileKey) -> bool {
        self.lock().shelf.copies.contains_key(&file)
    }

    pub fn turn(&self, file: FileKey, session: u64) -> Result<Arc<Mutex<Turn>>> {
        let mut inner = self.lock();
        inner.refuse_unless_of(session)?;
        Ok(inner.turn_of(file))
    }

    /// Decides about a message (C3, C4).
    pub fn judge(
        &self,
        file: FileKey,
        (told, claim): (Told, u64),
        words: &Words<'_>,
        turn: &mut Turn,
    ) -> Result<Verdict> {
        let inner = self.lock();
        inner.refuse_unless_of(words.session)?;
        let kept = inner.shelf.copies.get(&file);
        let missing = |what: &str| match told {
            // The fill has not come to the file yet, and will bring it.
            Told::Beside if !inner.shelf.filled && kept.is_none() => Ok(Verdict::Leave),
            Told::Beside | Told::Owes => Err(stale(what)),
        };
        if turn.session != words.session {
            // Another run of the home's engine numbers its rounds anew.
            (turn.session, turn.seen) = (words.session, 0);
            turn.begin_round();
        }
        let late = words.number < turn.seen
            || (kept.is_none() && words.number <= inner.forgotten_at(file));
        if late {
            return match words.then {
                Then::Forget { .. } => Ok(Verdict::Leave),
                _ => Err(stale("newer words have come")),
            };
        }
        let ends = matches!(words.then, Then::Grown { .. } | Then::Whole(_) | Then::Part(_));
        if ends && kept.is_some_and(|kept| (kept.round, kept.claim) == (words.number, claim)) {
            return Ok(Verdict::Leave); // The message is repeated: its sender did not get the answer.
        }
        let begins = words.number > turn.seen;
        let with = |before: &Ranges, more: &mut dyn Iterator<Item = &(u64, u64)>| {
            let mut all = if begins { Ranges::None } else { before.clone() };
            more.for_each(|&(start, end)| all.set(start, end, State::Durable));
            all
        };
        let all = || with(&turn.brought, &mut words.data.iter().chain(&*words.zeros));
        let lacks = || all().bytes(|_| true) != words.brought;
        let lost = || stale("some of what this round has brought is missing");
        let builds = match &words.then {
            Then::Whole(_) if lacks() => return Err(lost()),
            Then::Grown { .. } | Then::More { whole: false } => true,
            Then::Whole(_) => {
                let named = with(&turn.runs, &mut words.runs.iter());
                if named.bytes(|_| true) != words.named {
                    return Err(lost());
                }
                let mut here = kept.map_or(Ranges::None, |kept| kept.portrait.ranges.clone());
                all().iter().for_each(|run| here.set(run.start, run.end, State::Durable));
                let is_left_to_fill = told == Told::Beside && turn.is_part;
                if !is_left_to_fill && named.iter().any(|run| !here.covers(run.start, run.end)) {
                    return missing("bytes of it are missing");
                }
                false
            }
            Then::Part(_) | Then::More { whole: true } | Then::Forget { .. } => false,
        };
        if builds && kept.is_none_or(|kept| kept.round < words.after) {
            return missing("it builds upon what is not here");
        }
        if ends && lacks() {
            return Err(lost());
        }
        if begins {
            turn.seen = words.number;
            turn.begin_round();
        }
        Ok(Verdict::Take)
    }

    /// Appends an entry, and applies it. Returns the number up to which the log has to be durable for it.
    pub fn append(&self, inner: &mut Inner, files: &Files, entry: Entry) -> io::Result<u64> {
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

    pub fn begin_log(&self, files: &Files) -> io::Result<()> {
        self.begin_log_with(&mut self.lock(), files)
    }

    /// Begins a file of the log with all present entries, durably; the older files are removed.
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
            // The number is used: entries of the failed file must not be read behind later ones.
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

    /// Records growth of a copy; returns the number up to which the log has to be durable.
    pub fn record_grown(
        &self,
        files: &Files,
        file: FileKey,
        session: u64,
        grown: Grown,
    ) -> Result<u64> {
        let mut inner = self.lock();
        inner.refuse_unless_of(session)?;
        let kept = inner.shelf.copies.get_mut(&file).ok_or_else(|| stale("its copy is gone"))?;
        let portrait = &kept.portrait;
        let covers = |(start, end): &(u64, u64)| portrait.ranges.covers(*start, *end);
        let known = kept.claim == grown.claim
            && portrait.size == grown.size
            && grown.ranges.iter().all(covers);
        if known {
            // The record has all but the time, which an overwrite moves without a record on a home, too.
            kept.grow(&Grown { ranges: Vec::new(), ..grown });
            return Ok(inner.synced);
        }
        files.note_tier(self.append(&mut inner, files, Entry::Grown(file, grown)))
    }

    pub fn record_whole(
        &self,
        files: &Files,
        file: FileKey,
        session: u64,
        mut kept: Kept,
        turn: &Turn,
    ) -> Result<u64> {
        let mut inner = self.lock();
        inner.refuse_unless_of(session)?;
        let before = inner.shelf.copies.get(&file).map(|kept| kept.portrait.ranges.clone());
        let before = before.unwrap_or_default();
        let (id, size) = (kept.id, kept.portrait.size);
        if turn.is_part {
            turn.leave_to_fill(&before, &mut kept.portrait.ranges);
        }
        let mut gone = before.clone();
        for run in kept.portrait.ranges.iter() {
            gone.clear(run.start, run.end);
        }
        // C2: the bytes of this round are in the shadow in any case.
        turn.brought.iter().for_each(|run| gone.clear(run.start, run.end));
        let gone = gone.iter().map(|run| (run.start, run.end)).collect();
        let entry = Entry::Whole(file, Box::new(kept));
        let seq = files.note_tier(self.append(&mut inner, files, entry))?;
        inner.leavings.push((seq, Leaving::Bytes { id, size, gone }));
        Ok(seq)
    }

    /// Drops a copy, or the bytes of one that came so far.
    pub fn let_go(&self, files: &Files, file: FileKey, turn: &mut Turn) -> Result<Option<u64>> {
        let mut inner = self.lock();
        if inner.gone {
            return Err(stale("its copies were dropped"));
        }
        let known = inner.shelf.copies.contains_key(&file);
        let seq = match known {
            true => {
                let forget = Entry::Forget(file);
                Some(files.note_tier(self.append(&mut inner, files, forget))?)
            }
            false => None,
        };
        inner.turns.remove(&file);
        if let Some(id) = turn.take_id() {
            let leaving = Leaving::File { id, charged: std::mem::take(&mut turn.charged) };
            let at = seq.unwrap_or(inner.synced);
            inner.leavings.push((at, leaving));
        }
        Ok(seq)
    }

    /// Makes the log durable up to `seq`, and removes the parts of shadow files that waited for that.
    pub fn sync(&self, files: &Files, seq: u64) -> Result<()> {
        let log = {
            let inner = self.lock();
            let file = inner.log.as_ref().filter(|_| inner.synced < seq).map(LogFile::file);
            file.map(|file| (file, inner.next_seq))
        };
        let synced = match &log {
            Some((file, _)) => files.note_tier(file.sync_data()),
            None => Ok(()),
        };
        let (mut inner, mut leavings) = (self.lock(), Vec::new());
        if let Err(error) = synced {
            // A later sync that succeeds proves nothing about the same records.
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
        // Under the lock: the next round may write to the same places.
        leavings.into_iter().for_each(|leaving| OfHome::take_out(files, leaving));
        Ok(())
    }

    fn take_out(files: &Files, leaving: Leaving) {
        let media = files.media();
        let (Leaving::File { id, .. } | Leaving::Bytes { id, .. }) = &leaving;
        if files.by_id(*id).is_some() {
            return; // C6
        }
        match leaving {
            Leaving::File { id, charged } => {
                let _ = media.remove(&shadow_name(id));
                files.totals().charge_copy(charged, 0);
            }
            Leaving::Bytes { id, size, gone } => {
                let Ok(shadow) = media.open(&shadow_name(id), Open::Existing) else { return };
                if shadow.size().is_ok_and(|now| now > size) {
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

    /// Removes the shadow files of copies that are on no record any more.
    pub fn empty(&self, files: &Files) {
        let (shelf, turns, leavings) = {
            let mut inner = self.lock();
            let shelf = std::mem::take(&mut inner.shelf);
            (shelf, std::mem::take(&mut inner.turns), std::mem::take(&mut inner.leavings))
        };
        let mut charged: HashMap<FileId, u64> = HashMap::new();
        for turn in turns.into_values() {
            let mut turn = turn.lock();
            if let Some(id) = turn.take_id() {
                charged.insert(id, std::mem::take(&mut turn.charged));
            }
        }
        // A copy without a turn has no bytes in the sum.
        for kept in shelf.copies.into_values() {
            charged.entry(kept.id).or_insert(0);
        }
        for (id, charged) in charged {
            OfHome::take_out(files, Leaving::File { id, charged });
        }
        for (_, leaving) in leavings {
            if let Leaving::File { .. } = &leaving {
                OfHome::take_out(files, leaving);
            }
        }
    }
}

impl Turn {
    /// Begins a round, and forgets the one before: its bytes count by now, or never will.
    pub fn begin_round(&mut self) {
        (self.brought, self.runs) = (Ranges::None, Ranges::None);
        self.shadow = None;
    }

    /// Gives up the shadow file, which is not this copy's any more.
    pub fn take_id(&mut self) -> Option<FileId> {
        self.shadow = None;
        self.id.take()
    }

    /// Removes from `ranges` the parts that have not come yet.
    fn leave_to_fill(&self, before: &Ranges, ranges: &mut Ranges) {
        let mut here = before.clone();
        self.brought.iter().for_each(|run| here.set(run.start, run.end, State::Durable));
        let lacks = |run: Run| here.gaps(run.start, run.end);
        let lacking: Vec<_> = ranges.iter().flat_map(lacks).collect();
        lacking.into_iter().for_each(|(start, end)| ranges.clear(start, end));
    }
}

impl Inner {
    pub fn refuse_unless_of(&self, session: u64) -> Result<()> {
        match self.broken || self.shelf.session != session {
            true => Err(stale("what is here is not what the home has filled")),
            false => Ok(()),
        }
    }

    pub fn turn_of(&mut self, file: FileKey) -> Arc<Mutex<Turn>> {
        let kept = self.shelf.copies.get(&file);
        let fresh = || {
            let (id, seen) = kept.map_or((None, 0), |kept| (Some(kept.id), kept.round));
            let session = self.shelf.session;
            let turn = Turn { id, seen, named: kept.is_some(), session, ..Turn::default() };
            Arc::new(Mutex::new(Rank::Copy, turn))
        };
        self.turns.entry(file).or_insert_with(fresh).clone()
    }

    fn forgotten_at(&self, file: FileKey) -> u64 {
        self.forgotten.get(&file).copied().unwrap_or(self.floor)
    }

    pub fn note_forgotten(&mut self, file: FileKey, round: u64) {
        if self.forgotten.len() >= FORGOTTEN_MAX {
            self.floor = self.forgotten.values().copied().max().unwrap_or(self.floor);
            self.forgotten.clear();
        }
        self.forgotten.insert(file, round);
    }

    /// Returns the files of the log.
    pub fn logs(&mut self) -> Vec<String> {
        let current = self.log.as_ref().map(|log| log.name.clone());
        self.older.iter().cloned().chain(current).collect()
    }
}

pub(super) fn stale(why: &str) -> Error {
    Error::os(libc::ESTALE, format!("{why}: the copies have to be filled anew"))
}
