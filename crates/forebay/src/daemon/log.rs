//! Where the daemon's events go. A log file is bounded: at [`FILE_MAX`] it becomes `NAME.1` and a
//! new one begins.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use forebay_backing::{Error, Result};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::LogSettings;

/// With the one before it at most 32 MiB: weeks of a healthy daemon.
const FILE_MAX: u64 = 16 << 20;

/// Whose standard error is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stderr {
    /// Somebody may read it.
    Read,
    /// Nobody reads it: what a dying process says there goes into the log file.
    Unread,
}

/// Starts logging to a file, or to standard error where there is none. Panics go there too.
pub fn start(settings: &LogSettings, file: Option<&Path>, stderr: Stderr) -> Result<()> {
    match file {
        Some(path) => subscribe(settings, Rotating::open(path, stderr)?),
        None => subscribe(settings, io::stderr),
    }
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(())
}

fn subscribe<W>(settings: &LogSettings, writer: W)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let level: LevelFilter = settings.level.parse().expect("the table lists tracing's levels");
    let builder =
        tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(writer);
    // A second call, as in tests, keeps the first subscriber.
    let _ = match settings.json {
        true => {
            tracing::subscriber::set_global_default(builder.json().flatten_event(true).finish())
        }
        false => tracing::subscriber::set_global_default(builder.finish()),
    };
}

struct Rotating {
    path: PathBuf,
    stderr: Stderr,
    open: Mutex<(File, u64)>,
}

struct Line<'r> {
    log: &'r Rotating,
    open: MutexGuard<'r, (File, u64)>,
}

impl Rotating {
    fn open(path: &Path, stderr: Stderr) -> Result<Rotating> {
        let open = append(path, stderr).map_err(|e| {
            Error::io(e, format!("log file {}; choose another with --log-file", path.display()))
        })?;
        Ok(Rotating { path: path.into(), stderr, open: Mutex::new(open) })
    }
}

fn append(path: &Path, stderr: Stderr) -> io::Result<(File, u64)> {
    let file = File::options().append(true).create(true).open(path)?;
    let len = file.metadata()?.len();
    if let Stderr::Unread = stderr {
        becomes_stderr(&file)?;
    }
    Ok((file, len))
}

/// A process that runs out of memory or of stack says so on standard error, and nowhere else.
fn becomes_stderr(file: &File) -> io::Result<()> {
    // SAFETY: the file is open, and no Rust value owns the descriptor of standard error.
    match unsafe { libc::dup2(file.as_raw_fd(), libc::STDERR_FILENO) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

impl<'r> MakeWriter<'r> for Rotating {
    type Writer = Line<'r>;

    fn make_writer(&'r self) -> Line<'r> {
        let open = self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Line { log: self, open }
    }
}

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.open.1 + line.len() as u64 > FILE_MAX {
            let path = &self.log.path;
            let mut old = path.as_os_str().to_owned();
            old.push(".1");
            std::fs::rename(path, old)?;
            *self.open = append(path, self.log.stderr)?;
        }
        let written = self.open.0.write(line)?;
        self.open.1 += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.open.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_moves_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = Rotating::open(&path, Stderr::Read).unwrap();
        log.open.lock().unwrap().1 = FILE_MAX - 3;
        log.make_writer().write_all(b"one").unwrap();
        log.make_writer().write_all(b"two").unwrap();
        assert_eq!(std::fs::read(dir.path().join("log.1")).unwrap(), b"one");
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
    }
}
