//! The specification of a space.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use forebay_base::units::human_size;
use forebay_base::{Error, Result};
use serde::{Deserialize, Serialize};

use super::{Means, usage_error};

/// File names made from it end in a number and a word, and stay far below 255 bytes.
const ID_MAX: usize = 100;

/// A file system with a journal needs some room for itself.
const CAPACITY_MIN: u64 = 4 << 20;

/// The minimum of `mkfs.xfs`, with some room for its log.
const XFS_CAPACITY_MIN: u64 = 300 << 20;

/// 8 PiB: a larger request is a mistake, and sums cannot overflow.
const CAPACITY_MAX: u64 = 8 << 50;

/// An inode number of ext4 has 32 bits. The file system's own inodes are among them.
const INODES_MAX: u64 = u32::MAX as u64 - 4096;

/// One file for this many bytes, as `mkfs.ext4` has it.
const BYTES_PER_INODE: u64 = 16 << 10;

const INODES_MIN: u64 = 1024;

/// The name of an instance, after which everything is named that is made for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Id(String);

impl Id {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Id {
    type Err = Error;

    fn from_str(text: &str) -> Result<Id> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let starts = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        match starts && text.len() <= ID_MAX && text.chars().all(fits) {
            true => Ok(Id(text.into())),
            false => Err(usage_error(format!(
                "{text:?} cannot name an instance: use 1 to {ID_MAX} letters, digits, '.', '_' and \
                 '-', with a letter or a digit first"
            ))),
        }
    }
}

impl TryFrom<String> for Id {
    type Error = Error;

    fn try_from(text: String) -> Result<Id> {
        text.parse()
    }
}

impl From<Id> for String {
    fn from(id: Id) -> String {
        id.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The file system of an image; the greater one is taken where there is a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fs {
    Ext4,
    Xfs,
}

impl Fs {
    pub fn name(self) -> &'static str {
        match self {
            Fs::Ext4 => "ext4",
            Fs::Xfs => "xfs",
        }
    }

    pub fn named(name: &str) -> Option<Fs> {
        [Fs::Ext4, Fs::Xfs].into_iter().find(|fs| fs.name() == name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    pub const ROOT: Owner = Owner { uid: 0, gid: 0 };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// The first available of: tmpfs in a pool in memory, project quota, image, and a directory
    /// where the pool does not enforce.
    Auto,
    Exactly(Means),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceSpec {
    pub id: Id,
    /// The bytes that the owner can fill with contents of files.
    pub capacity: u64,
    /// The maximum number of files; by default one for each 16 KiB. XFS limits it in hundredths of
    /// the space, rounded up, that files' inodes may take.
    pub inodes: Option<u64>,
    pub owner: Owner,
    /// The mode of the root directory; 0700 unless other users are to look in.
    pub mode: u32,
    pub means: Choice,
    /// For an image; otherwise without effect.
    pub fs: Fs,
    /// An absolute path; its last name is made if it is missing.
    pub mount_at: PathBuf,
}

impl SpaceSpec {
    /// A space that only `owner` can look into.
    pub fn new(id: Id, capacity: u64, owner: Owner, mount_at: PathBuf) -> SpaceSpec {
        let (means, fs) = (Choice::Auto, Fs::Ext4);
        SpaceSpec { id, capacity, inodes: None, owner, mode: 0o700, means, fs, mount_at }
    }

    pub fn inodes(&self) -> u64 {
        self.inodes
            .unwrap_or_else(|| (self.capacity / BYTES_PER_INODE).clamp(INODES_MIN, INODES_MAX))
    }

    /// # Errors
    ///
    /// [`forebay_base::Kind::Usage`], with the remedy.
    pub fn check(&self) -> Result<()> {
        let id = &self.id;
        let capacity = human_size(self.capacity);
        if self.capacity < CAPACITY_MIN {
            let least = human_size(CAPACITY_MIN);
            return Err(usage_error(format!("{id}: {capacity} is too small: ask for {least}")));
        }
        if self.capacity > CAPACITY_MAX {
            return Err(usage_error(format!("{id}: {capacity} is more than any pool has")));
        }
        if self.inodes.is_some_and(|count| !(1..=INODES_MAX).contains(&count)) {
            let most = INODES_MAX;
            return Err(usage_error(format!("{id}: a space has 1 to {most} inodes")));
        }
        if self.mode & !0o1777 != 0 {
            let mode = self.mode;
            return Err(usage_error(format!("{id}: {mode:o} is no mode for a directory (0700)")));
        }
        let at = self.mount_at.display();
        if !self.mount_at.is_absolute() || self.mount_at.to_str().is_none() {
            return Err(usage_error(format!("{id}: {at} must be an absolute path in UTF-8")));
        }
        Ok(())
    }

    /// Whether an image of this capacity can hold XFS.
    pub fn suits_xfs(capacity: u64) -> bool {
        capacity >= XFS_CAPACITY_MIN
    }

    /// Checks the demands that only an XFS image has.
    pub(super) fn check_image(&self) -> Result<()> {
        match self.fs {
            Fs::Xfs if !SpaceSpec::suits_xfs(self.capacity) => Err(usage_error(format!(
                "{}: {} is too small for XFS: ask for {}, or for ext4",
                self.id,
                human_size(self.capacity),
                human_size(XFS_CAPACITY_MIN)
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_plain_name() {
        for good in ["a", "job-17", "Job.1_b", "7"] {
            assert_eq!(good.parse::<Id>().unwrap().as_str(), good);
        }
        let long = "x".repeat(ID_MAX + 1);
        for bad in ["", ".", "..", ".hidden", "-v", "a/b", "a b", "\u{e9}", "a\n", &long] {
            assert!(bad.parse::<Id>().is_err(), "{bad:?}");
        }
        assert!(serde_json::from_str::<Id>("\"../x\"").is_err(), "a record is no way around it");
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_remedy() {
        let good = SpaceSpec::new("a".parse().unwrap(), 1 << 30, Owner::ROOT, "/mnt/a".into());
        good.check().unwrap();
        assert_eq!(good.inodes(), 65_536);
        let cases: [(&str, SpaceSpec); 5] = [
            ("too small", SpaceSpec { capacity: 1, ..good.clone() }),
            ("more than any", SpaceSpec { capacity: u64::MAX, ..good.clone() }),
            ("inodes", SpaceSpec { inodes: Some(0), ..good.clone() }),
            ("mode", SpaceSpec { mode: 0o4700, ..good.clone() }),
            ("absolute", SpaceSpec { mount_at: "mnt".into(), ..good.clone() }),
        ];
        for (word, spec) in cases {
            let error = spec.check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let small = SpaceSpec { fs: Fs::Xfs, capacity: 64 << 20, ..good };
        assert!(small.check_image().unwrap_err().to_string().contains("ext4"));
    }
}
