//! Writes that homes have acknowledged to programs here and not synced, by file. If a home ends before the sync,
//! each open handle of the file here is told once, at its next fsync or close; without any, the next one opened is.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use forebay_backing::{Error, FileKey, Result};
use forebay_base::lock::{Mutex, MutexGuard, Rank};
use forebay_cluster::core::{Process, Revision};
use forebay_cluster::words::Question;
use hashbrown::HashMap;

use super::Vfs;
use super::members::moved;
use super::there::{Remote, Repeated};

/// One life of a member that has a file.
#[derive(Debug, Clone)]
pub struct Life {
    pub home: String,
    pub process: Process,
    /// The member had the file by then: the end of an earlier claim does not count.
    pub as_of: Revision,
}

impl Life {
    /// Whether writes that the other life acknowledged are in this one's tier, or were brought home. They outlive a
    /// process while the tier loses nothing (`boot`, S2). Claims end without a flush only with the member's place
    /// (`line`).
    fn keeps(&self, of: &Life) -> bool {
        self.has_tier_of(of) && self.process.line <= of.process.epoch
    }

    /// The same if this life has the file: the member that took its place may have left it the file, under its claim.
    fn has_all_of(&self, before: &Life) -> bool {
        self.keeps(before) || self.has_tier_of(before) && self.as_of == before.as_of
    }

    fn has_tier_of(&self, of: &Life) -> bool {
        self.home == of.home && self.process.boot == of.process.boot
    }

    /// Whether this is an earlier process of the same home: an answer that is known last may have been given first.
    fn is_older(&self, than: &Life) -> bool {
        self.home == than.home && self.process.epoch < than.process.epoch
    }

    fn is(&self, other: &Life) -> bool {
        self.home == other.home && self.process == other.process
    }
}

/// The unsynced writes of all files.
pub struct Unsynced(Mutex<HashMap<FileKey, Arc<Pending>>>);

impl Default for Unsynced {
    fn default() -> Unsynced {
        Unsynced(Mutex::new(Rank::Unsynced, HashMap::new()))
    }
}

/// The unsynced writes of one file.
pub struct Pending(Mutex<State>);

impl Default for Pending {
    fn default() -> Pending {
        Pending(Mutex::new(Rank::Pending, State::default()))
    }
}

#[derive(Default)]
struct State {
    /// The life that has acknowledged something since the last sync.
    by: Option<Life>,
    /// The number of acknowledged writes.
    writes: u64,
    losses: u64,
    /// Whether a program was told of the last loss.
    is_told: bool,
}

impl State {
    fn lose(&mut self) {
        (self.by, self.is_told) = (None, false);
        self.losses += 1;
    }
}

impl Pending {
    #[track_caller]
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// The losses of which a handle that is opened now is not told.
    fn known(&self) -> u64 {
        let state = self.state();
        state.losses - u64::from(!state.is_told && state.losses > 0)
    }

    /// Whether anything is owed that the life `at`, or this mount without one, does not have.
    fn is_owed_by_another(&self, at: Option<&Life>) -> bool {
        self.state().by.as_ref().is_some_and(|by| !at.is_some_and(|at| at.has_all_of(by)))
    }

    /// Notes that something was acknowledged that is not synced.
    ///
    /// Writes that the same home acknowledged under an earlier claim stay owed beside this one, as one debt. The
    /// earlier claim has ended in one of two ways. With a flush: then nothing of it is lost, whatever is heard of
    /// that. Or with the home's place, which another member took: then the later process does not have the writes,
    /// and they are lost now, since the news of the claim's end would be older than this write. A daemon that was
    /// killed still has its tier, its place and its claims, and owes what the one before did.
    pub fn wrote(&self, by: &Life) {
        let mut state = self.state();
        state.writes += 1;
        state.by = Some(match state.by.take() {
            None => by.clone(),
            Some(before) => {
                let (old, new) = if by.is_older(&before) { (by, &before) } else { (&before, by) };
                if new.has_all_of(old) {
                    Life { as_of: new.as_of.max(old.as_of), ..new.clone() }
                } else {
                    state.lose();
                    new.clone()
                }
            }
        });
    }

    /// The number of acknowledged writes, to be asked for before a sync.
    pub fn writes(&self) -> u64 {
        self.state().writes
    }

