//! The copies that this member keeps for others.
//!
//! Messages are taken one round after the other for each file ([`crate::core::copied`]). The bytes of
//! a round are written to their place and synced, and count once the log says so, synced as well.
//!
//! Invariants:
//! - C1: the bytes of a copy are durably in its shadow file before the log says so.
//! - C2: no byte is taken out of a shadow file before the log's entry that drops it is durable.
//! - C3: an older round never lands on a newer one, however late it comes.
//! - C4: a round counts only if this process has taken all its messages.
//! - C5: no message of an older fill, or of an older process of the home, touches copies that a
//!   newer one has begun.
//! - C6: the shadow of a file of this member is no copy's any more, whatever the log says.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_backing::{Error, FileKey, Kind, Result, Timestamp};

use crate::copies::of_home::{OfHome, Told, Turn, Verdict, stale};
use crate::core::copied::{Mark, Then, Words};
use crate::core::id::FileId;
use crate::core::ranges::State;
use crate::core::state::Portrait;
use crate::files::Files;
use crate::room::Room;
use crate::tier::dir::{shadow_dir, shadow_name};
use crate::tier::media::{MediaFile, Open};
use crate::tier::shelf::{DIR, Entry, Found, Grown, Kept};
use forebay_base::lock::{Mutex, Rank};

/// The copies in this tier of files that are dirty on other members.
pub struct Copies {
    files: Arc<Files>,
    room: Arc<Room>,
    homes: Mutex<BTreeMap<String, Place>>,
}

/// The sender of a message about copies: a home, its process, and the fill by which it believes
/// this member to have the copies. 0 stands for the fill of an earlier process.
#[derive(Debug, Clone, Copy)]
pub struct Teller<'a> {
    pub home: &'a str,
    pub epoch: u64,
    pub fill: u64,
}

impl Teller<'_> {
    fn under(&self) -> (u64, u64) {
        (self.epoch, self.fill)
    }
}

/// The copies for one home, and their sender.
#[derive(Default)]
struct Place {
    /// The process and the fill that are in force; `None`: no message has come since this engine's start.
    under: Option<(u64, u64)>,
    /// `None`: the copies were dropped, and the next fill has not begun.
    shelf: Option<Arc<OfHome>>,
    /// The first number of the next log: no file of a log gets the name of an earlier one.
    next_seq: u64,
}

/// A file of another member of which a copy is kept here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyInfo {
    pub file: FileKey,
    /// The number of the claim under which the copy was made.
    pub number: u64,
    pub path: PathBuf,
    /// The bytes that are newer than the backing store's.
    pub bytes: u64,
    pub mtime: Timestamp,
}

/// What a message puts on record of a copy.
enum Record {
    /// More of a copy that is on record.
    Grown(Grown),
    Whole(Kept),
}

impl Record {
    /// The size of the file.
    fn size(&self) -> u64 {
        match self {
            Record::Grown(grown) => grown.size,
            Record::Whole(kept) => kept.portrait.size,
        }
    }
}

impl Copies {
    pub(crate) fn new(files: Arc<Files>, room: Arc<Room>, found: Found) -> Result<Copies> {
        let mut homes = BTreeMap::new();
        for found in found.into_homes() {
            let name = found.name.clone();
            let adopted = found.adopted;
            let home = OfHome::found(found);
            home.charge(&files);
            if adopted {
                // Without this the file, once it is forgotten, would be taken for a copy again.
                files.note_tier(home.begin_log(&files))?;
            }
            let next_seq = home.lock().next_seq;
            homes.insert(name, Place { under: None, shelf: Some(Arc::new(home)), next_seq });
        }
        Ok(Copies { files, room, homes: Mutex::new(Rank::CopyHomes, homes) })
    }

