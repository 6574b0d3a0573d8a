//! Changes that homes have not answered: they may make them yet, which is fenced off ([`fence`](super::fence)) before
//! the file is changed again.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use forebay_backing::{FileKey, Kind, Result};
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
    /// Of what was asked on behalf of another. Who raises a fence already is not waited for: it may wait for this one.
    ForAnother,
}

impl Whose<'_> {
    fn has(self, home: &str, doubt: &Doubt) -> bool {
        match self {
            Whose::Before(next) => home == next || doubt.asked != Asked::Its,
            Whose::ForAnother => doubt.asked == Asked::ForAnother,
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
        doubt.epoch = epoch;
        if doubt.asked == Asked::Its {
            doubt.asked = asked;
        }
    }

    /// The fences to raise.
    fn begin(&self, file: FileKey, whose: Whose<'_>) -> Vec<Settling<'_>> {
        let mut all = self.all();
        if let Whose::Before(_) = whose {
            let busy = |all: &mut HashMap<(String, FileKey), Doubt>| {
                all.iter()
                    .any(|((home, of), it)| *of == file && it.is_settling && whose.has(home, it))
            };
            all = self.settled.wait_timeout_while(all, RAISED, busy).expect("no panic inside").0;
        }
        let due = all.iter_mut().filter(|((home, of), doubt)| {
            *of == file && whose.has(home, doubt) && !doubt.is_settling
        });
        due.map(|(of, doubt)| {
            doubt.is_settling = true;
            let (fence, epoch) = (doubt.fence, doubt.epoch);
            Settling { doubts: self, of: of.clone(), fence, epoch, stands: false }
        })
        .collect()
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
            let epoch = self.epoch_of(home);
            self.ask(home, &question(number), bytes, &mut Vec::new()).inspect_err(|error| {
                if is_silence(error) {
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
        for mut settling in self.members.doubts.begin(file, whose) {
            let home = settling.of.0.clone();
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
                Err(error) if is_next || matches!(whose, Whose::ForAnother) => return Err(error),
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
        doubts.begin(FILE, whose).iter().map(|it| (it.of.0.clone(), it.fence)).collect()
    }

    #[test]
    fn a_doubt_lasts_until_the_fence_above_it_stands() {
        let doubts = Doubts::default();
        doubts.add("h", 1, FILE, 5, Asked::Its);
        assert_eq!(due(&doubts, Whose::Before("h")), [("h".into(), 6)]);
        assert_eq!(due(&doubts, Whose::Before("i")), [], "what another was to do with its own");
        assert_eq!(due(&doubts, Whose::ForAnother), []);
        let mut raised = doubts.begin(FILE, Whose::Before("h"));
        assert!(doubts.begin(FILE, Whose::ForAnother).is_empty());
        doubts.add("h", 1, FILE, 7, Asked::Its);
        raised[0].stands = true;
        drop(raised);
        assert_eq!(due(&doubts, Whose::Before("h")), [("h".into(), 8)], "another came meanwhile");
        let mut raised = doubts.begin(FILE, Whose::Before("h"));
        raised[0].stands = true;
        drop(raised);
        assert_eq!(due(&doubts, Whose::Before("h")), []);
    }

    /// Who asks for the next change may ask another home than that of the rename.
    #[test]
    fn a_rename_over_a_file_is_in_doubt_whichever_home_is_asked_next() {
        let doubts = Doubts::default();
        doubts.add("h", 1, FILE, 5, Asked::Rename);
        doubts.add("i", 1, FILE, 6, Asked::ForAnother);
        let mut all = due(&doubts, Whose::Before("j"));
        all.sort();
        assert_eq!(all, [("h".into(), 6), ("i".into(), 7)]);
        assert_eq!(due(&doubts, Whose::ForAnother), [("i".into(), 7)]);
        let waits = doubts.begin(FILE, Whose::Before("h"));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| doubts.begin(FILE, Whose::Before("h")).len());
            assert!(doubts.begin(FILE, Whose::ForAnother).is_empty(), "it does not wait");
            drop(waits);
            assert_eq!(other.join().unwrap(), 2);
        });
    }
}