    /// Notes a sync at a home, or here; `writes` had been acknowledged before.
    pub fn synced(&self, by: Option<&Life>, writes: u64) {
        let mut state = self.state();
        match &state.by {
            // Writes that were acknowledged since are left to another sync.
            Some(_) if state.writes != writes => {}
            Some(before) if !by.is_some_and(|by| by.has_all_of(before)) => state.lose(),
            _ => state.by = None,
        }
    }

    /// Notes that the file is served at this home now, or here.
    pub fn is_at(&self, by: Option<&Life>, writes: u64) {
        let mut state = self.state();
        let has_all = |before| by.is_some_and(|by| by.has_all_of(before));
        if state.writes == writes && !state.by.as_ref().is_none_or(has_all) {
            state.lose();
        }
    }

    pub fn is_unsynced(&self) -> bool {
        self.state().by.is_some()
    }

    fn is_idle(&self) -> bool {
        let state = self.state();
        state.by.is_none() && (state.is_told || state.losses == 0)
    }
}

fn lost() -> Error {
    Error::os(libc::EIO, "the file's home ended before what was written was synced")
}

/// An open handle's share in the pending writes of its file.
pub struct Account {
    key: FileKey,
    pub pending: Arc<Pending>,
    /// The losses that the handle was told of.
    told: AtomicU64,
}

impl Account {
    /// # Errors
    ///
    /// EIO, once for each loss.
    pub fn tell(&self) -> Result<()> {
        let mut state = self.pending.state();
        match self.told.swap(state.losses, SeqCst) < state.losses {
            true => {
                state.is_told = true;
                Err(lost())
            }
            false => Ok(()),
        }
    }
}

impl Unsynced {
    #[track_caller]
    fn all(&self) -> MutexGuard<'_, HashMap<FileKey, Arc<Pending>>> {
        self.0.lock()
    }

    pub fn open(&self, key: FileKey) -> Account {
        let pending = self.all().entry(key).or_default().clone();
        let told = AtomicU64::new(pending.known());
        Account { key, pending, told }
    }

    /// Forgets a file that is not open, and of which there is nothing to tell.
    pub fn close(&self, account: &Account) {
        let mut all = self.all();
        // The references of the table and of this account.
        if Arc::strong_count(&account.pending) <= 2 && account.pending.is_idle() {
            all.remove(&account.key);
        }
    }

    /// Notes that claims from before `given` have ended: writes of homes that keep them are on the store, and those
    /// of others are lost. Writes of a home that had the file later are still owed.
    pub fn given_back(&self, key: FileKey, given: Revision, keeps: impl Fn(&Life) -> bool) {
        let mut asked = None;
        // Asked without the locks: meanwhile another life may have acknowledged something.
        while let Some(by) = self.settle_before(key, given, asked.as_ref()) {
            let keeps = keeps(&by);
            asked = Some((by, keeps));
        }
    }

    /// The same, with what is known of the `asked` life. Returns the life that has to be asked for, if it is another.
    fn settle_before(
        &self,
        key: FileKey,
        given: Revision,
        asked: Option<&(Life, bool)>,
    ) -> Option<Life> {
        let mut all = self.all();
        let pending = all.get(&key)?;
        let mut state = pending.state();
        if let Some(by) = state.by.as_ref().filter(|by| by.as_of < given) {
            match asked.filter(|(life, _)| life.is(by)) {
                Some((_, true)) => state.by = None,
                Some((_, false)) => state.lose(),
                None => return Some(by.clone()),
            }
        }
        drop(state);
        if Arc::strong_count(pending) == 1 && pending.is_idle() {
            all.remove(&key);
        }
        None
    }

    fn is_empty(&self, key: FileKey) -> bool {
        !self.all().contains_key(&key)
    }
}

impl Vfs {
    /// The life of a member that the registry tells of now, and that had a file by this revision.
    pub(super) fn life_of(&self, home: &str, as_of: Revision) -> Result<Life> {
        let cluster = self.cluster().ok_or_else(moved)?;
        let process = cluster.process(home).unwrap_or_default();
        Ok(Life { home: home.into(), process, as_of })
    }

    /// Notes that homes which the file had before `given` have ended.
    pub(super) fn homes_ended(&self, key: FileKey, given: Revision) {
        self.forget_home(key, given);
        let keeps = |by: &Life| self.life_of(&by.home, given).is_ok_and(|now| now.keeps(by));
        self.members.unsynced.given_back(key, given, keeps);
    }

