//! What homes have acknowledged to programs here and were not asked to sync, by file. If a home ends before it is, all
//! that is open of the file here hears of it once, at its next fsync or close; if nothing is, who opens it next does.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use forebay_backing::{Error, FileKey, Result};
use forebay_cluster::core::Revision;
use forebay_cluster::words::Question;
use forebay_engine::lock::{Mutex, MutexGuard, Rank};
use hashbrown::HashMap;

use super::Vfs;
use super::members::moved;
use super::there::{Remote, Repeated};

/// One life of a member.
#[derive(Debug, Clone)]
pub struct Life {
    pub home: String,
    pub epoch: u64,
    /// As long as it is the same, what a process has acknowledged outlives it in the tier (S2).
    pub boot: String,
    /// It had the file by then: that it was given back before is old news.
    pub as_of: Revision,
}

impl Life {
    fn has_all_of(&self, before: &Life) -> bool {
        (&self.home, &self.boot) == (&before.home, &before.boot)
    }
}

/// Of all files of which there is something to remember.
pub struct Unsynced(Mutex<HashMap<FileKey, Arc<Pending>>>);

impl Default for Unsynced {
    fn default() -> Unsynced {
        Unsynced(Mutex::new(Rank::Unsynced, HashMap::new()))
    }
}

/// Of one file.
pub struct Pending(Mutex<State>);

impl Default for Pending {
    fn default() -> Pending {
        Pending(Mutex::new(Rank::Pending, State::default()))
    }
}

#[derive(Default)]
struct State {
    /// Who has acknowledged something since its last sync.
    by: Option<Life>,
    /// How often anybody has.
    writes: u64,
    losses: u64,
    /// Somebody was told of the last one.
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

    /// The losses that who opens the file now is not told of.
    fn known(&self) -> u64 {
        let state = self.state();
        state.losses - u64::from(!state.is_told && state.losses > 0)
    }

    /// Something was acknowledged that is not synced.
    pub fn wrote(&self, by: &Life) {
        let mut state = self.state();
        state.writes += 1;
        if state.by.as_ref().is_some_and(|before| !by.has_all_of(before)) {
            state.lose();
        }
        let known = state.by.take().filter(|before| by.has_all_of(before));
        let as_of = known.map_or(by.as_of, |before| before.as_of.max(by.as_of));
        state.by = Some(Life { as_of, ..by.clone() });
    }

    /// To be asked before a sync.
    pub fn writes(&self) -> u64 {
        self.state().writes
    }

    /// The file was synced there, or here; `writes` had been acknowledged before.
    pub fn synced(&self, by: Option<&Life>, writes: u64) {
        let mut state = self.state();
        match &state.by {
            // What was acknowledged since is another sync's.
            Some(_) if state.writes != writes => {}
            Some(before) if !by.is_some_and(|by| by.has_all_of(before)) => state.lose(),
            _ => state.by = None,
        }
    }

    /// The file is served there now, or here.
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

/// An open file's share in it.
pub struct Account {
    key: FileKey,
    pub pending: Arc<Pending>,
    /// The losses that it was told of.
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

    /// Something of a file was acknowledged that is not synced, to who may not have it open.
    pub fn wrote(&self, key: FileKey, by: &Life) {
        let account = self.open(key);
        account.pending.wrote(by);
        self.close(&account);
    }

    /// What is not open, and of which there is nothing to tell, is forgotten.
    pub fn close(&self, account: &Account) {
        let mut all = self.all();
        // The table's, and this one.
        if Arc::strong_count(&account.pending) <= 2 && account.pending.is_idle() {
            all.remove(&account.key);
        }
    }

    /// Claims of before were given back: what homes had acknowledged that live on is on the store, and what others had is
    /// lost. What a home has acknowledged that had the file later is owed still.
    pub fn given_back(&self, key: FileKey, given: Revision, lives: impl Fn(&Life) -> bool) {
        let mut all = self.all();
        let Some(pending) = all.get(&key) else { return };
        let mut state = pending.state();
        match &state.by {
            Some(by) if by.as_of >= given => {}
            Some(by) if lives(by) => state.by = None,
            Some(_) => state.lose(),
            None => {}
        }
        drop(state);
        if Arc::strong_count(pending) == 1 && pending.is_idle() {
            all.remove(&key);
        }
    }

    /// The file was synced here, by who has it open past all this.
    ///
    /// # Errors
    ///
    /// EIO if what a home had acknowledged before is lost, and nobody was told.
    pub fn synced_here(&self, key: FileKey) -> Result<()> {
        if !self.all().contains_key(&key) {
            return Ok(());
        }
        let account = self.open(key);
        account.pending.synced(None, account.pending.writes());
        let told = account.tell();
        self.close(&account);
        told
    }
}

impl Vfs {
    /// The life of a member that the registry tells of now.
    pub(super) fn life_of(&self, home: &str) -> Result<Life> {
        let cluster = self.cluster().ok_or_else(moved)?;
        let (epoch, boot) = (cluster.epoch(home).unwrap_or(0), cluster.boot(home));
        let boot = boot.unwrap_or_default();
        Ok(Life { home: home.into(), epoch, boot, as_of: Revision(0) })
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
        pending.synced(at.borrow().as_ref(), writes);
        remote.account.tell()
    }

    /// A descriptor was closed: whether its home still has what was written to the file, and where bytes are to be on
    /// the store by then, whether they are.
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
            Ok(()) => pending.is_at(at.borrow().as_ref(), writes),
            Err(_) => _ = remote.has_written.fetch_or(has_written, SeqCst),
        }
        // Whatever that came to, a loss is told once.
        remote.account.tell()?;
        flushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: FileKey = FileKey { ino: 7, generation: 1 };

    fn life(home: &str, boot: u64) -> Life {
        let boot_id = boot.to_string();
        Life { home: home.into(), epoch: boot, boot: boot_id, as_of: Revision(boot) }
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
        one.pending.wrote(&life("h", 1));
        assert!(sync(&one, &Life { epoch: 9, ..life("h", 1) }).is_ok());
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
        all.given_back(KEY, Revision(3), |by| by.epoch == 2);
        assert!(sync(&one, &life("other", 5)).is_ok(), "its home brought it to the store");
        one.pending.wrote(&life("other", 5));
        all.given_back(KEY, Revision(5), |_| false);
        assert!(one.tell().is_ok(), "what was given up is another's");
        all.given_back(KEY, Revision(6), |_| false);
        assert!(one.tell().is_err(), "it was given up with its dead home");
        assert!(all.synced_here(KEY).is_ok(), "and told");
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
