//! Looks at the file system with a user's rights: root's daemon touches for a user only what that user could touch.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use forebay_backing::{BackingStore, DirStore};
use forebay_base::lock::{Mutex, MutexGuard, Rank};
use forebay_base::users::User;
use forebay_base::{Error, Kind, Result};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

/// A directory, as the user reached it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reached {
    /// The path without links.
    pub path: PathBuf,
    /// The answer of [`BackingStore::identity`]: the directory that is mounted later must have the same.
    pub identity: String,
}

/// Opens a directory with the rights of a user: a mount of it must not give the user a directory that the
/// user could not reach before.
pub fn reach(path: &Path, uid: u32, gid: u32) -> Result<Reached> {
    let shown = path.display().to_string();
    let typed = path.to_path_buf();
    let opened = as_user(uid, gid, path, move || open_dir(&typed));
    let dir = opened.map_err(|e| match e.kind() {
        io::ErrorKind::TimedOut => Error::new(Kind::TimedOut, e.to_string()),
        _ => {
            let who = forebay_base::users::show(uid);
            Error::new(Kind::Usage, format!("{shown}: {who} cannot open it")).with_source(e)
        }
    })?;
    let at = format!("/proc/self/fd/{}", dir.as_raw_fd());
    let reached = std::fs::read_link(at).map_err(|e| Error::io(e, shown))?;
    // By descriptor: the path may lead elsewhere by now.
    let store_path = reached.clone();
    let identity = as_user(0, 0, path, move || {
        Ok(DirStore::of(dir, store_path).and_then(|store| store.identity()))
    });
    let identity = identity.map_err(|e| Error::new(Kind::TimedOut, e.to_string()))??;
    Ok(Reached { path: reached, identity })
}

/// Opens a directory, but not by a magic link of `/proc` to an open file of this process: such a link needs no
/// rights to any directory.
fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_MAGICLINKS;
    let open = || rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve);
    Ok(rustix::io::retry_on_intr(open)?)
}

/// The time limit for a look. A file system that answers does so in milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// The number of hanging looks of one user beyond which no new one is begun.
const LATE_MAX: usize = 16;

/// Looks that have not ended in time: the user, and the path.
static LATE: Mutex<Vec<(u32, PathBuf)>> = Mutex::new(Rank::Late, Vec::new());

#[track_caller]
fn late() -> MutexGuard<'static, Vec<(u32, PathBuf)>> {
    LATE.lock()
}

/// The state of a look: its end and its time limit may come at the same moment, and the second of them must
/// know of the first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waited,
    Late,
    Over,
}

/// Runs `work`, a look at `path`, on a thread of its own with a user's rights. The system calls are made
/// directly: they change one thread, while the C library's functions change all threads of the process.
///
/// # Errors
///
/// [`io::ErrorKind::TimedOut`] if the file system does not answer: the thread stays in its call, and until
/// that ends the user's further looks at the same path are refused at once.
pub fn as_user<T: Send + 'static>(
    uid: u32,
    gid: u32,
    path: &Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    require_answering(uid, path)?;
    let stays = uid == 0 || !rustix::process::geteuid().is_root();
    let groups = if stays { Vec::new() } else { groups_of(uid, gid)? };
    let stage = Arc::new(Mutex::new(Rank::Looking, Stage::Waited));
    let (done, ended) = mpsc::channel();
    let (whose, shared) = ((uid, path.to_path_buf()), stage.clone());
    thread::Builder::new().name("as-user".into()).spawn(move || {
        let found = match stays {
            true => work(),
            false => become_on_this_thread(uid, gid, &groups).and_then(|()| work()),
        };
        let mut stage = shared.lock();
        if std::mem::replace(&mut *stage, Stage::Over) == Stage::Late {
            let mut late = late();
            let at = late.iter().position(|one| *one == whose);
            at.map(|at| late.swap_remove(at));
        }
        let _ = done.send(found);
    })?;
    match ended.recv_timeout(PATIENCE) {
        Ok(found) => found,
        Err(RecvTimeoutError::Disconnected) => {
            Err(io::Error::other("looking with a user's rights failed"))
        }
        Err(RecvTimeoutError::Timeout) => {
            let mut stage = stage.lock();
            if *stage == Stage::Over {
                return ended.recv().unwrap_or_else(|_| Err(hangs(path)));
            }
            *stage = Stage::Late;
            late().push((uid, path.into()));
            Err(hangs(path))
        }
    }
}

fn require_answering(uid: u32, path: &Path) -> io::Result<()> {
    let late = late();
    let count = late.iter().filter(|(whose, _)| *whose == uid).count();
    let hangs_there = late.iter().any(|one| one.0 == uid && one.1 == path);
    // Released first: the text below may ask another machine for the user's name.
    drop(late);
    if hangs_there {
        return Err(hangs(path));
    }
    match count < LATE_MAX {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("{LATE_MAX} paths that {} named do not answer", forebay_base::users::show(uid)),
        )),
    }
}

fn hangs(path: &Path) -> io::Error {
    let why = format!("{}: its file system does not answer", path.display());
    io::Error::new(io::ErrorKind::TimedOut, why)
}

