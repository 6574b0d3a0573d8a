//! The daemon's log. A log file is bounded: at [`FILE_MAX`] it becomes `NAME.1` and a new one begins. It
//! is opened as a file of the daemon's own ([`Folder`]), and an event is one line of it, whatever
//! characters are in its names.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;

use forebay_backing::{Error, Kind, Result};
use forebay_base::folder::Folder;
use forebay_base::lock::{Mutex, MutexGuard, Rank};
use forebay_base::way::{self, Demand};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::LogSettings;
use crate::ui::plain::{self, Plain};

/// With the previous file at most 32 MiB: weeks of a healthy daemon.
const FILE_MAX: u64 = 16 << 20;

/// The use of standard error.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stderr {
    /// A person may read it.
    Read,
    /// No one reads it: the last words of a dying process go into the log file.
    Unread,
}

/// A file for the log.
pub struct Place {
    pub dir: Arc<Folder>,
    pub name: OsString,
}

impl Place {
    /// The file that a user named. No other user may have made a link on its path.
    pub fn named(path: &Path) -> Result<Place> {
        let unfit = |e: Error| usage(path).with_source(e);
        let end = way::walk(path, Demand::OwnLinks).map_err(unfit)?;
        let parent = end.path.parent().unwrap_or(Path::new("/"));
        let dir = Folder::of(end.dir.as_fd(), parent).map_err(|e| usage(path).with_source(e))?;
        Ok(Place { dir: Arc::new(dir), name: end.name })
    }
}

fn usage(path: &Path) -> Error {
    let message = format!("log file {}; choose another with --log-file", path.display());
    Error::new(Kind::Usage, message)
}

/// Starts logging to a file, or to standard error without a file. Panics are logged, too.
pub fn start(settings: &LogSettings, file: Option<Place>, stderr: Stderr) -> Result<()> {
    match file {
        Some(place) => subscribe(settings, Rotating::open(place, stderr)?),
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
    let escape = if settings.json { plain::json } else { |text: &str| Plain(text).to_string() };
    let writer = OneLine { escape, writer };
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

/// Turns each event, which arrives as a whole, into one line without control characters.
struct OneLine<W> {
    escape: fn(&str) -> String,
    writer: W,
}

impl<'w, W: MakeWriter<'w>> MakeWriter<'w> for OneLine<W> {
    type Writer = OneLine<W::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        OneLine { escape: self.escape, writer: self.writer.make_writer() }
    }
}

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let mut line = (self.escape)(text.strip_suffix('\n').unwrap_or(&text));
        line.push('\n');
        self.writer.write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

struct Rotating {
    place: Place,
    stderr: Stderr,
    open: Mutex<(File, u64)>,
}

struct Line<'r> {
    log: &'r Rotating,
    open: MutexGuard<'r, (File, u64)>,
}

impl Rotating {
    fn open(place: Place, stderr: Stderr) -> Result<Rotating> {
        let open = append(&place, stderr)
            .map_err(|e| usage(&place.dir.path().join(&place.name)).with_source(e))?;
        Ok(Rotating { place, stderr, open: Mutex::new(Rank::Diary, open) })
    }
}

fn append(place: &Place, stderr: Stderr) -> io::Result<(File, u64)> {
    let file = place.dir.append(&place.name)?;
    let len = file.metadata()?.len();
    if let Stderr::Unread = stderr {
        becomes_stderr(&file)?;
    }
    Ok((file, len))
}

/// Makes the file standard error: a process that runs out of memory or of stack reports it only there.
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
        // After a panic the file is still open, and its length at most a line off. Without the log no one would
        // learn of the panic.
        Line { log: self, open: self.open.lock_anyway() }
    }
}

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.open.1 + line.len() as u64 > FILE_MAX {
            let place = &self.log.place;
            let mut old = place.name.clone();
            old.push(".1");
            place.dir.rename(&place.name, old)?;
            *self.open = append(place, self.log.stderr)?;
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
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_full_log_moves_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = Rotating::open(Place::named(&path).unwrap(), Stderr::Read).unwrap();
        log.open.lock().1 = FILE_MAX - 3;
        log.make_writer().write_all(b"one").unwrap();
        log.make_writer().write_all(b"two").unwrap();
        assert_eq!(std::fs::read(dir.path().join("log.1")).unwrap(), b"one");
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
    }

    /// The log of root's daemon must not become a way to write to other files of root's.
    #[test]
    fn a_log_that_is_no_file_of_our_own_is_refused_as_a_wrong_setting() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("precious"), "").unwrap();
        std::fs::hard_link(at("precious"), at("second-name")).unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), 0o600.into()).unwrap();
        let opened = |path: &Path| {
            Place::named(path).and_then(|place| Rotating::open(place, Stderr::Read)).map(drop)
        };
        for name in ["second-name", "dir", "fifo", "missing/log"] {
            let error = opened(&at(name)).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{name}: {error}");
        }
        symlink("own", at("link")).unwrap();
        opened(&at("link")).expect("our own link leads to our own file");
        assert!(at("own").exists());
    }

    #[test]
    fn an_event_is_one_line() {
        let mut out = OneLine { escape: |text| Plain(text).to_string(), writer: Vec::new() };
        out.write_all(b"a name with \n and \x1b[2J\n").unwrap();
        assert_eq!(String::from_utf8(out.writer).unwrap(), "a name with \\n and \\u{1b}[2J\n");
    }
}