    /// Takes a message that a home has sent by [`Partners::keep`](crate::Partners::keep), `forget`
    /// or `fill`. Durable on return. `number` is that of the claim.
    ///
    /// # Errors
    ///
    /// ENOSPC without room in the tier; ESTALE if the copies of this home are not those that the
    /// message builds upon, and have to be filled anew, or were filled anew since.
    pub fn keep(
        &self,
        by: Teller<'_>,
        told: Told,
        number: u64,
        file: FileKey,
        words: &[u8],
        bytes: &[u8],
    ) -> Result<()> {
        let words: Words<'_> = decoded(words)?;
        let Some(home) = self.told_by(by)? else {
            return match told {
                Told::Beside => Ok(()),
                Told::Owes => Err(stale("nothing was filled for this member")),
            };
        };
        if by.fill == 0 {
            home.follow(words.session, &self.files)?;
        }
        let len = bytes.len() as u64;
        self.room.make_room_for_copy(len)?;
        match self.take(&home, (told, number), file, words.clone(), bytes) {
            Err(e) if e.is(libc::ENOSPC) => {
                self.room.tier_is_full(len);
                self.take(&home, (told, number), file, words, bytes)
            }
            taken => taken,
        }
    }

    /// Returns the copies for the sender, unless these were dropped (C5).
    fn told_by(&self, by: Teller<'_>) -> Result<Option<Arc<OfHome>>> {
        let mut homes = self.homes.lock();
        let unknown = || stale("nothing was filled for this member");
        let place = homes.get_mut(by.home).ok_or_else(unknown)?;
        match place.under {
            Some(under) if under == by.under() => {}
            // A process that follows one whose fill was complete goes on with that fill.
            Some((epoch, _)) if by.fill == 0 && epoch < by.epoch => place.under = Some(by.under()),
            None => place.under = Some(by.under()),
            Some(_) => return Err(stale("another fill has begun")),
        }
        Ok(place.shelf.clone())
    }

    fn take(
        &self,
        home: &OfHome,
        (told, number): (Told, u64),
        file: FileKey,
        words: Words<'_>,
        bytes: &[u8],
    ) -> Result<()> {
        let turn = home.turn(file, words.session)?;
        let mut turn = turn.lock();
        match home.judge(file, (told, number), &words, &mut turn)? {
            Verdict::Leave => return Ok(()),
            Verdict::Take => {}
        }
        if let Then::Forget { lasts } = words.then {
            return self.forget(home, file, &words, &mut turn, lasts);
        }
        let shadow = self.shadow(&mut turn)?;
        self.write(&mut turn, &*shadow, &words, bytes)?;
        let (id, round) = (turn.id.expect("its shadow is open"), words.number);
        let grown = |turn: &Turn, size, mtime| {
            let ranges = turn.brought.iter().map(|run| (run.start, run.end)).collect();
            Record::Grown(Grown { claim: number, round, size, mtime, ranges })
        };
        let record = match words.then {
            Then::Grown { size, mtime } => grown(&turn, size, mtime),
            Then::Part(mut portrait) => {
                turn.is_part = true;
                match home.has(file) {
                    true => grown(&turn, portrait.size, portrait.mtime),
                    false => {
                        portrait.ranges = turn.brought.clone();
                        Record::Whole(Kept { id, claim: number, round, portrait: *portrait })
                    }
                }
            }
            Then::Whole(mut portrait) => {
                turn.is_part &= told == Told::Beside;
                portrait.ranges = turn.runs.clone();
                Record::Whole(Kept { id, claim: number, round, portrait: *portrait })
            }
            Then::More { .. } => {
                // More messages follow: the disk need not wait for the last one.
                shadow.begin_sync();
                return Ok(());
            }
            Then::Forget { .. } => return Ok(()),
        };
        self.make_durable(&mut turn, &*shadow, record.size())?;
        let seq = match record {
            Record::Grown(grown) => home.record_grown(&self.files, file, words.session, grown),
            Record::Whole(kept) => home.record_whole(&self.files, file, words.session, kept, &turn),
        }?;
        turn.begin_round();
        home.sync(&self.files, seq)?;
        let allocated = self.files.note_tier(shadow.stat())?.allocated;
        self.charge(&mut turn, allocated);
        Ok(())
    }

