//! Changes that members ask of this mount, and whether they may still be made.
//!
//! A member that got no answer has told its program that the change failed; the program may have gone on from that.
//! So before such a member changes the file again it raises a fence: its questions with smaller numbers are refused
//! when they come. Those that are under way change nothing from then on, and are waited for. A member that has begun
//! anew raises a fence with its first change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_backing::{Error, FileKey, Result};
use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};
use forebay_cluster::words::By;
use forebay_engine::Requester;
use hashbrown::HashMap;

/// How long a fence waits for changes that are given up: less than the member that raises it waits for the answer.
const ENDS: Duration = Duration::from_secs(3);

/// From this number of entries on, old entries without a change under way are dropped.
const REMEMBERED: usize = 1024;

/// How long a change that was given up may still be on its way to this mount.
pub const UNDER_WAY: Duration = Duration::from_secs(120);

/// Gives rising numbers, none of which an earlier process gave.
#[derive(Default)]
pub struct Numbers(AtomicU64);

impl Numbers {
    pub fn next(&self) -> u64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let _ = self.0.compare_exchange(0, now().as_nanos() as u64, Relaxed, Relaxed);
        self.0.fetch_add(1, Relaxed)
    }
}

/// A change under way. Each member that asked for it, directly or through another member, may give it up.
#[derive(Default)]
pub struct Changing {
    is_given_up: AtomicBool,
}

impl Requester for Changing {
    fn is_gone(&self) -> bool {
        self.is_given_up.load(SeqCst)
    }
}

/// A change that a member asked for, with the number that the member gave it.
struct UnderWay {
    epoch: u64,
    number: u64,
    began: Instant,
    changing: Arc<Changing>,
}

struct Asked {
    epoch: u64,
    /// Changes with a smaller number are refused.
    floor: u64,
    under_way: Vec<UnderWay>,
    since: Instant,
}

impl Asked {
    /// A new life of a member numbers its changes anew; those of an earlier life are refused by their epoch.
    fn begins(&mut self, epoch: u64) {
        if epoch > self.epoch {
            (self.epoch, self.floor) = (epoch, 0);
        }
    }

    fn is_late(&self, by: &By) -> bool {
        by.epoch < self.epoch || by.number < self.floor
    }

    fn give_up(&self, is_old: impl Fn(&UnderWay) -> bool) {
        let all = self.under_way.iter().filter(|it| is_old(it));
        all.for_each(|it| it.changing.is_given_up.store(true, SeqCst));
    }
}

#[derive(Default)]
struct All {
    asked: HashMap<(String, FileKey), Asked>,
    /// The number of entries from which on old ones are dropped.
    max: usize,
}

/// The changes that all members have asked for.
pub struct Fences {
    all: Mutex<All>,
    ended: Condvar,
}

impl Default for Fences {
    fn default() -> Fences {
        Fences { all: Mutex::new(Rank::Fences, All::default()), ended: Condvar::new() }
    }
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
            asked.under_way.retain(|it| !Arc::ptr_eq(&it.changing, &self.changing));
        }
        drop(all);
        self.fences.ended.notify_all();
    }
}

fn late() -> Error {
    Error::os(libc::ETIMEDOUT, "it came after whoever asked had given it up: nothing is changed")
}

