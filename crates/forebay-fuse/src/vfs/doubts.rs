//! Changes that homes have not answered. A home may still make such a change: a fence ([`fence`](super::fence))
//! rules that out before the file is changed again.

use std::time::{Duration, Instant};

use forebay_backing::{Error, FileKey, Kind, Result};
use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};
use forebay_cluster::words::{Answer, By, Question};
use hashbrown::HashMap;

use super::Vfs;
use super::copies::is_silence;
use super::fence::UNDER_WAY;
use super::homes::odd;
use super::members::Members;

/// How long a thread waits for another thread that raises the fence: longer than a home has to answer.
const RAISED: Duration = Duration::from_secs(6);

/// Whether a change may be asked for once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    Once,
    No,
}

/// The kind of change that a home was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Asked {
    /// To change a file of its own.
    OwnFile,
    /// To rename a file over another. If the other file has another home, this one asks that home on behalf of this
    /// mount.
    RenameOver,
    /// To rename a file over another, on behalf of a third member, which raises its fence here.
    OnBehalf,
}

/// Changes of a file that a home was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Of {
    home: String,
    file: FileKey,
    asked: Asked,
}

/// A home's process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    home: String,
    epoch: u64,
}

/// A change that a home has not answered.
#[derive(Debug)]
struct Doubt {
    /// Changes with a smaller number are to be given up.
    fence: u64,
    /// The home's process: all that it was asked for ends with it.
    epoch: u64,
    /// Processes of other homes where the fence stands.
    stands_at: Vec<Process>,
    since: Instant,
    /// Whether a thread is raising the fence.
    is_settling: bool,
}

/// The changes that this mount asked for, and that homes have not answered.
pub struct Doubts {
    all: Mutex<HashMap<Of, Doubt>>,
    settled: Condvar,
}

impl Default for Doubts {
    fn default() -> Doubts {
        Doubts { all: Mutex::new(Rank::Doubts, HashMap::new()), settled: Condvar::new() }
    }
}

/// Which doubts about a file must be settled, and before which step.
#[derive(Debug, Clone, Copy)]
pub(super) enum Due<'a> {
    /// Before this process of a home is asked for a change: the doubts about that home, and those about renames over
    /// the file, which only the file's home makes. Waits for another thread that raises a fence.
    Before(&'a str, u64),
    /// Before this member, which raises a fence here, hears that its fence stands: the doubts about changes on behalf
    /// of others. Does not wait for another thread that raises a fence: that thread may wait for this one.
    OnBehalf(&'a str),
}

impl Due<'_> {
    /// The home where the fence has to stand, if it has to.
    fn place<'a>(&'a self, of: &'a Of, doubt: &Doubt) -> Option<&'a str> {
        match *self {
            Due::Before(next, _) if of.home == next => Some(next),
            Due::Before(next, epoch) if of.asked == Asked::RenameOver => {
                let stands = |at: &Process| at.home == next && at.epoch == epoch;
                (!doubt.stands_at.iter().any(stands)).then_some(next)
            }
            _ => (of.asked == Asked::OnBehalf).then_some(&*of.home),
        }
    }
}

/// A fence that is being raised. The doubt stays when this is dropped, unless the fence stands.
struct Settling<'a> {
    doubts: &'a Doubts,
    of: Of,
    fence: u64,
    epoch: u64,
    at: Process,
    stands: bool,
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        let mut all = self.doubts.all();
        if let Some(doubt) = all.get_mut(&self.of) {
            doubt.is_settling = false;
            match self.stands && doubt.fence == self.fence {
                true if self.at.home == self.of.home => _ = all.remove(&self.of),
                true => {
                    doubt.stands_at.retain(|at| at.home != self.at.home);
                    doubt.stands_at.push(self.at.clone());
                }
                false => {}
            }
        }
        drop(all);
        self.doubts.settled.notify_all();
    }
}

