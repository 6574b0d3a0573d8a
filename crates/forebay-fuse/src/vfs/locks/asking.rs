//! Requests about locks by this mount's own programs, wherever a file's home is.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_backing::{Error, FileKey, Result};
use forebay_cluster::core::Access;
use forebay_cluster::front::{Guard, Place};
use forebay_cluster::locks::desk::RECLAIM;
use forebay_cluster::locks::{HeldBy, Lock, LockAnswer, LockAsk, Of, Range, Space};
use forebay_cluster::words::{Answer, Question};

use super::mine::{Mine, Owed, PAUSE, Seat};
use super::{Came, Told, Wanted};
use crate::vfs::Vfs;
use crate::vfs::homes::{moved, odd};

/// How long a request follows its file from home to home, or waits for a home that has begun anew.
const FOLLOW: Duration = RECLAIM.saturating_add(Duration::from_secs(5));

/// How often the home of a file is looked for when the asked member says that it is not the home.
const LOOKS: u32 = 20;

pub(super) fn odd_of_locks(answer: &LockAnswer) -> Error {
    Error::os(libc::EPROTO, format!("a home answers {answer:?} to another question of locks"))
}

/// The destination of a request, with the guard that holds the file here.
struct Way {
    seat: Seat,
    held: Option<Option<Guard>>,
}

impl Vfs {
    /// The locks that this mount's programs have on a file.
    fn mine(&self, key: FileKey, id: u64) -> Arc<Mine> {
        self.locks.mine.lock().entry(key).or_insert_with(|| Arc::new(Mine::new(id))).clone()
    }

    fn known_mine(&self, key: FileKey) -> Option<Arc<Mine>> {
        self.locks.mine.lock().get(&key).cloned()
    }

    /// Forgets a file if no lock of it is known any more.
    pub(super) fn drop_if_idle(&self, key: FileKey, mine: Arc<Mine>) {
        let mut all = self.locks.mine.lock();
        // The references of the table and of this call.
        if Arc::strong_count(&mine) <= 2 && mine.is_idle() {
            all.remove(&key);
        }
    }

    /// All files on which programs here have locks.
    pub(super) fn all_mine(&self) -> Vec<(FileKey, Arc<Mine>)> {
        self.locks.mine.lock().iter().map(|(key, mine)| (*key, mine.clone())).collect()
    }

    /// Asks for a lock. `waiter` is the number of a wait until it is granted; a wait keeps it from try to try.
    ///
    /// # Errors
    ///
    /// EAGAIN if another owner has a lock there, and there is no `waiter`; EIO or ETIMEDOUT if the file's home is
    /// out of reach, or the registry.
    pub fn set_lock(&self, wanted: &Wanted, waiter: Option<&AtomicU64>) -> Result<Came> {
        let (key, id) = self.lockable(wanted.handle)?;
        let mine = self.mine(key, id);
        let had = mine.state().has_some(wanted.of, wanted.lock.range);
        let asked = Cell::new(0);
        let came = self.follow(key, &mine, waiter.is_some(), || {
            self.locks.check(wanted.handle)?;
            let number = match waiter {
                Some(number) => number.load(Relaxed),
                None => self.locks.next(),
            };
            asked.set(number);
            let waits = waiter.is_some();
            let ask = LockAsk::Set { of: wanted.of, lock: wanted.lock, number, waits };
            let (seat, answer) = self.ask_home(key, &mine, &ask)?;
            let mut state = mine.state();
            match answer {
                LockAnswer::Held { change, locks } => {
                    state.took(&seat, (wanted.of, Some(wanted.handle)), change, locks)?;
                    return Ok(Some(Came::Granted));
                }
                LockAnswer::Stale | LockAnswer::Cancelled => {
                    if let Some(waiter) = waiter {
                        waiter.store(self.locks.next(), Relaxed);
                    }
                    return Ok(None);
                }
                // A wait comes again by itself.
                LockAnswer::Early => return Ok(waiter.map(|_| Came::Waits)),
                LockAnswer::InTheWay | LockAnswer::Waits if wanted.of.space == Space::Flock => {
                    // The lock that was to be changed is given back.
                    state.took_out(wanted.of, Range::ALL);
                }
                _ => {}
            }
            match answer {
                LockAnswer::Waits => Ok(Some(Came::Waits)),
                LockAnswer::InTheWay => Err(Error::os(libc::EAGAIN, "locked by another")),
                other => Err(odd_of_locks(&other)),
            }
        });
        let came = came.and_then(|came| {
            self.while_fit(key, wanted, had, came).inspect_err(|_| {
                waiter.into_iter().for_each(|waiter| waiter.store(self.locks.next(), Relaxed));
            })
        });
        if let Err(error) = &came
            && waiter.is_none()
            && !error.is(libc::EAGAIN)
        {
            self.unsure(&mine, wanted, asked.get(), None);
            tracing::warn!(%error, pid = wanted.lock.pid, "a lock was not taken");
        }
        self.drop_if_idle(key, mine);
        came
    }

