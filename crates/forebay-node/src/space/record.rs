//! The pool's record of each id: a file in `state/`, and in `trash/` once the id is removed (P2).

use forebay_base::folder::{Durable, Folder, Wanted};
use forebay_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::{Id, Means, Owner, SpaceSpec, failed, usage_error};

pub(super) const FORMAT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    format: u32,
    pub id: Id,
    /// The room that it takes of the pool, and that a leftover of it still holds.
    pub room: u64,
    pub what: What,
    pub stage: Stage,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum What {
    Space(SpaceRecord),
    Tier { owner: Owner },
    Swap { priority: Option<u16> },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpaceRecord {
    pub spec: SpaceSpec,
    /// The means to which `spec.means` was resolved.
    pub means: Means,
    /// Whether the mount point was made for the space, and goes with it.
    pub point_made: bool,
    /// For a project quota.
    pub project: Option<u32>,
    /// For a tmpfs, its unique source in the table of mounts.
    pub source: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Stage {
    Making,
    Ready,
    /// The number at the end of its name in the trash; the mount at the beginning of the removal.
    Removing {
        number: u32,
        held: Option<Held>,
    },
}

/// A mount, by what can still be found of it when it is no longer in the table of mounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    /// The numbers below are valid for this boot of the kernel.
    pub boot: String,
    /// `major:minor`
    pub device: String,
    pub mount: u64,
}

impl Record {
    pub fn new(id: &Id, room: u64, what: What) -> Record {
        Record { format: FORMAT, id: id.clone(), room, what, stage: Stage::Making }
    }

    pub fn is_removing(&self) -> bool {
        matches!(self.stage, Stage::Removing { .. })
    }

    pub fn space(&self) -> Option<&SpaceRecord> {
        match &self.what {
            What::Space(space) => Some(space),
            What::Tier { .. } | What::Swap { .. } => None,
        }
    }

    /// The place of its bytes: the folder of the pool, and the name there.
    pub fn place(&self) -> Option<(&'static str, String)> {
        let id = &self.id;
        match &self.what {
            What::Tier { .. } => Some(("tiers", id.to_string())),
            What::Swap { .. } => Some(("swap", id.to_string())),
            What::Space(space) => match space.means {
                Means::Image => Some(("spaces", format!("{id}.img"))),
                Means::Directory | Means::ProjectQuota => Some(("spaces", format!("{id}.dir"))),
                Means::Tmpfs => None,
            },
        }
    }

    pub fn save(&self, folder: &Folder) -> Result<()> {
        let name = format!("{}.json", self.id);
        let bytes = serde_json::to_vec_pretty(self).expect("names are UTF-8, and keys are strings");
        folder.replace(&name, &bytes, Durable::Yes).map_err(|e| {
            // On a full tier the unfinished file has no bytes.
            let _ = folder.remove_if_there(&unfinished(&name));
            failed(folder.path().join(&name).display())(e)
        })
    }

    pub fn load(folder: &Folder, id: &Id) -> Result<Option<Record>> {
        Record::read(folder, &format!("{id}.json"))
    }

    /// `None` if there is no such file.
    pub fn read(folder: &Folder, name: &str) -> Result<Option<Record>> {
        let at = folder.path().join(name);
        let bytes = match folder.read(name) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(failed(at.display()))?,
        };
        let record: Record = serde_json::from_slice(&bytes).map_err(|e| {
            Error::new(Kind::Corrupt, format!("{}: no record of ours", at.display())).with_source(e)
        })?;
        match record.format {
            FORMAT => Ok(Some(record)),
            other => Err(usage_error(format!(
                "{}: written by a newer forebay (format {other}): use that one",
                at.display()
            ))),
        }
    }

    /// The names of all records in a folder.
    pub fn names(folder: &Folder) -> Result<Vec<String>> {
        let names = folder.list("").map_err(failed(folder.path().display()))?;
        let names = names.into_iter().filter_map(|name| name.into_string().ok());
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".json")).collect();
        names.sort();
        Ok(names)
    }

    /// Ids whose record may have been cut off while it was written.
    pub fn unfinished(folder: &Folder) -> Result<Vec<Id>> {
        let names = folder.list("").map_err(failed(folder.path().display()))?;
        let id = |name: std::ffi::OsString| {
            name.to_str()?.strip_suffix(".json.new").and_then(|id| id.parse().ok())
        };
        Ok(names.into_iter().filter_map(id).collect())
    }

    pub fn forget(folder: &Folder, name: &str) -> Result<()> {
        let aside = unfinished(name);
        folder.remove_if_there(&aside).map_err(failed(folder.path().join(&aside).display()))?;
        folder.remove_if_there(name).map_err(failed(folder.path().join(name).display()))
    }
}

/// The name under which a record is written, before it gets its own.
fn unfinished(name: &str) -> String {
    format!("{name}.new")
}

/// The name of a record, or of its bytes, in the trash.
pub(super) fn trash_name(id: &Id, number: u32, end: &str) -> String {
    format!("{id}.{number}.{end}")
}

/// The lowest number that is free in the trash for this id.
pub(super) fn free_number(trash: &Folder, id: &Id) -> Result<u32> {
    let taken = |number: u32| {
        ["json", "data"].iter().any(|end| is_there(trash, &trash_name(id, number, end)))
    };
    (1..u32::MAX).find(|number| !taken(*number)).ok_or_else(|| {
        usage_error(format!("{}: too much is called {id} in it", trash.path().display()))
    })
}

/// Whether anything has the name, of whatever kind.
pub(super) fn is_there(folder: &Folder, name: &str) -> bool {
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::statat(folder, name, flags).is_ok()
}

/// A file of forebay's, to read and write; `None` if nothing has the name.
pub(crate) fn open_file(folder: &Folder, name: &str) -> Result<Option<std::fs::File>> {
    match folder.open(name, rustix::fs::OFlags::RDWR, Wanted::File) {
        Ok(fd) => Ok(Some(fd.into())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(e, folder.path().join(name).display().to_string())),
    }
}

/// The boot id of the running kernel.
pub(super) fn boot_id() -> Result<String> {
    let at = "/proc/sys/kernel/random/boot_id";
    std::fs::read_to_string(at).map(|text| text.trim().into()).map_err(failed(at))
}