    /// To be called before owed writes count as lost because the file is at another home now, or here: the file may
    /// have been given back, of which the member has heard and this mount was not yet told.
    fn hear_of_ends(&self, account: &Account, at: Option<&Life>) {
        if account.pending.is_owed_by_another(at)
            && let Some(given) = self.cluster().and_then(|cluster| cluster.given(account.key))
        {
            self.homes_ended(account.key, given);
        }
    }

    /// Notes that a home has acknowledged something that is not synced.
    pub(super) fn owes(&self, account: &Account, by: &Life) {
        self.hear_of_ends(account, Some(by));
        account.pending.wrote(by);
    }

    fn synced(&self, account: &Account, at: Option<&Life>, writes: u64) -> Result<()> {
        self.hear_of_ends(account, at);
        account.pending.synced(at, writes);
        account.tell()
    }

    /// Notes a sync through a handle of a file that this mount serves.
    ///
    /// # Errors
    ///
    /// EIO if writes that a home had acknowledged before are lost, and no program was told.
    pub(super) fn synced_here(&self, key: FileKey) -> Result<()> {
        let unsynced = &self.members.unsynced;
        if unsynced.is_empty(key) {
            return Ok(());
        }
        let account = unsynced.open(key);
        let told = self.synced(&account, None, account.pending.writes());
        unsynced.close(&account);
        told
    }

    pub(super) fn sync_there(&self, remote: &Remote) -> Result<()> {
        let Account { pending, .. } = &remote.account;
        remote.account.tell()?;
        let (writes, at) = (pending.writes(), RefCell::new(None));
        self.at_home(
            remote,
            Repeated::Yes,
            |there| {
                self.ask_done(there.home(), &Question::Sync { handle: there.handle }, &[])?;
                *at.borrow_mut() = Some(there.life.clone());
                Ok(())
            },
            |guest| guest.sync(self),
        )?;
        self.synced(&remote.account, at.borrow().as_ref(), writes)
    }