impl Fences {
    #[track_caller]
    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock()
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
            under_way: Vec::new(),
            since: now,
        })
    }

    /// Waits until no change that `is_old` is under way.
    fn settled<'a>(
        &self,
        all: MutexGuard<'a, All>,
        who: &(String, FileKey),
        is_old: impl Fn(&UnderWay) -> bool,
    ) -> Result<MutexGuard<'a, All>> {
        let busy = |all: &mut All| {
            all.asked.get(who).is_some_and(|asked| asked.under_way.iter().any(&is_old))
        };
        let waited = self.ended.wait_timeout_while(all, ENDS, busy);
        match waited.1 {
            true => {
                let why = "a change that whoever asks had given up is under way still";
                Err(Error::os(libc::ETIMEDOUT, why))
            }
            false => Ok(waited.0),
        }
    }

    /// To be called before a change of these files. `askers`: the member that asks for it, and the one that asked
    /// that member. A fence of any of them, for any of the files, gives the change up.
    ///
    /// # Errors
    ///
    /// ETIMEDOUT if the change was given up already, or a change of an earlier life of the member is still under way.
    pub fn enter(&self, askers: &[By], files: &[FileKey]) -> Result<Entered<'_>> {
        let pairs = askers.iter().flat_map(|by| files.iter().map(move |file| (by, *file)));
        let (by, who): (Vec<&By>, Vec<_>) =
            pairs.map(|(by, file)| (by, (by.member.clone(), file))).unzip();
        let all_of = || by.iter().zip(&who);
        let mut all = self.all();
        for (by, who) in all_of() {
            let asked = self.asked(&mut all, who, by.epoch);
            asked.begins(by.epoch);
            if asked.is_late(by) {
                return Err(late());
            }
            asked.give_up(|it| it.epoch < by.epoch);
            all = self.settled(all, who, |it| it.epoch < by.epoch)?;
        }
        for (by, who) in all_of() {
            if self.asked(&mut all, who, by.epoch).is_late(by) {
                return Err(late());
            }
        }
        let (changing, began) = (Arc::new(Changing::default()), Instant::now());
        for (by, who) in all_of() {
            let (epoch, number, changing) = (by.epoch, by.number, changing.clone());
            let asked = self.asked(&mut all, who, epoch);
            asked.under_way.push(UnderWay { epoch, number, began, changing });
        }
        drop(all);
        Ok(Entered { fences: self, who, changing })
    }

    /// While the store is away: gives up changes that have been under way for longer, as requests of programs are.
    pub fn expire(&self, limit: Duration) {
        let all = self.all();
        all.asked.values().for_each(|asked| asked.give_up(|it| it.began.elapsed() > limit));
    }

    /// Raises a fence: changes that the member asked for under smaller numbers change the file no more.
    ///
    /// # Errors
    ///
    /// ETIMEDOUT if such a change is still under way, and may still change the file.
    pub fn raise(&self, by: &By, file: FileKey) -> Result<()> {
        let who = (by.member.clone(), file);
        let mut all = self.all();
        let asked = self.asked(&mut all, &who, by.epoch);
        asked.begins(by.epoch);
        if by.epoch < asked.epoch {
            return Err(late());
        }
        asked.floor = asked.floor.max(by.number);
        asked.since = Instant::now();
        let is_old = |it: &UnderWay| it.number < by.number || it.epoch < by.epoch;
        asked.give_up(is_old);
        self.settled(all, &who, is_old).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileKey = FileKey { ino: 7, generation: 1 };

    fn by(member: &str, epoch: u64, number: u64) -> By {
        By { member: member.into(), epoch, number }
    }

    #[test]
    fn what_was_given_up_is_refused_when_it_comes() {
        let fences = Fences::default();
        drop(fences.enter(&[by("a", 1, 5)], &[FILE]).unwrap());
        fences.raise(&by("a", 1, 6), FILE).unwrap();
        assert!(fences.enter(&[by("a", 1, 5)], &[FILE]).is_err());
        assert!(fences.enter(&[by("a", 1, 6)], &[FILE]).is_ok());
        assert!(fences.enter(&[by("b", 1, 5)], &[FILE]).is_ok(), "of another member");
        assert!(
            fences.enter(&[by("a", 1, 5)], &[FileKey { ino: 8, ..FILE }]).is_ok(),
            "another file"
        );
    }

    #[test]
    fn what_is_under_way_changes_nothing_once_the_fence_is_raised() {
        let fences = Fences::default();
        let (old, new) = (
            fences.enter(&[by("a", 1, 5)], &[FILE]).unwrap(),
            fences.enter(&[by("a", 1, 6)], &[FILE]),
        );
        let new = new.unwrap();
        std::thread::scope(|scope| {
            let raises = scope.spawn(|| fences.raise(&by("a", 1, 6), FILE));
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
        let _hangs = fences.enter(&[by("a", 1, 5)], &[FILE]).unwrap();
        let began = Instant::now();
        assert!(fences.raise(&by("a", 1, 6), FILE).unwrap_err().is(libc::ETIMEDOUT));
        assert!(began.elapsed() >= ENDS);
    }

    #[test]
    fn a_member_that_has_begun_anew_has_given_up_what_it_asked_before() {
        let fences = Fences::default();
        let old = fences.enter(&[by("a", 1, 5)], &[FILE]).unwrap();
        std::thread::scope(|scope| {
            let enters = scope.spawn(|| fences.enter(&[by("a", 2, 9)], &[FILE]).map(drop));
            while !old.changing.is_gone() {
                std::thread::yield_now();
            }
            drop(old);
            enters.join().unwrap().unwrap();
        });
        assert!(
            fences.enter(&[by("a", 1, 10)], &[FILE]).is_err(),
            "what comes late of the old one"
        );
    }

    /// A rename changes the file that it replaces, too.
    #[test]
    fn a_fence_of_either_file_gives_up_a_change_of_two() {
        let (fences, other) = (Fences::default(), FileKey { ino: 8, ..FILE });
        let change = fences.enter(&[by("a", 1, 5)], &[FILE, other]).unwrap();
        std::thread::scope(|scope| {
            let raises = scope.spawn(|| fences.raise(&by("a", 1, 6), other));
            while !change.changing.is_gone() {
                std::thread::yield_now();
            }
            drop(change);
            raises.join().unwrap().unwrap();
        });
        assert!(fences.enter(&[by("a", 1, 5)], &[FILE, other]).is_err(), "it comes late");
        assert!(
            fences.enter(&[by("a", 1, 5)], &[FILE]).is_ok(),
            "of the first alone there is none"
        );
    }

    /// The member that is asked does not know whose change it is: both may give it up.
    #[test]
    fn a_change_that_one_member_asks_for_another_is_given_up_by_either() {
        for gives_up in ["a", "h"] {
            let fences = Fences::default();
            let askers = [by("h", 1, 50), by("a", 1, 5)];
            let change = fences.enter(&askers, &[FILE]).unwrap();
            std::thread::scope(|scope| {
                let number = if gives_up == "a" { 6 } else { 51 };
                let fence = by(gives_up, 1, number);
                let fences = &fences;
                let raises = scope.spawn(move || fences.raise(&fence, FILE));
                while !change.changing.is_gone() {
                    assert!(!raises.is_finished(), "it waits for what is under way");
                    std::thread::yield_now();
                }
                drop(change);
                raises.join().unwrap().unwrap();
            });
            assert!(fences.enter(&askers, &[FILE]).is_err(), "it comes late");
            assert!(fences.enter(&[by("h", 1, 52), by("a", 1, 7)], &[FILE]).is_ok());
        }
    }

    /// The clock that the numbers begin at may have gone back between two lives.
    #[test]
    fn a_fence_ends_with_the_life_that_raised_it() {
        let fences = Fences::default();
        fences.raise(&by("a", 1, 100), FILE).unwrap();
        assert!(fences.enter(&[by("a", 2, 5)], &[FILE]).is_ok());
        fences.raise(&by("a", 2, 7), FILE).unwrap();
        assert!(fences.enter(&[by("a", 2, 6)], &[FILE]).is_err());
        assert!(fences.enter(&[by("a", 2, 7)], &[FILE]).is_ok());
        fences.raise(&by("a", 3, 3), FILE).unwrap();
        assert!(fences.enter(&[by("a", 3, 4)], &[FILE]).is_ok());
        assert!(fences.enter(&[by("a", 2, 200)], &[FILE]).is_err(), "of the earlier one");
    }
}