    /// A granted lock counts only while this mount may serve: else another member may have its place, and grant
    /// the same lock. Then the lock is given back, and a lock that the owner `had` in that range is lost.
    fn while_fit(&self, key: FileKey, wanted: &Wanted, had: bool, came: Came) -> Result<Came> {
        let Err(error) = self.wait_fit() else { return Ok(came) };
        if came == Came::Granted {
            self.unset_of(key, wanted.of, wanted.lock.range);
            if had {
                self.locks.lose(wanted.handle);
            }
        }
        Err(error)
    }

    /// Ends the wait for a lock. Returns [`Came::Granted`] if the lock was granted already.
    ///
    /// # Errors
    ///
    /// EIO or ETIMEDOUT if the file's home is out of reach; the home is told when it is back.
    pub fn cancel_lock(&self, wanted: &Wanted, number: u64) -> Result<Came> {
        let (key, id) = self.lockable(wanted.handle)?;
        let mine = self.mine(key, id);
        let came = self.follow(key, &mine, false, || {
            let ask = LockAsk::Cancel { of: wanted.of, number };
            let (seat, answer) = self.ask_home(key, &mine, &ask)?;
            match answer {
                LockAnswer::Held { change, locks } => {
                    mine.state().took(&seat, (wanted.of, Some(wanted.handle)), change, locks)?;
                    Ok(Some(Came::Granted))
                }
                LockAnswer::Cancelled => Ok(Some(Came::Cancelled)),
                other => Err(odd_of_locks(&other)),
            }
        });
        if came.is_err() {
            self.unsure(&mine, wanted, number, Some(number));
        }
        self.drop_if_idle(key, mine);
        came
    }

    /// Gives up a lock whose wait has failed: it is not known whether the file's home has granted it.
    pub fn give_up_lock(&self, wanted: &Wanted, number: u64) {
        if let Ok((key, id)) = self.lockable(wanted.handle) {
            let mine = self.mine(key, id);
            self.unsure(&mine, wanted, number, Some(number));
            self.drop_if_idle(key, mine);
        }
    }

    /// The lock that is in the way of `lock`, if there is one.
    pub fn test_lock(&self, handle: u64, of: Of, lock: Lock) -> Result<Option<HeldBy>> {
        self.locks.check(handle)?;
        let (key, id) = self.lockable(handle)?;
        let mine = self.mine(key, id);
        let by = self.follow(key, &mine, false, || {
            match self.ask_home(key, &mine, &LockAsk::Test { of, lock })?.1 {
                LockAnswer::By(by) => Ok(Some(by)),
                LockAnswer::Early | LockAnswer::Cancelled => Ok(None),
                other => Err(odd_of_locks(&other)),
            }
        });
        self.drop_if_idle(key, mine);
        self.wait_fit()?;
        // A process of another node has no number here.
        let me = self.cluster().map(|cluster| cluster.name()).unwrap_or_default();
        let here = |by: HeldBy| match by.member == me {
            true => by,
            false => HeldBy { lock: Lock { pid: 0, ..by.lock }, ..by },
        };
        by.map(|by| by.map(here))
    }

    /// Gives back an owner's locks of a range. For the program they are gone at once, even if the file's home is
    /// told later.
    pub fn unset_lock(&self, handle: u64, of: Of, range: Range) -> Result<()> {
        let (key, _) = self.lockable(handle)?;
        self.unset_of(key, of, range);
        Ok(())
    }

    fn unset_of(&self, key: FileKey, of: Of, range: Range) {
        let Some(mine) = self.known_mine(key) else { return };
        let has_some = mine.state().owners.contains_key(&of);
        if has_some {
            let asked = self.follow(key, &mine, false, || {
                let ask = LockAsk::Unset { of, range, number: self.locks.next() };
                let (seat, answer) = self.ask_home(key, &mine, &ask)?;
                match answer {
                    LockAnswer::Held { change, locks } => {
                        mine.state().took(&seat, (of, None), change, locks)?;
                        Ok(Some(()))
                    }
                    LockAnswer::Stale | LockAnswer::Cancelled => Ok(None),
                    other => Err(odd_of_locks(&other)),
                }
            });
            if let Err(error) = asked {
                tracing::warn!(%error, "a lock's home hears later that it was given back");
                let seat = mine.state().seat.clone();
                self.owe(&mine, seat, (of, range), None);
            }
        }
        self.drop_if_idle(key, mine);
    }