    /// Called when a descriptor was closed. Fails if the home has lost writes to the file, or where bytes have to be
    /// on the store by then and are not.
    pub(super) fn flush_there(&self, remote: &Remote) -> Result<()> {
        let Account { pending, .. } = &remote.account;
        remote.account.tell()?;
        let has_written = remote.has_written.swap(false, SeqCst);
        if !has_written && !pending.is_unsynced() {
            return Ok(());
        }
        let (writes, at) = (pending.writes(), RefCell::new(None));
        let flushed = self.at_home(
            remote,
            Repeated::Yes,
            |there| {
                self.ask_done(there.home(), &Question::Flush { handle: there.handle }, &[])?;
                *at.borrow_mut() = Some(there.life.clone());
                Ok(())
            },
            |guest| guest.flush(self),
        );
        match &flushed {
            Ok(()) => {
                self.hear_of_ends(&remote.account, at.borrow().as_ref());
                pending.is_at(at.borrow().as_ref(), writes);
            }
            Err(_) => _ = remote.has_written.fetch_or(has_written, SeqCst),
        }
        // Whatever the result, a loss is told once.
        remote.account.tell()?;
        flushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: FileKey = FileKey { ino: 7, generation: 1 };

    /// A life of a home whose machine begins anew each time.
    fn life(home: &str, epoch: u64) -> Life {
        let process = Process { epoch, boot: epoch.to_string(), line: epoch };
        Life { home: home.into(), process, as_of: Revision(epoch) }
    }

    /// A life of a home that still has its tier, and its place since `line`.
    fn process((epoch, line): (u64, u64), as_of: u64) -> Life {
        let process = Process { epoch, boot: "kept".into(), line };
        Life { home: "h".into(), process, as_of: Revision(as_of) }
    }

    fn sync(account: &Account, at: &Life) -> Result<()> {
        account.tell()?;
        account.pending.synced(Some(at), account.pending.writes());
        account.tell()
    }

    #[test]
    fn a_loss_is_told_to_each_open_file_once() {
        let all = Unsynced::default();
        let (one, other) = (all.open(KEY), all.open(KEY));
        one.pending.wrote(&life("h", 1));
        assert!(sync(&other, &life("h", 2)).is_err(), "its machine has");
        assert!(sync(&other, &life("h", 2)).is_ok());
        assert!(one.tell().is_err(), "who wrote hears of it too");
        assert!(one.tell().is_ok());
        assert!(all.open(KEY).tell().is_ok(), "somebody was told before that open");
    }

    #[test]
    fn what_nobody_heard_of_is_told_to_who_opens_the_file_next() {
        let all = Unsynced::default();
        let writer = all.open(KEY);
        writer.pending.wrote(&life("h", 1));
        all.close(&writer);
        drop(writer);
        let later = all.open(KEY);
        assert!(sync(&later, &life("taker", 1)).is_err());
        all.close(&later);
        drop(later);
        assert!(all.all().is_empty(), "nothing is left to tell");
    }

    #[test]
    fn a_home_that_begins_anew_on_its_machine_has_lost_nothing() {
        let all = Unsynced::default();
        let one = all.open(KEY);
        one.pending.wrote(&process((1, 1), 10));
        assert!(sync(&one, &process((2, 1), 12)).is_ok());
        one.pending.wrote(&process((2, 1), 12));
        one.pending.wrote(&process((3, 1), 14));
        assert!(sync(&one, &process((3, 1), 14)).is_ok());
    }

    /// The home has claimed the file anew after another had its place, and the file. That claim's end is heard of
    /// later.
    #[test]
    fn what_went_with_a_homes_place_is_lost_though_the_file_is_there_again() {
        let all = Unsynced::default();
        let one = all.open(KEY);
        one.pending.wrote(&process((1, 1), 10));
        one.pending.wrote(&process((3, 3), 40));
        all.given_back(KEY, Revision(30), |by| by.process.epoch == 3);
        assert!(one.tell().is_err(), "the first write");
        assert!(sync(&one, &process((3, 3), 40)).is_ok(), "the second");
        one.pending.wrote(&process((3, 3), 40));
        assert!(sync(&one, &process((5, 5), 60)).is_err());
        one.pending.wrote(&process((5, 5), 60));
        assert!(sync(&one, &process((7, 7), 60)).is_ok(), "the claim is the same");
    }

    /// The answers of two processes may become known in another order.
    #[test]
    fn what_an_earlier_process_acknowledged_is_lost_however_late_that_is_known() {
        let all = Unsynced::default();
        let one = all.open(KEY);
        one.pending.wrote(&process((3, 3), 40));
        one.pending.wrote(&process((1, 1), 10));
        assert!(one.tell().is_err());
        assert!(sync(&one, &process((3, 3), 40)).is_ok());
        one.pending.wrote(&process((4, 3), 40));
        one.pending.wrote(&process((3, 3), 40));
        assert!(sync(&one, &process((4, 3), 40)).is_ok(), "nobody had its place between");
    }

    #[test]
    fn what_is_synced_or_on_the_store_is_not_lost() {
        let all = Unsynced::default();
        let one = all.open(KEY);
        one.pending.wrote(&life("h", 1));
        assert!(sync(&one, &life("h", 1)).is_ok());
        assert!(sync(&one, &life("h", 2)).is_ok(), "nothing was written since");
        one.pending.wrote(&life("h", 2));
        all.given_back(KEY, Revision(2), |_| true);
        assert!(one.pending.is_unsynced(), "it had the file by then");
        all.given_back(KEY, Revision(3), |by| by.process.epoch == 2);
        assert!(sync(&one, &life("other", 5)).is_ok(), "its home brought it to the store");
        one.pending.wrote(&life("other", 5));
        all.given_back(KEY, Revision(5), |_| false);
        assert!(one.tell().is_ok(), "what was given up is another's");
        all.given_back(KEY, Revision(6), |_| false);
        assert!(one.tell().is_err(), "it was given up with its dead home");
        assert!(all.open(KEY).tell().is_ok(), "and told");
    }

    #[test]
    fn a_sync_says_nothing_of_what_was_acknowledged_meanwhile() {
        let all = Unsynced::default();
        let one = all.open(KEY);
        one.pending.wrote(&life("h", 1));
        let writes = one.pending.writes();
        one.pending.wrote(&life("h", 1));
        one.pending.synced(Some(&life("h", 1)), writes);
        assert!(sync(&one, &life("h", 2)).is_err(), "the second write was not synced");
    }
}
