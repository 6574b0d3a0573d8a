//! Chooses the member that reads a part of a file from the store for all.

use forebay_backing::FileKey;
use xxhash_rust::xxh3::xxh3_64;

use super::Core;

impl Core {
    /// The other member that reads this part of a file; `None` if this member does, or none shares. All
    /// members come to the same choice by themselves: the member whose name weighs most together with the
    /// part (rendezvous hashing: Thaler and Ravishankar 1998). A member that comes or goes moves only its
    /// own parts.
    pub fn reader_of(&self, file: FileKey, part: u64) -> Option<String> {
        let members =
            self.mirror.alive.iter().filter(|name| {
                self.mirror.members.get(*name).is_some_and(|(member, _)| member.shares)
            });
        let reader = members.max_by_key(|name| weight(name, file, part))?;
        (*reader != self.me).then(|| reader.clone())
    }
}

fn weight(name: &str, file: FileKey, part: u64) -> u64 {
    let words = [file.ino, file.generation, part].map(u64::to_le_bytes);
    xxh3_64(&[name.as_bytes(), words.as_flattened()].concat())
}