impl Doubts {
    #[track_caller]
    fn all(&self) -> MutexGuard<'_, HashMap<Of, Doubt>> {
        self.all.lock()
    }

    fn add(&self, home: &str, epoch: u64, file: FileKey, number: u64, asked: Asked) {
        let mut all = self.all();
        let of = Of { home: home.into(), file, asked };
        let doubt = all.entry(of).or_insert_with(|| Doubt {
            fence: 0,
            epoch,
            stands_at: Vec::new(),
            since: Instant::now(),
            is_settling: false,
        });
        doubt.fence = doubt.fence.max(number + 1);
        doubt.epoch = doubt.epoch.max(epoch);
        doubt.stands_at.clear();
        doubt.since = Instant::now();
    }

    /// The next fence to raise, of a doubt that is not among the `tried`.
    ///
    /// # Errors
    ///
    /// ETIMEDOUT if another thread raises a fence that has to stand.
    fn begin(&self, file: FileKey, when: Due<'_>, tried: &[Of]) -> Result<Option<Settling<'_>>> {
        let mut all = self.all();
        let is_due = |of: &Of, doubt: &Doubt| {
            of.file == file && !tried.contains(of) && when.place(of, doubt).is_some()
        };
        let busy = |all: &mut HashMap<Of, Doubt>| {
            all.iter().any(|(of, doubt)| doubt.is_settling && is_due(of, doubt))
        };
        if let Due::Before(..) = when {
            all = self.settled.wait_timeout_while(all, RAISED, busy).0;
        }
        let must_stand = |of: &Of| match when {
            Due::Before(..) => true,
            // The member `from` waits for this mount.
            Due::OnBehalf(from) => of.home != from,
        };
        let is_late =
            |(of, doubt): (&Of, &Doubt)| doubt.is_settling && is_due(of, doubt) && must_stand(of);
        if all.iter().any(is_late) {
            let why = "an earlier change that was not answered is being fenced off still";
            return Err(Error::os(libc::ETIMEDOUT, why));
        }
        let due = all.iter_mut().find(|(of, doubt)| is_due(of, doubt) && !doubt.is_settling);
        Ok(due.map(|(of, doubt)| {
            let home = when.place(of, doubt).unwrap_or(&of.home).to_string();
            doubt.is_settling = true;
            let (fence, epoch) = (doubt.fence, doubt.epoch);
            let at = match when {
                Due::Before(next, epoch) if home == next => Process { home, epoch },
                _ => Process { home, epoch },
            };
            Settling { doubts: self, of: of.clone(), fence, epoch, at, stands: false }
        }))
    }

    /// Forgets homes whose process has ended, and left no question on its way to others.
    fn forget_ended(&self, epoch_of: impl Fn(&str) -> u64) {
        let ends = |of: &Of, doubt: &Doubt| {
            !doubt.is_settling
                && doubt.since.elapsed() >= UNDER_WAY
                && epoch_of(&of.home) != doubt.epoch
        };
        self.all().retain(|of, doubt| !ends(of, doubt));
    }
}

impl Vfs {
    /// Asks a home to change files. A change that it does not answer may still be made: a fence rules that out before
    /// a home is asked for another change of one of the files.
    pub(super) fn ask_to_change(
        &self,
        home: &str,
        (files, asked): (&[FileKey], Asked),
        again: Again,
        question: impl Fn(u64) -> Question,
        bytes: &[u8],
    ) -> Result<Answer> {
        let Members { numbers, doubts, .. } = &self.members;
        let settle = || {
            let before = Due::Before(home, self.epoch_of(home));
            files.iter().try_for_each(|file| self.settle_doubts(*file, before))
        };
        let ask = || {
            settle()?;
            let number = numbers.next();
            self.ask(home, &question(number), bytes, &mut Vec::new()).inspect_err(|error| {
                if is_silence(error) {
                    // The epoch of the process that was asked last.
                    let epoch = self.epoch_of(home);
                    files.iter().for_each(|file| doubts.add(home, epoch, *file, number, asked));
                    if asked == Asked::RenameOver {
                        self.fence_here(files, number + 1);
                    }
                }
            })
        };
        match ask() {
            // The connection broke. If the home is reached by another one, the fence makes the first question void.
            Err(error) if again == Again::Once && error.kind() == Kind::Unavailable => {
                match settle() {
                    Ok(()) => ask(),
                    Err(_) => Err(error),
                }
            }
            answer => answer,
        }
    }

    /// A rename in doubt may come back to this mount, as the home of the replaced file. It must not be made once the
    /// program was told that it failed, since the program may then write here, and asks no home.
    fn fence_here(&self, files: &[FileKey], number: u64) {
        let Some(member) = self.cluster().map(|cluster| cluster.name().to_string()) else { return };
        let by = By { epoch: self.epoch_of(&member), member, number };
        for file in files {
            if let Err(error) = self.members.fences.raise(&by, *file) {
                // The rename is given up all the same: at most a call to the store is under way.
                tracing::warn!(%error, "a rename that its home did not answer");
            }
        }
    }

    pub(super) fn epoch_of(&self, member: &str) -> u64 {
        self.cluster().and_then(|cluster| cluster.epoch(member)).unwrap_or(0)
    }

