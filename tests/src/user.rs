//! Acting as another user on a separate thread: credentials belong to a thread if the C library is
//! not asked, which would change those of all threads.

use std::io::Result;

use crate::sys::check;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: &'static [u32],
}

pub const ROOT: User = User { uid: 0, gid: 0, groups: &[] };

impl User {
    /// Runs `work` as this user, with this umask.
    pub fn run<T: Send>(&self, umask: u32, work: impl FnOnce() -> T + Send) -> T {
        let thread = || {
            self.become_it(umask).expect("root may become anybody");
            work()
        };
        std::thread::scope(|scope| scope.spawn(thread).join()).expect("no panic inside")
    }

    fn become_it(&self, umask: u32) -> Result<()> {
        // SAFETY: each call changes this thread alone, and reads at most the groups.
        unsafe {
            check(libc::unshare(libc::CLONE_FS))?;
            libc::umask(umask);
            let groups = self.groups.as_ptr();
            check(libc::syscall(libc::SYS_setgroups, self.groups.len(), groups))?;
            check(libc::syscall(libc::SYS_setresgid, self.gid, self.gid, self.gid))?;
            check(libc::syscall(libc::SYS_setresuid, self.uid, self.uid, self.uid))?;
        }
        Ok(())
    }
}
