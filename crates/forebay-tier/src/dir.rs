//! The tier directory: its superblock, its lock, and the names of the files in it.
//!
//! ```text
//! forebay.json     superblock: format, backing store, uuid
//! lock             held (flock) by the process that uses the tier
//! index.redb       the index as of the last compaction
//! log/             changes since
//! shadow/xx/       shadow files, by file id
//! digests/         digests of the blocks that the backing store has of them
//! taken/           what was taken over from other members
//! run/             control socket and log of the daemon
//! ```

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_backing::{Error, Kind, Result, lock};
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::core::id::FileId;
use crate::media::{DirMedia, Media};
use crate::{digests, taken};
use forebay_base::folder::{Durable, Folder, Wanted};
use forebay_base::way::{Demand, End};
use forebay_base::{folder, users, way};
pub use made::Made;

mod made;

/// The format this program writes, and the newest it reads. A tier of an older format is taken over: it only
/// lacks the later additions (format 4 has seals of shadow files, format 5 the times that are being set).
pub const FORMAT: u32 = 5;

/// The oldest format that this program reads: the first with a journal of names.
const OLDEST: u32 = 3;

const SUPERBLOCK: &str = "forebay.json";

const LOCK: &str = "lock";

const RUN: &str = "run";

const SOCKET: &str = "control.sock";

/// Shadow files are spread over this many directories.
pub const SHADOW_DIRS: u64 = 256;

/// The backing store a tier belongs to (S11).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierOwner {
    /// Where the backing store was, canonical; for people and for `recover`.
    pub path: PathBuf,
    /// The part that is compared.
    pub identity: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Superblock {
    format: u32,
    uuid: String,
    backing: TierOwner,
    /// A checksum of the other fields: a damaged superblock is refused, not guessed at.
    crc: u32,
}

/// A tier directory, locked for this process until dropped.
pub struct Tier {
    pub media: Arc<dyn Media>,
    run: Option<Arc<Folder>>,
    /// For a tier of an older format: its directory, and its superblock.
    older: Option<(PathBuf, Superblock)>,
    uuid: String,
    made: Option<Made>,
    _lock: Option<OwnedFd>,
}

impl Tier {
    /// Opens the tier in `dir` for `backing`, creating it (mode 0700) if there is nothing.
    ///
    /// # Errors
    ///
    /// [`Kind::InUse`], [`Kind::OtherStore`]; [`Kind::WrongTier`] if it is damaged, of a newer format,
    /// of another user, or if `dir` holds files that are not a tier; [`Kind::Usage`] if another user could
    /// replace it. Nothing is changed then.
    pub fn open(dir: &Path, backing: &TierOwner) -> Result<Tier> {
        let (tier, new) = own_or_made(dir)?;
        if is_fresh(&tier)? {
            refuse_foreign_files(&tier)?;
        }
        // If another process was first, its lock file is in the directory, and the directory stays.
        let lock = take_lock(&tier).inspect_err(|_| drop(new.as_ref().map(made::remove_dir)))?;
        let made = new.map(|end| Made::of(end, &tier, &lock)).transpose();
        let made = made.map_err(|e| failed(e, &tier))?;
        match Tier::prepared(tier, dir, backing) {
            Ok(prepared) => Ok(Tier { made, _lock: Some(lock), ..prepared }),
            Err(error) => Err(Made::undo(made, error, &[])),
        }
    }

    /// The tier in a directory that is locked.
    fn prepared(tier: Folder, dir: &Path, backing: &TierOwner) -> Result<Tier> {
        // Shadow files hold the bytes of all users' files: no other user may look inside.
        tier.close_to_others().map_err(|e| failed(e, &tier))?;
        let mut older = None;
        let uuid;
        if is_fresh(&tier)? {
            let made = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
            uuid = made.trim().to_string();
            write_superblock(&tier, backing.clone(), uuid.clone())?;
        } else {
            let found = check_owner(&tier, backing)?;
            uuid = found.uuid.clone();
            older = (found.format < FORMAT).then(|| (dir.to_path_buf(), found));
        }
        let run = prepare_run(&tier)?;
        require_own_dirs(&tier).map_err(|e| failed(e, &tier))?;
        let at = tier.path().to_path_buf();
        let media = DirMedia::of(tier).and_then(|media| prepare(&media).map(|()| media));
        let media = media.map_err(|e| failed_at(e, dir_text(&at)))?;
        let (media, run) = (Arc::new(media), Some(Arc::new(run)));
        Ok(Tier { media, run, older, uuid, made: None, _lock: None })
    }