    /// Raises the fences that a file needs.
    ///
    /// # Errors
    ///
    /// If a fence does not stand that has to: the change that it rules out may still be made.
    pub(super) fn settle_doubts(&self, file: FileKey, when: Due<'_>) -> Result<()> {
        let doubts = &self.members.doubts;
        doubts.forget_ended(|home| self.epoch_of(home));
        let mut tried = Vec::new();
        while let Some(mut settling) = doubts.begin(file, when, &tried)? {
            tried.push(settling.of.clone());
            let home = settling.at.home.clone();
            let is_next = matches!(when, Due::Before(next, _) if *next == *home);
            if !is_next && self.epoch_of(&home) != settling.epoch {
                settling.stands = true; // The process that was asked has ended.
                continue;
            }
            let fence = Question::Fence { file, number: settling.fence };
            match self.ask(&home, &fence, &[], &mut Vec::new())? {
                Answer::Done => settling.stands = true,
                other => return Err(odd(&other)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileKey = FileKey { ino: 7, generation: 1 };

    fn due(doubts: &Doubts, when: Due<'_>) -> Vec<(String, u64)> {
        let (mut tried, mut found) = (Vec::new(), Vec::new());
        while let Some(it) = doubts.begin(FILE, when, &tried).unwrap() {
            tried.push(it.of.clone());
            found.push((it.at.home.clone(), it.fence));
        }
        found.sort();
        found
    }

    #[test]
    fn a_doubt_lasts_until_the_fence_above_it_stands() {
        let doubts = Doubts::default();
        doubts.add("h", 1, FILE, 5, Asked::OwnFile);
        assert_eq!(due(&doubts, Due::Before("h", 1)), [("h".into(), 6)]);
        assert_eq!(due(&doubts, Due::Before("i", 1)), [], "h was asked to change its own file");
        assert_eq!(due(&doubts, Due::OnBehalf("j")), []);
        let mut raised = doubts.begin(FILE, Due::Before("h", 1), &[]).unwrap().unwrap();
        doubts.add("h", 1, FILE, 7, Asked::OwnFile);
        raised.stands = true;
        drop(raised);
        assert_eq!(
            due(&doubts, Due::Before("h", 1)),
            [("h".into(), 8)],
            "another change came meanwhile"
        );
        let mut raised = doubts.begin(FILE, Due::Before("h", 1), &[]).unwrap().unwrap();
        raised.stands = true;
        drop(raised);
        assert_eq!(due(&doubts, Due::Before("h", 1)), []);
    }

    /// The home that the file has by then makes the rename over it, whichever home was asked for it.
    #[test]
    fn a_rename_over_a_file_is_fenced_off_where_the_file_is_changed_next() {
        let doubts = Doubts::default();
        doubts.add("h", 1, FILE, 5, Asked::RenameOver);
        let stands = |when| {
            let mut raised = doubts.begin(FILE, when, &[]).unwrap().unwrap();
            raised.stands = true;
        };
        assert_eq!(due(&doubts, Due::Before("j", 1)), [("j".into(), 6)]);
        stands(Due::Before("j", 1));
        assert_eq!(due(&doubts, Due::Before("j", 1)), []);
        assert_eq!(
            due(&doubts, Due::Before("j", 2)),
            [("j".into(), 6)],
            "the next process of j knows no fence"
        );
        assert_eq!(due(&doubts, Due::Before("k", 1)), [("k".into(), 6)]);
        assert_eq!(due(&doubts, Due::Before("h", 1)), [("h".into(), 6)]);
        doubts.add("h", 1, FILE, 7, Asked::RenameOver);
        assert_eq!(due(&doubts, Due::Before("j", 1)), [("j".into(), 8)], "another change came");
        stands(Due::Before("h", 1));
        assert_eq!(
            due(&doubts, Due::Before("k", 1)),
            [],
            "h asks no other home for the rename any more"
        );
    }

    /// A change on behalf of another member stays a doubt of its own, beside what this mount asks for itself.
    #[test]
    fn what_was_asked_for_another_is_fenced_off_where_it_was_asked() {
        let doubts = Doubts::default();
        doubts.add("i", 1, FILE, 5, Asked::RenameOver);
        doubts.add("i", 1, FILE, 6, Asked::OnBehalf);
        assert_eq!(due(&doubts, Due::OnBehalf("j")), [("i".into(), 7)]);
        assert_eq!(due(&doubts, Due::Before("j", 1)), [("i".into(), 7), ("j".into(), 6)]);
    }

    /// No thread changes the file, or says that a fence stands, while another thread raises one that has to stand.
    #[test]
    fn a_fence_that_is_being_raised_is_waited_for() {
        let doubts = Doubts::default();
        doubts.add("i", 1, FILE, 6, Asked::OnBehalf);
        let raising = doubts.begin(FILE, Due::Before("i", 1), &[]).unwrap().unwrap();
        let said = doubts.begin(FILE, Due::OnBehalf("j"), &[]).err().expect("it may not stand");
        assert!(said.is(libc::ETIMEDOUT));
        let from_it = doubts.begin(FILE, Due::OnBehalf("i"), &[]).unwrap();
        assert!(from_it.is_none(), "i asks, and is asked: each would wait for the other");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| due(&doubts, Due::Before("i", 1)));
            forebay_base::lock::sleep(Duration::from_millis(20));
            drop(raising);
            assert_eq!(other.join().unwrap(), [("i".into(), 7)]);
        });
        let _raising = doubts.begin(FILE, Due::Before("i", 1), &[]).unwrap();
        assert!(doubts.begin(FILE, Due::Before("i", 1), &[]).is_err_and(|e| e.is(libc::ETIMEDOUT)));
    }
}
