//! The tier directory: its superblock, its lock, and the names of what lies in it.
//!
//! ```text
//! forebay.json     superblock: format, backing store, uuid
//! lock             held (flock) by who uses the tier
//! index.redb       the index as of the last fold
//! log/             changes since
//! shadow/xx/       shadow files, by file id
//! run/             control socket and log of the daemon
//! ```

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_backing::{Error, Kind, Result, lock};
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::log::FileId;
use crate::media::{DirMedia, Media};

/// The format this program writes, and the newest it reads. A tier of an older one is one without
/// what came later: 2 knows bytes that are kept, 3 files that lost bytes.
pub const FORMAT: u32 = 3;

const SUPERBLOCK: &str = "forebay.json";
const LOCK: &str = "lock";

/// Shadow files are spread over this many directories.
pub const SHADOW_DIRS: u64 = 256;

/// The backing store a tier belongs to (S11).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierOwner {
    /// Where the backing store was, canonical; for people and for `recover`.
    pub path: PathBuf,
    /// What is compared.
    pub identity: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Superblock {
    format: u32,
    uuid: String,
    backing: TierOwner,
    /// Over the other fields: a damaged superblock is refused, not guessed at.
    crc: u32,
}

/// A tier directory that is ours alone until dropped.
pub struct Tier {
    pub(crate) media: Arc<dyn Media>,
    _lock: Option<OwnedFd>,
}

impl Tier {
    /// Opens the tier in `dir` for `backing`, creating it (mode 0700) if there is nothing.
    ///
    /// # Errors
    ///
    /// [`Kind::WrongTier`] if it is in use, damaged, of a newer format, of another backing store,
    /// or if `dir` holds files that are not a tier. Nothing is changed then.
    pub fn open(dir: &Path, backing: &TierOwner) -> Result<Tier> {
        make_dir(dir)?;
        let fresh = !dir.join(SUPERBLOCK).exists();
        if fresh {
            refuse_foreign_files(dir)?;
        }
        let lock = take_lock(dir)?;
        protect(dir)?;
        if fresh {
            let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
            write_superblock(dir, backing.clone(), uuid.trim().into())?;
        } else {
            let found = check_owner(dir, backing)?;
            if found.format < FORMAT {
                write_superblock(dir, found.backing, found.uuid)?;
            }
        }
        let media = DirMedia::open(dir).map_err(|e| Error::io(e, dir_text(dir)))?;
        prepare(&media).map_err(|e| Error::io(e, dir_text(dir)))?;
        make_dir(&dir.join("run"))?;
        Ok(Tier { media: Arc::new(media), _lock: Some(lock) })
    }

    /// A tier on any medium, for tests: no superblock, no lock.
    pub fn on(media: Arc<dyn Media>) -> io::Result<Tier> {
        prepare(&*media)?;
        Ok(Tier { media, _lock: None })
    }

    /// Whose the tier in `dir` is, without touching it.
    pub fn owner(dir: &Path) -> Result<TierOwner> {
        Ok(read_superblock(dir)?.backing)
    }

    /// Compares the tier in `dir` with a backing store (S11), without touching it.
    pub fn belongs(dir: &Path, backing: &TierOwner) -> Result<()> {
        check_owner(dir, backing).map(drop)
    }

    pub fn socket_path(dir: &Path) -> PathBuf {
        dir.join("run/control.sock")
    }
}

/// Takes the lock of a tier that must exist, for offline tools.
pub fn lock_existing(dir: &Path) -> Result<OwnedFd> {
    read_superblock(dir)?;
    take_lock(dir)
}

pub fn shadow_name(id: FileId) -> String {
    format!("shadow/{:02x}/{:x}", id.0 % SHADOW_DIRS, id.0)
}

pub fn shadow_dir(id: FileId) -> String {
    format!("shadow/{:02x}", id.0 % SHADOW_DIRS)
}

fn prepare(media: &dyn Media) -> io::Result<()> {
    media.make_dir("shadow")?;
    if media.list("shadow")?.len() < SHADOW_DIRS as usize {
        for id in 0..SHADOW_DIRS {
            media.make_dir(&shadow_dir(FileId(id)))?;
        }
        media.sync_dir("shadow")?;
    }
    media.make_dir("log")?;
    media.sync_dir("")
}

fn make_dir(dir: &Path) -> Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            Err(Error::io(e, format!("creating {}", dir.display())))
        }
        _ => Ok(()),
    }
}

/// Shadow files carry the bytes of everybody's files: nobody else may look inside.
fn protect(dir: &Path) -> Result<()> {
    let only_us = fs::Permissions::from_mode(0o700);
    fs::set_permissions(dir, only_us)
        .map_err(|e| Error::io(e, format!("protecting {}", dir.display())))
}