fn groups_of(uid: u32, gid: u32) -> io::Result<Vec<libc::gid_t>> {
    let Some(user) = User::with_id(uid)? else { return Ok(vec![gid]) };
    let name = CString::new(user.name)?;
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut count = groups.len() as i32;
        // SAFETY: the name ends in NUL, and `count` says how many groups there is room for.
        let found =
            unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        let count = usize::try_from(count).unwrap_or(0);
        if found >= 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        if count <= groups.len() {
            return Err(io::Error::other("the groups of the user cannot be listed"));
        }
        groups.resize(count, 0);
    }
}

fn become_on_this_thread(uid: u32, gid: u32, groups: &[libc::gid_t]) -> io::Result<()> {
    // SAFETY: integers, and an array with its length; the call changes this thread alone.
    let done = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    succeeded(done)?;
    // Real and saved ids stay root's: by these the kernel decides who may send signals to the thread, and so
    // to the whole process. Opening a file is judged by the effective ids.
    let same = -1i64;
    // SAFETY: integers only.
    succeeded(unsafe { libc::syscall(libc::SYS_setresgid, same, i64::from(gid), same) })?;
    // SAFETY: integers only. Leaving the effective 0 takes all effective capabilities of the thread.
    succeeded(unsafe { libc::syscall(libc::SYS_setresuid, same, i64::from(uid), same) })
}

fn succeeded(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_user_reaches_only_permitted_paths_and_this_process_keeps_its_rights() {
        if !rustix::process::geteuid().is_root() {
            crate::ui::note!("SKIPPED: only root can take another user's rights");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let (open, shut) = (dir.path().join("open"), dir.path().join("shut"));
        std::fs::create_dir_all(shut.join("in")).unwrap();
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&shut, PermissionsExt::from_mode(0o700)).unwrap();
        let reached = reach(&open, 4711, 4711).unwrap();
        assert_eq!(reached.path, open.canonicalize().unwrap());
        assert_eq!(reached.identity, DirStore::open(&open).unwrap().identity().unwrap());
        let error = reach(&shut.join("in"), 4711, 4711).unwrap_err().to_string();
        assert!(error.contains("uid 4711 cannot open it"), "{error}");
        assert!(reach(&shut.join("in"), 0, 0).is_ok());
        let who = as_user(4711, 4712, dir.path(), || {
            // SAFETY: they cannot fail.
            Ok(unsafe { (libc::geteuid(), libc::getegid()) })
        });
        assert_eq!(who.unwrap(), (4711, 4712));
        assert!(rustix::process::geteuid().is_root());
    }

    #[test]
    fn nobody_reaches_what_this_process_has_open_or_the_kernel_shows_of_itself() {
        let dir = tempfile::tempdir().unwrap();
        let held = std::fs::File::open(dir.path()).unwrap();
        for link in ["/proc/self/cwd".into(), format!("/proc/self/fd/{}", held.as_raw_fd())] {
            let error = reach(Path::new(&link), 0, 0).unwrap_err().to_string();
            assert!(error.contains("cannot open it"), "{error}");
        }
        for (path, kind) in [("/proc", "proc"), ("/proc/sys", "proc"), ("/sys", "sysfs")] {
            let error = reach(Path::new(path), 0, 0).unwrap_err().to_string();
            assert!(error.contains(&format!("{path}: this is {kind}")), "{error}");
        }
    }

    #[test]
    fn what_hangs_is_waited_for_once_and_keeps_nothing_else_waiting() {
        let (hung, other) = (Path::new("/hung"), Path::new("/other"));
        let (open, gate) = mpsc::channel::<()>();
        let work = move || gate.recv().map_err(|e| io::Error::other(e.to_string()));
        let error = as_user(0, 0, hung, work).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let asked = std::time::Instant::now();
        let error = as_user(0, 0, hung, || Ok(())).unwrap_err();
        assert!(error.to_string().contains("/hung: its file system does not answer"), "{error}");
        as_user(0, 0, other, || Ok(())).unwrap();
        assert!(asked.elapsed() < PATIENCE / 2, "somebody waited");
        open.send(()).unwrap();
        let deadline = asked + Duration::from_secs(20);
        while as_user(0, 0, hung, || Ok(())).is_err() {
            assert!(std::time::Instant::now() < deadline, "it is over and still counts");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// A signal to one thread is a signal to its process.
    #[test]
    fn a_user_can_send_no_signal_to_the_thread_with_the_users_rights() {
        use std::os::unix::process::CommandExt;
        if !rustix::process::geteuid().is_root() {
            crate::ui::note!("SKIPPED: only root can take another user's rights");
            return;
        }
        let killed = as_user(4711, 4711, Path::new("/"), || {
            // SAFETY: it cannot fail.
            let thread = unsafe { libc::gettid() };
            // SAFETY: a syscall with three integers, between fork and exec.
            let become_user = || match unsafe { libc::setresuid(4711, 4711, 4711) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            };
            let mut kill = std::process::Command::new("/bin/sh");
            kill.arg("-c").arg(format!("kill -0 {thread}"));
            // SAFETY: the closure does nothing but one system call.
            unsafe { kill.pre_exec(become_user) };
            kill.status()
        });
        assert!(!killed.unwrap().success(), "the user could end the daemon of all");
    }
}