    /// Takes a message that a home has sent by [`Partners::mark`](crate::Partners::mark).
    ///
    /// # Errors
    ///
    /// Those of the tier; ESTALE if a fill ends that did not begin, or that another one has followed.
    pub fn mark(&self, by: Teller<'_>, words: &[u8]) -> Result<()> {
        match decoded(words)? {
            Mark::Begin { session } => self.begin_shelf(by, session),
            Mark::End { session } => {
                let home = self.told_by(by)?.ok_or_else(|| stale("no fill has begun"))?;
                let seq = {
                    let mut inner = home.lock();
                    inner.refuse_unless_of(session)?;
                    let entry = Entry::Session { session, filled: true };
                    self.files.note_tier(home.append(&mut inner, &self.files, entry))?
                };
                home.sync(&self.files, seq)
            }
        }
    }

    fn begin_shelf(&self, by: Teller<'_>, session: u64) -> Result<()> {
        let seq = {
            let mut homes = self.homes.lock();
            let place = homes.get_mut(by.home).filter(|place| place.under == Some(by.under()));
            let place = place.ok_or_else(|| stale("another fill has begun"))?;
            match &place.shelf {
                // The message is repeated: its sender did not get the answer.
                Some(begun) => return begun.lock().refuse_unless_of(session),
                None => place.take_seq(),
            }
        };
        let fresh = OfHome::begun(by.home, session, seq);
        let media = self.files.media();
        self.files.note_tier(media.make_dir(DIR))?;
        self.files.note_tier(media.make_dir(&fresh.dir))?;
        self.files.note_tier(media.sync_dir(DIR))?;
        self.files.note_tier(fresh.begin_log(&self.files))?;
        let logs = fresh.lock().logs();
        let is_late = {
            let mut homes = self.homes.lock();
            let place = homes.get_mut(by.home).filter(|place| place.under == Some(by.under()));
            match place.filter(|place| place.shelf.is_none()) {
                Some(place) => {
                    place.shelf = Some(Arc::new(fresh));
                    false
                }
                None => true,
            }
        };
        if !is_late {
            return Ok(());
        }
        for log in logs {
            let _ = media.remove(&log);
        }
        Err(stale("another fill has begun meanwhile"))
    }

    /// Returns the copies that are kept for a home, once messages under way have their answers.
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

    /// Whether the copies for a home are all that it has sent: its fill has ended, and nothing was lost since.
    pub fn is_whole(&self, home: &str) -> bool {
        self.home(home).is_some_and(|home| {
            let inner = home.lock();
            inner.shelf.filled && !inner.broken
        })
    }

    /// Returns the homes for which copies are kept.
    pub fn homes(&self) -> Vec<String> {
        let homes = self.homes.lock();
        homes.iter().filter(|(_, place)| place.shelf.is_some()).map(|it| it.0.clone()).collect()
    }

    /// Returns the number of the shadow file of a copy.
    pub(crate) fn id(&self, home: &str, file: FileKey) -> Option<FileId> {
        let home = self.home(home)?;
        let inner = home.lock();
        inner.shelf.copies.get(&file).map(|kept| kept.id)
    }

    /// Drops one copy, durably; there need not be one.
    pub fn drop_copy(&self, home: &str, file: FileKey) -> Result<()> {
        let Some(home) = self.home(home) else { return Ok(()) };
        let turn = home.lock().turn_of(file);
        let mut turn = turn.lock();
        home.let_go(&self.files, file, &mut turn)?.map_or(Ok(()), |seq| home.sync(&self.files, seq))
    }

