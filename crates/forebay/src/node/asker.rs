//! What an ordinary user may ask root's daemon to touch: what that user could touch.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;

use forebay_backing::{BackingStore, DirStore};
use forebay_base::users::User;
use forebay_base::{Error, Kind, Result};

/// A directory as its user reached it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reached {
    /// Without links.
    pub path: PathBuf,
    /// As [`BackingStore::identity`] tells it: what is mounted later must be the same.
    pub identity: String,
}

/// Opens a directory with the rights of a user: what is not to be reached without the mount must not
/// be reached through it.
pub fn reach(path: &Path, uid: u32, gid: u32) -> Result<Reached> {
    let shown = path.display().to_string();
    let typed = path.to_path_buf();
    let opened = as_user(uid, gid, move || {
        let flags = libc::O_DIRECTORY | libc::O_CLOEXEC;
        File::options().read(true).custom_flags(flags).open(typed)
    });
    let dir = opened.map_err(|e| {
        let who = forebay_base::users::show(uid);
        Error::new(Kind::Usage, format!("{shown}: {who} cannot open it")).with_source(e)
    })?;
    let at = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    let path = std::fs::read_link(&at).map_err(|e| Error::io(e, shown))?;
    Ok(Reached { path, identity: DirStore::open(&at)?.identity()? })
}

/// Runs `work` on a thread of its own that has a user's rights. The C library would change all threads
/// of the process; the kernel changes the one that asks.
pub fn as_user<T: Send + 'static>(
    uid: u32,
    gid: u32,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if uid == 0 || !rustix::process::geteuid().is_root() {
        return work();
    }
    let groups = groups_of(uid, gid)?;
    let thread = thread::Builder::new().name("as-user".into()).spawn(move || {
        become_on_this_thread(uid, gid, &groups)?;
        work()
    })?;
    thread.join().map_err(|_| io::Error::other("looking with a user's rights failed"))?
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
    // Real and saved ids stay root's: by them the kernel decides who may send the thread, and with it
    // the whole process, a signal. Who opens a file is judged by the others.
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
    fn a_user_reaches_what_he_could_and_this_process_keeps_its_rights() {
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
        let who = as_user(4711, 4712, || {
            // SAFETY: they cannot fail.
            Ok(unsafe { (libc::geteuid(), libc::getegid()) })
        });
        assert_eq!(who.unwrap(), (4711, 4712));
        assert!(rustix::process::geteuid().is_root());
    }

    /// A signal to one thread is one to the process.
    #[test]
    fn a_user_can_send_no_signal_to_the_thread_that_has_his_rights() {
        use std::os::unix::process::CommandExt;
        if !rustix::process::geteuid().is_root() {
            crate::ui::note!("SKIPPED: only root can take another user's rights");
            return;
        }
        let killed = as_user(4711, 4711, || {
            // SAFETY: it cannot fail.
            let thread = unsafe { libc::gettid() };
            // SAFETY: a syscall with three integers, between fork and exec.
            let become_him = || match unsafe { libc::setresuid(4711, 4711, 4711) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            };
            let mut kill = std::process::Command::new("/bin/sh");
            kill.arg("-c").arg(format!("kill -0 {thread}"));
            // SAFETY: the closure does nothing but one system call.
            unsafe { kill.pre_exec(become_him) };
            kill.status()
        });
        assert!(!killed.unwrap().success(), "he could end the daemon of all");
    }
}
