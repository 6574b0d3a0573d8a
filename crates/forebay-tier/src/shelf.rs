//! The shelf: the copies that are kept for one home, and their log.
//!
//! The bytes of copies lie where those of own files do, in shadow files with numbers of their own. So a
//! copy becomes an own file with one record, and no byte moves. The log is `copies/HOME/SEQ`, with
//! records as in the tier's own log; each file of it begins with all copies, and a mark that these were
//! all.

use std::collections::{BTreeMap, HashSet};
use std::io;

use forebay_backing::{FileKey, Timestamp};
use serde::{Deserialize, Serialize};

use crate::core::id::FileId;
use crate::core::ranges::State;
use crate::core::state::{Boot, Portrait};
use crate::dir::shadow_name;
use crate::log;
use crate::media::{Media, Open};

/// The directory of all copies in a tier, with one subdirectory for each home.
pub const DIR: &str = "copies";

/// A copy, without its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub id: FileId,
    /// The number of the claim that the copy was made under.
    pub claim: u64,
    /// The round that the copy is from.
    pub round: u64,
    pub portrait: Portrait,
}

impl Kept {
    /// Notes that the file has grown by `grown.ranges`.
    pub fn grow(&mut self, grown: &Grown) {
        (self.claim, self.round) = (grown.claim, grown.round);
        let portrait = &mut self.portrait;
        for &(start, end) in &grown.ranges {
            portrait.ranges.set(start, end, State::Durable);
        }
        (portrait.size, portrait.mtime) = (grown.size, grown.mtime);
    }

    /// The number of the file's bytes that the copy has.
    pub fn bytes(&self) -> u64 {
        self.portrait.ranges.bytes(|_| true)
    }
}

/// The changes of a file in a round, if its home changed nothing else of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grown {
    pub claim: u64,
    pub round: u64,
    pub size: u64,
    pub mtime: Timestamp,
    pub ranges: Vec<(u64, u64)>,
}

/// An entry of the log of a shelf. New kinds come last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// The entries that follow are from this run of the home's engine. `filled`: no copy is missing.
    Session {
        session: u64,
        filled: bool,
    },
    /// The entries before this one are all that there were when this file of the log was begun.
    Begun,
    Whole(FileKey, Box<Kept>),
    Grown(FileKey, Grown),
    Forget(FileKey),
}

/// The copies that are kept for one home.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shelf {
    pub session: u64,
    pub filled: bool,
    pub copies: BTreeMap<FileKey, Kept>,
    begun: bool,
}

impl Shelf {
    /// An empty shelf, for a run of the home's engine.
    pub fn of_session(session: u64) -> Shelf {
        Shelf { session, ..Shelf::default() }
    }

    /// Applies an entry of the log.
    pub fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Session { session, filled } => {
                if session != self.session {
                    // Another run of the home's engine counts its rounds from the start.
                    self.copies.values_mut().for_each(|kept| kept.round = 0);
                }
                (self.session, self.filled) = (session, filled);
            }
            Entry::Begun => self.begun = true,
            Entry::Whole(file, kept) => drop(self.copies.insert(file, *kept)),
            Entry::Grown(file, grown) => {
                if let Some(kept) = self.copies.get_mut(&file) {
                    kept.grow(&grown);
                }
            }
            Entry::Forget(file) => drop(self.copies.remove(&file)),
        }
    }

    /// The entries that a new file of the log begins with.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        let session = Entry::Session { session: self.session, filled: self.filled };
        let whole = |(file, kept): (&FileKey, &Kept)| Entry::Whole(*file, Box::new(kept.clone()));
        std::iter::once(session).chain(self.copies.iter().map(whole)).chain([Entry::Begun])
    }
}

/// The copies for one home as they were found in a tier.
#[derive(Debug, Clone, Default)]
pub struct FoundHome {
    pub name: String,
    pub shelf: Shelf,
    /// The files of its log.
    pub logs: Vec<String>,
    pub next_seq: u64,
    /// The missing parts, in words: the rest is no base for more copies.
    pub damage: Option<String>,
    /// Some copies have become files of this member already.
    pub adopted: bool,
}

/// Copies that were found in a tier.
#[derive(Debug, Default)]
pub struct Found {
    homes: Vec<FoundHome>,
}