    /// Prepares for a new fill by a home: its copies are dropped, durably, and its earlier messages do not
    /// count any more. Messages that come beside the fill before that begins are accepted and not kept.
    ///
    /// # Errors
    ///
    /// Those of the tier; ESTALE if this fill, or a newer one, was announced before.
    pub fn announce(&self, by: Teller<'_>) -> Result<()> {
        {
            let mut homes = self.homes.lock();
            let place = homes.entry(by.home.into()).or_default();
            if place.under.is_some_and(|under| under >= by.under()) {
                return Err(stale("another fill has begun"));
            }
            place.under = Some(by.under());
        }
        self.drop_home(by.home)
    }

    /// Drops all copies of a home, durably.
    pub fn drop_home(&self, home: &str) -> Result<()> {
        let dropped = {
            let mut homes = self.homes.lock();
            let place = homes.get_mut(home);
            let Some((place, dropped)) =
                place.and_then(|it| it.shelf.take().map(|home| (it, home)))
            else {
                return Ok(());
            };
            let mut inner = dropped.lock();
            // A thread that still has a turn finds this.
            (inner.broken, inner.gone) = (true, true);
            place.next_seq = place.next_seq.max(inner.next_seq + 1);
            drop(inner);
            dropped
        };
        let logs = dropped.lock().logs();
        for log in &logs {
            self.files.note_tier(self.files.media().remove(log))?;
        }
        self.files.note_tier(self.files.media().sync_dir(&dropped.dir))?;
        dropped.empty(&self.files);
        Ok(())
    }

    /// Returns the names of a file that its home knew, if there is a copy.
    pub(crate) fn paths(&self, home: &str, file: FileKey) -> Option<Vec<PathBuf>> {
        let home = self.home(home)?;
        let inner = home.lock();
        inner.shelf.copies.get(&file).map(|kept| kept.portrait.paths().collect())
    }

    /// Hands a copy over to `take`, which makes it a file of this member, durably, before it returns.
    /// `take` gets the number of the shadow file, and that of the claim. `None` if there is no copy.
    pub(crate) fn give<T>(
        &self,
        home: &str,
        file: FileKey,
        take: impl FnOnce(FileId, u64, &Portrait) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(home) = self.home(home) else { return Ok(None) };
        let turn = home.lock().turn_of(file);
        let mut turn = turn.lock();
        let Some(kept) = home.lock().shelf.copies.get(&file).cloned() else { return Ok(None) };
        let taken = take(kept.id, kept.claim, &kept.portrait)?;
        // C6
        self.charge(&mut turn, 0);
        turn.take_id();
        let seq = {
            let mut inner = home.lock();
            let seq =
                self.files.note_tier(home.append(&mut inner, &self.files, Entry::Forget(file)))?;
            inner.turns.remove(&file);
            seq
        };
        home.sync(&self.files, seq)?;
        Ok(Some(taken))
    }

    /// Frees the bytes of copies that are not needed any more.
    pub(crate) fn tend(&self) {
        let homes: Vec<_> =
            self.homes.lock().values().filter_map(|place| place.shelf.clone()).collect();
        for home in homes {
            let seq = {
                let inner = home.lock();
                (!inner.leavings.is_empty()).then_some(inner.next_seq)
            };
            if let Some(seq) = seq {
                let _ = home.sync(&self.files, seq);
            }
        }
    }

    fn home(&self, home: &str) -> Option<Arc<OfHome>> {
        self.homes.lock().get(home)?.shelf.clone()
    }

    /// Returns the shadow file of a copy, created if the copy is new.
    fn shadow(&self, turn: &mut Turn) -> Result<Arc<dyn MediaFile>> {
        if let Some(shadow) = &turn.shadow {
            return Ok(shadow.clone());
        }
        let (id, how) = match turn.id {
            Some(id) => (id, Open::Existing),
            None => (self.files.new_id(), Open::Fresh),
        };
        let shadow = self.files.note_tier(self.files.media().open(&shadow_name(id), how))?;
        (turn.id, turn.shadow) = (Some(id), Some(shadow.clone()));
        Ok(shadow)
    }