    /// Gives back all record locks of an owner that has closed a descriptor of the file.
    pub fn flush_locks(&self, handle: u64, owner: u64) {
        if let Ok((key, _)) = self.lockable(handle) {
            self.unset_of(key, Of { space: Space::Record, owner }, Range::ALL);
        }
    }

    /// Gives back locks that were taken through an open file, when it is closed. Record locks that are a process's
    /// own are gone by then; those of the open file itself (OFD) are left.
    pub fn release_locks(&self, handle: u64) {
        self.locks.closed(handle);
        let Ok((key, _)) = self.lockable(handle) else { return };
        let Some(mine) = self.known_mine(key) else { return };
        let owners = mine.state().owners.iter().map(|(of, owned)| (*of, owned.handle)).collect();
        drop(mine);
        let owners: Vec<(Of, u64)> = owners;
        for (of, _) in owners.into_iter().filter(|(_, by)| *by == handle) {
            self.unset_of(key, of, Range::ALL);
        }
    }

    /// Repeats a request about a file's locks until it has a result, from home to home.
    fn follow<T>(
        &self,
        key: FileKey,
        mine: &Mine,
        waits: bool,
        ask: impl Fn() -> Result<Option<T>>,
    ) -> Result<T> {
        let until = Instant::now() + FOLLOW;
        loop {
            let turn = mine.turn.read();
            let asking = mine.ask();
            let came = self.settle_owed(key, mine).and_then(|()| ask());
            drop(asking);
            drop(turn);
            match came {
                Ok(Some(came)) => return Ok(came),
                Ok(None) => {}
                // The file has another home, or its home has begun anew.
                Err(error) if error.is(libc::ESTALE) => match self.reclaim_file(key, mine) {
                    Err(error) if !error.is(libc::ESTALE) => return Err(error),
                    _ => {}
                },
                Err(error) => return Err(error),
            }
            if Instant::now() >= until {
                let why = "the file's home does not know its locks yet";
                return Err(Error::os(libc::ETIMEDOUT, why));
            }
            forebay_base::lock::sleep(if waits { PAUSE * 4 } else { PAUSE });
        }
    }

    /// Asks a file's home. ESTALE: the locks that programs here have of the file are to be reclaimed first.
    fn ask_home(&self, key: FileKey, mine: &Mine, ask: &LockAsk) -> Result<(Seat, LockAnswer)> {
        let mut refused = moved();
        for look in 0..LOOKS {
            let known = mine.state().seat.clone();
            let is_known = known.is_some();
            let way = match known {
                Some(seat) => Way { seat, held: None },
                None => self.find_home(key, mine.id, ask, look > 0)?,
            };
            // Noted before the question: once the home is silent, it may not be known any more which home it was.
            if let LockAsk::Set { number, .. } = ask {
                mine.state().asked.insert(*number, way.seat.clone());
            }
            let answer = self.ask_at(&way.seat, key, mine.id, ask, way.held);
            let is_open = match &answer {
                Ok((answer, _)) => *answer == LockAnswer::Waits,
                Err(error) => !error.is(libc::ESTALE),
            };
            if let LockAsk::Set { number, .. } | LockAsk::Cancel { number, .. } = ask
                && !is_open
            {
                mine.state().asked.remove(number);
            }
            match answer {
                Err(error) if error.is(libc::ESTALE) && !is_known => refused = error,
                answer => {
                    let (answer, now) = answer?;
                    let seat = match way.seat {
                        Seat::There { home, epoch, .. } => Seat::There { home, epoch, ends: now },
                        Seat::Here => Seat::Here,
                    };
                    return Ok((seat, answer));
                }
            }
            self.heard(key, None);
            forebay_base::lock::sleep(PAUSE);
        }
        Err(Error::os(libc::EIO, "the file goes from home to home").with_source(refused))
    }

    /// Finds a file's home. `surely`: the home that was heard of was wrong.
    fn find_home(&self, key: FileKey, id: u64, ask: &LockAsk, surely: bool) -> Result<Way> {
        let cluster = self.cluster().ok_or_else(moved)?;
        let there = |home: String| {
            let epoch = cluster.epoch(&home).unwrap_or(0);
            Way { seat: Seat::There { home, epoch, ends: 0 }, held: None }
        };
        if !surely && let Some(home) = self.home_of(key) {
            return Ok(there(home));
        }
        if self.has_desk(key) {
            return Ok(Way { seat: Seat::Here, held: None });
        }
        let how = match ask {
            LockAsk::Set { .. } => Access::Write,
            _ => Access::Read,
        };
        let _tree = self.tree();
        let (dir, path) = self.claimable(id, key);
        match self.open_at(key, (dir, &path), how)? {
            Place::Here(held) => Ok(Way { seat: Seat::Here, held: Some(held) }),
            Place::There(home) => Ok(there(home)),
        }
    }

