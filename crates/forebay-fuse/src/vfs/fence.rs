//! Changes that members ask of this mount, and whether they may still be made.
//!
//! Who asked and heard nothing has told his program that the change failed; it may have gone on from that. So before
//! such a member changes the file again it raises a fence: what it asked under smaller numbers is refused when
//! it comes, and what of it is under way changes nothing from then on, and is waited for. A member that has begun anew
//! raises one with its first change.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_backing::{Error, FileKey, Result};
use forebay_engine::Requester;
use hashbrown::HashMap;

/// So long a change that is given up is waited for: less than who raises the fence waits for the answer.
const ENDS: Duration = Duration::from_secs(3);

/// So many files are remembered of which nothing is under way, before those that were not changed for long are dropped.
const REMEMBERED: usize = 1024;

/// So long a change that was given up may be under way to here.
const UNDER_WAY: Duration = Duration::from_secs(120);

/// Numbers that rise, and that no earlier process gave.
#[derive(Default)]
pub struct Numbers(AtomicU64);

impl Numbers {
    pub fn next(&self) -> u64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let _ = self.0.compare_exchange(0, now().as_nanos() as u64, Relaxed, Relaxed);
        self.0.fetch_add(1, Relaxed)
    }
}

/// A change under way.
pub struct Changing {
    number: u64,
    epoch: u64,
    is_given_up: AtomicBool,
}

impl Requester for Changing {
    fn is_gone(&self) -> bool {
        self.is_given_up.load(SeqCst)
    }
}

struct Asked {
    epoch: u64,
    /// What has a smaller number is refused.
    floor: u64,
    under_way: BTreeMap<u64, Vec<Arc<Changing>>>,
    since: Instant,
}

impl Asked {
    fn give_up(&mut self, is_old: impl Fn(&Changing) -> bool) {
        let all = self.under_way.values().flatten().filter(|changing| is_old(changing));
        all.for_each(|changing| changing.is_given_up.store(true, SeqCst));
    }

    fn has(&self, is_old: impl Fn(&Changing) -> bool) -> bool {
        self.under_way.values().flatten().any(|changing| is_old(changing))
    }
}

#[derive(Default)]
struct All {
    asked: HashMap<(String, FileKey), Asked>,
    /// So many are kept before what is old is dropped.
    max: usize,
}

/// What all members have asked for.
#[derive(Default)]
pub struct Fences {
    all: Mutex<All>,
    ended: Condvar,
}

/// A change that may be made until this is dropped.
pub struct Entered<'a> {
    fences: &'a Fences,
    who: Vec<(String, FileKey)>,
    pub changing: Arc<Changing>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut all = self.fences.all();
        for who in &self.who {
            let Some(asked) = all.asked.get_mut(who) else { continue };
            asked.since = Instant::now();
            if let Some(same) = asked.under_way.get_mut(&self.changing.number) {
                same.retain(|other| !Arc::ptr_eq(other, &self.changing));
                if same.is_empty() {
                    asked.under_way.remove(&self.changing.number);
                }
            }
        }
        drop(all);
        self.fences.ended.notify_all();
    }
}

fn late() -> Error {
    Error::os(libc::ETIMEDOUT, "it came after whoever asked had given it up: nothing is changed")
}