fn refuse_foreign_files(dir: &Path) -> Result<()> {
    let entries = fs::read_dir(dir).map_err(|e| Error::io(e, dir_text(dir)))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name != LOCK && name != "run" && name != "lost+found" {
            return Err(Error::new(
                Kind::WrongTier,
                format!(
                    "{} is not a forebay tier and is not empty (it holds {}): give --tier an empty or new directory",
                    dir.display(),
                    name.to_string_lossy()
                ),
            ));
        }
    }
    Ok(())
}

fn take_lock(dir: &Path) -> Result<OwnedFd> {
    let path = dir.join(LOCK);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let fd = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|e| Error::io(e.into(), format!("opening {}", path.display())))?;
    match lock::outlive(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(fd),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::new(
            Kind::WrongTier,
            format!(
                "the tier {} is in use by another forebay: unmount that one first, or give --tier another directory",
                dir.display()
            ),
        )),
        Err(e) => Err(Error::io(e.into(), format!("locking {}", path.display()))),
    }
}

fn check_owner(dir: &Path, backing: &TierOwner) -> Result<Superblock> {
    let block = read_superblock(dir)?;
    let found = &block.backing;
    if found.identity == backing.identity {
        return Ok(block);
    }
    Err(Error::new(
        Kind::WrongTier,
        format!(
            "the tier {} belongs to the backing store {}, not to {}: mount that one, or give --tier another directory",
            dir.display(),
            found.path.display(),
            backing.path.display()
        ),
    ))
}

fn read_superblock(dir: &Path) -> Result<Superblock> {
    let path = dir.join(SUPERBLOCK);
    let text = fs::read_to_string(&path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Error::new(
            Kind::WrongTier,
            format!("{} is not a forebay tier: there is no {SUPERBLOCK} in it", dir.display()),
        ),
        _ => Error::io(e, format!("reading {}", path.display())),
    })?;
    let damaged = |why: String| {
        Error::new(
            Kind::WrongTier,
            format!(
                "the superblock {} is damaged ({why}): restore it from a backup, or move the tier away and start with a new one",
                path.display()
            ),
        )
    };
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
    let format = value["format"].as_u64().unwrap_or(0);
    if format > u64::from(FORMAT) {
        return Err(Error::new(
            Kind::WrongTier,
            format!(
                "the tier {} has format {format}, newer than this forebay reads ({FORMAT}): use the forebay that wrote it",
                dir.display()
            ),
        ));
    }
    let block: Superblock = serde_json::from_value(value).map_err(|e| damaged(e.to_string()))?;
    if block.crc != block.checksum() {
        return Err(damaged("its checksum does not match".into()));
    }
    Ok(block)
}

impl Superblock {
    fn checksum(&self) -> u32 {
        let text = format!(
            "{}\0{}\0{}\0{}",
            self.format,
            self.uuid,
            self.backing.path.display(),
            self.backing.identity
        );
        crc32fast::hash(text.as_bytes())
    }
}

/// Written aside, synced and renamed: a crash leaves no superblock or a whole one.
fn write_superblock(dir: &Path, backing: TierOwner, uuid: String) -> Result<()> {
    let mut block = Superblock { format: FORMAT, uuid, backing, crc: 0 };
    block.crc = block.checksum();
    let text = serde_json::to_string_pretty(&block).expect("plain data");
    let write = || -> io::Result<()> {
        let aside = dir.join("forebay.json.new");
        fs::write(&aside, text)?;
        fs::File::open(&aside)?.sync_all()?;
        fs::rename(&aside, dir.join(SUPERBLOCK))?;
        fs::File::open(dir)?.sync_all()
    };
    write().map_err(|e| Error::io(e, format!("writing the superblock of {}", dir.display())))
}

fn dir_text(dir: &Path) -> String {
    format!("the tier {}", dir.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An older program must not read what this one writes to a tier that it knew.
    // S-11
    #[test]
    fn a_tier_of_an_older_format_becomes_one_of_this() {
        let dir = std::env::temp_dir().join(format!("forebay-format-{}", std::process::id()));
        let owner = TierOwner { path: "/slow".into(), identity: "dir:1:x".into() };
        drop(Tier::open(&dir, &owner).unwrap());
        let mut old = read_superblock(&dir).unwrap();
        let uuid = old.uuid.clone();
        assert!(old.format == FORMAT && !uuid.is_empty());
        old.format = 1;
        old.crc = old.checksum();
        fs::write(dir.join(SUPERBLOCK), serde_json::to_string(&old).unwrap()).unwrap();
        drop(Tier::open(&dir, &owner).unwrap());
        let new = read_superblock(&dir).unwrap();
        assert_eq!((new.format, new.uuid, new.backing), (FORMAT, uuid, owner));
        fs::remove_dir_all(&dir).unwrap();
    }
}