    /// Writes the bytes of a message.
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
            turn.brought.set(start, end, State::Durable);
            left = rest;
        }
        for &(start, end) in &*words.zeros {
            turn.wrote = true;
            self.files.note_tier(zero(shadow, start, end))?;
            turn.brought.set(start, end, State::Durable);
        }
        for &(start, end) in &*words.runs {
            turn.runs.set(start, end, State::Durable);
        }
        let charged = turn.charged + bytes.len() as u64;
        self.charge(turn, charged);
        Ok(())
    }

    /// Syncs the shadow before the log says so (C1).
    fn make_durable(&self, turn: &mut Turn, shadow: &dyn MediaFile, size: u64) -> Result<()> {
        if self.files.note_tier(shadow.size())? < size {
            turn.wrote = true;
            self.files.note_tier(shadow.set_len(size))?;
        }
        if turn.wrote {
            if let Err(error) = self.files.note_tier(shadow.sync_data()) {
                // The kernel reports the error once, and takes the pages for written: the bytes of
                // the round do not count any more, also for a caller that repeats the call, and
                // room that is made now repairs nothing.
                turn.begin_round();
                return Err(Error::os(libc::EIO, format!("a copy was not synced: {error}")));
            }
            turn.wrote = false;
        }
        if !turn.named {
            let dir = shadow_dir(turn.id.expect("its shadow is open"));
            self.files.note_tier(self.files.media().sync_dir(&dir))?;
            turn.named = true;
        }
        Ok(())
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
        home.let_go(&self.files, file, turn)?;
        if !lasts {
            return Ok(());
        }
        // Together with earlier forgotten copies.
        let seq = home.lock().next_seq;
        home.sync(&self.files, seq)
    }

    fn charge(&self, turn: &mut Turn, charged: u64) {
        self.files.totals().charge_copy(turn.charged, charged);
        turn.charged = charged;
    }
}

impl Place {
    /// Returns the number with which a new log begins.
    fn take_seq(&mut self) -> u64 {
        let seq = self.next_seq.max(1);
        self.next_seq = seq + 1;
        seq
    }
}

/// Makes `[start, end)` read as zeros up to the file's end: beyond it, it does already.
fn zero(shadow: &dyn MediaFile, start: u64, end: u64) -> io::Result<()> {
    let end = end.min(shadow.size()?);
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

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::bed::bed;
    use crate::manifest_on;

    #[test]
    fn what_is_not_on_the_store_is_listed_with_whose_it_is() {
        let bed = bed("manifest");
        let (engine, file) = (&bed.engine, &bed.file);
        engine.io.sync(file).unwrap();
        let portrait = {
            let inner = file.lock();
            inner.state.portrait(100, inner.mtime())
        };
        let encoded = |mark: &Mark| postcard::to_stdvec(mark).unwrap();
        let by = Teller { home: "n/2", epoch: 1, fill: 1 };
        engine.copies.announce(by).unwrap();
        engine.copies.mark(by, &encoded(&Mark::Begin { session: 1 })).unwrap();
        let words = Words {
            session: 1,
            number: 1,
            after: 0,
            brought: 100,
            data: Cow::Owned(vec![(0, 60)]),
            zeros: Cow::Owned(vec![(60, 100)]),
            runs: Cow::Owned(vec![(0, 100)]),
            named: 100,
            then: Then::Whole(Box::new(portrait)),
        };
        let words = postcard::to_stdvec(&words).unwrap();
        engine.copies.keep(by, Told::Owes, 5, file.key, &words, &[7; 60]).unwrap();
        engine.ops.compact();
        let list = |engine: &crate::Engine| {
            let found = manifest_on(&**engine.files.media()).unwrap().into_iter();
            found.map(|it| (it.path, it.dirty_bytes, it.home)).collect::<Vec<_>>()
        };
        let path = PathBuf::from("f");
        let copy = (path.clone(), 100, Some("n/2".to_string()));
        assert_eq!(list(engine), [(path, 100, None), copy.clone()]);
        engine.drain.flush_file(file).unwrap();
        assert_eq!(list(engine), [copy]);
    }
}