    /// A tier on any medium, for tests: no superblock, no lock, nowhere to run.
    pub fn on(media: Arc<dyn Media>) -> io::Result<Tier> {
        prepare(&*media)?;
        let uuid = String::new();
        Ok(Tier { media, run: None, older: None, uuid, made: None, _lock: None })
    }

    /// The directory that was made for a new tier, once: a caller that fails later removes it with this.
    pub fn made(&mut self) -> Option<Made> {
        self.made.take()
    }

    /// The tier's uuid, which no other tier has; empty for a tier of [`Tier::on`].
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// The directory of the daemon's socket, its log and its saved state.
    ///
    /// # Panics
    ///
    /// For a tier of [`Tier::on`].
    pub fn run(&self) -> Arc<Folder> {
        self.run.clone().expect("a tier in a directory has one")
    }

    /// Converts a tier of an older format to this format.
    pub fn take_over(&mut self) -> Result<()> {
        let Some((dir, found)) = self.older.take() else { return Ok(()) };
        write_superblock(&own(&dir)?, found.backing, found.uuid)
    }

    /// The owner of the tier in `dir`, read without changing the tier.
    pub fn owner(dir: &Path) -> Result<TierOwner> {
        Ok(read_superblock(&own(dir)?)?.backing)
    }

    /// The absolute path, without links, of a tier that may not exist yet; its parent must exist.
    pub fn path(dir: &Path) -> Result<PathBuf> {
        let end = way::walk(dir, Demand::Fixed)?;
        let found = end.found.as_ref().map(rustix::fs::fstat).transpose();
        let found = found.map_err(|e| Error::io(e.into(), dir_text(dir)))?;
        match found.map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode)) {
            None | Some(rustix::fs::FileType::Directory) => Ok(end.path),
            Some(_) => {
                Err(Error::new(Kind::Usage, format!("tier {}: is not a directory", dir.display())))
            }
        }
    }

    /// Compares the tier in `dir` with a backing store (S11), without touching it.
    pub fn belongs(dir: &Path, backing: &TierOwner) -> Result<()> {
        check_owner(&own(dir)?, backing).map(drop)
    }

    pub fn socket_path(dir: &Path) -> PathBuf {
        dir.join(RUN).join(SOCKET)
    }

    /// The socket's name in [`Tier::run`].
    pub const SOCKET: &str = SOCKET;
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

/// A tier that offline tools look at: ours alone until dropped.
pub struct Existing {
    pub media: DirMedia,
    /// The damage of its superblock, if any. The rest of the tier can be read all the same.
    pub damage: Option<Error>,
    /// Keeps other programs from the tier until it is closed.
    pub lock: OwnedFd,
}

