//! Writes that homes have acknowledged to programs here and not synced, by file. If a home ends before the sync,
//! each open handle of the file here is told once, at its next fsync or close. If none is open, the next handle is
//! told.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use forebay_backing::{Error, FileKey, Result};
use forebay_base::lock::{Mutex, MutexGuard, Rank};
use forebay_cluster::core::{End, Ends, Process, Revision};
use forebay_cluster::words::Question;
use hashbrown::HashMap;

use super::Vfs;
use super::homes::moved;
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
    /// Whether the writes that this life acknowledged are in its tier or on the store, if its member runs `process`
    /// now. The writes outlive a process while the tier loses nothing (`boot`, S2). A claim ends without a flush only
    /// if another member takes this one's place (`line`).
    fn is_kept_by(&self, process: &Process) -> bool {
        self.process.boot == process.boot && process.line <= self.process.epoch
    }

    fn is_kept_at(&self, end: &End) -> bool {
        end.processes.get(&self.home).is_some_and(|process| self.is_kept_by(process))
    }

    /// Whether this life, which has the file, has the writes that the other life acknowledged. The member that took the
    /// home's place may have left the file to it, under the claim that it had.
    fn has_all_of(&self, before: &Life) -> bool {
        let is_same_claim = self.process.boot == before.process.boot && self.as_of == before.as_of;
        self.home == before.home && (before.is_kept_by(&self.process) || is_same_claim)
    }

    /// Whether this is an earlier process of the same home: answers may arrive in another order than they were given.
    fn is_older(&self, than: &Life) -> bool {
        self.home == than.home && self.process.epoch < than.process.epoch
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
    /// The life that has acknowledged a write since the last sync.
    by: Option<Life>,
    /// The number of acknowledged writes.
    writes: u64,
    losses: u64,
    /// Whether a program was told of the last loss.
    is_told: bool,
    /// The number of changes that homes are being asked for.
    asked: u32,
    /// Ends of claims that were heard of during such changes: the claim under which a home acknowledges a change may
    /// end before the answer is noted.
    ends: Ends,
}

impl State {
    fn lose(&mut self) {
        self.is_told = false;
        self.losses += 1;
    }

    fn lose_all(&mut self) {
        self.by = None;
        self.lose();
    }

    fn ended(&mut self, ends: &Ends) {
        if self.asked > 0 {
            self.ends.extend(ends);
        }
        let Some(by) = &self.by else { return };
        match ends.of_claim(by.as_of).map(|end| by.is_kept_at(end)) {
            Some(true) => self.by = None,
            Some(false) => self.lose_all(),
            None => {}
        }
    }

    /// Notes that `by` owes a sync. Older owed writes of the same home stay owed beside the new ones, as one life's, if
    /// that home still has them. How their claim ended decides it:
    ///
    /// - with a flush: nothing is lost, whether the news of the end comes or not;
    /// - another member took the home's place: the later process does not have the writes. They count as lost now,
    ///   since the news of the end would be older than the new acknowledgement;
    /// - not at all, as the home's daemon was killed and began anew: it has its tier, its place and its claims still.
    fn owe(&mut self, by: &Life) {
        self.by = Some(match self.by.take() {
            None => by.clone(),
            Some(before) => {
                let (old, new) = if by.is_older(&before) { (by, &before) } else { (&before, by) };
                if new.has_all_of(old) {
                    Life { as_of: new.as_of.max(old.as_of), ..new.clone() }
                } else {
                    self.lose();
                    new.clone()
                }
            }
        });
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

    /// Notes that a home has acknowledged a write that is not synced. The home's claim may have ended since.
    pub fn wrote(&self, by: &Life) {
        let mut state = self.state();
        state.writes += 1;
        match state.ends.of_claim(by.as_of).map(|end| by.is_kept_at(end)) {
            None => state.owe(by),
            Some(true) => {}
            Some(false) => state.lose(),
        }
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
            Some(before) if !by.is_some_and(|by| by.has_all_of(before)) => state.lose_all(),
            _ => state.by = None,
        }
    }

    /// Notes that the file is served at this home now, or here.
    pub fn is_at(&self, by: Option<&Life>, writes: u64) {
        let mut state = self.state();
        let has_all = |before| by.is_some_and(|by| by.has_all_of(before));
        if state.writes == writes && !state.by.as_ref().is_none_or(has_all) {
            state.lose_all();
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

/// A change of an open file that a home is asked for. Until this is dropped, ends of claims are remembered: the answer
/// may be noted after the end of its claim.
pub struct Asking<'a>(&'a Account);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        // A thread that panicked under the lock has left the count right.
        let mut state = self.0.pending.0.lock_anyway();
        state.asked -= 1;
        if state.asked == 0 {
            state.ends = Ends::default();
        }
    }
}

