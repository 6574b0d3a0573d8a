//! Changes that homes have not answered: they may make them yet, which is fenced off ([`fence`](super::fence)) before
//! the file is changed again.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use forebay_backing::{Error, FileKey, Kind, Result};
use forebay_cluster::words::{Answer, Question};
use hashbrown::HashMap;

use super::Vfs;
use super::copies::is_silence;
use super::members::{Members, odd};

/// So long who wants a fence waits for another to raise it: longer than a home has to answer.
const RAISED: Duration = Duration::from_secs(6);

/// Whether a change may be made twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    Once,
    No,
}

/// What a home was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// To change its own file.
    Its,
    /// To rename a file over another, which may be another home's.
    Rename,
    /// The same on behalf of another member, who fences it off here.
    ForAnother,
}

/// A change that a home has not answered.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    /// What has a smaller number is to be given up.
    fence: u64,
    /// Of the home's process: with it all that it was asked for ends.
    epoch: u64,
    asked: Asked,
    /// Somebody raises the fence.
    is_settling: bool,
}

/// Changes of this mount's that homes have not answered.
#[derive(Default)]
pub struct Doubts {
    all: Mutex<HashMap<(String, FileKey), Doubt>>,
    settled: Condvar,
}

/// Which doubts of a file are settled.
#[derive(Debug, Clone, Copy)]
pub(super) enum Whose<'a> {
    /// Before this home is asked to change the file: its own, and those of renames over it. Who raises a fence already is
    /// waited for.
    Before(&'a str),
    /// Of what was asked on behalf of another, before this member, who raises a fence here, is told that it stands.
    /// Who raises one already is not waited for: it may wait for this one.
    ForAnother(&'a str),
}

impl Whose<'_> {
    fn has(self, home: &str, doubt: &Doubt) -> bool {
        match self {
            Whose::Before(next) => home == next || doubt.asked != Asked::Its,
            Whose::ForAnother(_) => doubt.asked == Asked::ForAnother,
        }
    }
}

/// A fence that is being raised, to be given back if it does not stand.
struct Settling<'a> {
    doubts: &'a Doubts,
    of: (String, FileKey),
    fence: u64,
    epoch: u64,
    stands: bool,
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        let mut all = self.doubts.all();
        if let Some(doubt) = all.get_mut(&self.of) {
            match self.stands && doubt.fence == self.fence {
                true => _ = all.remove(&self.of),
                false => doubt.is_settling = false,
            }
        }
        drop(all);
        self.doubts.settled.notify_all();
    }
}

impl Doubts {
    fn all(&self) -> MutexGuard<'_, HashMap<(String, FileKey), Doubt>> {
        self.all.lock().expect("no panic inside")
    }

    fn add(&self, home: &str, epoch: u64, file: FileKey, number: u64, asked: Asked) {
        let mut all = self.all();
        let anew = Doubt { fence: 0, epoch, asked, is_settling: false };
        let doubt = all.entry((home.into(), file)).or_insert(anew);
        doubt.fence = doubt.fence.max(number + 1);
        doubt.epoch = doubt.epoch.max(epoch);
        if doubt.asked == Asked::Its {
            doubt.asked = asked;
        }
    }

    /// The next fence to raise, of a home that is not among the `tried`.
    ///
    /// # Errors
    ///
    /// ETIMEDOUT if somebody else raises one that has to stand.
    fn begin(
        &self,
        file: FileKey,
        whose: Whose<'_>,
        tried: &[String],
    ) -> Result<Option<Settling<'_>>> {
        let mut all = self.all();
        let is_due = |home: &String, of: FileKey, doubt: &Doubt| {
            of == file && whose.has(home, doubt) && !tried.contains(home)
        };
        let busy = |all: &mut HashMap<(String, FileKey), Doubt>| {
            all.iter().any(|((home, of), it)| it.is_settling && is_due(home, *of, it))
        };
        if let Whose::Before(_) = whose {
            all = self.settled.wait_timeout_while(all, RAISED, busy).expect("no panic inside").0;
        }
        let must_stand = |home: &String| match whose {
            Whose::Before(next) => home == next,
            // That one waits for us.
            Whose::ForAnother(from) => home != from,
        };
        let is_late = |((home, of), it): (&(String, FileKey), &Doubt)| {
            it.is_settling && is_due(home, *of, it) && must_stand(home)
        };
        if all.iter().any(is_late) {
            let why = "an earlier change that was not answered is being fenced off still";
            return Err(Error::os(libc::ETIMEDOUT, why));
        }
        let due = all
            .iter_mut()
            .find(|((home, of), doubt)| is_due(home, *of, doubt) && !doubt.is_settling);
        Ok(due.map(|(of, doubt)| {
            doubt.is_settling = true;
            let (fence, epoch) = (doubt.fence, doubt.epoch);
            Settling { doubts: self, of: of.clone(), fence, epoch, stands: false }
        }))
    }
}

