//! Two FUSE daemons that only forward: the cost of a mount before it does any work.
//!
//! `pass` hands every open file to the kernel (passthrough); `plain` reads and writes it in the daemon. Names
//! and attributes are forwarded the same way in both: one `O_PATH` descriptor per known inode, system calls
//! relative to it. No cache, no index, no policy, and only the features that the benchmark needs: one user, no
//! xattrs, no special files.
//!
//! With a delay the daemon is a remote store: each request of the kernel is delayed first, except those that a
//! client of a network file system would not send (forget, close of a file that was not written).

mod inodes;
mod verbs;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use fuser::{Config, MountOption, Session, SessionACL};

use inodes::Inodes;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Open files go through kernel passthrough.
    Pass,
    /// Reads and writes come to the daemon.
    Plain,
}

/// Threads that read requests, each with its own clone of the device.
const THREADS: usize = 4;

/// The number of threads if requests are delayed: as many are under way at once.
const THREADS_FAR: usize = 64;

struct EmptyFs {
    mode: Mode,
    delay: Duration,
    inodes: Inodes,
}

/// Serves `source` at `mountpoint` until it is unmounted; each request is delayed by `delay`.
pub fn serve(mode: Mode, delay: Duration, source: &Path, mountpoint: &Path) -> Result<()> {
    // The kernel has already applied the caller's umask to the modes it sends.
    // SAFETY: umask only replaces a process-wide number.
    unsafe { libc::umask(0) };
    raise_descriptor_limit();
    let source: PathBuf = source.canonicalize().context("the source directory")?;
    let fs = EmptyFs { mode, delay, inodes: Inodes::new(&source)? };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(format!("{mode:?}").to_lowercase()),
        MountOption::Subtype("forebay-empty".into()),
        MountOption::DefaultPermissions,
    ];
    config.acl = SessionACL::All;
    config.n_threads = Some(if delay.is_zero() { THREADS } else { THREADS_FAR });
    config.clone_fd = true;
    let session = Session::new(fs, mountpoint, &config).context("cannot mount")?;
    session.run().context("the session ended with an error")
}

/// One descriptor per known inode: 10,000 files need more than the usual 1,024.
fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a valid rlimit; failure leaves the old limit, and opens then say so.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}