impl Fences {
    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().expect("no panic inside")
    }

    fn asked<'a>(&self, all: &'a mut All, who: &(String, FileKey), epoch: u64) -> &'a mut Asked {
        let now = Instant::now();
        if all.asked.len() >= all.max.max(REMEMBERED) {
            all.asked.retain(|_, asked| {
                !asked.under_way.is_empty() || now.duration_since(asked.since) < UNDER_WAY
            });
            all.max = all.asked.len() * 2;
        }
        all.asked.entry(who.clone()).or_insert_with(|| Asked {
            epoch,
            floor: 0,
            under_way: BTreeMap::new(),
            since: now,
        })
    }

    /// Waits until none of these is under way.
    fn settled<'a>(
        &self,
        all: MutexGuard<'a, All>,
        who: &(String, FileKey),
        is_old: impl Fn(&Changing) -> bool,
    ) -> Result<MutexGuard<'a, All>> {
        let busy = |all: &mut All| all.asked.get(who).is_some_and(|asked| asked.has(&is_old));
        let waited = self.ended.wait_timeout_while(all, ENDS, busy).expect("no panic inside");
        match waited.1.timed_out() {
            true => {
                let why = "a change that whoever asks had given up is under way still";
                Err(Error::os(libc::ETIMEDOUT, why))
            }
            false => Ok(waited.0),
        }
    }

    /// Before a change of these files that a member asks for in this life, with this number. A fence of any of
    /// them gives it up.
    ///
    /// # Errors
    ///
    /// ETIMEDOUT if it was given up already, or an earlier life of that member's is at it still.
    pub fn enter(
        &self,
        (from, epoch): (&str, u64),
        files: &[FileKey],
        number: u64,
    ) -> Result<Entered<'_>> {
        let who: Vec<_> = files.iter().map(|file| (from.to_string(), *file)).collect();
        let mut all = self.all();
        for who in &who {
            let asked = self.asked(&mut all, who, epoch);
            if epoch < asked.epoch || number < asked.floor {
                return Err(late());
            }
            if epoch > asked.epoch {
                asked.epoch = epoch;
                asked.give_up(|changing| changing.epoch < epoch);
            }
            all = self.settled(all, who, |changing| changing.epoch < epoch)?;
        }
        let changing = Changing { number, epoch, is_given_up: AtomicBool::new(false) };
        let changing = Arc::new(changing);
        for who in &who {
            let asked = self.asked(&mut all, who, epoch);
            if epoch < asked.epoch || number < asked.floor {
                return Err(late());
            }
        }
        for who in &who {
            let under_way = &mut self.asked(&mut all, who, epoch).under_way;
            under_way.entry(number).or_default().push(changing.clone());
        }
        drop(all);
        Ok(Entered { fences: self, who, changing })
    }

    /// What the member has asked under smaller numbers changes the file no more.
    ///
    /// # Errors
    ///
    /// ETIMEDOUT if something of it is under way still, and may change the file yet.
    pub fn raise(&self, (from, epoch): (&str, u64), file: FileKey, number: u64) -> Result<()> {
        let who = (from.to_string(), file);
        let mut all = self.all();
        let asked = self.asked(&mut all, &who, epoch);
        if epoch < asked.epoch {
            return Err(late());
        }
        asked.floor = asked.floor.max(number);
        asked.since = Instant::now();
        let is_old = |changing: &Changing| changing.number < number || changing.epoch < epoch;
        asked.give_up(is_old);
        self.settled(all, &who, is_old).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileKey = FileKey { ino: 7, generation: 1 };

    #[test]
    fn what_was_given_up_is_refused_when_it_comes() {
        let fences = Fences::default();
        drop(fences.enter(("a", 1), &[FILE], 5).unwrap());
        fences.raise(("a", 1), FILE, 6).unwrap();
        assert!(fences.enter(("a", 1), &[FILE], 5).is_err());
        assert!(fences.enter(("a", 1), &[FILE], 6).is_ok());
        assert!(fences.enter(("b", 1), &[FILE], 5).is_ok(), "of another member");
        assert!(fences.enter(("a", 1), &[FileKey { ino: 8, ..FILE }], 5).is_ok(), "another file");
    }

    #[test]
    fn what_is_under_way_changes_nothing_once_the_fence_is_raised() {
        let fences = Fences::default();
        let (old, new) =
            (fences.enter(("a", 1), &[FILE], 5).unwrap(), fences.enter(("a", 1), &[FILE], 6));
        let new = new.unwrap();
        std::thread::scope(|scope| {
            let raises = scope.spawn(|| fences.raise(("a", 1), FILE, 6));
            while !old.changing.is_gone() {
                assert!(!raises.is_finished(), "it waits for what is under way");
                std::thread::yield_now();
            }
            assert!(!new.changing.is_gone());
            drop(old);
            raises.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_change_that_does_not_end_keeps_the_fence_from_standing() {
        let fences = Fences::default();
        let _hangs = fences.enter(("a", 1), &[FILE], 5).unwrap();
        let began = Instant::now();
        assert!(fences.raise(("a", 1), FILE, 6).unwrap_err().is(libc::ETIMEDOUT));
        assert!(began.elapsed() >= ENDS);
    }

    #[test]
    fn a_member_that_has_begun_anew_has_given_up_what_it_asked_before() {
        let fences = Fences::default();
        let old = fences.enter(("a", 1), &[FILE], 5).unwrap();
        std::thread::scope(|scope| {
            let enters = scope.spawn(|| fences.enter(("a", 2), &[FILE], 9).map(drop));
            while !old.changing.is_gone() {
                std::thread::yield_now();
            }
            drop(old);
            enters.join().unwrap().unwrap();
        });
        assert!(fences.enter(("a", 1), &[FILE], 10).is_err(), "what comes late of the old one");
    }

    /// A rename changes the file that it replaces, too.
    #[test]
    fn a_fence_of_either_file_gives_up_a_change_of_two() {
        let (fences, other) = (Fences::default(), FileKey { ino: 8, ..FILE });
        let change = fences.enter(("a", 1), &[FILE, other], 5).unwrap();
        std::thread::scope(|scope| {
            let raises = scope.spawn(|| fences.raise(("a", 1), other, 6));
            while !change.changing.is_gone() {
                std::thread::yield_now();
            }
            drop(change);
            raises.join().unwrap().unwrap();
        });
        assert!(fences.enter(("a", 1), &[FILE, other], 5).is_err(), "it comes late");
        assert!(fences.enter(("a", 1), &[FILE], 5).is_ok(), "of the first alone there is none");
    }
}