impl Vfs {
    /// Asks a home to change files. What it does not answer it may do yet: that is fenced off before a home is
    /// asked for another change of one of them.
    pub(super) fn ask_to_change(
        &self,
        home: &str,
        (files, asked): (&[FileKey], Asked),
        again: Again,
        question: impl Fn(u64) -> Question,
        bytes: &[u8],
    ) -> Result<Answer> {
        let Members { numbers, doubts, .. } = &self.members;
        let settle =
            || files.iter().try_for_each(|file| self.settle_doubts(*file, Whose::Before(home)));
        let ask = || {
            settle()?;
            let number = numbers.next();
            self.ask(home, &question(number), bytes, &mut Vec::new()).inspect_err(|error| {
                if is_silence(error) {
                    // Of whichever process was asked last.
                    let epoch = self.epoch_of(home);
                    files.iter().for_each(|file| doubts.add(home, epoch, *file, number, asked));
                }
            })
        };
        match ask() {
            // The connection broke. If it is reached by another the first one is void.
            Err(error) if again == Again::Once && error.kind() == Kind::Unavailable => {
                match settle() {
                    Ok(()) => ask(),
                    Err(_) => Err(error),
                }
            }
            answer => answer,
        }
    }

    fn epoch_of(&self, home: &str) -> u64 {
        self.cluster().and_then(|cluster| cluster.epoch(home)).unwrap_or(0)
    }

    /// Raises the fences that a file needs. Of homes other than the one that is asked next those are left out that are
    /// dead, and those that do not answer are not waited for again and again: what they were asked for ends with them, or
    /// is told in `docs/CLUSTER.md`.
    pub(super) fn settle_doubts(&self, file: FileKey, whose: Whose<'_>) -> Result<()> {
        let mut tried = Vec::new();
        while let Some(mut settling) = self.members.doubts.begin(file, whose, &tried)? {
            let home = settling.of.0.clone();
            tried.push(home.clone());
            let is_next = matches!(whose, Whose::Before(next) if *next == *home);
            if !is_next && self.epoch_of(&home) != settling.epoch {
                settling.stands = true; // The process that was asked has ended.
                continue;
            }
            let lives = || self.cluster().is_some_and(|it| it.others().contains(&home));
            if !is_next && !lives() {
                continue;
            }
            let fence = Question::Fence { file, number: settling.fence };
            match self.ask(&home, &fence, &[], &mut Vec::new()) {
                Ok(Answer::Done) => settling.stands = true,
                Ok(other) => return Err(odd(&other)),
                Err(error) if is_next || matches!(whose, Whose::ForAnother(_)) => {
                    return Err(error);
                }
                Err(error) => tracing::debug!(%error, home, "not fenced off yet"),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileKey = FileKey { ino: 7, generation: 1 };

    fn due(doubts: &Doubts, whose: Whose<'_>) -> Vec<(String, u64)> {
        let (mut tried, mut found) = (Vec::new(), Vec::new());
        while let Some(it) = doubts.begin(FILE, whose, &tried).unwrap() {
            tried.push(it.of.0.clone());
            found.push((it.of.0.clone(), it.fence));
        }
        found.sort();
        found
    }

    #[test]
    fn a_doubt_lasts_until_the_fence_above_it_stands() {
        let doubts = Doubts::default();
        doubts.add("h", 1, FILE, 5, Asked::Its);
        assert_eq!(due(&doubts, Whose::Before("h")), [("h".into(), 6)]);
        assert_eq!(due(&doubts, Whose::Before("i")), [], "what another was to do with its own");
        assert_eq!(due(&doubts, Whose::ForAnother("j")), []);
        let mut raised = doubts.begin(FILE, Whose::Before("h"), &[]).unwrap().unwrap();
        doubts.add("h", 1, FILE, 7, Asked::Its);
        raised.stands = true;
        drop(raised);
        assert_eq!(due(&doubts, Whose::Before("h")), [("h".into(), 8)], "another came meanwhile");
        let mut raised = doubts.begin(FILE, Whose::Before("h"), &[]).unwrap().unwrap();
        raised.stands = true;
        drop(raised);
        assert_eq!(due(&doubts, Whose::Before("h")), []);
    }

    /// Who asks for the next change may ask another home than that of the rename.
    #[test]
    fn a_rename_over_a_file_is_in_doubt_whichever_home_is_asked_next() {
        let doubts = Doubts::default();
        doubts.add("h", 1, FILE, 5, Asked::Rename);
        doubts.add("i", 1, FILE, 6, Asked::ForAnother);
        assert_eq!(due(&doubts, Whose::Before("j")), [("h".into(), 6), ("i".into(), 7)]);
        assert_eq!(due(&doubts, Whose::ForAnother("j")), [("i".into(), 7)]);
    }

    /// Nobody changes the file, or says that a fence stands, while somebody else raises one that has to.
    #[test]
    fn a_fence_that_is_being_raised_is_waited_for() {
        let doubts = Doubts::default();
        doubts.add("i", 1, FILE, 6, Asked::ForAnother);
        let raising = doubts.begin(FILE, Whose::Before("i"), &[]).unwrap().unwrap();
        let said = doubts.begin(FILE, Whose::ForAnother("j"), &[]).err().expect("it may not stand");
        assert!(said.is(libc::ETIMEDOUT));
        let from_it = doubts.begin(FILE, Whose::ForAnother("i"), &[]).unwrap();
        assert!(from_it.is_none(), "whoever is asked for it asks: two would wait for each other");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| due(&doubts, Whose::Before("i")));
            std::thread::sleep(Duration::from_millis(20));
            drop(raising);
            assert_eq!(other.join().unwrap(), [("i".into(), 7)]);
        });
        let _raising = doubts.begin(FILE, Whose::Before("i"), &[]).unwrap();
        assert!(doubts.begin(FILE, Whose::Before("i"), &[]).is_err_and(|e| e.is(libc::ETIMEDOUT)));
    }
}
