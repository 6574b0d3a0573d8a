//! A tier that was made when it was opened: a process that fails to use it removes it again.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use forebay_backing::Error;
use forebay_base::folder::Folder;
use forebay_base::way::End;
use rustix::fs::{AtFlags, unlinkat};

use super::{LOCK, RUN, SUPERBLOCK};
use crate::digests;
use crate::index::STORE_NAME;

/// The contents of a tier without files, in the order of removal: the superblock and the lock, which mark a
/// tier, go last.
const OF_EMPTY: [&str; 7] = ["shadow", "log", digests::DIR, RUN, STORE_NAME, SUPERBLOCK, LOCK];

/// The directory of a new tier. While this lives, no other process can have the tier.
pub struct Made {
    end: End,
    tier: Folder,
    _lock: OwnedFd,
}

impl Made {
    pub(super) fn of(end: End, tier: &Folder, lock: &OwnedFd) -> io::Result<Made> {
        let tier = Folder::of(tier.as_fd(), tier.path())?;
        Ok(Made { end, tier, _lock: lock.try_clone()? })
    }

    /// Removes the new tier, and returns `error`. If the tier holds more than an empty one does, or its `run`
    /// more than `of_daemon`, nothing is removed, and the error says so.
    #[must_use]
    pub fn undo(made: Option<Made>, error: Error, of_daemon: &[&str]) -> Error {
        let Some(made) = made else { return error };
        match made.remove(of_daemon) {
            Ok(()) => error,
            Err(why) => {
                let tier = made.tier.path().display();
                Error::new(error.kind(), format!("{error}; the new tier {tier} stays: {why}"))
            }
        }
    }

    fn remove(&self, of_daemon: &[&str]) -> io::Result<()> {
        let shadows = self.names("shadow")?;
        self.refuse_others("", &OF_EMPTY)?;
        self.refuse_others(RUN, of_daemon)?;
        shadows.iter().try_for_each(|dir| self.refuse_others(dir, &[]))?;
        shadows.iter().try_for_each(|dir| self.tier.remove_dir(dir))?;
        for name in OF_EMPTY {
            if self.tier.below(name).is_ok() {
                self.names(name)?.iter().try_for_each(|it| self.tier.remove_if_there(it))?;
                self.tier.remove_dir(name)?;
            } else {
                self.tier.remove_if_there(name)?;
            }
        }
        remove_dir(&self.end)
    }

    fn refuse_others(&self, dir: &str, known: &[&str]) -> io::Result<()> {
        let known: Vec<String> = known.iter().map(|name| path_in(dir, name)).collect();
        match self.names(dir)?.iter().find(|path| !known.contains(path)) {
            Some(path) => Err(io::Error::other(format!("it holds {path}"))),
            None => Ok(()),
        }
    }

    /// The names in a directory of the tier, as paths in the tier; empty if there is no such directory.
    fn names(&self, dir: &str) -> io::Result<Vec<String>> {
        match self.tier.list(dir) {
            Ok(names) => Ok(names.iter().map(|name| path_in(dir, name)).collect()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }
}

fn path_in(dir: &str, name: impl AsRef<Path>) -> String {
    Path::new(dir).join(name).display().to_string()
}

/// Removes a directory that was just made, if it is still empty.
pub(super) fn remove_dir(end: &End) -> io::Result<()> {
    Ok(unlinkat(&end.dir, &end.name, AtFlags::REMOVEDIR)?)
}

#[cfg(test)]
mod tests {
    use forebay_backing::Kind;

    use super::*;
    use crate::dir::{Tier, TierOwner};

    struct Bed {
        _dir: tempfile::TempDir,
        tier: std::path::PathBuf,
    }

    impl Bed {
        fn new() -> Bed {
            let dir = tempfile::tempdir().unwrap();
            let tier = dir.path().join("new");
            Bed { _dir: dir, tier }
        }

        fn open(&self) -> Option<Made> {
            let owner = TierOwner { path: "/slow".into(), identity: "dir:1:x".into() };
            Tier::open(&self.tier, &owner).unwrap().made()
        }

        fn put(&self, name: &str) {
            std::fs::write(self.tier.join(name), "x").unwrap();
        }
    }

    /// The text of the error after the removal.
    fn undone(made: Option<Made>) -> String {
        let error = Error::new(Kind::Unavailable, "no mount");
        assert!(made.is_some(), "it was made");
        Made::undo(made, error, &["forebay.log"]).to_string()
    }

    #[test]
    fn a_new_tier_that_nobody_has_used_goes_with_all_that_was_made_in_it() {
        let bed = Bed::new();
        let made = bed.open();
        ["run/forebay.log", "index.redb", "log/0000000000000001"].iter().for_each(|it| bed.put(it));
        assert_eq!(undone(made), "no mount");
        assert!(!bed.tier.exists());
        assert!(bed.open().is_some(), "and it can be made again");
    }

    /// Method: a file in each place where a user may have put one.
    #[test]
    fn a_new_tier_with_anything_else_in_it_stays_as_it_is() {
        for name in ["notes", "shadow/0a/a", "shadow/a", "run/jobs.json"] {
            let bed = Bed::new();
            let made = bed.open();
            bed.put("run/forebay.log");
            bed.put(name);
            let said = undone(made);
            assert!(
                said.starts_with("no mount; the new tier ") && said.contains(" stays: "),
                "{said}"
            );
            for kept in [name, "run/forebay.log", "forebay.json", "lock", "shadow/ff"] {
                assert!(bed.tier.join(kept).exists(), "{name}: {kept} is gone");
            }
        }
    }

    #[test]
    fn a_tier_or_directory_that_was_there_is_not_one_to_be_taken_away() {
        let bed = Bed::new();
        assert!(bed.open().is_some());
        assert!(bed.open().is_none(), "a tier from before");
        std::fs::remove_dir_all(&bed.tier).unwrap();
        std::fs::create_dir(&bed.tier).unwrap();
        assert!(bed.open().is_none(), "a directory of somebody's");
    }
}