impl Found {
    /// Reads the copies, and changes nothing. `ours` says whether a shadow belongs to an own file with
    /// this key.
    ///
    /// # Errors
    ///
    /// If the medium fails. A damaged log is no error: [`FoundHome::damage`].
    pub fn read(
        media: &dyn Media,
        boot: Boot,
        ours: &dyn Fn(FileId, FileKey) -> bool,
    ) -> io::Result<Found> {
        let mut found = Found::default();
        let mut homes = match media.list(DIR) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(found),
            listed => listed?,
        };
        homes.sort();
        for encoded in homes {
            let Some(name) = decoded(&encoded) else { continue };
            let home = read_home(media, boot, &format!("{DIR}/{encoded}"), ours)?;
            found.homes.extend(home.map(|home| FoundHome { name, ..home }));
        }
        Ok(found)
    }

    /// The copies by home.
    pub fn into_homes(self) -> Vec<FoundHome> {
        self.homes
    }

    /// The shadow files of the copies.
    pub fn shadows(&self) -> HashSet<FileId> {
        let copies = self.homes.iter().flat_map(|home| home.shelf.copies.values());
        copies.map(|kept| kept.id).collect()
    }

    /// The problems of the copies, in words.
    pub fn problems(&self) -> Vec<String> {
        let damage = |home: &FoundHome| {
            home.damage.as_ref().map(|what| format!("copies for {}: {what}", home.name))
        };
        self.homes.iter().filter_map(damage).collect()
    }

    /// Each copy with its home.
    pub fn copies(&self) -> impl Iterator<Item = (&str, &Portrait)> {
        self.kept().map(|(home, _, portrait)| (home, portrait))
    }

    /// Each copy with its home and its shadow.
    pub fn kept(&self) -> impl Iterator<Item = (&str, FileId, &Portrait)> {
        self.homes.iter().flat_map(|home| {
            let all = home.shelf.copies.values();
            all.map(|kept| (home.name.as_str(), kept.id, &kept.portrait))
        })
    }
}

fn read_home(
    media: &dyn Media,
    boot: Boot,
    dir: &str,
    ours: &dyn Fn(FileId, FileKey) -> bool,
) -> io::Result<Option<FoundHome>> {
    let mut names = media.list(dir)?;
    names.sort();
    let logs = names.iter().map(|name| format!("{dir}/{name}")).collect();
    let mut home = FoundHome { logs, ..FoundHome::default() };
    for name in names.iter().rev() {
        let Ok(first) = u64::from_str_radix(name, 16) else { continue };
        let (mut shelf, mut seq) = (Shelf::default(), first);
        let file = media.open(&format!("{dir}/{name}"), Open::Existing)?;
        let tail = log::read(&*file, &mut seq, |entry| shelf.apply(entry))?;
        // The next file of the log gets another name than this one.
        home.next_seq = home.next_seq.max(tail.next_seq()).max(first + 1);
        // A file whose beginning was cut off by a crash: the one before it has everything.
        if !shelf.begun {
            continue;
        }
        home.damage = tail.is_damage(boot).then(|| format!("the log {dir}/{name} is damaged"));
        home.shelf = shelf;
        break;
    }
    if !home.shelf.begun {
        return Ok((!home.logs.is_empty()).then_some(home));
    }
    let (adopted, kept) =
        home.shelf.copies.into_iter().partition(|(file, kept)| ours(kept.id, *file));
    home.shelf.copies = kept;
    let adopted: BTreeMap<FileKey, Kept> = adopted;
    home.adopted = !adopted.is_empty();
    let damage = &mut home.damage;
    home.shelf.copies.retain(|_, kept| {
        let need = kept.portrait.ranges.end();
        let sound = need == 0 || media.stat(&shadow_name(kept.id)).is_ok_and(|it| it.len >= need);
        if !sound {
            *damage = Some(format!("the shadow file {} lacks bytes", shadow_name(kept.id)));
        }
        sound
    });
    Ok(Some(home))
}

/// The name of a home's directory: each byte of its name that is no letter, digit, `-` or `_` is written
/// as `%` and two hexadecimal digits.
pub fn encoded(home: &str) -> String {
    let mut name = String::new();
    for byte in home.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(byte as char),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    name
}

fn decoded(name: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = name.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_of_any_name_has_a_directory_of_its_own() {
        for home in ["node-1", "a/b", "..", "%41", "ä ö", ""] {
            let name = encoded(home);
            assert!(!name.contains(['/', '.']), "{name}");
            assert_eq!(decoded(&name).as_deref(), Some(home));
        }
        assert_ne!(encoded("%41"), encoded("A"));
        assert_eq!(decoded("%4"), None);
    }
}
