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

    /// The fence to raise before the file is changed again.
    pub fn of(&self, home: &str, file: FileKey) -> Option<u64> {
        let all = self.all();
        match all.is_empty() {
            true => None,
            false => all.get(&(home.to_string(), file)).copied(),
        }
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
    /// Asks a file's home to change it. What it does not answer it may do yet: that is fenced off before it is asked
    /// for another change.
    pub(super) fn ask_to_change(
        &self,
        home: &str,
        file: FileKey,
        again: Again,
        question: impl Fn(u64) -> Question,
        bytes: &[u8],
    ) -> Result<Answer> {
        let Members { numbers, doubts, .. } = &self.members;
        let ask = || {
            self.settle_doubt(home, file)?;
            let number = numbers.next();
            self.ask(home, &question(number), bytes, &mut Vec::new()).inspect_err(|error| {
                if is_silence(error) {
                    doubts.add(home, file, number);
                }
            })
        };
        match ask() {
            // The connection broke. If it is reached by another the first one is void.
            Err(error) if again == Again::Once && error.kind() == Kind::Unavailable => {
                match self.settle_doubt(home, file) {
                    Ok(()) => ask(),
                    Err(_) => Err(error),
                }
            }
            answer => answer,
        }
    }

    fn settle_doubt(&self, home: &str, file: FileKey) -> Result<()> {
        let Some(number) = self.members.doubts.of(home, file) else { return Ok(()) };
        let fence = Question::Fence { file, number };
        match self.ask(home, &fence, &[], &mut Vec::new())? {
            Answer::Done => {
                self.members.doubts.settle(home, file, number);
                Ok(())
            }
            other => Err(odd(&other)),
        }
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
        assert_eq!((doubts.of("h", FILE), doubts.of("i", FILE)), (Some(6), None));
        doubts.add("h", FILE, 7);
        doubts.settle("h", FILE, 6);
        assert_eq!(doubts.of("h", FILE), Some(8), "another came meanwhile");
        doubts.settle("h", FILE, 8);
        assert_eq!(doubts.of("h", FILE), None);
    }
}