    pub(super) fn ask_at(
        &self,
        seat: &Seat,
        key: FileKey,
        id: u64,
        ask: &LockAsk,
        held: Option<Option<Guard>>,
    ) -> Result<(LockAnswer, u64)> {
        let cluster = self.cluster().ok_or_else(moved)?;
        let me = cluster.name();
        let own = cluster.epoch(me).unwrap_or(0);
        let Seat::There { home, epoch, .. } = seat else {
            let guest = self.locks.desk.lock().arrive(me, own);
            return self.at_desk(&guest, key, ask, held).ok_or_else(moved);
        };
        let path = self.nodes.path(id).unwrap_or_default();
        let question = Question::Lock { file: key, path, epoch: own, ask: ask.clone() };
        let answer = match self.ask(home, &question, &[], &mut Vec::new())? {
            Answer::Lock { answer, ends } => (answer, ends),
            other => return Err(odd(&other)),
        };
        // A home that has begun anew meanwhile knows nothing of the locks that this member has there.
        match cluster.epoch(home) == Some(*epoch) || matches!(ask, LockAsk::Reclaim { .. }) {
            true => Ok(answer),
            false => Err(moved()),
        }
    }

    /// Gives back all locks of an owner in a range, as it is not known which of them the owner has. Locks that the owner
    /// had there before are lost.
    fn unsure(&self, mine: &Mine, wanted: &Wanted, number: u64, waited: Option<u64>) {
        let (seat, overlaps) = {
            let mut state = mine.state();
            let seat = state.asked.remove(&number).or_else(|| state.seat.clone());
            (seat, state.has_some(wanted.of, wanted.lock.range))
        };
        let seat = seat.or_else(|| {
            let (key, _) = self.lockable(wanted.handle).ok()?;
            let home = self.home_of(key)?;
            let epoch = self.cluster()?.epoch(&home)?;
            Some(Seat::There { home, epoch, ends: 0 })
        });
        if overlaps && seat.as_ref().is_some_and(|seat| *seat != Seat::Here) {
            self.locks.lose(wanted.handle);
            tracing::warn!(pid = wanted.lock.pid, "a lock is lost: its home was not reached");
        }
        self.owe(mine, seat, (wanted.of, wanted.lock.range), waited);
    }

    /// Takes a range from an owner: programs here go by that at once, and the home is told later.
    fn owe(&self, mine: &Mine, seat: Option<Seat>, (of, range): (Of, Range), waited: Option<u64>) {
        let Some(Seat::There { home, epoch, .. }) = seat else { return };
        let mut state = mine.state();
        state.took_out(of, range);
        state.owed.push(Owed { home, epoch, of, range, waited });
        drop(state);
        drop(mine.ask()); // This tidies.
        self.locks.tell(Told::Look);
    }

    /// Tells the home of the ranges that it is owed, before it is asked anything else.
    fn settle_owed(&self, key: FileKey, mine: &Mine) -> Result<()> {
        if mine.state().owed.is_empty() {
            return Ok(());
        }
        let _one = mine.owing.lock();
        loop {
            let first = mine.state().owed.first().cloned();
            let Some(owed) = first else { return Ok(()) };
            self.pay(key, mine.id, &owed)?;
            mine.state().owed.retain(|other| *other != owed);
        }
    }

    fn pay(&self, key: FileKey, id: u64, owed: &Owed) -> Result<()> {
        let Owed { home, epoch, of, range, waited } = owed.clone();
        let is_there = || self.cluster().and_then(|c| c.epoch(&home)) == Some(epoch);
        let seat = Seat::There { home: home.clone(), epoch, ends: 0 };
        let mut ask = match waited {
            Some(number) => LockAsk::Cancel { of, number },
            None => LockAsk::Unset { of, range, number: self.locks.next() },
        };
        // A home that has begun anew has nothing to give back.
        while is_there() {
            let unset = || LockAsk::Unset { of, range, number: self.locks.next() };
            match self.ask_at(&seat, key, id, &ask, None) {
                Ok((LockAnswer::Held { .. }, _)) if matches!(ask, LockAsk::Cancel { .. }) => {
                    ask = unset();
                }
                Ok((LockAnswer::Stale, _)) => ask = unset(),
                Ok(_) => break,
                // The asked member does not hold the file.
                Err(error) if error.is(libc::ESTALE) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Tries to tell all homes of the ranges that they are owed.
    pub fn pay_owed_locks(&self) {
        for (key, mine) in self.all_mine() {
            let turn = mine.turn.read();
            if let Err(error) = self.settle_owed(key, &mine) {
                tracing::debug!(%error, "a home is still owed a lock");
            }
            drop(turn);
            self.drop_if_idle(key, mine);
        }
    }

    pub fn owes_locks(&self) -> bool {
        self.all_mine().iter().any(|(_, mine)| !mine.state().owed.is_empty())
    }
}