impl Account {
    pub fn asks(&self) -> Asking<'_> {
        self.pending.state().asked += 1;
        Asking(self)
    }

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

    /// Notes that claims have ended: writes of homes that kept them are on the store, and those of others are lost.
    /// Writes of a home that had the file later are still owed.
    pub fn ended(&self, key: FileKey, ends: &Ends) {
        let mut all = self.all();
        let Some(pending) = all.get(&key) else { return };
        pending.state().ended(ends);
        if Arc::strong_count(pending) == 1 && pending.is_idle() {
            all.remove(&key);
        }
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

    /// Notes that the file's claims with these ends are over.
    pub(super) fn homes_ended(&self, key: FileKey, ends: &Ends) {
        self.forget_home(key, ends.newest());
        self.members.unsynced.ended(key, ends);
    }

    /// To be called before owed writes count as lost because the file is at another home now, or here: the member may
    /// have heard that the file was given back, and this mount not yet.
    fn hear_of_ends(&self, account: &Account, at: Option<&Life>) {
        if account.pending.is_owed_by_another(at)
            && let Some(ends) = self.cluster().and_then(|cluster| cluster.ends(account.key))
        {
            self.homes_ended(account.key, &ends);
        }
    }

    /// Notes that a home has acknowledged a write that is not synced.
    pub(super) fn owes(&self, Asking(account): &Asking<'_>, by: &Life) {
        self.hear_of_ends(account, Some(by));
        account.pending.wrote(by);
    }

    fn synced(&self, account: &Account, at: Option<&Life>, writes: u64) -> Result<()> {
        self.hear_of_ends(account, at);
        account.pending.synced(at, writes);
        account.tell()
    }

    /// Notes a sync through a handle of a file that this mount serves. If another member is the file's home by now, what
    /// it has acknowledged to programs here is synced there.
    ///
    /// # Errors
    ///
    /// EIO if writes that a home had acknowledged before are lost, and no program was told.
    pub(super) fn synced_here(&self, key: FileKey) -> Result<()> {
        let unsynced = &self.members.unsynced;
        if unsynced.is_empty(key) {
            return Ok(());
        }
        let is_there = self.home_of(key).is_some();
        if is_there && let Some(synced) = self.with_writer(key, |remote| self.sync_there(remote)) {
            return synced;
        }
        let account = unsynced.open(key);
        let told = match is_there {
            true => account.tell(),
            false => self.synced(&account, None, account.pending.writes()),
        };
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

    /// The end of a claim of `home` at revision `at`, when the home had this process.
    fn ended(at: u64, home: &Life) -> Ends {
        let processes = Arc::new([(home.home.clone(), home.process.clone())].into());
        let mut ends = Ends::default();
        ends.add(End { at: Revision(at), processes });
        ends
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
    fn a_loss_that_no_handle_was_told_of_is_told_to_the_next_one() {
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
        all.ended(KEY, &ended(30, &process((3, 3), 40)));
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
        all.ended(KEY, &ended(2, &life("h", 2)));
        assert!(one.pending.is_unsynced(), "it had the file by then");
        all.ended(KEY, &ended(3, &life("h", 2)));
        assert!(sync(&one, &life("other", 5)).is_ok(), "its home brought it to the store");
        one.pending.wrote(&life("other", 5));
        all.ended(KEY, &ended(5, &life("other", 6)));
        assert!(one.tell().is_ok(), "what was given up is another's");
        all.ended(KEY, &ended(6, &life("other", 6)));
        assert!(one.tell().is_err(), "it was given up with its dead home");
        assert!(all.open(KEY).tell().is_ok(), "and told");
    }

    /// Another home has the file by then, which owes something, too.
    #[test]
    fn a_loss_that_is_noted_late_leaves_what_others_owe() {
        let all = Unsynced::default();
        let one = all.open(KEY);
        let asking = one.asks();
        all.ended(KEY, &ended(20, &process((3, 3), 40)));
        one.pending.wrote(&life("other", 25));
        one.pending.wrote(&process((1, 1), 10));
        assert!(one.tell().is_err(), "the first home lost it with its place");
        assert!(sync(&one, &life("other", 26)).is_err(), "the second with its power");
        one.pending.wrote(&process((4, 3), 22));
        assert!(one.pending.is_unsynced(), "its claim is later than that end");
        assert!(sync(&one, &process((4, 3), 22)).is_ok());
        drop(asking);
        one.pending.wrote(&process((1, 1), 10));
        assert!(one.pending.is_unsynced(), "what ended before a home was asked is of no use");
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
