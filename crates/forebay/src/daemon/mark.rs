//! The mark of a store that members share, `.forebay/id` at its root: the store's number, and the registry in
//! which its members agree. No mount shows the mark: `.forebay` in a mount is a virtual directory. A mount without
//! that registry could not see the claims of other members, and is refused.
//!
//! Users can write to the directories in which root looks for marks.
//!
//! - M1: no name is resolved through a link, and only regular files are opened.
//! - M2: a mark counts if root, the mounting user, or the owner of the directory has made it; the owner's
//!   does not count where every user can make names (a sticky directory, such as `/tmp`).

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use forebay_backing::{Error, Kind, Result};
use forebay_registry::Registry;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub const DIR: &str = ".forebay";
pub const NAME: &str = "id";

/// A mark has a few hundred bytes.
const BYTES_MAX: u64 = 4096;

const LOOK: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The identity of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub store: String,
    /// The cluster of the registry, as the registry names itself, and the members' prefix in it.
    pub registry: String,
}

/// The root of a store: its opened directory, and its path for messages.
#[derive(Clone, Copy)]
pub struct Root<'a> {
    pub dir: BorrowedFd<'a>,
    pub path: &'a Path,
}

struct Found {
    /// The directory with the mark: the root itself, or one above.
    at: PathBuf,
    is_own: bool,
    mark: Mark,
}

fn mark_at(root: &Path) -> PathBuf {
    root.join(DIR).join(NAME)
}

/// Refuses a mount without a registry if the members of its store agree in one.
///
/// # Errors
///
/// [`Kind::Usage`], with the option to give.
pub fn refuse_alone(root: Root<'_>) -> Result<()> {
    let Some(Found { at, mark, .. }) = find(root)? else { return Ok(()) };
    let shared = if at == root.path { "this store".into() } else { at.display().to_string() };
    Err(Error::new(
        Kind::Usage,
        format!(
            "{}: several nodes share {shared}: mount it with --registry ADDRESS, as they do (`forebay status --cluster` on one of them tells it; the registry's cluster is {}), or with --read-only; if no node mounts it any more, remove {}",
            root.path.display(),
            mark.registry,
            mark_at(&at).display()
        ),
    ))
}

/// Refuses to bring a tier's bytes home without a mount if members share its store: another may have newer bytes.
///
/// # Errors
///
/// [`Kind::Usage`], with what to do instead.
pub fn refuse_recovery(root: Root<'_>) -> Result<()> {
    let Some(Found { at, mark, .. }) = find(root)? else { return Ok(()) };
    Err(Error::new(
        Kind::Usage,
        format!(
            "{}: several nodes share this store, and may have newer bytes of the tier's files: mount the tier with --registry ADDRESS, under its node's name (the registry's cluster is {}), or save its files elsewhere with --to DIR; if no node mounts the store any more, remove {}",
            root.path.display(),
            mark.registry,
            mark_at(&at).display()
        ),
    ))
}

/// The mark of the store, which is made if there is none.
pub fn of(root: Root<'_>, registry: &dyn Registry, prefix: &str) -> Result<Mark> {
    let cluster = format!("{}/{prefix}", registry.cluster()?.cluster);
    let shown = root.path.display();
    if let Some(Found { at, is_own, mark }) = find(root)? {
        if !is_own {
            let what = format!(
                "{shown}: the store that members share begins at {}: mount that",
                at.display()
            );
            return Err(Error::new(Kind::Usage, what));
        }
        if mark.registry != cluster {
            let what = format!(
                "{shown}: the members of this store agree in another registry ({}) than {} ({cluster}): give that one's address",
                mark.registry,
                registry.address(),
            );
            return Err(Error::new(Kind::Usage, what));
        }
        return Ok(mark);
    }
    let mark = Mark { store: number()?, registry: cluster };
    match make(root, &mark)? {
        true => Ok(mark),
        // Another member has made the mark first.
        false => match find(root)? {
            Some(Found { is_own: true, mark, .. }) => Ok(mark),
            _ => Err(strange(root)),
        },
    }
}

fn strange(root: Root<'_>) -> Error {
    let (at, dir) = (mark_at(root.path), root.path);
    let what = format!(
        "{}: neither root nor the owner of {} has put it there, or it is a link: remove it",
        at.display(),
        dir.display()
    );
    Error::new(Kind::Usage, what)
}

/// The mark that holds for a directory: its own, or that of a directory above on the same file system.
fn find(root: Root<'_>) -> Result<Option<Found>> {
    let failed = |e: Errno| Error::os(e.raw_os_error(), root.path.display().to_string());
    let mut dir = fs::openat(root.dir, ".", LOOK, Mode::empty()).map_err(failed)?;
    let mut stat = fs::fstat(&dir).map_err(failed)?;
    let mut is_own = true;
    loop {
        let shown = || match is_own {
            true => root.path.to_path_buf(),
            false => path_of(&dir),
        };
        if let Some(mark) = mark_in(&dir, &stat, shown)? {
            return Ok(Some(Found { at: shown(), is_own, mark }));
        }
        let Ok(above) = fs::openat(&dir, "..", LOOK, Mode::empty()) else { return Ok(None) };
        let found = fs::fstat(&above).map_err(failed)?;
        if found.st_dev != stat.st_dev || found.st_ino == stat.st_ino {
            return Ok(None);
        }
        (dir, stat, is_own) = (above, found, false);
    }
}

