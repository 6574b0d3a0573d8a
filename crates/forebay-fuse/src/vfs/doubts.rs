//! Changes that homes have not answered: they may make them yet, which is fenced off ([`fence`](super::fence)) before
//! the file is changed again.

use std::sync::{Mutex, MutexGuard};

use forebay_backing::{FileKey, Kind, Result};
use forebay_cluster::words::{Answer, Question};
use hashbrown::HashMap;

use super::Vfs;
use super::copies::is_silence;
use super::members::{Members, odd};

/// Whether a change may be made twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    Once,
    No,
}

/// Changes of this mount's that homes have not answered.
#[derive(Default)]
pub struct Doubts(Mutex<HashMap<(String, FileKey), u64>>);

impl Doubts {
    fn all(&self) -> MutexGuard<'_, HashMap<(String, FileKey), u64>> {
        self.0.lock().expect("no panic inside")
    }

    pub fn add(&self, home: &str, file: FileKey, number: u64) {
        let mut all = self.all();
        let fence = all.entry((home.into(), file)).or_default();
        *fence = (*fence).max(number + 1);
    }

    /// The fences to raise before the file is changed again, and where.
    pub fn of(&self, file: FileKey) -> Vec<(String, u64)> {
        let all = self.all();
        let of_it = all.iter().filter(|((_, of), _)| *of == file);
        of_it.map(|((home, _), fence)| (home.clone(), *fence)).collect()
    }

    /// It is raised.
    pub fn settle(&self, home: &str, file: FileKey, fence: u64) {
        let mut all = self.all();
        if all.get(&(home.to_string(), file)) == Some(&fence) {
            all.remove(&(home.to_string(), file));
        }
    }
}

impl Vfs {
    /// Asks a home to change files. What it does not answer it may do yet: that is fenced off before a home is
    /// asked for another change of one of them.
    pub(super) fn ask_to_change(
        &self,
        home: &str,
        files: &[FileKey],
        again: Again,
        question: impl Fn(u64) -> Question,
        bytes: &[u8],
    ) -> Result<Answer> {
        let Members { numbers, doubts, .. } = &self.members;
        let settle = || files.iter().try_for_each(|file| self.settle_doubts(*file, Some(home)));
        let ask = || {
            settle()?;
            let number = numbers.next();
            self.ask(home, &question(number), bytes, &mut Vec::new()).inspect_err(|error| {
                if is_silence(error) {
                    files.iter().for_each(|file| doubts.add(home, *file, number));
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

    /// Raises the fences that a file needs, also at homes that were asked to rename another over it. Who is not the
    /// `home` that is asked next, and is silent still, is not waited for.
    pub(super) fn settle_doubts(&self, file: FileKey, home: Option<&str>) -> Result<()> {
        for (at, number) in self.members.doubts.of(file) {
            let fence = Question::Fence { file, number };
            match self.ask(&at, &fence, &[], &mut Vec::new()) {
                Ok(Answer::Done) => self.members.doubts.settle(&at, file, number),
                Ok(other) => return Err(odd(&other)),
                Err(error) if home.is_none_or(|home| home == at) => return Err(error),
                Err(error) => tracing::debug!(%error, home = at, "not fenced off yet"),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileKey = FileKey { ino: 7, generation: 1 };

    #[test]
    fn a_doubt_lasts_until_the_fence_above_it_stands() {
        let doubts = Doubts::default();
        doubts.add("h", FILE, 5);
        assert_eq!(doubts.of(FILE), [("h".into(), 6)]);
        assert_eq!(doubts.of(FileKey { ino: 8, ..FILE }), []);
        doubts.add("h", FILE, 7);
        doubts.settle("h", FILE, 6);
        assert_eq!(doubts.of(FILE), [("h".into(), 8)], "another came meanwhile");
        doubts.settle("h", FILE, 8);
        assert_eq!(doubts.of(FILE), []);
    }
}