/// Opens a tier that must exist, for offline tools.
pub fn open_existing(dir: &Path) -> Result<Existing> {
    let tier = own(dir)?;
    let damage = superblock(&tier)?.err();
    let lock = take_lock(&tier)?;
    let media = DirMedia::of(tier).map_err(|e| failed_at(e, dir_text(dir)))?;
    Ok(Existing { media, damage, lock })
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

/// Opens the directory of a tier that exists. It belongs to the effective user, and no other user can put
/// another directory in its place.
fn own(dir: &Path) -> Result<Folder> {
    opened(&way::walk(dir, Demand::Fixed)?, dir)
}

/// Opens the tier's directory, or makes it; returns the place of a directory that was made.
fn own_or_made(dir: &Path) -> Result<(Folder, Option<End>)> {
    let end = way::walk(dir, Demand::Fixed)?;
    if end.found.is_some() {
        return Ok((opened(&end, dir)?, None));
    }
    match rustix::fs::mkdirat(&end.dir, &end.name, Mode::RWXU) {
        Ok(()) => Ok((own(dir)?, Some(end))),
        Err(rustix::io::Errno::EXIST) => Ok((own(dir)?, None)),
        Err(e) => Err(Error::io(e.into(), format!("creating {}", dir.display()))),
    }
}

/// What to do about a directory that is no tier.
const NAME_ONE: &str = "give the directory that was --tier at the mount";

fn opened(end: &End, typed: &Path) -> Result<Folder> {
    let missing = || {
        let text =
            format!("{} is not a forebay tier: it does not exist: {NAME_ONE}", typed.display());
        Error::new(Kind::WrongTier, text)
    };
    let fd = end.found.as_ref().ok_or_else(missing)?;
    let stat = rustix::fs::fstat(fd).map_err(|e| Error::io(e.into(), dir_text(typed)))?;
    folder::require(&stat, Wanted::Dir).map_err(|why| {
        let owner = users::show(stat.st_uid);
        let text =
            format!("{}: {why}: act as {owner}, or name a directory of your own", dir_text(typed));
        Error::new(Kind::WrongTier, text)
    })?;
    Folder::of(fd.as_fd(), &end.path).map_err(|e| failed_at(e, dir_text(typed)))
}

fn prepare_run(tier: &Folder) -> Result<Folder> {
    let made = tier.make_dir(RUN).and_then(|()| tier.below(RUN));
    made.map_err(|e| failed_at(e, tier.path().join(RUN).display().to_string()))
}

/// Requires that no other user can reach these directories, whose files are opened by name.
fn require_own_dirs(tier: &Folder) -> io::Result<()> {
    let shadows = (0..SHADOW_DIRS).map(|id| shadow_dir(FileId(id)));
    for name in
        ["shadow", "log", digests::DIR, taken::DIR].map(String::from).into_iter().chain(shadows)
    {
        match tier.below(&name) {
            Ok(dir) => dir.close_to_others()?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn is_fresh(tier: &Folder) -> Result<bool> {
    match tier.read(SUPERBLOCK) {
        Ok(_) => Ok(false),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(!holds_files(tier)),
        Err(e) => Err(failed_at(e, tier.path().join(SUPERBLOCK).display().to_string())),
    }
}

/// Whether the directory has a tier's contents beside its superblock.
fn holds_files(tier: &Folder) -> bool {
    ["shadow", "log"].iter().all(|name| tier.below(name).is_ok())
}

fn refuse_foreign_files(tier: &Folder) -> Result<()> {
    for name in tier.list("").map_err(|e| failed(e, tier))? {
        if name != LOCK && name != RUN && name != "lost+found" {
            return Err(Error::new(
                Kind::WrongTier,
                format!(
                    "{} is not a forebay tier and is not empty (it holds {}): give --tier an empty or new directory",
                    tier.path().display(),
                    name.display()
                ),
            ));
        }
    }
    Ok(())
}

fn take_lock(tier: &Folder) -> Result<OwnedFd> {
    let path = tier.path().join(LOCK);
    let fd = tier
        .open(LOCK, OFlags::RDWR | OFlags::CREATE, Wanted::File)
        .map_err(|e| failed_at(e, path.display().to_string()))?;
    match lock::outlive(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(fd),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::new(
            Kind::InUse,
            format!("the tier {} is in use by another forebay", tier.path().display()),
        )),
        Err(e) => Err(Error::io(e.into(), format!("locking {}", path.display()))),
    }
}

fn check_owner(tier: &Folder, backing: &TierOwner) -> Result<Superblock> {
    let block = read_superblock(tier)?;
    let found = &block.backing;
    if found.identity == backing.identity {
        return Ok(block);
    }
    let (tier, theirs, ours) =
        (tier.path().display(), found.path.display(), backing.path.display());
    let message = match found.path == backing.path {
        true => format!(
            "the tier {tier} belongs to another directory than the one that is at {ours} now (is the file system of the \
             backing store mounted there?)"
        ),
        false => format!("the tier {tier} belongs to the backing store {theirs}, not to {ours}"),
    };
    Err(Error::new(Kind::OtherStore, message))
}

fn read_superblock(tier: &Folder) -> Result<Superblock> {
    superblock(tier)?
}

/// The superblock, or its damage.
///
/// # Errors
///
/// If the directory is no tier, or one of a format that this program does not read.
fn superblock(tier: &Folder) -> Result<Result<Superblock>> {
    let path = tier.path().join(SUPERBLOCK);
    let dir = tier.path().display();
    let damaged = |why: String| {
        let text = format!(
            "the superblock {} is damaged ({why}): what is dirty in the tier is not lost, 'forebay recover {dir} --to DIR' saves it",
            path.display()
        );
        Ok(Err(Error::new(Kind::WrongTier, text)))
    };
    let text = match tier.read(SUPERBLOCK) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound && holds_files(tier) => {
            return damaged("there is none".into());
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let text =
                format!("{dir} is not a forebay tier: there is no {SUPERBLOCK} in it: {NAME_ONE}");
            return Err(Error::new(Kind::WrongTier, text));
        }
        Err(e) => return Err(failed_at(e, format!("the superblock {}", path.display()))),
    };
    let value: serde_json::Value = match serde_json::from_slice(&text) {
        Ok(value) => value,
        Err(e) => return damaged(e.to_string()),
    };
    let format = value["format"].as_u64().unwrap_or(0);
    if format > u64::from(FORMAT) {
        return Err(Error::new(
            Kind::WrongTier,
            format!(
                "the tier {dir} has format {format}, newer than this forebay reads ({FORMAT}): use the forebay that wrote it"
            ),
        ));
    }
    let block: Superblock = match serde_json::from_value(value) {
        Ok(block) => block,
        Err(e) => return damaged(e.to_string()),
    };
    if block.crc != block.checksum() {
        return damaged("its checksum does not match".into());
    }
    if block.format < OLDEST {
        return Err(Error::new(
            Kind::WrongTier,
            format!(
                "the tier {dir} has format {format}, older than this forebay reads ({OLDEST}): let the forebay that wrote it drain it, with 'forebay recover {dir}'"
            ),
        ));
    }
    Ok(Ok(block))
}

fn write_superblock(tier: &Folder, backing: TierOwner, uuid: String) -> Result<()> {
    let mut block = Superblock { format: FORMAT, uuid, backing, crc: 0 };
    block.crc = block.checksum();
    let text = serde_json::to_string_pretty(&block).expect("plain data");
    tier.replace(SUPERBLOCK, text.as_bytes(), Durable::Yes)
        .map_err(|e| failed_at(e, format!("writing the superblock of {}", tier.path().display())))
}

fn failed(error: io::Error, tier: &Folder) -> Error {
    failed_at(error, dir_text(tier.path()))
}

/// A file that must not be in a tier means that the directory is not a tier.
fn failed_at(error: io::Error, what: String) -> Error {
    match folder::is_refusal(&error) {
        true => Error::new(Kind::WrongTier, format!("{what}: {error}")),
        false => Error::io(error, what),
    }
}

fn dir_text(dir: &Path) -> String {
    format!("the tier {}", dir.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An older program must not read a tier that it knew, once this program has written to it.
    // S-11
    #[test]
    fn a_tier_of_the_format_before_becomes_one_of_this_and_an_older_one_is_refused() {
        let dir = std::env::temp_dir().join(format!("forebay-format-{}", std::process::id()));
        let owner = TierOwner { path: "/slow".into(), identity: "dir:1:x".into() };
        drop(Tier::open(&dir, &owner).unwrap());
        let mut old = read_superblock(&own(&dir).unwrap()).unwrap();
        let uuid = old.uuid.clone();
        assert!(old.format == FORMAT && !uuid.is_empty());
        old.format = 2;
        old.crc = old.checksum();
        std::fs::write(dir.join(SUPERBLOCK), serde_json::to_string(&old).unwrap()).unwrap();
        let refused = Tier::open(&dir, &owner).map(drop).unwrap_err();
        assert_eq!(refused.kind(), Kind::WrongTier);
        assert!(refused.to_string().contains("recover"), "{refused}");
        let text = std::fs::read_to_string(dir.join(SUPERBLOCK)).unwrap();
        assert_eq!(text, serde_json::to_string(&old).unwrap(), "nothing is changed");
        for format in OLDEST..FORMAT {
            old.format = format;
            old.crc = old.checksum();
            std::fs::write(dir.join(SUPERBLOCK), serde_json::to_string(&old).unwrap()).unwrap();
            Tier::open(&dir, &owner).unwrap().take_over().unwrap();
            let new = read_superblock(&own(&dir).unwrap()).unwrap();
            assert_eq!((new.format, &new.uuid, &new.backing), (FORMAT, &uuid, &owner));
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