fn path_of(fd: &OwnedFd) -> PathBuf {
    std::fs::read_link(proc_path(fd)).unwrap_or_default()
}

fn proc_path(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn mark_in(dir: &OwnedFd, of: &Stat, shown: impl Fn() -> PathBuf) -> Result<Option<Mark>> {
    let failed = |e: Errno| Error::os(e.raw_os_error(), mark_at(&shown()).display().to_string());
    let Some(folder) = look(dir, DIR, LOOK).map_err(failed)? else { return Ok(None) };
    let Some(file) = look(&folder, NAME, OFlags::PATH | OFlags::CLOEXEC).map_err(failed)? else {
        return Ok(None);
    };
    let (folder, found) = (fs::fstat(&folder).map_err(failed)?, fs::fstat(&file).map_err(failed)?);
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if !is_file || !counts(&folder, of) || !counts(&found, of) {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = fs::open(proc_path(&file), flags, Mode::empty()).map_err(failed)?;
    let mut text = Vec::new();
    let read = File::from(opened).take(BYTES_MAX + 1).read_to_end(&mut text);
    read.map_err(|e| Error::io(e, mark_at(&shown()).display().to_string()))?;
    let mark = serde_json::from_slice(&text).ok().filter(|_| text.len() as u64 <= BYTES_MAX);
    mark.map(Some).ok_or_else(|| {
        let what = format!("{}: it says not which store this is", mark_at(&shown()).display());
        Error::new(Kind::Usage, what)
    })
}

/// Opens a name in a directory (M1): links are not followed, and opening has no side effects.
fn look(dir: &OwnedFd, name: &str, flags: OFlags) -> rustix::io::Result<Option<OwnedFd>> {
    match fs::openat(dir, name, flags | OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Whether a file in `dir` counts (M2).
fn counts(found: &Stat, dir: &Stat) -> bool {
    const EVERYBODYS: Mode = Mode::SVTX.union(Mode::WOTH);
    let owns = found.st_uid == dir.st_uid;
    let everybodys = Mode::from_raw_mode(dir.st_mode).contains(EVERYBODYS);
    [0, rustix::process::geteuid().as_raw()].contains(&found.st_uid) || (owns && !everybodys)
}

/// Makes the mark; false if another member was first.
fn make(root: Root<'_>, mark: &Mark) -> Result<bool> {
    let failed = |e: std::io::Error| Error::io(e, mark_at(root.path).display().to_string());
    let refused = |e: Errno| failed(e.into());
    match fs::mkdirat(root.dir, DIR, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(refused(e)),
    }
    let folder = fs::openat(root.dir, DIR, LOOK | OFlags::NOFOLLOW, Mode::empty());
    let folder = folder.map_err(|e| match e {
        Errno::NOTDIR | Errno::LOOP => strange(root),
        e => refused(e),
    })?;
    let stat = |fd: BorrowedFd<'_>| fs::fstat(fd).map_err(refused);
    if !counts(&stat(folder.as_fd())?, &stat(root.dir)?) {
        return Err(strange(root));
    }
    // The mark appears as a whole and never replaces another: it is written under another name, then linked.
    let aside = format!("{NAME}.{}", mark.store);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = fs::openat(&folder, &aside, flags, Mode::from_raw_mode(0o644)).map_err(refused)?;
    let mut file = File::from(file);
    let text = serde_json::to_vec(mark).expect("plain values");
    let linked = file
        .write_all(&text)
        .and_then(|()| file.sync_all())
        .and_then(|()| Ok(fs::linkat(&folder, &aside, &folder, NAME, AtFlags::empty())?));
    let _ = fs::unlinkat(&folder, &aside, AtFlags::empty());
    match linked {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(failed(e)),
    }
}

/// A random number of 128 bits.
fn number() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .map_err(|e| Error::io(e, "/dev/urandom"))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;
    use forebay_registry::Embedded;
    use std::fs as files;

    struct Bed {
        dir: tempfile::TempDir,
        root: PathBuf,
    }

    impl Bed {
        fn new() -> Bed {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().join("store");
            files::create_dir(&root).unwrap();
            Bed { dir, root }
        }

        fn registry(&self, name: &str) -> Embedded {
            Embedded::open(&self.dir.path().join(name), forebay_registry::PATIENCE).unwrap()
        }
    }

    fn at<T>(path: &Path, work: impl FnOnce(Root<'_>) -> T) -> T {
        let dir = File::open(path).unwrap();
        work(Root { dir: dir.as_fd(), path })
    }

    fn alone(path: &Path) -> Result<()> {
        at(path, refuse_alone)
    }

    fn marked(path: &Path, registry: &Embedded, prefix: &str) -> Result<Mark> {
        at(path, |root| of(root, registry, prefix))
    }

    const TEXT: &str = "{\"store\":\"s\",\"registry\":\"r\"}";

    #[test]
    fn the_first_marks_the_store_and_all_others_find_its_mark() {
        let bed = Bed::new();
        let (root, registry) = (&bed.root, bed.registry("registry"));
        files::create_dir_all(root.join("sub/dir")).unwrap();
        alone(root).expect("nobody shares it");
        let first = marked(root, &registry, "a").unwrap();
        assert_eq!(marked(root, &registry, "a").unwrap(), first);
        let refused = alone(&root.join("sub/dir")).unwrap_err().to_string();
        assert!(refused.contains("--registry") && refused.contains("--read-only"), "{refused}");
        let below = marked(&root.join("sub"), &registry, "a").unwrap_err().to_string();
        assert!(below.contains(&root.display().to_string()), "{below}");
        let names: Vec<_> = files::read_dir(root.join(DIR)).unwrap().collect();
        assert_eq!(names.len(), 1, "nothing is left beside it");
    }

    #[test]
    fn another_registry_and_a_damaged_mark_are_refused() {
        let bed = Bed::new();
        let one = bed.registry("one");
        marked(&bed.root, &one, "a").unwrap();
        for (registry, prefix) in [(&bed.registry("two"), "a"), (&one, "b")] {
            let other = marked(&bed.root, registry, prefix).unwrap_err().to_string();
            assert!(other.contains("another registry"), "{other}");
        }
        for damaged in ["{".to_string(), TEXT.to_string() + &" ".repeat(5000)] {
            files::write(mark_at(&bed.root), damaged).unwrap();
            let damaged = alone(&bed.root).unwrap_err().to_string();
            assert!(damaged.contains(".forebay/id"), "{damaged}");
        }
    }

    /// M1. Method: everything that a user can put in the place of the mark or of its directory.
    #[test]
    fn what_is_no_file_is_neither_followed_nor_waited_for() {
        let bed = Bed::new();
        let (root, registry) = (&bed.root, bed.registry("registry"));
        let elsewhere = bed.dir.path().join("elsewhere");
        files::create_dir_all(elsewhere.join("dir")).unwrap();
        files::write(elsewhere.join(NAME), TEXT).unwrap();
        files::create_dir(root.join(DIR)).unwrap();
        for target in [elsewhere.join(NAME), "/dev/zero".into()] {
            symlink(target, mark_at(root)).unwrap();
            alone(root).expect("a link is no mark");
            marked(root, &registry, "a").expect_err("nothing is made in its place");
            files::remove_file(mark_at(root)).unwrap();
        }
        fs::mknodat(fs::CWD, mark_at(root), FileType::Fifo, Mode::RUSR, 0).unwrap();
        alone(root).expect("a FIFO is no mark");
        files::remove_file(mark_at(root)).unwrap();
        files::remove_dir(root.join(DIR)).unwrap();
        for target in [elsewhere.clone(), elsewhere.join("dir")] {
            symlink(&target, root.join(DIR)).unwrap();
            alone(root).expect("a link is no directory of a mark");
            let refused = marked(root, &registry, "a").unwrap_err().to_string();
            assert!(refused.contains("remove it"), "{refused}");
            files::remove_file(root.join(DIR)).unwrap();
        }
        assert_eq!(files::read_dir(elsewhere.join("dir")).unwrap().count(), 0, "nothing is made");
    }

    /// M2. Method: the directory and its mark are given to various users.
    #[test]
    fn a_mark_counts_if_root_or_the_owner_of_the_directory_made_it() {
        if !rustix::process::geteuid().is_root() {
            crate::ui::note!("SKIPPED: only root gives files away");
            return;
        }
        let bed = Bed::new();
        let (root, registry) = (&bed.root, bed.registry("registry"));
        let below = root.join("below");
        files::create_dir(&below).unwrap();
        files::create_dir(root.join(DIR)).unwrap();
        files::write(mark_at(root), TEXT).unwrap();
        let (owner, other) = (47_110, 47_111);
        let give = |path: &Path, uid| chown(path, Some(uid), Some(uid)).unwrap();
        give(root, owner);
        for (mode, of_dir, of_mark, counts) in [
            (0o755, 0, 0, true),
            (0o755, owner, owner, true),
            (0o1777, 0, 0, true),
            (0o1777, owner, owner, false),
            (0o777, other, other, false),
            (0o755, 0, other, false),
            (0o755, other, 0, false),
        ] {
            files::set_permissions(root, PermissionsExt::from_mode(mode)).unwrap();
            give(&root.join(DIR), of_dir);
            give(&mark_at(root), of_mark);
            let refused = alone(&below).is_err();
            assert_eq!(
                refused, counts,
                "{mode:o}: {of_dir} made the directory, {of_mark} the mark"
            );
            if !counts {
                let error = marked(root, &registry, "a").unwrap_err().to_string();
                assert!(error.contains("remove it"), "{error}");
            }
        }
    }
}
